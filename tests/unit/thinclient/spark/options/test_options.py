"""Options of the Spark source: every one, good and bad; a bad one is named in the error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from bookgate.ledger.metadata import DigestType
from bookgate.thinclient.spark.options.read_options import OptionError, Options, ReadMode, Table, parse_options
from bookgate.thinclient.spark.options.values import LedgerRange

GATEWAYS = "grpc://127.0.0.1:4181"


def parse(**options: str) -> Options:
    return parse_options({"gateways": GATEWAYS, **options}, {})


def test_defaults() -> None:
    assert parse() == Options(gateways=GATEWAYS)
    assert parse().table is Table.ENTRIES
    assert parse().max_bytes_per_partition == 128 * 1024 * 1024


def test_every_option_is_taken_whatever_its_case() -> None:
    options = parse_options(
        {
            "Gateways": "grpc://a:1,b:2",
            "TABLE": "entries",
            "ledgerids": "7, 3,7",
            "scopeid": "-5",
            "password": "sécret",
            "digestType": "mac",
            "startingoffsets": '{"3": 10}',
            "endingOffsets": '{"7": 20}',
            "readMode": "Recover",
            "minPartitions": "4",
            "maxEntriesPerPartition": "1000",
            "maxBytesPerPartition": "2m",
            "includePayload": "False",
            "failOnDataLoss": "false",
            "startingTimestamp": "1700000000123",
            "pushdown": "true",
            "readTimeoutMs": "1500",
            "numRetries": "0",
            "prefetchEntries": "50",
        },
        {},
    )
    assert options == Options(
        gateways="grpc://a:1,b:2",
        ledger_ids=(3, 7),
        scope_id=-5,
        password="sécret".encode(),
        digest_type=DigestType.HMAC,
        starting_offsets={3: 10},
        ending_offsets={7: 20},
        read_mode=ReadMode.RECOVER,
        min_partitions=4,
        max_entries_per_partition=1000,
        max_bytes_per_partition=2 * 1024 * 1024,
        include_payload=False,
        fail_on_data_loss=False,
        starting_timestamp_ms=1_700_000_000_123,
        pushdown=True,
        num_retries=0,
        client_settings=(("read_ahead_entries", "50"), ("read_timeout_seconds", "1.5")),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("table", "rows"),
        ("ledgerIds", "1,x"),
        ("ledgerIds", ","),
        ("ledgerIds", str(1 << 63)),
        ("ledgerRange", "5"),
        ("ledgerRange", "9-5"),
        ("scopeId", "all"),
        ("scopeId", str(1 << 64)),
        ("digestType", "md5"),
        ("startingOffsets", "newest"),
        ("startingOffsets", '{"3": -1}'),
        ("startingOffsets", '{"3": true}'),
        ("startingOffsets", f'{{"{1 << 63}": 1}}'),
        ("startingOffsets", f'{{"3": {1 << 63}}}'),
        ("startingOffsets", "[1]"),
        ("endingOffsets", "earliest"),
        ("endingOffsets", "{"),
        ("readMode", "fence"),
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("maxEntriesPerPartition", "-1"),
        ("maxBytesPerPartition", "0"),
        ("maxBytesPerPartition", "12q"),
        ("includePayload", "yes"),
        ("failOnDataLoss", "1"),
        ("startingTimestamp", "yesterday"),
        ("pushdown", "on"),
        ("readTimeoutMs", "0"),
        ("numRetries", "-1"),
        ("prefetchEntries", "0"),
    ],
)
def test_a_bad_value_names_the_option_and_the_value(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**{name: value})
    assert f"option {name} is {value!r}" in str(caught.value)


@pytest.mark.parametrize("text", ['{"3": "planted-secret"', "planted-secret", '{"three": "planted-secret"}', "[1]"])
def test_passwords_that_can_not_be_read_are_not_told(text: str) -> None:
    """An error of the driver is in its log and in Spark's UI."""
    with pytest.raises(
        OptionError, match="option passwords can't be read: it must be metadata, or JSON such as"
    ) as caught:
        parse(passwords=text)
    assert "planted" not in str(caught.value)


def test_an_unknown_option_is_refused_with_the_nearest_name_or_all_names() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'ledgerid' .*; did you mean ledgerIds\?"):
        parse(ledgerId="5")
    with pytest.raises(OptionError, match=r"did you mean ensembleSize\?"):
        parse(ensembelSize="3")
    with pytest.raises(OptionError, match=r"did you mean failOnDataLoss\?"):
        parse(**{"fail_on_dataloss": "true"})
    with pytest.raises(OptionError, match=r"unknown option 'xyzzy' .*; it has table, gateways, .*client.<setting>"):
        parse(xyzzy="5")


def test_gateways_come_from_the_environment_when_no_option_says() -> None:
    environment = {"BOOKGATE_GATEWAYS": "grpc://other:1"}
    assert parse_options({}, environment).gateways == "grpc://other:1"
    assert parse_options({"gateways": "host:2"}, environment).gateways == "grpc://host:2"
    with pytest.raises(OptionError, match="BOOKGATE_GATEWAYS"):
        parse_options({}, {})


def test_gateways_come_from_the_configuration_file_when_nothing_else_says(tmp_path: Path) -> None:
    file = tmp_path / "bookgate.toml"
    file.write_text('gateways = "grpc://configured:1"')
    environment = {"BOOKGATE_CONFIG": str(file)}
    assert parse_options({}, environment).gateways == "grpc://configured:1"
    assert parse_options({}, {**environment, "BOOKGATE_GATEWAYS": "other:1"}).gateways == "grpc://other:1"
    file.write_text("gatewayz = 1")
    with pytest.raises(OptionError, match=r"gateways is missing, and the file .*gatewayz \(.*bookgate.toml\)"):
        parse_options({}, environment)


def test_a_time_is_milliseconds_or_iso_8601_in_utc_unless_it_says_more() -> None:
    for text in ("1767225600000", "2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"):
        assert parse(startingTimestamp=text).starting_timestamp_ms == 1_767_225_600_000


def test_words_of_offsets() -> None:
    assert parse(startingOffsets=" Earliest", endingOffsets="latest") == parse()
    assert parse(startingOffsets="latest").start_at_latest


def test_a_setting_of_the_client_has_one_name_at_a_time() -> None:
    assert ("read_timeout_seconds", "2.5") in parse(**{"client.read_timeout_seconds": "2.5"}).client_settings
    with pytest.raises(OptionError, match=r"readTimeoutMs and client\.read_timeout_seconds are the same"):
        parse(readTimeoutMs="1", **{"client.read_timeout_seconds": "2.5"})
    with pytest.raises(OptionError, match=r"prefetchEntries and client\.read_ahead_entries are the same"):
        parse(prefetchEntries="1", **{"client.read_ahead_entries": "2"})


def test_selectors_exclude_each_other() -> None:
    with pytest.raises(OptionError, match=r"ledgerIds and ledgerRange exclude"):
        parse(ledgerIds="1", ledgerRange="1-2")
    with pytest.raises(OptionError, match=r"ledgerRange and customMetadata.<key> exclude"):
        parse(ledgerRange="1-2", **{"customMetadata.app": "x"})


def test_several_custom_metadata_keys_are_one_selector() -> None:
    options = parse(**{"customMetadata.app": "x", "custommetadata.Run": "7"})
    assert options.custom_metadata == {"app": b"x", "run": b"7"}
    with pytest.raises(OptionError, match="has no key"):
        parse(**{"customMetadata.": "x"})


def test_ranges_include_both_ends_and_may_be_open_or_negative() -> None:
    assert parse(ledgerRange="5-9").ledger_range == LedgerRange(5, 9)
    assert parse(ledgerRange=" 5 - ").ledger_range == LedgerRange(5, None)
    assert parse(scopeId="1", ledgerRange="-9--5").ledger_range == LedgerRange(-9, -5)


def test_scopes_are_any_64_bit_pattern() -> None:
    assert parse(scopeId="0xffffffffffffffff").scope_id == -1
    assert parse(scopeId=str((1 << 63) - 1)).scope_id == (1 << 63) - 1


def test_options_of_entries_are_refused_for_other_tables() -> None:
    with pytest.raises(OptionError, match="option readMode is for table 'entries'"):
        parse(table="ledgers", readMode="recover")
    with pytest.raises(OptionError, match="option startingTimestamp is for tables of ledgers"):
        parse(table="bookies", startingTimestamp="1")
    with pytest.raises(OptionError, match="table 'bookies' has none"):
        parse(table="bookies", ledgerIds="1")


def test_tables_of_jobs_are_named_by_jobs_and_by_no_error() -> None:
    assert parse(
        table="copies", startingOffsets='{"1": 2}', readTimeoutMs="5", failOnDataLoss="false"
    ).table.is_for_jobs
    assert parse(table="held-ledgers").table.is_for_jobs
    with pytest.raises(OptionError, match=r"it must be one of entries, ledgers, bookies$"):
        parse(table="copy")
    for table, options in (
        ("copies", {"readMode": "recover"}),
        ("copies", {"includePayload": "true"}),
        ("held-ledgers", {"ledgerIds": "1"}),
        ("held-ledgers", {"customMetadata.app": "x"}),
        ("held-ledgers", {"startingTimestamp": "1"}),
    ):
        (name,) = options
        job = "audit" if table == "copies" else "orphans"
        with pytest.raises(OptionError, match=rf"option {name.split('.')[0]}.* is of no use to the job {job}"):
            parse(table=table, **options)


def test_options_travel_to_executors_and_do_not_show_the_password() -> None:
    options = parse(password="hidden", ledgerIds="1")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hidden" not in repr(options)


def test_settings_of_the_client_are_checked_as_its_own() -> None:
    given = {"gateways": "g:1", "client.bookie_tls": "start-tls", "Client.Read_Timeout": "2.5"}
    options = parse_options(given, {})
    assert options.client_settings == (
        ("bookie_tls", "start-tls"),
        ("read_ahead_entries", "100"),
        ("read_timeout_seconds", "2.5"),
    )
    secret = parse_options(
        {"gateways": "g:1", "client.auth_provider": "bookgate-token", "client.auth_token": "hidden"}, {}
    )
    assert "hidden" not in repr(secret)
    for name, value, message in (
        ("client.wire_protocol", "v1", "client.wire_protocol: .*'v3' or 'v2'"),
        ("client.nonsense", "1", "client.nonsense: .*nonsense"),
        ("client.gateways", "g:2", "an option of their own"),
    ):
        with pytest.raises(OptionError, match=message):
            parse_options({"gateways": "g:1", name: value}, {})
