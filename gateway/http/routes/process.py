"""What every process reports over HTTP: that it is alive, its metrics, its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from bookgate.gateway.http.api import TEXT, AnyQuery, Call, NoBody, NoQuery, Route, get
from bookgate.runtime.settings import secret_keys

_MASK = "**********"


def process_routes(settings: BaseModel, metrics: Callable[[], str | bytes], metrics_type: str) -> list[Route]:
    """`metrics` gives them as text of this media type."""

    async def heartbeat(_call: Call[NoQuery, NoBody]) -> str:
        return "OK\n"

    async def scrape(_call: Call[NoQuery, NoBody]) -> Response:
        return Response(metrics(), media_type=metrics_type)

    async def config(_call: Call[NoQuery, NoBody]) -> Any:
        return masked(settings)

    return [
        # Who watches may be set up to send parameters; they choose nothing here.
        get("/heartbeat", "The process lives", heartbeat, query=AnyQuery, answer=None, media_type=TEXT),
        get("/metrics", "Metrics for Prometheus", scrape, query=AnyQuery, answer=None, media_type=TEXT),
        get("/api/v1/config/server_config", "Settings in force, secrets masked", config),
    ]


def masked(settings: BaseModel) -> dict[str, Any]:
    """What is in force, with secrets hidden: those that the settings declare, and a user's password in a URI."""
    return _masked_table(settings.model_dump(mode="json"), secret_keys(type(settings)))


def _masked_table(values: Mapping[str, Any], secrets: frozenset[str]) -> dict[str, Any]:
    return {key: _masked(key, value, secrets) for key, value in values.items()}


def _masked(key: str, value: Any, secrets: frozenset[str]) -> Any:
    if value is not None and key in secrets:
        return dict.fromkeys(value, _MASK) if isinstance(value, Mapping) else _MASK
    if isinstance(value, Mapping):
        return _masked_table(value, secrets)
    return masked_uri(value) if isinstance(value, str) and key.endswith("uri") else value


def masked_uri(uri: str) -> str:
    """The same without the password that it may hold."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{_MASK}@{rest.rpartition('@')[2]}" if "@" in uri else uri
