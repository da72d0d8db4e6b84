"""The policy by which the tests of the entry port and of HTTP say who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bookgate.runtime.security.access_control import AccessControl
from tests.tokens import jwt_settings, token_file

POLICY = """
[roles.scraper]
actions = ["http.read"]
[roles.lister]
actions = ["ledger.list"]
[roles.tester]
actions = ["entry.add"]
[[bindings]]
principals = ["token:admin", "jwt:admin"]
role = "admin"
[[bindings]]
principals = ["token:operator"]
role = "operator"
[[bindings]]
principals = ["token:reader", "jwt:reader"]
role = "reader"
[[bindings]]
principals = ["token:scraper"]
role = "scraper"
[[bindings]]
principals = ["token:lister"]
role = "lister"
[[bindings]]
principals = ["token:owner", "token:stranger"]
role = "writer"
owned = true
[[bindings]]
principals = ["token:scoped"]
role = "writer"
scopes = ["7"]
[[bindings]]
principals = ["token:bookie", "token:bookie-2"]
role = "bookie"
[[bindings]]
principals = ["token:bookie"]
role = "tester"
"""
NAMES = (
    *(
        "admin",
        "operator",
        "reader",
        "scraper",
        "lister",
        "owner",
        "stranger",
        "scoped",
        "bookie",
        "bookie-2",
        "nobody",
    ),
)
"""Of the static tokens."""


def policy_settings(root: Path, policy: str = POLICY) -> dict[str, Any]:
    """The settings of a server with this policy, for whom each name has a token."""
    (root / "policy.toml").write_text(policy)
    return {
        "security_tokens": token_file(root, NAMES),
        "security_policy": root / "policy.toml",
        **jwt_settings(root),
    }


def look_at_files(access: AccessControl | None) -> None:
    """Takes changes of tokens and policy into account now, instead of within a second."""
    assert access is not None
    for file in access.files:
        file.refresh()
