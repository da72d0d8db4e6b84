"""The equivalent of each key of Apache BookKeeper's properties files: another key, or none, with the reason.

Covers the keys that matter (docs/reference/configuration.md). Conversions take the text of the properties file and
return the TOML value: most of BookKeeper's times are milliseconds where ours are seconds, most of its sizes bytes where
ours are MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from bookgate.bookie.tools.configuration.properties_file import parts
from bookgate.runtime.metadata_drivers import installed_schemes

Properties = Mapping[str, str]
Value = bool | int | float | str | list[str] | dict[str, str]
Convert = Callable[[str, Properties], Value]

_MIB = 1024 * 1024
_PAGE_LIMIT = "pageLimit"
_BLOCK_CACHE = "dbStorage_rocksDB_blockCacheSize"
_DEFAULT_PAGE_SIZE = 8192


class NoCounterpart(ValueError):
    """The value has no equivalent here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class To:
    """The key becomes `key`; `note` is for a key with a different meaning or default.

    `several`: all parts of the value count, not the first alone. `also`: what the key sets besides.
    """

    key: str
    convert: Convert
    note: str = ""
    several: bool = False
    also: To | None = None


@dataclass(frozen=True, slots=True)
class Without:
    """The key has no equivalent; `why` says what replaces it."""

    why: str


def text(value: str, _all: Properties) -> Value:
    return value


def integer(value: str, _all: Properties) -> Value:
    return int(value, 0)


def number(value: str, _all: Properties) -> Value:
    return _finite(value)


def _finite(value: str) -> int | float:
    if not isfinite(converted := float(value)):
        raise NoCounterpart("this is no number that a setting can have")
    return _short(converted)


def boolean(value: str, _all: Properties) -> Value:
    if value.lower() not in ("true", "false", "yes", "no", "on", "off"):
        raise NoCounterpart(f"{value!r} is neither true nor false")
    return value.lower() in ("true", "yes", "on")


def only_text(value: str, _all: Properties) -> Value:
    """Converts a key with one value, where ours has several."""
    return [value]


def texts(value: str, _all: Properties) -> Value:
    return [part for part in parts(value) if part]


def seconds(value: str, _all: Properties) -> Value:
    """Converts milliseconds."""
    return _short(int(value, 0) / 1000)


def positive_seconds(value: str, _all: Properties) -> Value:
    """Converts milliseconds, where 0 or less meant no limit."""
    if int(value, 0) <= 0:
        raise NoCounterpart("0 or less meant to wait without end; the default stands")
    return _short(int(value, 0) / 1000)


def seconds_or_forever(value: str, _all: Properties) -> Value:
    """Converts milliseconds, where a negative number meant no limit."""
    if int(value, 0) < 0:
        raise NoCounterpart("a negative number meant to wait without end; so does the default")
    return _short(int(value, 0) / 1000)


def not_negative(value: str, _all: Properties) -> Value:
    """Converts a number where a negative one meant off, which is 0 here."""
    return max(0, _finite(value))


def mebibytes(value: str, _all: Properties) -> Value:
    """Converts bytes, rounded up."""
    return max(1, -(-int(value, 0) // _MIB))


def rate_mebibytes(value: str, _all: Properties) -> Value:
    """Converts bytes; in BookKeeper 0 or less is no limit."""
    return _short(max(0, int(value, 0)) / _MIB)


def entry_log_mebibytes(value: str, _all: Properties) -> Value:
    return min(1024, max(1, int(value, 0) // _MIB))


def page_mebibytes(value: str, properties: Properties) -> Value:
    """Converts a number of pages."""
    if is_set(_BLOCK_CACHE, properties) and _is_db(properties):
        raise NoCounterpart(f"{_BLOCK_CACHE} is set and counts with DbLedgerStorage")
    if int(value, 0) <= 0:
        raise NoCounterpart("0 or less took a third of the direct memory; the default of ledger_cache_mb stands")
    return max(1, int(value, 0) * int(first("pageSize", properties, str(_DEFAULT_PAGE_SIZE)), 0) // _MIB)


def block_cache_mebibytes(value: str, properties: Properties) -> Value:
    """Converts bytes."""
    if is_set(_PAGE_LIMIT, properties) and not _is_db(properties):
        raise NoCounterpart(f"{_PAGE_LIMIT} is set and counts without DbLedgerStorage")
    return mebibytes(value, properties)


def _is_db(properties: Properties) -> bool:
    return first("ledgerStorageClass", properties).endswith("DbLedgerStorage")


def storage_type(value: str, _all: Properties) -> Value:
    name = value.rpartition(".")[2]
    kinds = {"SortedLedgerStorage": "sorted", "InterleavedLedgerStorage": "interleaved", "DbLedgerStorage": "db"}
    if name not in kinds:
        raise NoCounterpart(f"there is no storage of this kind; choose one of {', '.join(kinds.values())}")
    return kinds[name]


def metadata_uri(value: str, _all: Properties) -> Value:
    scheme = value.partition("://")[0].lower()
    if scheme.partition("+")[0] not in (schemes := installed_schemes()):
        raise NoCounterpart(
            f"there is no metadata store for {scheme}://; metadata_uri may begin with {', '.join(schemes)}"
        )
    return value


def zookeeper_uri(servers: str, properties: Properties) -> Value:
    """Combines the legacy keys into one URI."""
    root = first("zkLedgersRootPath", properties, "/ledgers")
    if not root:
        raise NoCounterpart("zkLedgersRootPath is empty; give the root, /ledgers where BookKeeper's default is meant")
    kind = first("ledgerManagerFactoryClass", properties) or first("ledgerManagerType", properties)
    factory = kind.rpartition(".")[2]
    managers = ("flat", "longlonghierarchical", "longhierarchical", "hierarchical")
    manager = next((scheme for scheme in managers if factory.lower().startswith(scheme)), "null")
    hosts = ";".join(part for part in parts(servers) if part)
    return f"zk+{manager}://{hosts}{root}"


def pem_file(kind_key: str) -> Convert:
    """Converts a file whose type is in another key: only PEM files are supported."""

    def convert(value: str, properties: Properties) -> Value:
        kind = first(kind_key, properties, "JKS")
        if kind.upper() != "PEM":
            raise NoCounterpart(f"{kind_key} is {kind}: export it to a PEM file and name that")
        return value

    return convert


def auth_provider(value: str, _all: Properties) -> Value:
    if value.endswith("BookieAuthZFactory"):
        return "bookgate-tls-role"
    raise NoCounterpart("a Java class; choose bookgate-token, bookgate-tls-role or an installed provider")


def wire_protocol(value: str, properties: Properties) -> Value:
    return "v2" if boolean(value, properties) else "v3"


def placement_policy(value: str, _all: Properties) -> Value:
    name = value.rpartition(".")[2]
    kinds = {"RackawareEnsemblePlacementPolicy": "rackaware", "DefaultEnsemblePlacementPolicy": "default"}
    if name not in kinds:
        raise NoCounterpart(f"there is no such policy; choose one of {', '.join(kinds.values())}, or an installed one")
    return kinds[name]


def with_placement_policy(properties: Properties) -> Properties:
    """The properties, with BookKeeper's default policy where they set racks and name none: ours knows no racks."""
    policy, racks = "ensemblePlacementPolicy", ("minNumRacksPerWriteQuorum", "enforceMinNumRacksPerWriteQuorum")
    if properties.get(policy) or not any(properties.get(key) for key in racks):
        return properties
    return {**properties, policy: "RackawareEnsemblePlacementPolicy"}


def tls_mode(value: str, _all: Properties) -> Value:
    return "start-tls" if value else "off"


def is_set(name: str, properties: Properties) -> bool:
    """Whether the file has a value for the key."""
    return bool(first(name, properties))


def first(name: str, properties: Properties, default: str = "") -> str:
    """The value of a key that has one; the default without a line of it."""
    return parts(properties[name])[0] if name in properties else default


def unless(preferred: str, convert: Convert) -> Convert:
    """Converts a key that BookKeeper asks for only where the preferred one is not set."""

    def converted(value: str, properties: Properties) -> Value:
        if is_set(preferred, properties):
            raise NoCounterpart(f"{preferred} is set and counts")
        return convert(value, properties)

    return converted


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else value


_THREADS = Without("one event loop serves all connections, and threads of fixed number do the rest")
_METRICS = Without("metrics are always kept, and served at /metrics of http_port")
_AUTORECOVERY = Without("auto-recovery has no such setting here")
_ZK_RETRIES = Without("the session to ZooKeeper is kept with waits and retries of fixed length")
_ARGUMENT = Without("an argument of create_ledger and open_ledger, not a setting")
_HTTP_KEY = Without("http_tls serves HTTP with tls_cert and tls_key")
_READ_AHEAD = Without("reading ahead follows how sequential readers are")
_STICKY_READS = Without("sequential reads stay with a bookie by batch reads")
_JAVA_STORE = Without("only PEM files are read: without type and password")

SERVER_KEYS: Mapping[str, To | Without] = {
    "metadataServiceUri": To("metadata_uri", metadata_uri),
    "zkServers": To(
        "metadata_uri",
        unless("metadataServiceUri", zookeeper_uri),
        "put together with zkLedgersRootPath and ledgerManagerFactoryClass",
        several=True,
    ),
    "zkLedgersRootPath": Without("part of metadata_uri"),
    "ledgerManagerFactoryClass": Without("part of metadata_uri: zk+hierarchical:// and others"),
    "ledgerManagerType": Without("part of metadata_uri: zk+hierarchical:// and others"),
    "zkTimeout": Without("the session timeout is fixed"),
    "zkRetryBackoffStartMs": _ZK_RETRIES,
    "zkRetryBackoffMaxMs": _ZK_RETRIES,
    "zkRetryBackoffMaxRetries": _ZK_RETRIES,
    "zkRequestRateLimit": Without("max_store_calls of the gateway bounds what is under way at ZooKeeper"),
    "zkReplicationTaskRateLimit": _AUTORECOVERY,
    "bookiePort": To("port", integer),
    "advertisedAddress": To("advertised_address", text),
    "listeningInterface": Without("set host to the address of that interface"),
    "bookieId": To("bookie_id", text),
    "useHostNameAsBookieID": Without("set advertised_address (or bookie_id) to the host's name"),
    "allowLoopback": Without("loopback addresses are not refused"),
    "journalDirectory": To("journal_directories", unless("journalDirectories", only_text)),
    "journalDirectories": To("journal_directories", texts, several=True),
    "ledgerDirectories": To("ledger_directories", texts, several=True),
    "indexDirectories": To("index_directories", texts, several=True),
    "ledgerStorageClass": To("storage_type", storage_type),
    "logSizeLimit": To("entry_log_max_mb", entry_log_mebibytes, "in MiB, at most 1024"),
    "entryLogFilePreallocationEnabled": Without("entry logs are not allocated ahead"),
    "entryLogPerLedgerEnabled": Without("entries of all ledgers share an entry log, sorted by ledger"),
    "flushInterval": To("flush_interval_seconds", seconds, "in seconds"),
    "flushEntrylogBytes": Without("an entry log is synced by the checkpoint that wrote it"),
    "skipListSizeLimit": Without("write_cache_mb is the memory for entries not yet in the entry log, of every storage"),
    "openFileLimit": Without("open_log_limit bounds entry logs that are open; index files are opened as needed"),
    "pageSize": Without("pages have 8 KiB"),
    _PAGE_LIMIT: To("ledger_cache_mb", page_mebibytes, "in MiB"),
    "writeBufferSizeBytes": Without("a checkpoint writes entries in large pieces"),
    "readBufferSizeBytes": Without("read_ahead_cache_mb is what reads ahead"),
    "dbStorage_writeCacheMaxSizeMb": To("write_cache_mb", integer, "of every kind of storage"),
    "dbStorage_readAheadCacheMaxSizeMb": To("read_ahead_cache_mb", integer, "of every kind of storage"),
    "dbStorage_readAheadCacheBatchSize": _READ_AHEAD,
    "dbStorage_readAheadCacheBatchBytesSize": _READ_AHEAD,
    "dbStorage_rocksDB_blockSize": Without("the blocks of RocksDB are of fixed size"),
    _BLOCK_CACHE: To("ledger_cache_mb", block_cache_mebibytes, "in MiB"),
    "journalSyncData": To("journal_sync_data", boolean),
    "journalWriteData": To("journal_write_data", boolean),
    "journalMaxGroupWaitMSec": To(
        "journal_max_group_wait_seconds",
        seconds,
        "in seconds; the default here, 0, syncs whenever the disk is free: try without",
    ),
    "journalFlushWhenQueueEmpty": To("journal_flush_when_queue_empty", boolean),
    "journalBufferedWritesThreshold": To("journal_buffered_writes_threshold_bytes", integer),
    "journalBufferedEntriesThreshold": To("journal_buffered_entries_threshold", integer),
    "journalMaxSizeMB": To("journal_max_size_mb", integer),
    "journalMaxBackups": To("journal_max_backups", integer),
    "journalPreAllocSizeMB": To("journal_pre_alloc_size_mb", integer),
    "journalAlignmentSize": To("journal_alignment_size_bytes", integer),
    "journalFormatVersionToWrite": Without("version 6 is written; the earlier ones are read"),
    "fileInfoFormatVersionToWrite": Without("version 1 is written; version 0 is read"),
    "gcWaitTime": To("gc_wait_seconds", seconds, "in seconds"),
    "gcOverreplicatedLedgerWaitTime": To(
        "gc_over_replicated_wait_seconds", seconds, "in seconds; the default here is off"
    ),
    "gcMetadataOpRateLimit": To("gc_metadata_op_rate_limit_per_second", number),
    "verifyMetadataOnGC": To("verify_metadata_on_gc", boolean, "the default here is true, which is safer"),
    "minorCompactionThreshold": To("minor_compaction_threshold", number),
    "minorCompactionInterval": To("minor_compaction_interval_seconds", number),
    "majorCompactionThreshold": To("major_compaction_threshold", number),
    "majorCompactionInterval": To("major_compaction_interval_seconds", number),
    "minorCompactionMaxTimeMillis": To("minor_compaction_max_time_seconds", seconds, "in seconds"),
    "majorCompactionMaxTimeMillis": To("major_compaction_max_time_seconds", seconds, "in seconds"),
    "forceAllowCompaction": To("force_allow_compaction", boolean),
    "compactionRate": To("compaction_rate_entries_per_second", unless("compactionRateByEntries", number)),
    "compactionRateByEntries": To("compaction_rate_entries_per_second", number),
    "compactionRateByBytes": To("compaction_rate_bytes_per_second", number),
    "isThrottleByBytes": To("is_throttle_by_bytes", boolean),
    "useTransactionalCompaction": Without(
        "compaction is always so: a log goes only after its entries are safe elsewhere"
    ),
    "useTargetEntryLogSizeForGc": To("use_target_entry_log_size_for_gc", boolean),
    "entryLocationCompactionInterval": To("entry_location_compaction_interval_seconds", number),
    "isForceGCAllowWhenNoSpace": To("is_force_gc_allow_when_no_space", boolean),
    "diskUsageThreshold": To("disk_usage_threshold", number),
    "diskUsageWarnThreshold": To("disk_usage_warn_threshold", number),
    "diskUsageLwmThreshold": To("disk_usage_low_water_mark", number),
    "diskCheckInterval": To("disk_check_interval_seconds", seconds, "in seconds"),
    "minUsableSizeForHighPriorityWrites": To("min_usable_for_high_priority_writes_mb", mebibytes, "in MiB"),
    "minUsableSizeForEntryLogCreation": To("min_usable_for_entry_log_mb", mebibytes, "in MiB"),
    "minUsableSizeForIndexFileCreation": To("min_usable_for_index_mb", mebibytes, "in MiB"),
    "readOnlyModeEnabled": To("read_only_mode_enabled", boolean),
    "readOnlyModeOnAnyDiskFullEnabled": To("read_only_on_any_disk_full", boolean),
    "persistBookieStatusEnabled": To("persist_bookie_status", boolean),
    "forceReadOnlyBookie": To("force_read_only", boolean),
    "allowStorageExpansion": To("allow_storage_expansion", boolean),
    "numAddWorkerThreads": _THREADS,
    "numReadWorkerThreads": _THREADS,
    "numLongPollWorkerThreads": _THREADS,
    "numHighPriorityWorkerThreads": _THREADS,
    "serverNumIOThreads": _THREADS,
    "maxPendingAddRequestsPerThread": Without("a connection is not read while there is no room for its adds"),
    "maxPendingReadRequestsPerThread": Without("a connection is not read while its reads are behind"),
    "maxAddsInProgressLimit": Without("a connection is not read while there is no room for its adds"),
    "maxReadsInProgressLimit": Without("a connection is not read while its reads are behind"),
    "nettyMaxFrameSizeBytes": To("max_frame_size_bytes", integer),
    "maxBatchReadSize": To("max_batch_read_size_bytes", integer),
    "autoRecoveryDaemonEnabled": To("auto_recovery", boolean),
    "lostBookieRecoveryDelay": To("lost_bookie_recovery_delay_seconds", integer),
    "auditorPeriodicCheckInterval": To("replica_check_interval_seconds", number),
    "auditorPeriodicPlacementPolicyCheckInterval": To("placement_check_interval_seconds", number),
    "auditorPeriodicBookieCheckInterval": To("audit_interval_seconds", number),
    "openLedgerRereplicationGracePeriod": To("open_ledger_recovery_grace_seconds", seconds, "in seconds"),
    "rwRereplicateBackoffMs": _AUTORECOVERY,
    "rereplicationEntryBatchSize": _AUTORECOVERY,
    "replicationRateByBytes": To("replication_rate_mb_per_second", rate_mebibytes, "in MiB, what is stored included"),
    "httpServerEnabled": Without("HTTP is always served"),
    "httpServerPort": To("http_port", integer),
    "httpServerHost": Without("host is the address of all ports"),
    "httpServerTlsEnable": To("http_tls", boolean, "with tls_cert and tls_key, not a store of its own"),
    "httpServerKeystorePath": _HTTP_KEY,
    "httpServerKeystorePassword": _HTTP_KEY,
    "httpServerKeyStorePath": _HTTP_KEY,
    "httpServerKeyStorePassword": _HTTP_KEY,
    "httpServerTrustStorePath": Without("HTTP asks for the token, not for certificates of clients"),
    "httpServerTrustStorePassword": Without("HTTP asks for the token, not for certificates of clients"),
    "httpServerClass": Without("there is one HTTP server"),
    "enableStatistics": _METRICS,
    "statsProviderClass": _METRICS,
    "prometheusStatsHttpPort": _METRICS,
    "localScrubInterval": Without("entries are checked when they are read; `bookgate bookie inspect` looks into files"),
    "localScrubRateLimit": Without(
        "entries are checked when they are read; `bookgate bookie inspect` looks into files"
    ),
    "dataIntegrityChecking": Without("a bookie that lost data is to be recovered from the others"),
    "skipReplayJournalInvalidRecord": To("skip_replay_journal_invalid_record", boolean),
    "tlsProviderFactoryClass": Without("tls_cert and tls_key set up TLS"),
    "tlsProvider": Without("OpenSSL is the provider"),
    "tlsKeyStoreType": _JAVA_STORE,
    "tlsKeyStore": To("tls_key", pem_file("tlsKeyStoreType")),
    "tlsKeyStorePasswordPath": _JAVA_STORE,
    "tlsTrustStoreType": _JAVA_STORE,
    "tlsTrustStore": To("tls_client_ca", pem_file("tlsTrustStoreType")),
    "tlsTrustStorePasswordPath": _JAVA_STORE,
    "tlsCertificatePath": To("tls_cert", text),
    "tlsClientAuthentication": To("tls_require_client_cert", boolean),
    "tlsEnabledCipherSuites": Without("TLS 1.2 and later with OpenSSL's own choice"),
    "tlsEnabledProtocols": Without("TLS 1.2 and later"),
    "tlsCertFilesRefreshDurationSeconds": Without("certificate files that change are taken up by the next connection"),
    "bookieAuthProviderFactoryClass": To("auth_provider", auth_provider),
    "authorizedRoles": Without("set the roles in the table auth_options; see docs/bookie.md, Authentication"),
}

CLIENT_KEYS: Mapping[str, To | Without] = {
    "metadataServiceUri": To("gateways", text, "a client needs no metadata store: name gateways, grpc://host:4181"),
    "zkServers": To(
        "gateways",
        unless("metadataServiceUri", zookeeper_uri),
        "a client needs no metadata store: name gateways, grpc://host:4181",
        several=True,
    ),
    "storeSystemTimeAsLedgerCreationTime": Without("the time of creation is always kept"),
    "nettyMaxFrameSizeBytes": To("max_frame_size_bytes", integer),
    "digestType": _ARGUMENT,
    "passwd": _ARGUMENT,
    "enableDigestTypeAutodetection": Without("the digest is always taken from the ledger's metadata"),
    "addEntryTimeoutSec": To("add_timeout_seconds", number),
    "readEntryTimeoutSec": To("read_timeout_seconds", number),
    "readTimeout": To(
        "read_timeout_seconds",
        unless("readEntryTimeoutSec", number),
        also=To("add_timeout_seconds", unless("addEntryTimeoutSec", number)),
    ),
    "addEntryQuorumTimeoutSec": To("add_quorum_timeout_seconds", not_negative, "0 is off"),
    "speculativeReadTimeout": To(
        "speculative_read_timeout_seconds", unless("firstSpeculativeReadTimeout", seconds), "in seconds"
    ),
    "firstSpeculativeReadTimeout": To("speculative_read_timeout_seconds", seconds, "in seconds"),
    "maxSpeculativeReadTimeout": Without("speculative_read_timeout_seconds is the one wait before each next bookie"),
    "speculativeReadTimeoutBackoffMultiplier": Without("the waits do not grow"),
    "firstSpeculativeReadLACTimeout": To("first_speculative_lac_timeout_seconds", seconds, "in seconds"),
    "maxSpeculativeReadLACTimeout": To("max_speculative_lac_timeout_seconds", seconds, "in seconds"),
    "numChannelsPerBookie": To("num_channels_per_bookie", integer),
    "useV2WireProtocol": To("wire_protocol", wire_protocol),
    "throttle": To("max_in_flight_entries", integer, "of one ledger, and of appends only"),
    "explicitLacInterval": To("explicit_lac_interval_seconds", seconds, "in seconds"),
    "ensemblePlacementPolicy": To("placement_policy", placement_policy, "BookKeeper's default is rackaware"),
    "minNumRacksPerWriteQuorum": To("min_racks_per_write_quorum", integer),
    "enforceMinNumRacksPerWriteQuorum": To("enforce_min_racks", boolean),
    "delayEnsembleChange": To("delay_ensemble_change", boolean),
    "maxNumEnsembleChanges": To("max_ensemble_changes", integer),
    "maxAllowedEnsembleChanges": To("max_ensemble_changes", unless("maxNumEnsembleChanges", integer)),
    "opportunisticStriping": To("opportunistic_striping", boolean),
    "recoveryReadBatchSize": To("recovery_read_batch_entries", integer, "the default here, 400, is much faster"),
    "enableParallelRecoveryRead": Without("recovery always reads ahead, recovery_read_batch_entries entries"),
    "bookieHealthCheckEnabled": To("bookie_health_check", boolean),
    "bookieHealthCheckIntervalSeconds": To("bookie_error_interval_seconds", number),
    "bookieErrorThresholdPerInterval": To("bookie_error_threshold", integer),
    "bookieQuarantineTimeSeconds": To("bookie_quarantine_time_seconds", number),
    "bookieQuarantineRatio": Without("every bookie over its threshold is left out"),
    "diskWeightBasedPlacementEnabled": To("weight_by_free_space", boolean),
    "getBookieInfoIntervalSeconds": To("weight_interval_seconds", number),
    "reorderReadSequenceEnabled": Without("slow and failed bookies are always asked last"),
    "stickyReadsEnabled": _STICKY_READS,
    "stickyReadSEnabled": _STICKY_READS,
    "numWorkerThreads": _THREADS,
    "numIOThreads": _THREADS,
    "clientConnectTimeoutMillis": To("connect_timeout_seconds", positive_seconds, "in seconds"),
    "waitTimeoutOnBackpressureMs": To("backpressure_timeout_seconds", seconds_or_forever, "in seconds; 0: not at all"),
    "batchReadEnabled": To("batch_reads", boolean),
    "clientRole": Without("a connection has no role"),
    "bookieAddressResolverEnabled": Without("addresses of bookies always come from discovery"),
    "clientAuthProviderFactoryClass": To("auth_provider", auth_provider),
    "tlsProviderFactoryClass": To("bookie_tls", tls_mode),
    "clientTrustStoreType": _JAVA_STORE,
    "clientTrustStorePasswordPath": _JAVA_STORE,
    "clientKeyStoreType": _JAVA_STORE,
    "clientKeyStorePasswordPath": _JAVA_STORE,
    "clientTrustStore": To("bookie_tls_ca", pem_file("clientTrustStoreType")),
    "clientKeyStore": To("bookie_tls_key", pem_file("clientKeyStoreType")),
    "tlsHostnameVerificationEnabled": To("bookie_tls_verify_host_name", boolean, "the default here is true"),
    "startTLSTimeoutSecs": To("bookie_tls_timeout_seconds", number),
}
