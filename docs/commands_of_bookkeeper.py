"""The commands of Apache BookKeeper and what takes their place here: the second table of docs/reference/commands.md.

Each row: BookKeeper's command (`bookkeeper shell`, or `bkctl GROUP` where the shell has none), ours, and a remark. Ours
is None where there is nothing, and the remark says why.
"""

from __future__ import annotations

from typing import NamedTuple

_NO_CONVERSION = "no conversion of an index in place"


class Row(NamedTuple):
    theirs: str
    ours: str | None
    remark: str = ""


ROWS = (
    Row("bookie", "bookie start", "`bin/bookkeeper bookie`"),
    Row("localbookie n, standalone", "standalone", "`bin/bookkeeper localbookie`"),
    Row("autorecovery", "autorecovery start", "or `auto_recovery = true` of bookies"),
    Row("upgrade", None, "directories of layout 3 and later are taken as they are; older ones are refused"),
    Row("metaformat", "cluster format"),
    Row("initnewcluster", "cluster init"),
    Row("nukeexistingcluster", "cluster nuke"),
    Row("whatisinstanceid", "cluster instance-id"),
    Row("clusterinfo", "cluster status", "`cluster info` also counts ledgers, in the store itself"),
    Row("initbookie", "bookie init"),
    Row("bookieformat", "bookie format"),
    Row("listbookies", "bookie list", "-rw, -ro and -a as there; hosts are among the endpoints"),
    Row("bookieinfo", "bookie info"),
    Row("endpointinfo", "bookie endpoints"),
    Row("bookiesanity", "bookie sanity", "of any bookie, from anywhere"),
    Row(
        "recover",
        "bookie recover",
        "each ledger under its lock; -l is --ledger, -dr --dry-run, -sk --skip-open-ledgers, -rate --rate in MiB; "
        "-sku is always so; -q is `ledger list --bookie`; `bookie drain` leaves the copying to auto-recovery",
    ),
    Row(
        "decommissionbookie",
        "bookie decommission",
        "waits until no metadata name the bookie, so its cookie is not missed",
    ),
    Row("listunderreplicated", "ledger under-replicated", "-mr and -emr are --missing and --not-missing; all is shown"),
    Row("whoisauditor", "autorecovery status"),
    Row("autorecovery -enable, -disable", "autorecovery enable", "or `autorecovery disable`"),
    Row("queryautorecoverystatus", "ledger under-replicated", "those that are locked are being repaired"),
    Row("lostbookierecoverydelay", "autorecovery delay", "-g is without an argument, -s with one, 0 too"),
    Row("triggeraudit", "autorecovery trigger"),
    Row(
        "forceauditchecks",
        "autorecovery trigger",
        "-calc and -rc are --check replicas, -ppc is --check placement; Bookgate's auditor begins at once",
    ),
    Row("listledgers", "ledger list", "-bookieid is --bookie; metadata is always shown"),
    Row("ledgermetadata", "ledger metadata show", "or `ledger show`"),
    Row(
        "ledgermetadata -dumptofile",
        "ledger metadata dump",
        "in the current version",
    ),
    Row("ledgermetadata -restorefromfile", "ledger metadata restore", "-update is --update"),
    Row("readledger", "ledger read", "-fe and -le are --from and --to, -r is --recover, -b is --bookie"),
    Row("deleteledger", "ledger delete"),
    Row("simpletest", "ledger simple-test", "-e, -w, -a and -n as there"),
    Row("updateledgers", "ledger replace-bookie", "ours takes any two ids, not only host name and IP address"),
    Row("updateBookieInLedger", "ledger replace-bookie", "-sb and -db are the two arguments"),
    Row("ledger", "bookie inspect ledger"),
    Row("activeledgers", "bookie inspect log", "bytes by ledger; those the metadata no longer has are not left out"),
    Row("readlog", "bookie inspect log", "-l is --ledger, -e is --entry, -m is --payload"),
    Row("readlogmetadata", "bookie inspect log", "the map at the log's end, compared with what the log holds"),
    Row("readjournal", "bookie inspect journal"),
    Row("lastmark", "bookie inspect last-mark"),
    Row("listfilesondisc", "bookie inspect files", "-txn, -log and -idx are --kind"),
    Row("localconsistencycheck", "bookie inspect index", "every slot of the index is followed to its entry"),
    Row("check-db-ledgers-index", "bookie inspect index", "of a RocksDB index too"),
    Row("cookie_create", "cookie create"),
    Row("cookie_delete", "cookie delete"),
    Row("cookie_update", "cookie update"),
    Row("cookie_get", "cookie get"),
    Row("cookie_generate", "cookie generate"),
    Row("updatecookie -list", "cookie list"),
    Row("updatecookie -bookieId", "cookie generate", "then `cookie create` and `cookie delete`"),
    Row("updatecookie -expandstorage", None, "the setting allow_storage_expansion, and a restart"),
    Row("convert-to-db-storage", None, _NO_CONVERSION),
    Row("convert-to-interleaved-storage", None, _NO_CONVERSION),
    Row("rebuild-db-ledger-locations-index", None, _NO_CONVERSION),
    Row("rebuild-db-ledgers-index", None, _NO_CONVERSION),
    Row("regenerate-interleaved-storage-index-file", None, _NO_CONVERSION),
    Row("bkctl healthCheck switch", None, "a setting of each client: bookie_health_check"),
    Row("bkctl cluster, namespace, table, tables", None, "stream storage is no part of Bookgate"),
    Row(
        "HTTP: gc, gc/suspend_compaction, gc/resume_compaction", "gc trigger", "`gc suspend`, `gc resume`, `gc status`"
    ),
    Row("HTTP: entry_location_compact", "gc compact-index"),
    Row("HTTP: autorecovery/bookie", "bookie drain"),
    Row(
        "HTTP: autorecovery/decommission", "bookie decommission", "HTTP begins it, the command also removes the cookie"
    ),
    Row("HTTP: state", "bookie state"),
    Row("HTTP: state/readonly", "bookie read-only"),
)
