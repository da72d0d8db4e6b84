"""The OpenAPI 3.1 document of HTTP admin, made from the table that the routes are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import JSON, NoBody, Route

_ERROR = {"$ref": "#/components/schemas/Error"}


def document(title: str, rows: Sequence[Route], access: Access) -> dict[str, Any]:
    """The document of these rows; operations say whether they need a token."""
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.verb.lower()] = _operation(row, access)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": "1",
            "description": "Paths and shapes are Apache BookKeeper's; every refusal is an object with `error`.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "string"}},
                    "additionalProperties": False,
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Route, access: Access) -> dict[str, Any]:
    schema = {"type": "string"} if row.answer is None else dict(row.answer)
    content = {row.media_type: {"schema": schema}, **{kind: {"schema": {"type": "string"}} for kind in row.as_text}}
    answered = {"200": {"description": "done", "content": content}}
    found: dict[str, Any] = {
        "summary": row.summary,
        "operationId": f"{row.verb.lower()}{row.path.replace('/', '_')}",
        "responses": {**answered, **{str(status): _refusal(text) for status, text in _failures(row, access)}},
    }
    parameters = _parameters(row)
    if parameters:
        found["parameters"] = parameters
    if row.body is not NoBody:
        taken = {JSON: {"schema": _schema_of(row.body)}}
        found["requestBody"] = {"required": row.body_required, "content": taken}
    if access.needs_token(row.asked):
        found["security"] = [{"token": []}]
    return found


def _failures(row: Route, access: Access) -> list[tuple[int, str]]:
    failures = {400: "a parameter or the body is not as declared", **row.failures}
    if access.needs_token(row.asked):
        failures[401] = "the token is missing or wrong"
    if not row.asked.any_host:
        failures[403] = "not for whoever asks, or not under this host name"
    if access.has_rates and row.asked.action is not None:
        failures[429] = "over a limit; Retry-After says when to try again"
    if row.body is not NoBody:
        failures[413] = "the body is too large"
    return sorted(failures.items())


def _refusal(text: str) -> Mapping[str, Any]:
    return {"description": text, "content": {JSON: {"schema": _ERROR}}}


def _parameters(row: Route) -> list[dict[str, Any]]:
    schema = _schema_of(row.query)
    required = schema.get("required", ())
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": value.pop("description", ""),
            "schema": value,
        }
        for name, value in schema.get("properties", {}).items()
    ]


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    for value in schema.get("properties", {}).values():
        value.pop("title", None)
        _drop_null(value)
    schema.pop("title", None)
    schema.pop("description", None)
    return schema


def _drop_null(value: dict[str, Any]) -> None:
    """A query can't say null: what may be absent is of its other type."""
    choices = [choice for choice in value.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        value.pop("anyOf")
        value.update(choices[0])
        value.pop("default", None)
