"""OpenTelemetry's spans and metrics of a client: `instrument(bookkeeper)`; needs the extra `bookgate[otel]`."""

from bookgate.thinclient.telemetry.opentelemetry import instrument

__all__ = ["instrument"]
