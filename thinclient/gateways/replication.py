"""Auto-recovery's metadata through gateways: the shared `ReplicationMetadata`, without a metadata store.

Marks, switches and records are requested from any gateway. Locks and votes belong to a session at one gateway
(`replication_claims`).

If the response to a change is lost, the outcome is determined, or stays unknown (UnknownOutcomeException):

* mark: sent again, which at worst gives the mark one more version;
* deletion of a mark or of a record at a version: never sent again, since it might delete one that was created anew at
  that version; if it is gone by now, that is success; another version of a mark means that it stays;
* write of a record: sent again to the same gateway with the same expected version; BAD_VERSION is success if the record
  is as written, at the next version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import MAX_UNSCOPED, ledger_name
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord, Versioned
from bookgate.ledger.replication import PeriodicCheck, UnderreplicatedLedger, check_markable
from bookgate.ledger.replication_messages import id_field, number_in, scoped_field
from bookgate.ledger.replication_store import (
    ANY_VERSION,
    AuditorVote,
    LedgerFeed,
    LedgerFeedListener,
    LedgerLock,
    Mark,
    RecordKind,
    ReplicationListener,
    ReplicationMetadata,
    VoteListener,
    check_key,
    record_conflict,
)
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as wire
from bookgate.thinclient.gateways.channel import GatewayChannel
from bookgate.thinclient.gateways.ledger_feed import RpcLedgerFeed
from bookgate.thinclient.gateways.messages import code_error
from bookgate.thinclient.gateways.replication_claims import RpcReplicationClaims, check


class RpcReplicationMetadata(ReplicationMetadata):
    """See the module."""

    def __init__(self, gateways: GatewayChannel, ledger_manager: LedgerManager) -> None:
        self._gateways = gateways
        self._claims = RpcReplicationClaims(gateways, ledger_manager)
        self._feed = RpcLedgerFeed(gateways)

    async def close(self) -> None:
        """Releases locks and votes at gateways that respond at once; the others end with their lease."""
        await self._feed.close()
        await self._claims.close()

    # --- marks --------------------------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, replicas: Sequence[str], ctime_ms: int | None = None) -> Mark:
        what = f"mark ledger {ledger_name(check_markable(ledger_id))}"
        request = wire.MarkRequest(
            ledger_id=id_field(ledger_id), scoped=scoped_field(ledger_id), replicas=replicas, ctime_ms=ctime_ms
        )
        response, _ = await self._gateways.change_repeatedly(what, lambda g, t: g.replication.Mark(request, timeout=t))
        check(response.code, response.message, what)
        return _mark(response.mark)

    async def read_mark(self, ledger_id: int) -> Mark | None:
        marks = await self._marks(
            wire.ListMarksRequest(ledger_id=id_field(check_markable(ledger_id)), scoped=scoped_field(ledger_id))
        )
        return marks[0] if marks else None

    async def marks(self, start_after: int | None = None, page_size: int = 1000) -> AsyncIterator[Sequence[Mark]]:
        while page := await self._marks(_marks_after(start_after, page_size)):
            yield page
            start_after = page[-1].value.ledger_id

    async def _marks(self, request: wire.ListMarksRequest) -> list[Mark]:
        what = "list marks"
        response = await self._gateways.call(what, lambda g, t: g.replication.ListMarks(request, timeout=t))
        check(response.code, response.message, what)
        return [_mark(mark) for mark in response.marks]

    async def delete_mark(self, ledger_id: int, expected_version: int) -> bool:
        what = f"delete the mark of ledger {ledger_name(check_markable(ledger_id))}"
        request = wire.DeleteMarkRequest(
            ledger_id=id_field(ledger_id), scoped=scoped_field(ledger_id), expected_version=expected_version
        )
        try:
            response = await self._gateways.call(
                what, lambda g, t: g.replication.DeleteMark(request, timeout=t), changes=True
            )
        except UnknownOutcomeException:
            stored = await self.read_mark(ledger_id)
            if stored is not None and stored.version == expected_version:
                raise
            return stored is None
        check(response.code, response.message, what)
        return response.deleted

    # --- locks and the auditor ----------------------------------------------------------------------------------

    async def try_lock(self, ledger_id: int, holder: str) -> LedgerLock | None:
        return await self._claims.try_lock(ledger_id, holder)

    async def release(self, lock: LedgerLock) -> None:
        await self._claims.release(lock)

    async def is_held(self, lock: LedgerLock) -> bool:
        return await self._claims.is_held(lock)

    async def write_ledger(self, lock: LedgerLock, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        return await self._claims.write_ledger(lock, metadata, expected_version)

    async def stand_for_auditor(self, voter: str, listener: VoteListener) -> AuditorVote:
        return await self._claims.stand_for_auditor(voter, listener)

    async def lock_holders(self) -> Mapping[int, str]:
        response = await self._list_claims()
        return {number_in(lock): lock.holder for lock in response.locks}

    async def auditor(self) -> str | None:
        response = await self._list_claims()
        return response.auditor if response.HasField("auditor") else None

    async def _list_claims(self) -> wire.ListClaimsResponse:
        what = "list locks"
        request = wire.ListClaimsRequest()
        response = await self._gateways.call(what, lambda g, t: g.replication.ListClaims(request, timeout=t))
        check(response.code, response.message, what)
        return response

    # --- switches, times, records -------------------------------------------------------------------------------

    async def is_enabled(self) -> bool:
        return (await self._settings()).enabled

    async def set_enabled(self, enabled: bool) -> None:
        _, again, error = await self._change_settings(wire.ChangeSettingsRequest(enabled=enabled))
        if error is not None and not (again and isinstance(error, IllegalOpException)):
            raise error

    async def lost_bookie_delay(self) -> int | None:
        found = await self._settings()
        return found.lost_bookie_delay_seconds if found.HasField("lost_bookie_delay_seconds") else None

    async def set_lost_bookie_delay(self, seconds: int, *, only_if_absent: bool = False) -> int:
        request = wire.ChangeSettingsRequest(lost_bookie_delay_seconds=seconds, only_if_absent=only_if_absent)
        response, _, error = await self._change_settings(request)
        if error is not None:
            raise error
        return response.lost_bookie_delay_seconds

    async def check_time(self, check: PeriodicCheck) -> int | None:
        times = (await self._settings()).check_times
        return times.get(check.value)

    async def set_check_time(self, check: PeriodicCheck, ctime_ms: int) -> None:
        ended = wire.CheckEnded(check=check.value, ctime_ms=ctime_ms)
        _, _, error = await self._change_settings(wire.ChangeSettingsRequest(check_ended=ended))
        if error is not None:
            raise error

    async def _settings(self) -> wire.GetSettingsResponse:
        what = "read the settings of auto-recovery"
        request = wire.GetSettingsRequest()
        response = await self._gateways.call(what, lambda g, t: g.replication.GetSettings(request, timeout=t))
        check(response.code, response.message, what)
        return response

    async def _change_settings(
        self, request: wire.ChangeSettingsRequest
    ) -> tuple[wire.ChangeSettingsResponse, bool, BKException | None]:
        """The response, whether an earlier attempt may have been carried out, and the error of the last one."""
        what = "change the settings of auto-recovery"
        response, again = await self._gateways.change_repeatedly(
            what, lambda g, t: g.replication.ChangeSettings(request, timeout=t)
        )
        error = None if response.code == StatusCode.SUCCESS else code_error(response.code, response.message, what)
        return response, again, error

    async def records(self, kind: RecordKind) -> Mapping[str, Versioned[bytes]]:
        return await self._records(wire.ListRecordsRequest(kind=kind.value))

    async def read_record(self, kind: RecordKind, key: str) -> Versioned[bytes] | None:
        return (await self._records(wire.ListRecordsRequest(kind=kind.value, key=check_key(key)))).get(key)

    async def _records(self, request: wire.ListRecordsRequest) -> dict[str, Versioned[bytes]]:
        what = f"read records of kind {request.kind}"
        response = await self._gateways.call(what, lambda g, t: g.replication.ListRecords(request, timeout=t))
        check(response.code, response.message, what)
        return {record.key: Versioned(record.value, record.version) for record in response.records}

    async def write_record(self, kind: RecordKind, key: str, value: bytes, expected_version: int | None) -> int:
        what = f"write the record {kind.value}/{check_key(key)}"
        request = wire.WriteRecordRequest(kind=kind.value, key=key, value=value, expected_version=expected_version)
        response, again = await self._gateways.change_repeatedly(
            what, lambda g, t: g.replication.WriteRecord(request, timeout=t)
        )
        if response.code == StatusCode.BAD_VERSION and again:
            written = 0 if expected_version is None else expected_version + 1
            if await self.read_record(kind, key) == Versioned(value, written):
                return written
        check(response.code, response.message, what)
        return response.version

    async def remove_record(self, kind: RecordKind, key: str, expected_version: int = ANY_VERSION) -> None:
        what = f"remove the record {kind.value}/{check_key(key)}"
        request = wire.RemoveRecordRequest(kind=kind.value, key=key, expected_version=expected_version)
        try:
            response = await self._gateways.call(
                what, lambda g, t: g.replication.RemoveRecord(request, timeout=t), changes=True
            )
        except UnknownOutcomeException:
            stored = await self.read_record(kind, key)
            if stored is None:
                return
            if expected_version in (ANY_VERSION, stored.version):
                raise
            raise record_conflict(kind, key, expected_version) from None
        check(response.code, response.message, what)

    # --- changes ------------------------------------------------------------------------------------------------

    def watch(self, listener: ReplicationListener) -> Callable[[], None]:
        return self._claims.listeners.add(listener)

    def watch_ledgers(self, listener: LedgerFeedListener) -> LedgerFeed:
        return self._feed.feeds.add(listener)


def _mark(mark: wire.StoredMark) -> Mark:
    return Versioned(UnderreplicatedLedger.decode(number_in(mark), mark.content), mark.version)


def _marks_after(number: int | None, page_size: int) -> wire.ListMarksRequest:
    """A gateway of before, which knows scope 0 only, has nothing above one with a scope."""
    after = None if number is None else min(number, MAX_UNSCOPED)
    scoped = None if number is None else scoped_field(number)
    return wire.ListMarksRequest(start_after=after, start_after_scoped=scoped, page_size=page_size, every_scope=True)
