"""What commands on a bookie's own directories share: its settings as a start reads them, its id, its metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.instances.directories import chosen_instance
from bookgate.bookie.membership.registration import bookie_id_of
from bookgate.bookie.tools.configuration.schema import assignments
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata_store import LedgerManagerFactory

T = TypeVar("T")

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with the bookie's settings.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in the TOML file; may be given several times."),
]


def read_settings(config: Path | None, settings: list[str] | None) -> BookieConfig:
    """As `bookgate bookie start` with the same options; of instances, those of the one that `instance` names.

    Raises IncorrectParameterException.
    """
    return chosen_instance(BookieConfig.load(config, options=assignments(settings or [])))


def own_bookie_id(config: BookieConfig) -> str:
    """The id that a start would take. Raises IncorrectParameterException where that is known only when it serves."""
    if config.bookie_id is None and config.port == 0:
        raise IncorrectParameterException("its id is not known: a start chooses the port; set bookie_id")
    return bookie_id_of(config, config.port)


def all_directories(config: BookieConfig) -> list[Path]:
    """Journals, ledgers and indexes, each once."""
    return list(dict.fromkeys((*config.journals, *config.ledgers, *config.indexes)))


def with_own_metadata(config: BookieConfig, work: Callable[[LedgerManagerFactory], Awaitable[T]]) -> T:
    """Connects to the metadata as the bookie would, works, disconnects. Raises BKException."""

    async def run() -> T:
        factory = create_factory(config.metadata_uri, config.hosted_gateway())
        try:
            await factory.initialize()
            return await work(factory)
        finally:
            await factory.close()

    return asyncio.run(run())
