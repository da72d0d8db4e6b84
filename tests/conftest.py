"""Fixtures and settings for the whole suite."""

from hypothesis import settings

pytest_plugins = ["tests.integration.cluster"]

# How long an example takes says how busy the machine is, and nothing of the product.
settings.register_profile("bookgate", deadline=None)
settings.load_profile("bookgate")
