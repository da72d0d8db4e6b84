"""A properties file of Apache BookKeeper becomes TOML that a start accepts, and no key goes without a word."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bookgate.bookie.commands.config import app
from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.tools.configuration.bookkeeper_keys import CLIENT_KEYS, SERVER_KEYS, To
from bookgate.bookie.tools.configuration.migrate import migrate_properties
from bookgate.bookie.tools.configuration.properties_file import parse_properties, parts, with_references_resolved
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
    for keys, settings in ((SERVER_KEYS, BookieConfig), (CLIENT_KEYS, ClientConfig)):
        meanings = [meaning for meaning in keys.values() if isinstance(meaning, To)]
        meanings += [meaning.also for meaning in meanings if meaning.also]
        assert {meaning.key for meaning in meanings} <= set(settings.model_fields)


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
        ("zkServers=a\nmetadataServiceUri=\nzkServers=b", "zk+null://a;b/ledgers"),
    ],
)
def test_the_metadata_store(conf: str, uri: str) -> None:
    assert tomllib.loads(migrate_properties(conf))["metadata_uri"] == uri


def test_what_can_not_be_converted_is_left_to_do() -> None:
    page = migrate_properties(
        "metadataServiceUri=etcd://x\nbookiePort=many\njournalDirectory=/a\njournalDirectories=/b\nledgerDirectories=/c\n"
    )
    assert tomllib.loads(page) == {"journal_directories": ["/b"], "ledger_directories": ["/c"]}
    assert "# To do: metadata_uri: it must be set" in page
    assert "no metadata store for etcd://" in page
    assert "bookiePort = many: not taken over: this is not a number" in page
    assert "journalDirectory = /a: not taken over: journalDirectories is set and counts" in page


def test_properties_are_read_as_java_reads_them() -> None:
    text = "a=1\n b : two words \n\\u0063\\ d=x\\\n   y\\\\\n#e=1\nf\ng==\n"
    assert parse_properties(text) == {"a": "1", "b": "two words", "c d": "xy\\", "f": "", "g": "="}


def settings(conf: str, target: str = "bookie") -> dict[str, object]:
    return tomllib.loads(migrate_properties(conf, target))


def test_a_repeated_key_adds_to_a_list_and_its_first_value_counts_elsewhere() -> None:
    page = migrate_properties("ledgerDirectories=/l1, /l2\nledgerDirectories=/l3\nbookiePort=3181\nbookiePort=4000\n")
    assert tomllib.loads(page) == {"ledger_directories": ["/l1", "/l2", "/l3"], "port": 3181}
    assert "# bookiePort = 3181,4000: BookKeeper takes the first of several values" in page


def test_a_comma_that_is_escaped_separates_nothing() -> None:
    assert settings("ledgerDirectories=/a\\,b,/c\njournalDirectory=/j\\,k,/l\n") == {
        "ledger_directories": ["/a,b", "/c"],
        "journal_directories": ["/j,k"],
    }


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("${base}/l", ["/data/l"]),
        ("${two}/k,${base}", ["/data/two/k", "/data"]),
        ("${list}", ["/a", "/b"]),
        ("${all}", ["/a", "/b"]),
        ("${list}/x", ["/a/x"]),
        ("${nothing:-/d}/x", ["/d/x"]),
        ("${base:-/d}", ["/data"]),
        ("x${empty}y", ["xy"]),
    ],
)
def test_references_are_resolved_as_bookkeeper_resolves_them(value: str, resolved: list[str]) -> None:
    """The answers are those of commons-configuration 2, as BookKeeper uses it."""
    lines = "base=/data\ntwo=${base}/two\nlist=/a,/b\nall=${list}\nempty=\n"
    found = with_references_resolved(parse_properties(f"{lines}key={value}\n"))
    assert parts(found["key"]) == resolved


@pytest.mark.parametrize(
    "value", ["${env:DATA}/l", "${sys:user.home}", "${nothing}", "${${which}}", "$${base}", "${loop}", "${a b"]
)
def test_a_reference_that_the_file_does_not_answer_is_left_to_do(value: str) -> None:
    page = migrate_properties(f"base=/data\nwhich=base\nloop=${{back}}\nback=${{loop}}\nledgerDirectories={value}\n")
    assert tomllib.loads(page) == {}
    assert "# To do: ledger_directories: set it; ledgerDirectories has a reference" in page
    assert f"# ledgerDirectories = {value}: not taken over: this file does not say" in page


def test_a_reference_in_what_goes_into_a_value_is_left_to_do() -> None:
    page = migrate_properties("zkServers=a\nzkLedgersRootPath=${env:ROOT}\nbookiePort=${env:PORT}\n")
    assert tomllib.loads(page) == {}
    assert "# To do: metadata_uri: set it; zkServers has a reference" in page
    assert "# To do: port: set it; bookiePort has a reference" in page


@pytest.mark.parametrize(
    ("preferred", "other", "setting"),
    [
        ("journalDirectories=/b", "journalDirectory=/a", {"journal_directories": ["/b"]}),
        ("compactionRateByEntries=2", "compactionRate=1", {"compaction_rate_entries_per_second": 2}),
    ],
)
def test_of_two_keys_of_a_bookie_bookkeepers_choice_counts(
    preferred: str, other: str, setting: dict[str, object]
) -> None:
    for conf in (f"{preferred}\n{other}\n", f"{other}\n{preferred}\n"):
        assert settings(conf) == setting
    assert settings(f"{preferred.partition('=')[0]}=\n{other}\n") != {}


@pytest.mark.parametrize(
    ("conf", "setting"),
    [
        ("readTimeout=9\nreadEntryTimeoutSec=7", {"read_timeout_seconds": 7, "add_timeout_seconds": 9}),
        ("addEntryTimeoutSec=3\nreadTimeout=9", {"read_timeout_seconds": 9, "add_timeout_seconds": 3}),
        ("readTimeout=9", {"read_timeout_seconds": 9, "add_timeout_seconds": 9}),
        ("speculativeReadTimeout=2000\nfirstSpeculativeReadTimeout=500", {"speculative_read_timeout_seconds": 0.5}),
        ("maxAllowedEnsembleChanges=1\nmaxNumEnsembleChanges=2", {"max_ensemble_changes": 2}),
    ],
)
def test_of_two_keys_of_a_client_bookkeepers_choice_counts(conf: str, setting: dict[str, object]) -> None:
    assert settings(conf, "client") == setting


def test_the_memory_of_the_storage_that_is_used_counts() -> None:
    both = "pageLimit=25600\ndbStorage_rocksDB_blockCacheSize=1048576\n"
    assert settings(both) == {"ledger_cache_mb": 200}
    assert settings(f"{both}ledgerStorageClass=x.DbLedgerStorage\n") == {"storage_type": "db", "ledger_cache_mb": 1}


def test_no_wait_on_backpressure_stays_none() -> None:
    assert settings("waitTimeoutOnBackpressureMs=0", "client") == {"backpressure_timeout_seconds": 0}
    assert settings("waitTimeoutOnBackpressureMs=1500", "client") == {"backpressure_timeout_seconds": 1.5}
    page = migrate_properties("waitTimeoutOnBackpressureMs=-1", "client")
    assert "to wait without end; so does the default" in page


def test_keys_with_a_counterpart_of_their_own_are_taken_over() -> None:
    conf = "useTargetEntryLogSizeForGc=true\nentryLocationCompactionInterval=86400\nmaxBatchReadSize=1000000\n"
    assert settings(conf) == {
        "use_target_entry_log_size_for_gc": True,
        "entry_location_compaction_interval_seconds": 86400,
        "max_batch_read_size_bytes": 1000000,
    }


def test_each_key_that_a_setting_names_becomes_that_setting() -> None:
    """The description of a setting begins with BookKeeper's key, where it has one."""
    for keys, kind in ((SERVER_KEYS, BookieConfig), (CLIENT_KEYS, ClientConfig)):
        for key, field in kind.model_fields.items():
            for name in re.findall(r"\b[a-z]+[A-Z]\w+", field.description or ""):
                meaning = keys.get(name)
                lists = {key, f"{key.removesuffix('y')}ies"}
                assert meaning is None or (isinstance(meaning, To) and meaning.key in lists), (key, name)


def test_a_key_of_bookkeepers_without_counterpart_is_not_called_unknown() -> None:
    page = migrate_properties("journalQueueSize=10000\nlocalConsistencyCheckOnStartup=true\nclientKeyStoreType=PEM\n")
    assert "# journalQueueSize = 10000: not taken over: there is no counterpart here\n" in page
    assert "did you mean" not in page
    assert "clientKeyStoreType = PEM: not taken over: only PEM files are read" in page


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999"])
@pytest.mark.parametrize("key", ["diskUsageThreshold", "addEntryQuorumTimeoutSec"])
def test_a_number_that_no_setting_can_have_is_told(key: str, value: str) -> None:
    page = migrate_properties(f"{key}={value}")
    assert tomllib.loads(page) == {}
    assert f"{key} = {value}: not taken over: this is no number that a setting can have" in page


@pytest.mark.parametrize("key", ["gcWaitTime", "replicationRateByBytes", "diskUsageThreshold"])
def test_a_number_of_hundreds_of_digits_is_told(key: str) -> None:
    assert "not taken over: this is " in migrate_properties(f"{key}={'9' * 400}")


def test_an_empty_root_of_the_ledgers_is_left_to_do() -> None:
    page = migrate_properties("zkServers=a:2181\nzkLedgersRootPath=\n")
    assert tomllib.loads(page) == {}
    assert "# To do: metadata_uri: it must be set" in page
    assert "zkLedgersRootPath is empty; give the root" in page
