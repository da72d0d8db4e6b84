"""Fixtures for the whole suite."""

pytest_plugins = ["tests.integration.cluster"]
