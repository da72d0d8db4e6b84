"""A bookie's registration, and the cookie that ties its directories to its id and cluster.

Source: docs/protocol/metadata.md#registration, docs/protocol/metadata.md#cookies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.disks import directories
from bookgate.bookie.limbo.former_life import find_former_life
from bookgate.bookie.membership import cookie
from bookgate.bookie.protocol.authentication import TOKEN
from bookgate.bookie.storage.closed_before import closed_before
from bookgate.bookie.storage.limbo import Limbo
from bookgate.bookie.system.files import REAL_FILE_SYSTEM, FileSystem
from bookgate.ledger.bookie_info import (
    BOOKIE_RPC,
    FEATURES_PROPERTY,
    GATEWAY_GRPC,
    HOST_PROPERTY,
    HTTP,
    LEDGER_SCOPE,
    LEDGER_TERM,
    TLS_EXTENSION,
    VERSION_PROPERTY,
    BookieServiceInfo,
    Endpoint,
    check_bookie_id,
)
from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.runtime.logs import log_event
from bookgate.runtime.version import own_version

_log = logging.getLogger(__name__)


def bookie_id_of(config: BookieConfig, port: int) -> str:
    """The configured id, else the advertised address and port. Raises IncorrectParameterException."""
    return check_bookie_id(config.bookie_id or f"{config.advertised_host()}:{port}")


def service_info(config: BookieConfig, bookie_id: str, ports: Mapping[str, int]) -> BookieServiceInfo:
    """The registration of a bookie; `ports` has the ports of `bookie`, `http` and, if it hosts one, `gateway`."""
    host = config.advertised_host()
    kinds = (
        ("bookie", "bookie", BOOKIE_RPC),
        ("gateway", "gateway", GATEWAY_GRPC),
        ("httpserver", "http", HTTP),
    )
    endpoints = [Endpoint(name, host, ports[kind], protocol) for name, kind, protocol in kinds if kind in ports]
    endpoints[0] = replace(
        endpoints[0],
        auth=_plugins(config),
        extensions=(TLS_EXTENSION,) if config.tls_cert else (),
    )
    if config.http_tls:
        endpoints[-1] = replace(endpoints[-1], extensions=(TLS_EXTENSION,))
    features = ",".join((LEDGER_SCOPE, LEDGER_TERM))
    properties = {VERSION_PROPERTY: own_version(), FEATURES_PROPERTY: features}
    if config.announced_host:
        properties[HOST_PROPERTY] = config.announced_host
    return BookieServiceInfo(bookie_id, tuple(endpoints), properties)


def _plugins(config: BookieConfig) -> tuple[str, ...]:
    """The authentication plugins that clients need."""
    if config.auth_provider:
        return (config.auth_provider,)
    return (TOKEN,) if config.authenticates_tokens else ()


async def check_cookie(
    config: BookieConfig,
    bookie_id: str,
    metadata: LedgerManagerFactory,
    files: FileSystem = REAL_FILE_SYSTEM,
) -> str:
    """Rejects directories of another bookie; writes the cookie into those of a new bookie.

    The directories must be locked. Ledgers of an earlier bookie with the same id are recorded (`Limbo`,
    `closed_before`) before the metadata store knows the new bookie; an interrupted start is repeated.

    Returns:
        The instance id of the cluster.

    Raises:
        InvalidCookieException: The directories are another bookie's, or empty while this one has a cookie.
        MetadataVersionException: Another bookie has just started for the first time with this id.
        BKException: The store can't be read.
        OSError: A directory can't be written.
    """
    registration = metadata.registration_manager
    instance_id = await registration.cluster_instance_id()
    master = cookie.Cookie.build(bookie_id, config.journals, config.ledgers, instance_id, config.indexes)
    stored = await registration.read_cookie(bookie_id)
    paths = list(dict.fromkeys((*config.journals, *config.ledgers, *config.indexes)))
    decision = cookie.check(
        master,
        stored.value if stored else None,
        directories.read_version_files(files, paths),
        directories.empty_directories(files, paths),
        allow_expansion=config.allow_storage_expansion,
    )
    if decision is cookie.StartDecision.OK:
        return instance_id
    content = master.encode()
    if decision is cookie.StartDecision.NEW_ENVIRONMENT:
        former = await find_former_life(metadata, bookie_id)
        Membership(bookie_id, instance_id).check(await registration.cluster_instance_id(), content)
        Limbo(files, config.ledgers).begin(former.naming)
        closed_before(files, config.ledgers).replace(former.closed)
        directories.write_version_files(files, dict.fromkeys(paths, content))
        try:
            await registration.write_cookie(bookie_id, content, None)
        except MetadataVersionException:
            # Another process has started for the first time under this id. Its cookie may be the same, so with these
            # files the next start would take these directories for its own (S4).
            directories.remove_version_files(files, paths)
            raise
        log_event(_log, "directories_stamped", bookie=bookie_id)
        return instance_id
    # The metadata store comes last: directories that its cookie does not list yet are new, so an interrupted start
    # repeats.
    directories.write_version_files(files, dict.fromkeys(paths, content))
    await registration.write_cookie(bookie_id, content, stored.version if stored else None)
    log_event(_log, "directories_added", bookie=bookie_id)
    return instance_id
