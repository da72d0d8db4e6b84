"""TLS, authentication and access control of a ZooKeeper session: kazoo's arguments from the settings."""

from __future__ import annotations

import os
import ssl
from typing import Any

from kazoo.security import CREATOR_ALL_ACL

from bookgate.gateway.stores.zookeeper.settings import ZooKeeperSettings
from bookgate.ledger.errors import IncorrectParameterException


def security_arguments(settings: ZooKeeperSettings) -> dict[str, Any]:
    """kazoo's arguments for TLS, authentication and the nodes' ACL."""
    arguments: dict[str, Any] = {}
    if settings.zookeeper_tls:
        arguments |= {
            "use_ssl": True,
            "ca": settings.zookeeper_tls_ca,
            "certfile": settings.zookeeper_tls_cert,
            "keyfile": settings.zookeeper_tls_key,
            "check_hostname": settings.zookeeper_tls_verify_host_name,
        }
    if settings.zookeeper_auth is not None:
        arguments["auth_data"] = [("digest", settings.zookeeper_auth.get_secret_value())]
    if settings.zookeeper_acl == "creator":
        arguments["default_acl"] = CREATOR_ALL_ACL
    return arguments


def check_files(settings: ZooKeeperSettings) -> None:
    """Raises IncorrectParameterException for an unusable file, because kazoo would retry for ever."""
    for key in ("zookeeper_tls_ca", "zookeeper_tls_cert", "zookeeper_tls_key"):
        path = getattr(settings, key)
        if path is not None and not os.access(path, os.R_OK):
            raise IncorrectParameterException(f"{key}: the file {path} can't be read")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if settings.zookeeper_tls_ca is not None:
            context.load_verify_locations(settings.zookeeper_tls_ca)
        if settings.zookeeper_tls_cert is not None:
            context.load_cert_chain(settings.zookeeper_tls_cert, settings.zookeeper_tls_key)
    except (ssl.SSLError, OSError) as error:
        raise IncorrectParameterException(f"the certificates for ZooKeeper can't be used: {error}") from error
