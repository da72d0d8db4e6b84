"""The console's files: one page, its style and its modules, as in `static`.

The page may load nothing from other hosts and run nothing but its own files (Content-Security-Policy). Browsers
revalidate the files at each load, so that an upgrade is visible at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

Answer = Callable[[Request], Awaitable[Response]]

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def console_routes() -> list[Route]:
    """The page at `/`, its files at `/console/…`."""
    files = dict(_files())
    page = files.pop("index.html")

    async def serve(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        return await files[name](request)

    return [
        Route(path, answer, methods=["GET"], include_in_schema=False)
        for path, answer in (("/", page), ("/console/{name}", serve))
    ]


def _files() -> Iterator[tuple[str, Answer]]:
    for file in resources.files("bookgate.gateway.console").joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            yield file.name, _serve(file.read_bytes(), kind)


def _serve(content: bytes, kind: str) -> Answer:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return serve
