"""Streamed metadata from the gateways: the records of many ledgers, and the listing of all ledgers.

A stream that breaks, stalls or ends early is continued at the next gateway: a read of many ledgers requests the missing
ones, a listing continues after the last id received. A listing ends with the gateway's end mark or with an error, and
never goes back (M5). In a client that belongs to a cluster, each page must come from that cluster. Every item received
restarts the timeout.

Not its job: what a response says about a ledger, and changes (`ledger_manager`); which gateway to use (`channel`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from grpc.aio import AioRpcError

from bookgate.ledger.errors import BKException, MetaStoreException, WrongClusterException
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as wire
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as discovery
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.failures import check_transient
from bookgate.thinclient.gateways.gateway import Gateway
from bookgate.thinclient.gateways.messages import code_error

T = TypeVar("T")

Outcome = Callable[[wire.LedgerMetadataResponse, str], LedgerRecord | BKException]
"""Converts a response, given a description of the request."""

MAX_BATCH = 10_000
"""Maximum ledgers in one batch; also the gateways' limit."""

_SCOPES_AT_ONCE = 16


async def read_ledgers(
    gateways: GatewayChannel, ledger_ids: Sequence[LedgerId], outcome: Outcome
) -> dict[LedgerId, LedgerRecord | BKException]:
    """Reads ledgers of any scopes; returns by id the result of `outcome` for each response.

    A request names one scope. With ids that are UUIDs each ledger has a scope of its own, so requests run concurrently.

    Raises MetaStoreException if nothing new arrives in time.
    """
    wanted: dict[int, set[int]] = {}
    for each in ledger_ids:
        wanted.setdefault(each.scope_id, set()).add(each.low)
    found: dict[LedgerId, LedgerRecord | BKException] = {}

    async def work() -> None:
        while wanted:
            scope_id, numbers = wanted.popitem()
            results = await _read_scope(gateways, numbers, scope_id, outcome)
            found.update({LedgerId(scope_id, number): result for number, result in results.items()})

    if len(wanted) < 2:
        await work()
        return found
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_SCOPES_AT_ONCE, len(wanted))):
                group.create_task(work())
    except* BKException as failures:
        # One failure ends the other requests, which would fail in the same way.
        raise failures.exceptions[0] from None
    return found


async def _read_scope(
    gateways: GatewayChannel, wanted: set[int], scope_id: int, outcome: Outcome
) -> dict[int, LedgerRecord | BKException]:
    """Reads the wanted ledgers of one scope; returns by id the result of `outcome` for each response.

    Raises MetaStoreException if nothing new arrives in time.
    """
    results: dict[int, LedgerRecord | BKException] = {}
    what = "read the metadata of many ledgers"
    attempts = gateways.attempts(what, gateways.timeout)
    while missing := sorted(wanted - results.keys())[:MAX_BATCH]:
        gateway = await attempts.next()
        request = wire.BatchReadRequest(ledger_ids=missing, min_revision=gateways.revision, batched_answers=True)
        if scope_id:
            request.ledger_scope_id = scope_id
        reason = "the stream ended early"
        call = gateway.metadata.BatchRead(request)
        try:
            with gateways.outstanding(what):
                async for response in _each_within(aiter(call), attempts.share):
                    known = len(results)
                    # A gateway without support for batches sends one response per message.
                    for answer in response.batch or (response,):
                        if answer.ledger_id in wanted:
                            one = f"read the metadata of ledger {answer.ledger_id}"
                            results[answer.ledger_id] = outcome(answer, one)
                    if len(results) > known:
                        attempts.progressed()
        except AioRpcError as error:
            reason = check_transient(gateway, what, error)
        except TimeoutError:
            reason = "the stream stood still"
        finally:
            call.cancel()
        if not results.keys() >= set(missing):
            attempts.failed(gateway, reason)
    return results


async def pages_of(
    gateways: GatewayChannel,
    scope_id: int,
    after: int | None,
    before: int | None,
    *,
    include_metadata: bool,
    complete: bool,
    limit: int = 0,
) -> AsyncIterator[wire.GetLedgerRangesResponse]:
    """All non-empty pages of an iteration up to its end mark, resumed where it broke off.

    `complete`: it fails where the policy of the gateway would leave ledgers out.
    """
    # A page may take the whole timeout; if it does not arrive, another gateway gets as long.
    attempts = gateways.attempts("list ledgers", 2 * gateways.timeout)
    while True:
        gateway = await attempts.next()
        request = wire.GetLedgerRangesRequest(
            limit_per_response=limit,
            include_metadata=include_metadata,
            columns=include_metadata,
            min_revision=gateways.revision,
            require_complete=complete,
        )
        for name, value in (("ledger_scope_id", scope_id or None), ("start_after", after), ("end_before", before)):
            if value is not None:
                setattr(request, name, value)
        reason = "the listing broke off before its end"
        call = gateway.metadata.Iterate(request)
        try:
            with gateways.outstanding("list ledgers"):
                async for page in _each_within(aiter(call), gateways.timeout):
                    await _require_cluster(gateways, gateway, page)
                    if _check_page(page, after, scope_id):
                        after = page.last_ledger_id
                        yield page
                        # Only now, because the consumer's own time must not count against the gateways.
                        attempts.progressed()
                    if page.end:
                        return
        except AioRpcError as error:
            reason = check_transient(gateway, "list ledgers", error)
        except TimeoutError:
            reason = f"the listing stood still for {gateways.timeout:g} s"
        except WrongClusterException as error:
            reason = str(error)
        finally:
            call.cancel()
        attempts.failed(gateway, reason)


async def _require_cluster(gateways: GatewayChannel, gateway: Gateway, page: wire.GetLedgerRangesResponse) -> None:
    """Raises WrongClusterException for a page of another cluster than the client's, if it belongs to one.

    A gateway version that does not include the cluster in its pages is queried for it.
    """
    if gateways.cluster is None:
        return
    found = page.cluster_instance_id
    if not found:
        request = discovery.GetClusterInfoRequest()
        found = (await gateway.discovery.GetClusterInfo(request, timeout=gateways.timeout)).instance_id
    if found != gateways.cluster:
        raise WrongClusterException(f"it lists cluster {found}, not {gateways.cluster}")


async def _each_within(stream: AsyncIterator[T], timeout: float) -> AsyncIterator[T]:
    """The items of a stream. Raises TimeoutError if the next one takes longer than `timeout` seconds."""
    while True:
        try:
            async with asyncio.timeout(timeout):
                item = await anext(stream)
        except StopAsyncIteration:
            return
        yield item


def _check_page(page: wire.GetLedgerRangesResponse, after: int | None, scope_id: int) -> bool:
    """True for a page with ledgers. Raises MetaStoreException for one that violates the rules of an iteration."""
    if page.code != StatusCode.SUCCESS:
        raise code_error(page.code, page.message, "list ledgers")
    if not page.count:
        return False
    if after is not None and not _follows(page.last_ledger_id, after, scope_id):
        raise MetaStoreException(f"the gateway's listing went back from ledger {after} to {page.last_ledger_id}")
    return True


def _follows(last: int, after: int, scope_id: int) -> bool:
    """Whether `last` comes after `after`. Scope 0 has no negative ids, so all its ledgers come after a negative one."""
    return (scope_id == 0 and after < 0) or unsigned(last) > unsigned(after)
