"""Which ledgers the bookies hold according to their HTTP admin, and which of them are unknown to the metadata.

Only a bookie itself knows what it holds. One that can't be asked, because it is not registered or has no such page
(Apache BookKeeper's bookie), is reported with the reason, and nothing is concluded about its ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bookgate.ledger.bookie_info import HTTP
from bookgate.ledger.errors import BKException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.thinclient.gateways.discovery import may_lack_revision
from bookgate.thinclient.tools.admin_client import AdminHttp, AdminRefusedException, endpoint_url

_PAGE = 100_000
_READ_AT_ONCE = 1000


@dataclass
class HeldLedgers:
    """The ledgers of one scope: by ledger id the bookies that hold it, ordered; and why others could not be asked."""

    scope_id: int = 0
    holders: dict[int, list[str]] = field(default_factory=dict)
    not_asked: dict[str, str] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The largest id that any bookie holds, -1 if there is none."""
        return max(self.holders, default=-1)


async def held_ledgers(
    factory: LedgerManagerFactory, authorities: Path | None, scope_id: int = 0, token: str | None = None
) -> HeldLedgers:
    """The ledgers of a scope that all bookies with a cookie hold.

    Args:
        factory: The metadata.
        authorities: PEM file of authorities for HTTP over TLS; None: the system's.
        scope_id: The scope.
        token: The token of their HTTP admins, where these ask for one.

    Raises:
        BKException: The bookies can't be listed.
    """
    found = HeldLedgers(scope_id)
    for bookie in await factory.service_discovery.bookies(BookieSet.ALL):
        try:
            held = await asyncio.to_thread(_held_by, bookie, authorities, scope_id, token)
        except AdminRefusedException as error:
            found.not_asked[bookie.bookie_id] = str(error)
            continue
        for ledger_id in held:
            found.holders.setdefault(ledger_id, []).append(bookie.bookie_id)
    return found


def _held_by(bookie: RegisteredBookie, authorities: Path | None, scope_id: int, token: str | None) -> list[int]:
    endpoint = bookie.info.endpoint(HTTP)
    if endpoint is None:
        raise AdminRefusedException("it is not registered with an HTTP admin")
    admin = AdminHttp(endpoint_url(endpoint), token, authorities)
    return [number for page in held_pages(admin, scope_id) for number in page]


def held_pages(admin: AdminHttp, scope_id: int) -> Iterator[list[int]]:
    """The ids of the ledgers of a scope that one bookie holds, in the order of listings.

    Raises AdminRefusedException, also if the bookie's version does not list this scope.
    """
    scope = f"&ledger_scope_id={scope_id}" if scope_id else ""
    after = ""
    while True:
        try:
            page = admin.get(f"/api/v1/bookie/ledgers?limit={_PAGE}{scope}{after}")
            yield page["ledgers"]
            following = page["next"]
        except (KeyError, TypeError):
            raise AdminRefusedException("it does not tell its ledgers") from None
        if following is None:
            return
        after = f"&start_after={following}"


async def unknown_to_metadata(factory: LedgerManagerFactory, held: HeldLedgers) -> dict[int, list[str]]:
    """Those ledgers that do not exist according to the metadata, with their holders.

    The gateway first catches up: a ledger may have been made just before its bookies were asked. Raises BKException.
    """
    with may_lack_revision():
        await factory.catch_up(None)
    unknown: dict[int, list[str]] = {}
    ids = sorted(held.holders)
    for start in range(0, len(ids), _READ_AT_ONCE):
        some = ids[start : start + _READ_AT_ONCE]
        answers = await factory.ledger_manager.read_many([LedgerId(held.scope_id, number) for number in some])
        for number, answer in zip(some, answers, strict=True):
            if isinstance(answer, NoSuchLedgerExistsOnMetadataServerException):
                unknown[number] = held.holders[number]
            elif isinstance(answer, BKException):
                raise answer
    return unknown
