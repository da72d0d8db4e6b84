"""From a URI to what reaches the metadata: the gateways, or the driver of a metadata store itself."""

from __future__ import annotations

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.runtime.metadata_drivers import load_driver
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.gateways.factory import RpcLedgerManagerFactory
from bookgate.thinclient.gateways.tokens import Provider, TokenSource
from bookgate.thinclient.gateways.uri import is_gateway_uri


def metadata_uri(gateways: str | None, config: ClientConfig) -> str:
    """The URI given, else that of the configuration. Raises IncorrectParameterException where there is none."""
    uri = gateways or config.gateways
    if not uri:
        raise IncorrectParameterException(
            "no metadata gateway is named; pass grpc://host:port or set BOOKGATE_GATEWAYS"
        )
    return uri


def metadata_factory(
    gateways: str | None,
    config: ClientConfig,
    token_provider: Provider | None = None,
    *,
    fails_fast: bool | None = None,
) -> LedgerManagerFactory:
    """What reaches the metadata of a configuration; `initialize` it first. Raises IncorrectParameterException.

    `token_provider`: returns the token for gateways, instead of the configuration's.
    `fails_fast`: whether the first call waits for gateways that all turn connections down; None: as configured.
    """
    uri = metadata_uri(gateways, config)
    if is_gateway_uri(uri):
        tokens = config.tokens if token_provider is None else TokenSource(provider=token_provider)
        return RpcLedgerManagerFactory(
            uri,
            config.metadata_timeout_seconds,
            tls=config.tls,
            retries=config.retries,
            tokens=tokens,
            fails_fast=config.connect_fails_fast if fails_fast is None else fails_fast,
        )
    return load_driver(uri)(uri)
