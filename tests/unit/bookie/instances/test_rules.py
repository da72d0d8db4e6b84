"""What the settings of a host become for each of its instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.instances.rules import check_ports, deal, folder_of, number_in, settings_of
from bookgate.ledger.errors import IncorrectParameterException

COUNTS = st.integers(1, 9)


def host(**values: Any) -> BookieConfig:
    return load_config(**{"metadata_uri": "sqlite:///m", "data_dir": Path("/data"), "instances": 2, **values})


def test_each_has_its_own_id_ports_and_folder() -> None:
    settings = host(bookie_id="rack1-host7", audit_file="/log/audit.jsonl")
    first, second = settings_of(settings, 1, 2), settings_of(settings, 2, 2)
    assert (first.bookie_id, second.bookie_id) == ("rack1-host7-1", "rack1-host7-2")
    assert (first.port, first.gateway_port, first.http_port) == (3181, 4181, 8081)
    assert (second.port, second.gateway_port, second.http_port) == (3182, 4182, 8082)
    assert first.journals == (Path("/data/instance-1/journal"),)
    assert second.ledgers == (Path("/data/instance-2/ledgers"),)
    assert second.audit_file == Path("/log/audit-2.jsonl")


def test_what_is_not_set_stays_so() -> None:
    settings = settings_of(host(port=0, gateway_port=0, http_port=0), 2, 2)
    assert (settings.port, settings.gateway_port, settings.http_port) == (0, 0, 0)
    assert (settings.bookie_id, settings.audit_file) == (None, None)
    assert settings.journal_directories == ()


def test_audit_file_of_the_gateway_is_its_own() -> None:
    settings = host(gateway={"audit_file": "/log/gateway.jsonl", "cache_bytes": 7})
    assert settings_of(settings, 2, 2).hosted_gateway().audit_file == Path("/log/gateway-2.jsonl")
    assert settings.gateway["audit_file"] == "/log/gateway.jsonl"


def test_audit_file_that_the_environment_sets_is_each_gateways_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_GATEWAY_AUDIT_FILE", "/log/all.jsonl")
    for settings in (host(), host(audit_file="/log/bookie.jsonl")):
        assert settings_of(settings, 2, 2).hosted_gateway().audit_file == Path("/log/all-2.jsonl")
    assert host().hosted_gateway().audit_file == Path("/log/all.jsonl")


def test_directories_are_dealt_out_disk_by_disk() -> None:
    disks = {"journal_directories": "/j0,/j1", "ledger_directories": "/d0,/d1,/d2", "index_directories": "/i"}
    first, second = (settings_of(host(**disks), number, 2) for number in (1, 2))
    assert first.journals == (Path("/j0/instance-1"),)
    assert first.ledgers == (Path("/d0/instance-1"), Path("/d2/instance-1"))
    assert second.ledgers == (Path("/d1/instance-2"),)
    assert second.indexes == (Path("/i/instance-2"),)


@given(st.integers(1, 12), COUNTS)
def test_every_directory_is_used_and_none_twice(directories: int, count: int) -> None:
    disks = tuple(Path(f"/d{index}") for index in range(directories))
    hands = [deal(disks, number, count) for number in range(1, count + 1)]
    dealt = [path for hand in hands for path in hand]
    assert all(hands)
    assert len(set(dealt)) == len(dealt)
    assert {path.parent for path in dealt} == set(disks) if directories >= count else len(dealt) == count
    # As even as can be: no disk has two instances more than another, no instance two disks more.
    on_disk = [sum(path.parent == disk for path in dealt) for disk in disks]
    assert max(on_disk) - min(on_disk) <= 1
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


@given(st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 65535), COUNTS)
def test_ports_are_refused_or_all_different(port: int, gateway_port: int, http_port: int, count: int) -> None:
    settings = host(port=port, gateway_port=gateway_port, http_port=http_port)
    of_each = [
        tuple(base and base + index for base in (port, gateway_port, http_port and http_port + 1))
        for index in range(count)
    ]
    used = [http_port, *(each for ports in of_each for each in ports)]
    fits = max(used) <= 65535 and len({*filter(None, used)}) == len([*filter(None, used)])
    try:
        check_ports(settings, count)
    except IncorrectParameterException:
        assert not fits
    else:
        assert fits
        made = [settings_of(settings, number, count) for number in range(1, count + 1)]
        assert [(each.port, each.gateway_port, each.http_port) for each in made] == of_each


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"port": 4180}, "port takes 4180 to 4181, gateway_port 4181 to 4182; set them further apart"),
        ({"http_port": 65534}, "need the ports 65534 to 65536 for http_port, and 65535 is the last one"),
    ],
)
def test_ports_that_can_not_be_are_named(values: dict[str, Any], told: str) -> None:
    with pytest.raises(IncorrectParameterException, match=told):
        settings_of(host(**values), 1, 2)


def test_gateway_port_does_not_count_where_none_is_hosted() -> None:
    check_ports(host(metadata_uri="grpc://g:4181", port=4180), 2)


def test_only_folders_of_instances_are_taken_for_them() -> None:
    assert number_in(folder_of(17)) == 17
    assert [number_in(name) for name in ("instance-0", "instance-01", "instance-x", "instance-1.old", "current")] == [
        None
    ] * 5


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"instances": 0}, "instances"),
        ({"instances": "many"}, "instances"),
        ({"instances": 2, "instance": 3}, "there is no instance 3: instances is 2, and they count from 1"),
        ({"instances": 2, "instance": 0}, "instance"),
    ],
)
def test_impossible_numbers_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(IncorrectParameterException, match=told):
        host(**values)


def test_number_may_be_text_as_an_option_has_it() -> None:
    assert (host(instances="3").instances, host(instances="auto").instances) == (3, "auto")
