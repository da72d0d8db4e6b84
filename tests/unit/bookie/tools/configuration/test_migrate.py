"""A properties file of Apache BookKeeper becomes TOML that a start accepts, and no key goes without a word."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bookgate.bookie.commands.config import app
from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.tools.configuration.bookkeeper_keys import CLIENT_KEYS, SERVER_KEYS, To
from bookgate.bookie.tools.configuration.migrate import migrate_properties, parse_properties
from bookgate.thinclient.config import ClientConfig

SERVER = """
metadataServiceUri zkServers zkLedgersRootPath zkTimeout zkRetryBackoffStartMs zkRetryBackoffMaxMs
zkRetryBackoffMaxRetries zkRequestRateLimit zkReplicationTaskRateLimit ledgerManagerFactoryClass bookiePort
advertisedAddress listeningInterface bookieId useHostNameAsBookieID allowLoopback journalDirectories ledgerDirectories
indexDirectories ledgerStorageClass logSizeLimit entryLogFilePreallocationEnabled entryLogPerLedgerEnabled flushInterval
flushEntrylogBytes skipListSizeLimit openFileLimit pageSize pageLimit writeBufferSizeBytes readBufferSizeBytes
dbStorage_writeCacheMaxSizeMb dbStorage_readAheadCacheMaxSizeMb dbStorage_readAheadCacheBatchSize journalSyncData
journalWriteData journalMaxGroupWaitMSec journalBufferedWritesThreshold journalMaxSizeMB journalMaxBackups
journalPreAllocSizeMB journalFormatVersionToWrite fileInfoFormatVersionToWrite gcWaitTime gcOverreplicatedLedgerWaitTime
verifyMetadataOnGC minorCompactionThreshold majorCompactionThreshold minorCompactionInterval majorCompactionInterval
compactionRate compactionRateByEntries compactionRateByBytes isThrottleByBytes useTransactionalCompaction
isForceGCAllowWhenNoSpace diskUsageThreshold diskUsageWarnThreshold diskUsageLwmThreshold diskCheckInterval
readOnlyModeEnabled readOnlyModeOnAnyDiskFullEnabled persistBookieStatusEnabled forceReadOnlyBookie
allowStorageExpansion numAddWorkerThreads numReadWorkerThreads numLongPollWorkerThreads numHighPriorityWorkerThreads
maxPendingAddRequestsPerThread maxPendingReadRequestsPerThread maxAddsInProgressLimit maxReadsInProgressLimit
nettyMaxFrameSizeBytes maxBatchReadSize serverNumIOThreads autoRecoveryDaemonEnabled lostBookieRecoveryDelay
auditorPeriodicCheckInterval auditorPeriodicBookieCheckInterval openLedgerRereplicationGracePeriod
rwRereplicateBackoffMs rereplicationEntryBatchSize replicationRateByBytes httpServerEnabled httpServerPort
enableStatistics statsProviderClass
localScrubInterval localScrubRateLimit dataIntegrityChecking skipReplayJournalInvalidRecord
"""
CLIENT = """
storeSystemTimeAsLedgerCreationTime nettyMaxFrameSizeBytes digestType passwd enableDigestTypeAutodetection
addEntryTimeoutSec readEntryTimeoutSec addEntryQuorumTimeoutSec speculativeReadTimeout maxSpeculativeReadTimeout
speculativeReadTimeoutBackoffMultiplier firstSpeculativeReadLACTimeout maxSpeculativeReadLACTimeout numChannelsPerBookie
useV2WireProtocol throttle explicitLacInterval ensemblePlacementPolicy minNumRacksPerWriteQuorum
enforceMinNumRacksPerWriteQuorum delayEnsembleChange maxNumEnsembleChanges opportunisticStriping recoveryReadBatchSize
enableParallelRecoveryRead bookieHealthCheckEnabled bookieHealthCheckIntervalSeconds bookieErrorThresholdPerInterval
bookieQuarantineTimeSeconds bookieQuarantineRatio reorderReadSequenceEnabled stickyReadsEnabled numWorkerThreads
numIOThreads clientConnectTimeoutMillis batchReadEnabled clientRole bookieAddressResolverEnabled
"""

CONF = r"""
! of a cluster
metadataServiceUri=zk+hierarchical://zk1:2181;zk2:2181/ledgers
bookiePort : 3182
journalDirectories=/j1,\
    /j2
ledgerDirectories /l1,/l2
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
gcWaitTime=900000
journalMaxGroupWaitMSec=2
minorCompactionMaxTimeMillis=1500
diskCheckInterval=2500
logSizeLimit=536870912
pageLimit=25600
minUsableSizeForEntryLogCreation=1288490188
verifyMetadataOnGC=false
replicationRateByBytes=26214400
useTransactionalCompaction=true
gcWaitTme=1
passwd=hidden
addEntryTimeoutSec=7
tlsKeyStore=/x.jks
"""


def test_every_key_that_matters_is_known() -> None:
    assert set(SERVER.split()) <= set(SERVER_KEYS)
    assert set(CLIENT.split()) <= set(CLIENT_KEYS)


def test_every_counterpart_exists() -> None:
    targets = {meaning.key for meaning in SERVER_KEYS.values() if isinstance(meaning, To)}
    assert targets <= set(BookieConfig.model_fields)
    targets = {meaning.key for meaning in CLIENT_KEYS.values() if isinstance(meaning, To)}
    assert targets <= set(ClientConfig.model_fields)


def test_units_are_converted_and_the_result_starts_a_bookie(tmp_path: Path) -> None:
    source = tmp_path / "bk_server.conf"
    source.write_text(CONF)
    result = CliRunner().invoke(app, ["migrate", str(source)])
    assert result.exit_code == 0
    assert tomllib.loads(result.stdout) == {
        "metadata_uri": "zk+hierarchical://zk1:2181;zk2:2181/ledgers",
        "port": 3182,
        "journal_directories": ["/j1", "/j2"],
        "ledger_directories": ["/l1", "/l2"],
        "storage_type": "db",
        "gc_wait_seconds": 900,
        "journal_max_group_wait_seconds": 0.002,
        "minor_compaction_max_time_seconds": 1.5,
        "disk_check_interval_seconds": 2.5,
        "entry_log_max_mb": 512,
        "ledger_cache_mb": 200,
        "min_usable_for_entry_log_mb": 1229,
        "verify_metadata_on_gc": False,
        "replication_rate_mb_per_second": 25,
    }
    file = tmp_path / "bookie.toml"
    file.write_text(result.stdout)
    assert load_config(file).gc_wait_seconds == 900


def test_no_limit_stays_none() -> None:
    assert tomllib.loads(migrate_properties("replicationRateByBytes=-1"))["replication_rate_mb_per_second"] == 0


def test_every_key_has_its_word() -> None:
    page = migrate_properties(CONF)
    for name in parse_properties(CONF):
        meaning = SERVER_KEYS.get(name) or CLIENT_KEYS.get(name)
        assert name in page or (isinstance(meaning, To) and f"{meaning.key} = " in page), name
    assert "did you mean gcWaitTime?" in page
    assert "tlsKeyStoreType is JKS" in page
    assert "# add_timeout_seconds = 7" in page
    assert "hidden" not in page
    assert "# verifyMetadataOnGC = false: the default here is true" in page


def test_the_clients_part() -> None:
    page = migrate_properties("addEntryTimeoutSec=7\nexplicitLacInterval=500\naddEntryQuorumTimeoutSec=-1\n", "client")
    assert tomllib.loads(page) == {
        "add_timeout_seconds": 7,
        "explicit_lac_interval_seconds": 0.5,
        "add_quorum_timeout_seconds": 0,
    }


@pytest.mark.parametrize(
    ("conf", "policy"),
    [
        ("minNumRacksPerWriteQuorum=3\n", "rackaware"),
        ("enforceMinNumRacksPerWriteQuorum=true\nensemblePlacementPolicy=\n", "rackaware"),
        ("minNumRacksPerWriteQuorum=3\nensemblePlacementPolicy=x.DefaultEnsemblePlacementPolicy\n", "default"),
        ("ensemblePlacementPolicy=x.RegionAwareEnsemblePlacementPolicy\nminNumRacksPerWriteQuorum=3\n", None),
        ("addEntryTimeoutSec=7\n", None),
    ],
)
def test_racks_count_as_they_do_by_bookkeepers_default(conf: str, policy: str | None) -> None:
    """BookKeeper's client is rack-aware where no policy is named, and rack keys without one would count for nothing."""
    page = migrate_properties(conf, "client")
    assert tomllib.loads(page).get("placement_policy") == policy
    assert "# To do" not in page
    assert ("# placement_policy = " in migrate_properties(conf)) == (policy is not None)


def test_an_enforced_minimum_without_its_policy_is_left_to_do() -> None:
    conf = "ensemblePlacementPolicy=x.RegionAwareEnsemblePlacementPolicy\nenforceMinNumRacksPerWriteQuorum=true\n"
    assert "# To do: enforce_min_racks has no effect" in migrate_properties(conf, "client")


@pytest.mark.parametrize(
    ("conf", "uri"),
    [
        ("zkServers=a:2181,b:2181", "zk+null://a:2181;b:2181/ledgers"),
        ("zkServers=a\nzkLedgersRootPath=/bk\nledgerManagerFactoryClass=x.FlatLedgerManagerFactory", "zk+flat://a/bk"),
        ("zkServers=a\nledgerManagerType=longhierarchical", "zk+longhierarchical://a/ledgers"),
        (
            "zkServers=a\nledgerManagerFactoryClass=org.apache.bookkeeper.meta.LongLongHierarchicalLedgerManagerFactory",
            "zk+longlonghierarchical://a/ledgers",
        ),
        ("zkServers=a\nmetadataServiceUri=zk://b/l", "zk://b/l"),
    ],
)
def test_the_metadata_store(conf: str, uri: str) -> None:
    assert tomllib.loads(migrate_properties(conf))["metadata_uri"] == uri


def test_what_can_not_be_converted_is_left_to_do() -> None:
    page = migrate_properties(
        "metadataServiceUri=etcd://x\nbookiePort=many\njournalDirectory=/a\njournalDirectories=/b\nledgerDirectories=/c\n"
    )
    assert tomllib.loads(page) == {"journal_directories": ["/a"], "ledger_directories": ["/c"]}
    assert "# To do: metadata_uri: it must be set" in page
    assert "no metadata store for etcd://" in page
    assert "bookiePort = many: not taken over: this is not a number" in page
    assert "journalDirectory has set journal_directories" in page


def test_properties_are_read_as_java_reads_them() -> None:
    text = "a=1\n b : two words \n\\u0063\\ d=x\\\n   y\\\\\n#e=1\nf\ng==\n"
    assert parse_properties(text) == {"a": "1", "b": "two words", "c d": "xy\\", "f": "", "g": "="}
