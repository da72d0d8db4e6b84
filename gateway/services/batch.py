"""Calls for many ledgers: BatchRead and BatchCreate.

Reads are served from the cache where possible, and each result is sent as soon as it is available. A client that
understands batched responses receives hundreds of results per message, because the throughput of a stream is limited by
the number of messages rather than by their size. Permissions are checked when a message is put together, not
when the call begins: a caller with a rate may have to wait between two messages, and the policy may change meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing

from bookgate.gateway.services.caller import AccessDeniedException, Caller, caller
from bookgate.gateway.services.encoded_responses import BatchItem, batch_item, batched_answer
from bookgate.gateway.services.ledger_access import ScopeView, withhold
from bookgate.gateway.services.messages import failure, ledger_id_from, success
from bookgate.gateway.services.metadata_cache import CachedAnswer, MetadataCache
from bookgate.gateway.services.store_budget import StoreBudget
from bookgate.gateway.stores.bounded_map import map_unordered
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    MetaStoreException,
    TooManyRequestsException,
    UnknownOutcomeException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import CreateRequest, LedgerManagerFactory
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    BatchReadRequest,
    LedgerMetadataRequest,
    LedgerMetadataResponse,
)
from bookgate.runtime.security.actions import Action

_ANSWERS_A_MESSAGE = 512
_BYTES_A_MESSAGE = 1024 * 1024
_BYTES_WAITING = 512 * 1024
"""Of results that wait for a message: with that message, what a call costs whose client does not read."""
_CREATED_AT_ONCE = 500

_Answer = CachedAnswer | LedgerMetadataResponse


class BatchReader:
    """BatchRead, served through the cache."""

    def __init__(self, factory: LedgerManagerFactory, cache: MetadataCache, budget: StoreBudget) -> None:
        self._factory = factory
        self._cache = cache
        self._budget = budget

    async def read(self, request: BatchReadRequest) -> AsyncIterator[bytes]:
        """Yields one encoded response per id, or messages that carry many.

        Raises AccessDeniedException if the caller may not, or no longer, see any ledger of the scope,
        MetaStoreException.
        """
        who = caller()
        sight = None if who is None else _Sight(who, request.ledger_scope_id)
        if not request.batched_answers:
            async with aclosing(self._answers(request)) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    encoded = _alone(answer if sight is None else sight.of(answer))
                    yield encoded
                    await _pay(encoded)
            return
        message = _Message(sight)
        async with aclosing(self._answers(request)) as answers:  # type: ignore[type-var]
            async for answer in answers:
                message.add(answer)
                if message.full:
                    encoded = message.take()
                    yield encoded
                    await _pay(encoded)
        if message.answers:
            encoded = message.take()
            yield encoded
            await _pay(encoded)

    async def _answers(self, request: BatchReadRequest) -> AsyncIterator[_Answer]:
        """Yields all results, each once the caller's rate has covered those before."""
        who = caller()
        if who is None:
            async with aclosing(self._found(request)) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    yield answer
            return
        who.take("listed_ids_per_second", 0)
        who.take("metadata_bytes_per_second", 0)
        async with aclosing(self._found(request)) as answers:  # type: ignore[type-var]
            async for answer in answers:
                yield answer
                await who.pay("listed_ids_per_second", 1)

    async def _found(self, request: BatchReadRequest) -> AsyncIterator[_Answer]:
        """Yields cached results first, then the others as they arrive."""
        others: list[LedgerId] = []
        scope_id, get = request.ledger_scope_id, self._cache.get
        for number in request.ledger_ids:
            try:
                ledger_id = ledger_id_from(scope_id, number)
            except IncorrectParameterException as error:
                yield _failed(scope_id, number, error, 0)
                continue
            known = get(ledger_id)
            if known is None:
                others.append(ledger_id)
            else:
                yield known
        results = map_unordered(self._fetch, others, size_of=_size, most_bytes=_BYTES_WAITING)
        async with aclosing(results) as fetched:  # type: ignore[type-var]
            async for answer in fetched:
                yield answer

    async def _fetch(self, ledger_id: LedgerId) -> _Answer:
        try:
            async with self._budget.part_of_batch("read"):
                return await self._cache.fetch(ledger_id)
        except MetaStoreException:
            raise
        except BKException as error:
            return _failed(ledger_id.scope_id, ledger_id.low, error, await self._factory.revision())


async def _pay(encoded: bytes) -> None:
    if (who := caller()) is not None:
        await who.pay("metadata_bytes_per_second", len(encoded))


class _Sight:
    """What the caller may see of the scope under the current policy."""

    def __init__(self, who: Caller, scope_id: int) -> None:
        """Raises AccessDeniedException if the caller may see nothing."""
        self._who = who
        self._scope_id = scope_id
        self._look()

    def _look(self) -> None:
        # Read first: if the policy changes in between, it is checked again.
        self._policy = self._who.policy
        self._view = ScopeView(self._who, self._scope_id, Action.LEDGER_READ)

    def of(self, answer: _Answer) -> _Answer:
        """The result as the caller may see it. Raises AccessDeniedException if it may no longer see anything."""
        if self._who.policy is not self._policy:
            self._look()
        if not isinstance(answer, CachedAnswer):
            return answer
        ledger = answer.ledger
        if not self._view.shows(ledger.owner):
            try:
                self._who.require_ledger(Action.LEDGER_READ, ledger.ledger_id, ledger.owner)
            except AccessDeniedException as error:
                return failure(error, ledger.ledger_id, answer.revision)
        if self._view.shows_password(ledger.owner):
            return answer
        withheld = ledger.without_password()
        return CachedAnswer(withheld, answer.revision, withheld.batch_item(answer.revision))


class _Message:
    """Results that are sent in one message."""

    def __init__(self, sight: _Sight | None) -> None:
        self.answers: list[_Answer] = []
        self._sight = sight
        self._bytes = 0
        self._revision = 0

    @property
    def full(self) -> bool:
        return len(self.answers) >= _ANSWERS_A_MESSAGE or self._bytes >= _BYTES_A_MESSAGE

    def add(self, answer: _Answer) -> None:
        self.answers.append(answer)
        self._bytes += _size(answer)
        if answer.revision > self._revision:
            self._revision = answer.revision

    def take(self) -> bytes:
        """The encoded message. Raises AccessDeniedException if the caller may no longer see anything."""
        seen = self.answers if self._sight is None else map(self._sight.of, self.answers)
        message = batched_answer(map(_item, seen), self._revision)
        self.answers, self._bytes = [], 0
        return message


def _size(answer: _Answer) -> int:
    return len(answer.ledger.data) if isinstance(answer, CachedAnswer) else answer.ByteSize()


def _item(answer: _Answer) -> BatchItem:
    return answer.batch_item if isinstance(answer, CachedAnswer) else batch_item(answer.SerializeToString())


def _alone(answer: _Answer) -> bytes:
    return answer.ledger.answer(answer.revision) if isinstance(answer, CachedAnswer) else answer.SerializeToString()


def _failed(scope_id: int, ledger_id: int, error: BKException, revision: int) -> LedgerMetadataResponse:
    response = failure(error, None, revision)
    response.ledger_id, response.ledger_scope_id = ledger_id, scope_id
    return response


async def create_each(
    factory: LedgerManagerFactory,
    budget: StoreBudget,
    requests: Sequence[LedgerMetadataRequest],
    to_create: Callable[[LedgerMetadataRequest], CreateRequest],
) -> list[LedgerMetadataResponse | BKException]:
    """Creates the ledgers; returns one response per request, in order, a failure as its exception."""
    answers: list[LedgerMetadataResponse | BKException] = []
    for part in _parts(requests, _CREATED_AT_ONCE):
        wanted = [_checked(request, to_create) for request in part]
        good = [item for item in wanted if isinstance(item, CreateRequest)]
        async with budget.part_of_batch("create_many"):
            outcomes = iter(await factory.ledger_manager.create_many(good) if good else [])
        revision = await factory.revision()
        for item in wanted:
            outcome = next(outcomes) if isinstance(item, CreateRequest) else item
            answers.append(outcome if isinstance(outcome, BKException) else success(outcome, revision))
    return answers


def not_created(request: LedgerMetadataRequest, error: BKException, revision: int) -> LedgerMetadataResponse:
    """The response to a request of a batch that failed."""
    return _failed(request.ledger_scope_id, request.ledger_id, error, revision)


def _checked(
    request: LedgerMetadataRequest, to_create: Callable[[LedgerMetadataRequest], CreateRequest]
) -> CreateRequest | BKException:
    try:
        return to_create(request)
    except BKException as error:
        return error


def _parts(requests: Sequence[LedgerMetadataRequest], size: int) -> Iterator[Sequence[LedgerMetadataRequest]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def over_batch(count: int, limit: int) -> str:
    return f"a batch of {count} ledgers is over the limit of {limit}"


def withhold_passwords(responses: Iterable[LedgerMetadataResponse]) -> None:
    """Withholds passwords that the creator of a ledger may not read."""
    who = caller()
    if who is None:
        return
    for response in responses:
        if response.code == StatusCode.SUCCESS and not who.may(
            Action.LEDGER_SECRET, response.ledger_scope_id, str(who.principal)
        ):
            withhold(response)


def error_of_all(outcomes: Sequence[LedgerMetadataResponse | BKException]) -> BKException | None:
    """The exception for the whole batch: set if no ledger was created and at least one failed for a reason outside the
    request.
    """
    errors = [each for each in outcomes if isinstance(each, BKException)]
    if len(errors) < len(outcomes):
        return None
    # The first kind present wins: if one outcome is unknown, so is that of the batch.
    for kind in (UnknownOutcomeException, MetaStoreException, TooManyRequestsException):
        for error in errors:
            if isinstance(error, kind):
                return error
    return None
