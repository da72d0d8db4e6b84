from __future__ import annotations

import importlib.metadata

import pytest

from bookgate.gateway.stores import drivers
from bookgate.gateway.stores.sqlite.uri import parse_sqlite
from bookgate.gateway.stores.zookeeper.uri import ZooKeeperUri, parse_zookeeper
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.metadata_drivers import GROUP, scheme_of


@pytest.mark.parametrize(
    ("uri", "scheme"),
    [
        ("zk+hierarchical://h:1/ledgers", "zk"),
        ("zk://h/ledgers", "zk"),
        ("sqlite:///a/b.db", "sqlite"),
        ("GRPC://h:1", "grpc"),
    ],
)
def test_scheme_is_what_stands_before_plus_or_colon(uri: str, scheme: str) -> None:
    assert scheme_of(uri) == scheme


@pytest.mark.parametrize("uri", ["", "/a/b", "no-colon", "+x://h"])
def test_uri_without_scheme_is_refused(uri: str) -> None:
    with pytest.raises(IncorrectParameterException, match="scheme"):
        scheme_of(uri)


@pytest.mark.parametrize("separator", [";", ","])
def test_zookeeper_servers_are_separated_by_semicolon_or_comma(separator: str) -> None:
    parsed = parse_zookeeper(f"zk+hierarchical://h1:2182{separator}h2{separator}[::1]:7/a/ledgers/")
    assert parsed == ZooKeeperUri(("h1:2182", "h2:2181", "[::1]:7"), "/a/ledgers", "hierarchical")


@pytest.mark.parametrize("uri", ["zk://h/l", "zk+null://h/l", "zk+ms://h/l"])
def test_manager_may_be_left_to_layout(uri: str) -> None:
    assert parse_zookeeper(uri).manager is None


@pytest.mark.parametrize(
    "uri",
    [
        "zk://h:1",
        "zk://h:1/",
        "zk:///ledgers",
        "zk://h:0/l",
        "zk://h:99999/l",
        "zk://h:x/l",
        "zk+odd://h/l",
        "zk://h;/l",
    ],
)
def test_wrong_zookeeper_uri_is_refused_naming_it(uri: str) -> None:
    with pytest.raises(IncorrectParameterException, match="metadata URI"):
        parse_zookeeper(uri)


def test_sqlite_path_is_absolute() -> None:
    assert parse_sqlite("sqlite:///var/lib/metadata.db") == "/var/lib/metadata.db"
    for uri in ("sqlite://relative.db", "sqlite:relative.db", "sqlite:///", "sqlite:///directory/"):
        with pytest.raises(IncorrectParameterException, match="absolute"):
            parse_sqlite(uri)


def test_unknown_scheme_names_what_is_installed() -> None:
    with pytest.raises(IncorrectParameterException, match=r"'etcd'.*sqlite, zk"):
        drivers.create_factory("etcd://h:1/x")


def test_driver_whose_extra_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kazoo(point: object) -> object:
        raise ModuleNotFoundError(f"No module named 'kazoo' for {point}", name="kazoo.client")

    # Its class is another one where a backport of importlib.metadata is installed.
    (point,) = importlib.metadata.entry_points(group=GROUP, name="zk")
    monkeypatch.setattr(type(point), "load", no_kazoo)
    with pytest.raises(IncorrectParameterException, match=r"pip install 'bookgate\[zookeeper\]'"):
        drivers.create_factory("zk://h/ledgers")
