"""The client: writing, recovery, reading."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Edit, Mutation

_FAULTS = "tests/unit/thinclient/handles/test_faults.py"
_BATCH_READING = "tests/unit/thinclient/core/test_batch_reading.py"
_WINDOW = "tests/unit/thinclient/handles/test_in_flight_window.py"
_BLOCKING = "tests/unit/thinclient/blocking/test_blocking.py"
_ENDS = "tests/unit/thinclient/test_nothing_is_left.py"
_READING = "tests/unit/thinclient/handles/test_append_and_read.py"
_MODEL = "tests/unit/thinclient/core/test_protocol.py"
_WRITING = "tests/unit/thinclient/core/test_writing.py"
_RECORDS = "tests/unit/ledger/test_payload_codec.py"
_RECOVERY = "tests/unit/thinclient/core/test_recovery.py"

MUTATIONS = (
    # The writer
    Mutation(
        "ack-below-quorum",
        "client",
        ("P1", "P9"),
        "an add is acknowledged one bookie short of the ack quorum",
        "thinclient/core/writing.py",
        "        while pending and pending[0].acks >= ack_quorum_size:\n",
        "        while pending and pending[0].acks >= max(1, ack_quorum_size - 1):\n",
    ),
    Mutation(
        "ack-out-of-order",
        "client",
        ("P9",),
        "an add that is complete is acknowledged before the ones in front of it",
        "thinclient/core/writing.py",
        "        if not self._note_acks(adds, member) or self.changing:\n            return _NONE\n",
        "        if not self._note_acks(adds, member) or self.changing:\n            return _NONE\n"
        "        if self._pending and self._pending[0] is not adds[0]:\n"
        "            early = [add for add in adds if add.acks >= self._ack_quorum_size and add in self._pending]\n"
        "            self._pending = deque(add for add in self._pending if add not in early)\n"
        "            return early\n",
    ),
    Mutation(
        "lac-runs-ahead",
        "client",
        ("P2", "P10"),
        "entries carry a last add confirmed that includes entries which are still on their way",
        "thinclient/core/writing.py",
        "adds.append(PendingAdd(entry_id, size, length, lac, write_sets[",
        "adds.append(PendingAdd(entry_id, size, length, entry_id - 1, write_sets[",
    ),
    Mutation(
        "change-from-lac-plus-2",
        "client",
        ("P1", "P3"),
        "an ensemble change begins one entry too late: the first entry on the new bookies is not where readers look",
        "thinclient/handles/ensemble_changer.py",
        "        first_entry_id = self._writer.last_add_confirmed + 1\n",
        "        first_entry_id = self._writer.last_add_confirmed + 2\n",
    ),
    Mutation(
        "no-resend-after-change",
        "client",
        ("P1", "P3"),
        "what a replaced bookie had stored counts for its successor, which never gets it",
        "thinclient/core/writing.py",
        "            add.acked &= kept\n",
        "            add.acked &= -1\n",
        more=(
            Edit(
                "thinclient/core/writing.py",
                "            resend += [(add, index) for index in self._write_set(add) if index in new]\n",
                "            resend += []\n",
            ),
        ),
    ),
    Mutation(
        "ack-from-before-another-try-counts",
        "client",
        (),
        "a bookie is tried again and then replaced; what it was asked before, it acknowledges late for its successor",
        "thinclient/core/writing.py",
        "        old.bit = 0\n",
        "",
        tests=(f"{_MODEL}::test_bookies_that_are_tried_again_and_replaced_acknowledge_late",),
    ),
    Mutation(
        "failure-of-a-complete-add-forgotten",
        "client",
        (),
        "changes are put off, and one takes an add's acknowledgements away: who had failed it before is still awaited",
        "thinclient/core/writing.py",
        "        add.failures |= member.bit\n",
        "        if complete:\n            return\n        add.failures |= member.bit\n",
        tests=(f"{_MODEL}::test_bookies_that_are_tried_again_and_replaced_acknowledge_late", _WRITING, _RECOVERY),
    ),
    Mutation(
        "bookie-twice-in-ensemble",
        "client",
        ("P5",),
        "a failed bookie is replaced by one that is in the ensemble already",
        "thinclient/core/ensemble_change.py",
        "        if bookie_id is not None and bookie_id not in members:\n            members[index] = bookie_id\n",
        "        if bookie_id is not None:\n            members[index] = members[index - 1]\n",
    ),
    Mutation(
        "fenced-writer-goes-on",
        "client",
        ("P1", "P2"),
        "a writer takes the answer 'fenced' for a success",
        "thinclient/handles/base_write_handle.py",
        "        if response is not None and response.status == EOK:\n            self._on_stored",
        "        if response is not None and response.status in (0, 504):\n            self._on_stored",
    ),
    # Ends and waits
    Mutation(
        "batch-flush-waits-for-later-appends",
        "client",
        (),
        "`flush` of a writer of records waits for what is appended meanwhile, and never returns under steady load",
        "thinclient/handles/record_writer.py",
        "        if self._appends:  # not again",
        "        while self._appends:  # not again",
        tests=("tests/unit/thinclient/handles/test_record_writer.py",),
    ),
    Mutation(
        "error-of-the-application-waits-for-copies",
        "client",
        (),
        "an error in the body of `async with` is kept from the caller until a bookie that is gone has all copies",
        "thinclient/handles/patience.py",
        "call_later(PATIENCE_IN_ADD_TIMEOUTS * add_timeout, give_up)",
        "call_later(1e9, give_up)",
        tests=("tests/unit/thinclient/handles/test_guaranteed_write_quorum.py",),
    ),
    Mutation(
        "v2-read-confirms-entry-0",
        "client",
        (),
        "a response without a LAC, as all are in v2, counts as one that says that entry 0 is confirmed",
        "thinclient/handles/single_read.py",
        "told = NO_ENTRY if response.max_lac is None else response.max_lac\n",
        "told = response.max_lac or 0\n",
        tests=(f"{_READING}::test_reading_what_nobody_acknowledged_confirms_nothing",),
    ),
    Mutation(
        "cancelled-close-of-the-client-ends-half-way",
        "client",
        (),
        "a client whose `close` was cancelled keeps its connections to gateways, and closing it again does nothing",
        "thinclient/client.py",
        "        await asyncio.shield(self._closing)\n",
        "        await self._closing\n",
        tests=(f"{_ENDS}::test_a_close_whose_caller_gives_up_goes_on_and_the_next_caller_waits_for_it",),
    ),
    Mutation(
        "loop-of-the-blocking-clients-waits-for-itself",
        "client",
        (),
        "a blocking call in a done-callback stops the loop of all blocking clients of the process for ever",
        "thinclient/blocking/loop_thread.py",
        "        _here.is_loop = True\n",
        "",
        tests=(f"{_BLOCKING}::test_a_call_that_waits_on_the_loops_own_thread_is_refused_and_the_loop_goes_on",),
    ),
    Mutation(
        "append-future-reads-the-buffer-later",
        "client",
        (),
        "what `append_future` stores is what the caller's buffer holds when the loop gets to it",
        "thinclient/blocking/facades.py",
        "    return bytes(payload) if isinstance(payload, bytearray | memoryview) else payload\n",
        "    return payload\n",
        tests=(f"{_BLOCKING}::test_a_buffer_may_be_used_again_at_once",),
    ),
    Mutation(
        "abandoned-reader-waits-for-its-end",
        "client",
        (),
        "a read that the collector ends in a thread with a lock which the event loop wants stops both for ever",
        "thinclient/blocking/facades.py",
        "        if is_abandoned(error):\n",
        "        if False:\n",
        tests=(f"{_BLOCKING}::test_the_end_of_an_abandoned_read_waits_for_nothing",),
    ),
    Mutation(
        "closed-generator-leaves-its-ledger-open",
        "client",
        (),
        "whoever closes a generator that writes finds the ledger open, and its last entries not readable yet",
        "thinclient/blocking/facades.py",
        "        self._run(self._asynchronous.__aexit__(kind, error, traceback))\n",
        "        (self._thread.start if is_abandoned(error) else self._run)(\n"
        "            self._asynchronous.__aexit__(kind, error, traceback)\n"
        "        )\n",
        tests=(f"{_BLOCKING}::test_whoever_closes_a_generator_that_writes_finds_its_ledger_ended",),
    ),
    Mutation(
        "client-closed-by-each-thread",
        "client",
        (),
        "two threads that close a blocking client at once end the event loop of another client",
        "thinclient/blocking/facades.py",
        "        if self._closing.acquire(blocking=False):\n",
        "        if self._closing.acquire(blocking=False) or True:\n",
        tests=(f"{_BLOCKING}::test_a_client_that_threads_close_at_once_is_closed_once",),
    ),
    # Recovery
    Mutation(
        "recovery-does-not-fence",
        "client",
        ("P2", "P8"),
        "recovery fences nobody, neither with its first reads nor with those of entries",
        "thinclient/handles/recovery.py",
        "messages.ReadRequest(txn_id, ledger_id, LAST_ENTRY, True, key)",
        "messages.ReadRequest(txn_id, ledger_id, LAST_ENTRY)",
        more=(
            Edit(
                "thinclient/handles/recovery.py",
                "        self._reads = ReadRequestEncoder(number, key, HIGH_PRIORITY)\n",
                "        self._reads = ReadRequestEncoder(number)\n",
            ),
        ),
    ),
    Mutation(
        "recovery-reads-do-not-fence",
        "client",
        (),
        "recovery reads do not fence: a bookie that answered 'no such entry' may accept it afterwards",
        "thinclient/handles/recovery.py",
        "        self._reads = ReadRequestEncoder(number, key, HIGH_PRIORITY)\n",
        "        self._reads = ReadRequestEncoder(number)\n",
        tests=(f"{_FAULTS}::test_fencing_reads_are_sent_to_all_and_reads_forward_fence_too",),
    ),
    Mutation(
        "bad-digest-counts-as-missing",
        "client",
        ("P1", "P2"),
        "a recovery read counts a damaged copy as 'no such entry'",
        "thinclient/handles/recovery_answers.py",
        '        return Unreadable(DigestMatchException(f"bookie {bookie_id}: {error}"))\n',
        "        return Missing.MISSING  # type: ignore\n",
    ),
    Mutation(
        "silence-counts-as-missing",
        "client",
        ("P2",),
        "a bookie that gives no answer counts as 'no such entry'",
        "thinclient/handles/recovery.py",
        '            return Unreadable(error or BKException(f"bookie {bookie_id} gave no answer"))\n',
        "            return Missing.MISSING\n",
    ),
    Mutation(
        "one-missing-ends-recovery",
        "client",
        ("P2",),
        "recovery ends at the first bookie that lacks an entry",
        "thinclient/core/recovery_reads.py",
        "        self._misses_needed = metadata.write_quorum_size - metadata.ack_quorum_size + 1\n",
        "        self._misses_needed = 1\n",
    ),
    Mutation(
        "short-run-taken-for-the-end",
        "client",
        (),
        "an entry that a response has not besides the one asked for counts as missing",
        "thinclient/core/recovery_reads.py",
        "        return self._ask(lacking, end) if lacking < end else ()\n",
        "        for each in range(lacking, end):\n"
        "            self._reads[each], self._asked[each] = ReplicaRead(each, self._metadata), ''\n"
        "            self._reads[each].answer = Missing.MISSING\n"
        "        return ()\n",
        tests=(_RECOVERY,),
    ),
    Mutation(
        "recovery-tells-its-own-lac",
        "client",
        (),
        "recovery adds carry the last add confirmed of the recoverer, which may die or lose, not that of its start",
        "thinclient/core/recovery.py",
        "        add.last_add_confirmed = self._start\n",
        "",
        tests=(_RECOVERY,),
    ),
    Mutation(
        "recovery-starts-too-late",
        "client",
        ("P2", "P3"),
        "recovery begins to read one entry behind where it should",
        "thinclient/core/recovery.py",
        "        self._next_to_read = self._next_to_add = self._start + 1\n",
        "        self._next_to_read = self._next_to_add = self._start + 2\n",
    ),
    Mutation(
        "recovery-does-not-write-back",
        "client",
        ("P3",),
        "recovery closes the ledger behind entries without writing them to the ack quorum",
        "thinclient/core/recovery.py",
        "        if self.state is not RecoveryState.STORING or writer is None or writer.pending_count:\n",
        "        if self.state is not RecoveryState.STORING or writer is None:\n",
    ),
    Mutation(
        "room-is-entered-before-the-turn-of-who-was-granted-it",
        "client",
        (),
        "an append that comes later gets the lower id while one that waited for capacity has it and has not continued",
        "thinclient/handles/in_flight_window.py",
        "        if self._waiting or not self._fits(size):\n",
        "        if self._waiters or not self._fits(size):\n",
        tests=(_WINDOW,),
    ),
    # The reader
    Mutation(
        "reads-beyond-the-lac",
        "client",
        ("P10",),
        "a reader takes the last entry that a bookie holds for confirmed, not what that entry says of its predecessors",
        "thinclient/handles/recovery.py",
        "        lac = max(lac, decode_entry(secrets.digest, response.last_entry_body, ledger_id, None)"
        ".last_add_confirmed)\n",
        "        lac = max(lac, decode_entry(secrets.digest, response.last_entry_body, ledger_id, None).entry_id)\n",
    ),
    Mutation(
        "short-batch-left-behind",
        "client",
        (),
        "once a batch has failed, what a short one before it left out is never asked for, and the read does not end",
        "thinclient/core/reading.py",
        "        while self._unasked and self._unasked[0][0] < end:\n",
        "        while self._unasked and self._failed_at is None:\n",
        tests=(_BATCH_READING,),
    ),
    # Records in entries
    Mutation(
        "size-that-a-frame-states-believed",
        "client",
        (),
        "a reader allocates whatever a compressed frame says that it holds, though its entry says less",
        "ledger/payload_codec.py",
        "    if stated not in (_NOT_STATED, size):\n",
        "    if stated == 0 != size:\n",
        tests=(_RECORDS,),
    ),
    Mutation(
        "entry-that-nobody-can-decode-written",
        "client",
        (),
        "records are compressed together, and acknowledged, that no reader decodes",
        "ledger/payload_codec.py",
        "    if codec is not Codec.RECORDS and len(body) > MAX_DECODED_BYTES:\n",
        "    if False:\n",
        tests=(_RECORDS,),
    ),
)
