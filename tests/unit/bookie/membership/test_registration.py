"""What a bookie announces of itself, and whose directories it starts on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.instances.rules import settings_of
from bookgate.bookie.limbo.former_life import find_former_life
from bookgate.bookie.membership import registration
from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException
from bookgate.bookie.membership.registration import bookie_id_of, check_cookie, service_info
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import MetadataVersionException, UnknownOutcomeException
from bookgate.ledger.metadata_store import LedgerManagerFactory, RegistrationManager
from bookgate.thinclient.placement.racks import RackMapping
from tests.stores import made


class Killed(BaseException):
    """The end of the process."""


def host_of(number: int, **values: Any) -> str:
    """The host of an instance, as placement sees it."""
    host = load_config(
        metadata_uri="sqlite:///m", data_dir=Path("/data"), advertised_address="10.0.0.7", instances=2, **values
    )
    settings = settings_of(host, number, 2)
    ports = {"bookie": settings.port, "gateway": settings.gateway_port, "http": settings.http_port}
    return RackMapping().place(service_info(settings, bookie_id_of(settings, settings.port), ports)).host


def test_instances_announce_one_host() -> None:
    assert [host_of(number) for number in (1, 2)] == ["10.0.0.7", "10.0.0.7"]
    assert [host_of(number, bookie_id="b") for number in (1, 2)] == ["10.0.0.7", "10.0.0.7"]
    assert [host_of(number, announced_host="node-3") for number in (1, 2)] == ["node-3", "node-3"]


@dataclass
class Setting:
    """The empty directories of bookie `b`, and a store without its cookie."""

    config: BookieConfig
    factory: LedgerManagerFactory
    content: bytes
    """The cookie of these settings, without a first start."""

    @property
    def manager(self) -> RegistrationManager:
        return self.factory.registration_manager

    async def start(self) -> None:
        await check_cookie(self.config, "b", self.factory)

    async def stored(self) -> Cookie:
        found = await self.manager.read_cookie("b")
        assert found is not None
        return Cookie.decode(found.value)


@asynccontextmanager
async def first_start(tmp_path: Path) -> AsyncIterator[Setting]:
    uri = f"sqlite://{tmp_path}/metadata.db"
    config = load_config(metadata_uri=uri, data_dir=tmp_path / "data", bookie_id="b", allow_storage_expansion=True)
    for path in (*config.journals, *config.ledgers):
        (path / "current").mkdir(parents=True, exist_ok=True)
    factory = create_factory(made(uri))
    await factory.initialize()
    try:
        instance_id = await factory.registration_manager.cluster_instance_id()
        cookie = Cookie.build("b", config.journals, config.ledgers, instance_id, config.indexes)
        yield Setting(config, factory, cookie.encode())
    finally:
        await factory.close()


@pytest.mark.asyncio
async def test_of_two_first_starts_under_one_id_the_later_one_is_refused_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On hosts with the same paths."""
    async with first_start(tmp_path) as setting:
        find = find_former_life

        async def while_another_starts(*arguments: Any) -> Any:
            found = await find(*arguments)
            await setting.manager.write_cookie("b", setting.content, None)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(registration, "find_former_life", while_another_starts)
            with pytest.raises(MetadataVersionException):
                await setting.start()
        with pytest.raises(InvalidCookieException):
            await setting.start()


OTHERS = {"ours": b"# first start: " + b"2e" * 16 + b"\n", "bookkeeper": b""}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("error", [UnknownOutcomeException("no answer"), Killed()])
@pytest.mark.asyncio
async def test_a_first_start_that_does_not_learn_that_another_was_first_is_refused_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, other: str
) -> None:
    """Its request is lost, or it is killed, while the cookie of another host with the same paths is stored."""
    async with first_start(tmp_path) as setting:
        write = setting.manager.write_cookie

        async def another_is_first(bookie_id: str, content: bytes, version: int | None) -> None:
            await write(bookie_id, setting.content + OTHERS[other], None)
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(setting.manager, "write_cookie", another_is_first)
            with pytest.raises(type(error)):
                await setting.start()
        for _ in range(2):
            with pytest.raises(InvalidCookieException, match="another first start"):
                await setting.start()


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.asyncio
async def test_a_first_start_that_was_killed_as_it_wrote_the_cookie_is_repeated_with_the_same_cookie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    async with first_start(tmp_path) as setting:
        write, written = setting.manager.write_cookie, list[bytes]()

        async def write_and_die(bookie_id: str, content: bytes, version: int | None) -> None:
            written.append(content)
            if is_stored:
                await write(bookie_id, content, version)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(setting.manager, "write_cookie", write_and_die)
            with pytest.raises(Killed):
                await setting.start()
        await setting.start()
        assert await setting.stored() == Cookie.decode(written[0])


@pytest.mark.asyncio
async def test_bookies_that_are_configured_alike_have_cookies_that_differ_and_keep_them_as_directories_join(
    tmp_path: Path,
) -> None:
    seen = set[str | None]()
    for number in range(2):
        async with first_start(tmp_path / str(number)) as setting:
            await setting.start()
            first = (await setting.stored()).first_start
            added = tmp_path / str(number) / "added"
            (added / "current").mkdir(parents=True)
            ledgers = [*setting.config.ledgers, added]
            setting.config = setting.config.model_copy(update={"ledger_directories": ledgers})
            await setting.start()
            stored = await setting.stored()
            assert str(added) in stored.ledger_directories
            assert stored.first_start == first
            seen.add(first)
    assert len(seen) == 2
    assert None not in seen
