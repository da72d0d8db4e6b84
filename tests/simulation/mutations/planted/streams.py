"""Streams: producers, batches, cursors, retention, and how a writer begins and ends."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Mutation

_RULES = "tests/unit/thinclient/core/streams/test_rules.py"
_WRITER = "tests/unit/thinclient/streams/test_writer.py"
_LIVE = "tests/integration/thinclient/test_streams.py"
_EARLIER = "tests/unit/thinclient/core/streams/test_earlier_records.py"
_CORE = "thinclient/core/streams"


def _planted(name: str, breaks: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    return Mutation(name, "client", (), breaks, file, before, after, tests=tests)


MUTATIONS = (
    _planted(
        "sequence-numbers-forgotten-at-take-over",
        "the next writer of a stream begins with an empty table: what a producer repeats is appended again",
        "thinclient/streams/writer.py",
        "    return StreamAppends(table, last_time,",
        "    return StreamAppends(type(table)(), last_time,",
        f"{_LIVE}::test_a_producer_that_repeats_appends_once_across_take_overs",
    ),
    _planted(
        "snapshot-without-the-older-producers",
        "a snapshot tells only the producers of its own entry",
        f"{_CORE}/appends.py",
        "            if self._since_snapshot\n",
        "            if self._since_snapshot >= 0\n",
        _RULES,
    ),
    _planted(
        "producers-in-the-order-of-their-first-record",
        "the next writer forgets another producer than this one would",
        f"{_CORE}/appends.py",
        "            self._changed.pop(producer, None)\n",
        "            self._changed.get(producer)\n",
        _RULES,
    ),
    _planted(
        "duplicate-if-equal-only",
        "a number below the producer's last one counts as new",
        f"{_CORE}/producers.py",
        "        return sequence <= self._last.get(name, -1)\n",
        "        return sequence == self._last.get(name, -1)\n",
        _RULES,
    ),
    _planted(
        "writer-goes-on-after-a-lost-entry",
        "a writer takes records after an entry failed, whose numbers it counts as appended",
        "thinclient/streams/writer.py",
        "            self._error = told\n",
        "            self._error = None\n",
        _WRITER,
    ),
    _planted(
        "duplicate-acknowledged-before-its-record",
        "a record that is repeated while its first copy is under way is acknowledged at once",
        "thinclient/streams/writer.py",
        "            await asyncio.wait((self._last,))\n",
        "            await asyncio.sleep(0)\n",
        _WRITER,
    ),
    _planted(
        "caller-that-gives-up-cancels-its-record",
        "a duplicate is acknowledged before its first copy if the first copy's caller has given up",
        "thinclient/streams/writer.py",
        "            return await asyncio.shield(future)\n",
        "            return await future\n",
        f"{_WRITER}::test_a_duplicate_of_a_record_whose_caller_gave_up_waits_too",
    ),
    _planted(
        "flush-waits-for-later-records",
        "a flush waits for what other producers have begun since",
        "thinclient/streams/writer.py",
        "        if self._under_way:\n            await asyncio.wait(tuple(",
        "        while self._under_way:\n            await asyncio.wait(tuple(",
        f"{_WRITER}::test_a_flush_waits_for_what_was_appended_before_it_only",
    ),
    _planted(
        "records-wait-for-all-other-producers",
        "many records wait until other producers have less under way than one call may have",
        "thinclient/streams/writer.py",
        "        if len(self._under_way) > ahead:\n",
        "        while len(self._under_way) > ahead:\n",
        f"{_WRITER}::test_many_records_go_on_beside_any_number_of_other_producers",
    ),
    _planted(
        "close-ends-with-its-caller",
        "a close that was cancelled never releases the stream's ledger",
        "thinclient/streams/writer.py",
        "        await asyncio.shield(self._closing)\n",
        "        await self._closing\n",
        f"{_WRITER}::test_a_close_that_was_cancelled_goes_on_and_is_shared",
    ),
    _planted(
        "cursor-moved-back",
        "a commit below the committed position moves the cursor back",
        f"{_CORE}/cursors.py",
        "    if position < cursor.position:\n",
        "    if position < (0, 0):\n",
        _RULES,
    ),
    _planted(
        "cursor-without-compare-and-set",
        "a commit that lost against another consumer's is repeated on the newer record",
        "thinclient/streams/cursor.py",
        "            if self._found != before:\n                break\n",
        "",
        f"{_LIVE}::test_cursors_go_on_where_they_committed",
    ),
    _planted(
        "cursor-of-an-earlier-stream",
        "a stream that was created again has the cursors of the deleted one",
        "thinclient/streams/cursor.py",
        "    return Cursor(manager, record, found) if (found.stream, found.ledger) == (stream, ledger) else None\n",
        "    return Cursor(manager, record, found) if found.stream == stream else None\n",
        f"{_LIVE}::test_a_cursor_of_a_deleted_stream_counts_as_none",
    ),
    _planted(
        "retention-takes-what-a-cursor-needs",
        "a size limit deletes records that a cursor has not committed",
        f"{_CORE}/retention.py",
        "        before = min(before, slowest)\n",
        "        before = max(before, slowest)\n",
        _RULES,
    ),
    _planted(
        "retention-takes-the-snapshot",
        "a retention deletes the last snapshot of producers",
        f"{_CORE}/retention.py",
        "    return min(before, last_snapshot)\n",
        "    return before\n",
        _RULES,
    ),
    _planted(
        "time-goes-back",
        "the time of an entry is the clock's, though an earlier entry has a later one",
        f"{_CORE}/appends.py",
        "        self._last_time = max(self._last_time, now_ms)\n",
        "        self._last_time = now_ms\n",
        _RULES,
    ),
    _planted(
        "search-takes-the-entry-before",
        "a search by time treats an entry that is young enough as too old",
        f"{_CORE}/search.py",
        "value < self._wanted",
        "value <= self._wanted",
        _RULES,
    ),
    _planted(
        "reader-begins-at-the-entry",
        "a reader that begins in the middle of an entry is given the records before as well",
        "thinclient/streams/reader.py",
        "start.number if entry.entry_id == start.entry_id else 0",
        "0",
        f"{_LIVE}::test_cursors_go_on_where_they_committed",
    ),
    _planted(
        "snapshot-of-another-writer-counted",
        "an attempt of a Spark task takes the records of a foreign snapshot for its own",
        f"{_CORE}/earlier_records.py",
        "            if number == before:\n",
        "            if number < before:\n",
        _EARLIER,
    ),
    _planted(
        "earlier-batch-counted",
        "an attempt of a Spark task takes the rows of the batch before for its own, and leaves them out",
        f"{_CORE}/earlier_records.py",
        "        elif number < self._first:\n",
        "        elif number < 0:\n",
        _EARLIER,
    ),
    _planted(
        "deleted-records-taken-for-none",
        "an attempt of a Spark task appends again what it does not find",
        f"{_CORE}/earlier_records.py",
        "        if before != self._last:\n",
        "        if before < 0:\n",
        _EARLIER,
    ),
    _planted(
        "repeated-attempt-goes-by-numbers",
        "an attempt of a Spark task leaves out as many rows as the stream has, whichever they are",
        "thinclient/spark/records/record_writes.py",
        "        new = [row for row in rows if not _taken(earlier, row)] if earlier else rows\n",
        "        new = rows[earlier.total() :]\n",
        "tests/spark/test_stream_writes.py::test_an_attempt_that_is_repeated_in_another_order_appends_what_is_missing",
    ),
)
