"""Spans and metrics of a client for OpenTelemetry, an extra (`bookgate[otel]`)."""
