"""Options of the Spark source: every one, good and bad; a bad one is named in the error."""

from __future__ import annotations

import pickle

import pytest

from ledger.metadata import DigestType
from thinclient.spark.options import LedgerRange, OptionError, Options, ReadMode, Table, parse_options

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
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"3": -1}'),
        ("startingOffsets", '{"3": true}'),
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
    ],
)
def test_a_bad_value_names_the_option_and_the_value(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**{name: value})
    assert f"option {name} is {value!r}" in str(caught.value)


def test_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'ledgerid'.*ledgerIds"):
        parse(ledgerId="5")


def test_gateways_come_from_the_environment_when_no_option_says() -> None:
    environment = {"BOOKGATE_GATEWAYS": "grpc://other:1"}
    assert parse_options({}, environment).gateways == "grpc://other:1"
    assert parse_options({"gateways": "host:2"}, environment).gateways == "grpc://host:2"
    with pytest.raises(OptionError, match="BOOKGATE_GATEWAYS"):
        parse_options({}, {})


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
    with pytest.raises(OptionError, match="table 'bookies' has none"):
        parse(table="bookies", ledgerIds="1")


def test_options_travel_to_executors_and_do_not_show_the_password() -> None:
    options = parse(password="hidden", ledgerIds="1")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hidden" not in repr(options)


def test_settings_of_the_client_are_checked_as_its_own() -> None:
    given = {"gateways": "g:1", "client.bookie_tls": "start-tls", "Client.Read_Timeout": "2.5"}
    options = parse_options(given, {})
    assert options.client_settings == (("bookie_tls", "start-tls"), ("read_timeout", "2.5"))
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
