"""The bookie's settings: where they come from, and that the documentation has them all."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.tools.configuration.schema import PARTS, Part, assignments
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings import MOST_SECONDS

REQUIRED = {"metadata_uri": "sqlite:///m", "data_dir": Path("/data")}


def test_later_sources_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bookie.toml"
    file.write_text("port = 1\nhttp_port = 1\ngateway_port = 1\n")
    monkeypatch.setenv("BOOKGATE_BOOKIE_HTTP_PORT", "2")
    monkeypatch.setenv("BOOKGATE_BOOKIE_GATEWAY_PORT", "2")
    config = load_config(file, **REQUIRED, gateway_port=3, host=None)
    assert (config.port, config.http_port, config.gateway_port) == (1, 2, 3)


def test_directories_of_their_own() -> None:
    config = load_config(None, **REQUIRED, journal_directory=Path("/fast"))
    assert (config.journals, config.ledgers) == ((Path("/fast"),), (Path("/data/ledgers"),))


def test_several_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOOKGATE_BOOKIE_JOURNAL_DIRECTORIES", "/j0, /j1")
    file = tmp_path / "bookie.toml"
    file.write_text('ledger_directories = ["/l0", "/l1", "/l2"]\nindex_directories = "/i"\n')
    config = load_config(file, metadata_uri="sqlite:///m")
    assert config.journals == (Path("/j0"), Path("/j1"))
    storage = config.storage()
    assert storage.ledger_directories == (Path("/l0"), Path("/l1"), Path("/l2"))
    assert storage.index_directories == (Path("/i"),)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"metadata_uri": "sqlite:///m"}, "data_dir"),
        ({"data_dir": Path("/data")}, "metadata_uri"),
        ({**REQUIRED, "port": 70_000}, "port"),
        ({**REQUIRED, "journal_directory": "/a", "journal_directories": "/b,/c"}, "not both"),
        ({**REQUIRED, "storage_type": "db", "index_directories": "/b,/c"}, "as many"),
        ({**REQUIRED, "storage_type": "db", "allow_storage_expansion": True}, "more directories"),
        ({**REQUIRED, "storage_type": "rows"}, "storage_type"),
        ({**REQUIRED, "no_such_key": 1}, "no_such_key"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, object], word: str) -> None:
    with pytest.raises(IncorrectParameterException, match=word):
        load_config(None, **values)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(IncorrectParameterException, match=r"missing\.toml"):
        load_config(tmp_path / "missing.toml", **REQUIRED)


@pytest.mark.parametrize(
    ("values", "host"),
    [
        ({"host": "192.0.2.7"}, "192.0.2.7"),
        ({"host": "0.0.0.0", "advertised_address": "bookie-7"}, "bookie-7"),
        ({"host": "bookie-8"}, "bookie-8"),
    ],
)
def test_what_clients_are_told(values: dict[str, str], host: str) -> None:
    assert load_config(None, **REQUIRED, **values).advertised_host() == host


def test_a_wildcard_is_never_advertised() -> None:
    assert load_config(None, **REQUIRED, host="0.0.0.0").advertised_host() not in ("0.0.0.0", "")


def test_the_hosted_gateway_takes_its_settings_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_GATEWAY_MAX_BATCH", "5")
    config = load_config(None, **REQUIRED, host="127.0.0.1", gateway_port=0, gateway={"cache_bytes": 7})
    hosted = config.hosted_gateway()
    assert (hosted.metadata_uri, hosted.host, hosted.port) == ("sqlite:///m", "127.0.0.1", 0)
    assert (hosted.limits().batch, hosted.limits().cache_bytes) == (5, 7)


def test_settings_of_the_hosted_gateway_that_are_wrong_are_named() -> None:
    with pytest.raises(IncorrectParameterException, match="tls_key"):
        load_config(None, **REQUIRED, gateway={"tls_cert": "c.pem"}).hosted_gateway()


def test_settings_on_the_command_line() -> None:
    values = assignments(["storage_type=db", 'auth_options={"file": "/t=1"}'])
    assert values == {"storage_type": "db", "auth_options": {"file": "/t=1"}}
    config = load_config(None, **REQUIRED, **assignments(["storage_type=db", "ledger_directories=/a,/b"]))
    assert (config.storage_type, config.ledgers) == ("db", (Path("/a"), Path("/b")))


@pytest.mark.parametrize(("text", "word"), [("storage_type", "KEY=VALUE"), ("gateway={", "not JSON")])
def test_what_is_wrong_with_such_a_setting_is_named(text: str, word: str) -> None:
    with pytest.raises(IncorrectParameterException, match=word):
        assignments([text])


def test_the_table_of_settings_has_every_key_and_its_default() -> None:
    page = (Path(__file__).parents[4] / "docs" / "bookie.md").read_text()
    table = page.partition("| key | default | meaning |")[2].partition("\n\n")[0]
    wrong = []
    rows = re.findall(r"^\| (`[^|]+`) \|([^|]*)\|", table, re.MULTILINE)
    documented: dict[str, str] = {}
    for keys, defaults in rows:
        names = re.findall(r"`([a-z_0-9]+)`", keys)
        each = [text.strip() for text in defaults.split(",")]
        documented.update(zip(names, each if len(each) == len(names) else [defaults] * len(names), strict=True))
    for name, field in BookieConfig.model_fields.items():
        shown = documented.pop(name, "no row").strip(" `")
        if isinstance(field.default, bool):
            wrong += [f"{name}: {shown}"] * (shown != str(field.default).lower())
        elif isinstance(field.default, int | float) and not shown.replace(".", "").lstrip("-").isdigit():
            wrong.append(f"{name}: {shown}")
        elif isinstance(field.default, int | float):
            wrong += [f"{name}: {shown}"] * (float(shown) != field.default)
        elif shown == "no row":
            wrong.append(f"{name} is missing")
    assert (wrong, documented) == ([], {})


@pytest.mark.parametrize("key", [name for name in BookieConfig.model_fields if name.endswith("_seconds")])
@pytest.mark.parametrize("seconds", [1e10, float("inf"), float("nan")])
def test_no_wait_is_longer_than_a_thread_can_wait(key: str, seconds: float) -> None:
    """The checkpoint thread or the journal's would end with the first wait."""
    with pytest.raises(IncorrectParameterException, match=key):
        load_config(None, **{**REQUIRED, key: seconds})


def test_the_longest_setting_is_a_wait_that_threads_know() -> None:
    assert MOST_SECONDS < threading.TIMEOUT_MAX
    assert load_config(None, **REQUIRED, flush_interval_seconds=MOST_SECONDS).flush_interval_seconds == MOST_SECONDS


PATHS = [
    (part, key)
    for part in PARTS.values()
    for key, field in part.fields.items()
    if field.annotation in (Path, Path | None)
]


@pytest.mark.parametrize(("part", "key"), PATHS)
def test_an_empty_path_is_not_the_current_directory(
    part: Part, key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variable = part.prefix + key.upper()
    monkeypatch.setenv(variable, "")
    with pytest.raises(IncorrectParameterException, match=rf"{key} \({variable}\): it is empty.*; give one, or remove"):
        part.settings.load(None)
    monkeypatch.delenv(variable)
    file = tmp_path / "settings.toml"
    file.write_text(f'{key} = ""\n')
    with pytest.raises(IncorrectParameterException, match=rf"{key} \(.*settings.toml\): it is empty"):
        part.settings.load(file)


def test_a_list_of_directories_may_be_empty_and_has_no_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_BOOKIE_JOURNAL_DIRECTORIES", "")
    config = load_config(None, **REQUIRED)
    assert config.journals == (Path("/data/journal"),)
    with pytest.raises(IncorrectParameterException, match="ledger_directories: it is empty"):
        load_config(None, **REQUIRED, ledger_directories=["/a", ""])
    assert load_config(None, **REQUIRED, journal_directory=".").journals == (Path.cwd(),)


TABLE = '[gateway]\nmax_batch = 7\ncache_bytes = 9\nsecurity_policy = "/lax.toml"\nzookeeper_auth = "file:file"\n'


@pytest.fixture
def with_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a table of the hosted gateway, and an environment that says otherwise."""
    monkeypatch.setenv("BOOKGATE_GATEWAY_MAX_BATCH", "5")
    monkeypatch.setenv("BOOKGATE_GATEWAY_SECURITY_POLICY", "/strict.toml")
    monkeypatch.setenv("BOOKGATE_GATEWAY_ZOOKEEPER_AUTH", "planted-environment:secret")
    file = tmp_path / "bookie.toml"
    file.write_text(f'metadata_uri = "sqlite:///m"\ndata_dir = "/data"\nhost = "127.0.0.1"\n{TABLE}')
    return file


def test_the_environment_precedes_the_table_of_the_hosted_gateway(with_table: Path) -> None:
    hosted = load_config(with_table).hosted_gateway()
    assert (hosted.max_batch, hosted.cache_bytes, hosted.security_policy) == (5, 9, Path("/strict.toml"))
    assert hosted.zookeeper_auth.get_secret_value() == "planted-environment:secret"  # type: ignore[attr-defined]


def test_the_environment_precedes_a_table_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_BOOKIE_GATEWAY", '{"max_batch": 7, "cache_bytes": 9}')
    monkeypatch.setenv("BOOKGATE_GATEWAY_MAX_BATCH", "5")
    hosted = load_config(None, **REQUIRED).hosted_gateway()
    assert (hosted.max_batch, hosted.cache_bytes) == (5, 9)


def test_a_table_that_an_option_sets_precedes_the_environment(with_table: Path) -> None:
    by_option = BookieConfig.load(with_table, options=assignments(['gateway={"max_batch": 8}']))
    for config in (by_option, by_option.model_copy(), load_config(with_table, gateway={"max_batch": 8})):
        hosted = config.hosted_gateway()
        assert (hosted.max_batch, hosted.security_policy) == (8, Path("/strict.toml"))


def test_what_is_wrong_with_the_hosted_gateway_is_told_with_its_source(
    with_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOOKGATE_GATEWAY_MAX_BATCH", "none")
    with_table.write_text(with_table.read_text().replace("cache_bytes = 9", 'cache_bytes = "all"'))
    with pytest.raises(IncorrectParameterException) as told:
        load_config(with_table).hosted_gateway()
    assert "max_batch (BOOKGATE_GATEWAY_MAX_BATCH)" in str(told.value)
    assert "cache_bytes (table gateway)" in str(told.value)
