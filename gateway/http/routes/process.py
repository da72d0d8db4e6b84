"""What any process tells of itself over HTTP: that it lives, its metrics, its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from bookgate.gateway.http.api import TEXT, AnyQuery, Call, NoBody, NoQuery, Route, get

_MASK = "**********"
_SECRET_WORDS = ("token", "password", "secret", "auth_options", "zookeeper_auth")


def process_routes(settings: BaseModel, metrics: Callable[[], str | bytes], metrics_type: str) -> list[Route]:
    """`metrics` gives them as text of this media type."""

    async def heartbeat(_call: Call[NoQuery, NoBody]) -> str:
        return "OK\n"

    async def scrape(_call: Call[NoQuery, NoBody]) -> Response:
        return Response(metrics(), media_type=metrics_type)

    async def config(_call: Call[NoQuery, NoBody]) -> Any:
        return masked(settings.model_dump(mode="json"))

    return [
        # Who watches may be set up to send parameters; they choose nothing here.
        get("/heartbeat", "The process lives", heartbeat, query=AnyQuery, answer=None, media_type=TEXT),
        get("/metrics", "Metrics for Prometheus", scrape, query=AnyQuery, answer=None, media_type=TEXT),
        get("/api/v1/config/server_config", "Settings in force, secrets masked", config),
    ]


def masked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same with secrets hidden, by the names of their keys and where a URI holds a user's password."""
    return {key: _masked(key, value) for key, value in settings.items()}


def _masked(key: str, value: Any) -> Any:
    if value is not None and not key.endswith("_file") and any(word in key for word in _SECRET_WORDS):
        return dict.fromkeys(value, _MASK) if isinstance(value, Mapping) else _MASK
    if isinstance(value, Mapping):
        return masked(value)
    if isinstance(value, str) and key.endswith("uri") and "@" in value:
        scheme, _, rest = value.partition("://")
        return f"{scheme}://{_MASK}@{rest.rpartition('@')[2]}"
    return value
