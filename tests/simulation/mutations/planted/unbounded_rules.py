"""One bug for each rule of docs/protocol/unbounded-ledgers.md that no other bug of the table breaks.

The page names in each row of its tables the bugs that show what the row is for.
"""

from __future__ import annotations

from tests.simulation.mutations.mutation import Edit, Mutation

_CORES = "tests/unit/thinclient/core/unbounded"
_WRITING = f"{_CORES}/test_writing.py"
_TAKING_OVER = f"{_CORES}/test_taking_over.py"
_STORED = "tests/unit/bookie/storage/test_terms.py"
_SERVED = "tests/unit/bookie/protocol/test_terms.py"
_READING = "tests/unit/thinclient/handles/test_unbounded_reading.py"
_BATCHES = "tests/unit/thinclient/core/test_batch_reading.py"
_TRIMMED = "tests/unit/bookie/collection/test_trimmed_ledgers.py"
_REPAIRS = "tests/simulation/test_unbounded_repairs.py"
_FEATURES = "tests/unit/thinclient/placement/test_features.py"

_WRITER = "thinclient/core/unbounded/writing.py"
_TAKE_OVER = "thinclient/core/unbounded/taking_over.py"
_STATE = "bookie/storage/ledger_state.py"
_PROCESSOR = "bookie/protocol/request_processor.py"
_READS = "bookie/protocol/read_scheduler.py"
_VIEW = "thinclient/handles/ledger_view.py"
_RANGE = "thinclient/core/reading.py"


def _planted(name: str, breaks: str, file: str, before: str, after: str, *tests: str) -> Mutation:
    area = "bookie" if file.startswith("bookie") else "client"
    if file.startswith("bookie/replication"):
        area = "auto-recovery"
    return Mutation(name, area, (), breaks, file, before, after, tests=tests)


_BOOKIE = (
    _planted(
        "fence-in-a-term-not-checked",
        "a ledger that an ordinary client has fenced takes the adds of its term",
        _STATE,
        "        if not recovery and (self.fenced or (term is None and self.term is not None)):\n",
        "        if not recovery and term is None and (self.fenced or self.term is not None):\n",
        f"{_STORED}::test_which_adds_a_term_lets_pass",
    ),
    _planted(
        "ordinary-writers-add-to-a-term",
        "a writer without a term adds to a ledger that has one",
        _STATE,
        "        if not recovery and (self.fenced or (term is None and self.term is not None)):\n",
        "        if not recovery and self.fenced:\n",
        f"{_STORED}::test_which_adds_a_term_lets_pass",
    ),
    _planted(
        "copies-refused-by-a-term",
        "a bookie that has a term refuses the copies of a repair",
        _STATE,
        "        if not recovery and (self.fenced or (term is None and self.term is not None)):\n",
        "        if (not recovery and self.fenced) or (term is None and self.term is not None):\n",
        f"{_STORED}::test_which_adds_a_term_lets_pass",
    ),
    _planted(
        "adds-leave-the-term",
        "an add of a higher term is stored, and those of the lower one are still taken",
        "bookie/storage/writer.py",
        "        self._raise_term(ledger, request.term, takes_over=request.recovery)\n",
        "        self._raise_term(ledger, request.term if ledger.term is None else ledger.term, takes_over=False)\n",
        f"{_SERVED}::test_an_ordinary_writer_is_fenced_and_a_copy_is_taken",
    ),
    _planted(
        "limbo-takes-a-term",
        "a bookie that may have forgotten a higher term takes adds of a lower one",
        "bookie/storage/ledger_descriptor.py",
        "        if self.limbo and (status is Status.EFENCED or (status is Status.EOK and term is not None)):\n",
        "        if self.limbo and status is Status.EFENCED:\n",
        f"{_STORED}::test_a_ledger_in_limbo_takes_no_add_with_a_term",
    ),
    _planted(
        "limbo-unfenced-by-a-term",
        "whoever takes over a ledger whose higher term is lost lifts its fence, and the fast path takes its adds",
        "bookie/storage/ledger_descriptor.py",
        "        return super().raise_term(term, takes_over=takes_over and not self.limbo)\n",
        "        return super().raise_term(term, takes_over=takes_over)\n",
        f"{_SERVED}::test_a_ledger_in_limbo_takes_no_add_of_whoever_takes_it_over",
    ),
    _planted(
        "limbo-unfenced-by-replay",
        "a term in the journal lifts the fence of a ledger in limbo at a start",
        "bookie/storage/ledger_descriptor.py",
        "        self.fenced = self.fenced or self.limbo\n",
        "",
        f"{_STORED}::test_no_client_lifts_the_fence_of_a_ledger_in_limbo",
    ),
    _planted(
        "deferred-sync-in-a-term",
        "an add with a term is acknowledged before its term is durable",
        "bookie/protocol/admission.py",
        "    return request.term >= 0 and lafr >= NO_ENTRY and not request.write_flags & DEFERRED_SYNC\n",
        "    return request.term >= 0 and lafr >= NO_ENTRY\n",
        f"{_SERVED}::test_what_does_not_go_together_is_refused",
    ),
    _planted(
        "truncates-whatever-is-above",
        "one request deletes any number of entries",
        "bookie/storage/writer.py",
        "        if request.truncate and above > MOST_TRUNCATED:\n",
        "        if request.truncate and above > 1 << 62:\n",
        f"{_STORED}::test_a_truncation_of_too_much_is_refused_and_changes_nothing",
    ),
    _planted(
        "truncates-fewer-than-are-in-flight",
        "a take-over whose last bookie alone got many adds is refused, again and again",
        "bookie/storage/writer.py",
        "MOST_TRUNCATED = 1 << 20\n",
        "MOST_TRUNCATED = 1 << 16\n",
        f"{_STORED}::test_as_many_ids_are_truncated_as_any_writer_has_in_flight",
    ),
    _planted(
        "terms-without-the-key",
        "whoever knows the ledger's id takes it from its writer",
        _PROCESSOR,
        "        status = ledger.check_key(key)\n        if status is Status.EOK and term is not None:\n",
        "        status = Status.EOK if term is not None else ledger.check_key(key)\n        if term is not None:\n",
        f"{_SERVED}::test_a_read_at_a_term_needs_the_key",
    ),
    _planted(
        "take-over-is-not-told-the-lafr",
        "a take-over is told the LAC where it asks for the LAFR",
        _READS,
        "known_lac, None, request.term, ledger.lafr, following)\n",
        "known_lac, None, request.term, known_lac, following)\n",
        f"{_SERVED}::test_a_fencing_read_tells_lac_and_lafr_and_shuts_out_the_former_writer",
    ),
    _planted(
        "run-goes-over-a-gap",
        "the entries behind the one that a take-over reads begin one too late",
        _READS,
        "            runs = self._storage.reader.read_batch(ledger, request.entry_id + 1, batch)\n",
        "            runs = self._storage.reader.read_batch(ledger, request.entry_id + 2, batch)\n",
        f"{_SERVED}::test_a_read_of_a_run_has_what_is_here_without_a_gap",
    ),
    _planted(
        "read-that-waited-goes-on",
        "a read of a client that was taken over from while it waited is answered at its term",
        _READS,
        "        if ledger.term != request.term:\n            return _refusal(request, Status.EINVALIDTERM)\n",
        "",
        f"{_SERVED}::test_a_read_that_waited_while_another_took_over_finds_nothing_out",
    ),
    _planted(
        "fence-outlives-its-term",
        "a ledger that was fenced once takes no adds of any later term",
        _STATE,
        "        if takes_over:\n            self.fenced = False\n",
        "",
        f"{_STORED}::test_a_term_never_falls_and_only_a_higher_one_that_takes_over_lifts_a_fence",
    ),
    _planted(
        "last-entry-shown-dirty",
        "a reader that asks for the last entry is given one that the next term may replace",
        "bookie/storage/reader.py",
        "        if last == NO_ENTRY or ledger.shows(last, None):\n",
        "        if last >= NO_ENTRY:\n",
        f"{_SERVED}::test_where_nothing_is_confirmed_the_last_entry_is_told_to_nobody",
    ),
    _planted(
        "batches-shown-dirty",
        "a batch goes on behind the LAC",
        _READS,
        "        if ledger.term is None:\n            return request.max_count\n",
        "        if ledger.term != -1:\n            return request.max_count\n",
        f"{_SERVED}::test_a_batch_ends_with_what_is_confirmed",
    ),
)

_WRITERS = (
    _planted(
        "acknowledgements-of-the-replaced-count",
        "what a bookie that left had acknowledged counts for the one in its place",
        _WRITER,
        "            add.acked &= ~(1 << index)\n",
        "",
        f"{_WRITING}::test_the_acknowledgements_of_a_replaced_bookie_are_void",
    ),
    _planted(
        "pending-adds-not-sent-to-who-joins",
        "a bookie that joins gets only what is added after that",
        _WRITER,
        "            add.sent &= ~(1 << index)\n            add.acked &= ~(1 << index)\n",
        "            add.acked &= ~(1 << index)\n",
        f"{_WRITING}::test_a_new_fragment_begins_after_the_lafr",
    ),
    _planted(
        "confirmed-while-a-change-is-stored",
        "entries are confirmed and replicated while a change is stored",
        _WRITER,
        "        if self.state is _STORING:\n            return []\n",
        "",
        f"{_WRITING}::test_a_new_fragment_begins_after_the_lafr",
    ),
    _planted(
        "pinned-meanwhile-replaced",
        "a failed bookie is replaced though entries were confirmed with it while another was made ready to join",
        _WRITER,
        "        pinned_now = self.pinned & self._replacing.keys()\n",
        "        pinned_now = set[int]()\n",
        f"{_WRITING}::test_who_is_pinned_by_what_was_confirmed_while_another_was_truncated_stays",
    ),
    _planted(
        "who-refuses-to-be-truncated-joins",
        "a bookie that did not respond to the truncate flag joins, with its dirty entries",
        _WRITER,
        "            place.bookie_id if index in pinned_now or bookie in self.avoided else bookie\n",
        "            place.bookie_id if index in pinned_now else bookie\n",
        f"{_WRITING}::test_of_two_that_are_to_join_the_one_that_responds_does",
    ),
    _planted(
        "failed-bookie-not-tried-again",
        "a bookie that failed, and that no other could replace, is left out for ever",
        _WRITER,
        "        later = [] if self._failed_anew else [self._retry_later()]\n",
        "        later: list[Effect] = []\n",
        f"{_WRITING}::test_without_a_bookie_to_replace_it_the_failed_one_is_tried_again",
    ),
    _planted(
        "adds-do-not-wait-for-the-next-fragment",
        "adds go on in a fragment that is full, and once more in the next one",
        _WRITER,
        "        if self._full_at is not None and add.entry_id > self._full_at:\n",
        "        if self._full_at is not None and add.entry_id < 0:\n",
        f"{_WRITING}::test_a_full_fragment_ends_when_everything_in_it_is_replicated",
    ),
    _planted(
        "next-fragment-before-the-last-is-replicated",
        "a fragment that is full is ended when its entries are confirmed",
        _WRITER,
        "        if self._full_at is not None and self.lafr >= self._full_at:\n            self._on(",
        "        if self._full_at is not None and self.last_add_confirmed >= self._full_at:\n            self._on(",
        f"{_WRITING}::test_a_full_fragment_ends_when_everything_in_it_is_replicated",
    ),
    _planted(
        "empty-payload-taken",
        "a writer takes an entry that readers will pass over",
        _WRITER,
        "        if size < 1:\n",
        "        if size < 0:\n",
        f"{_WRITING}::test_an_empty_entry_is_refused",
    ),
)

_TAKE_OVERS = (
    _planted(
        "take-over-tries-bookies-once-for-all",
        "a take-over that has waited for a bookie gives up at the next failure, however far it has got since",
        _TAKE_OVER,
        "        if replicated != self._replicated:\n",
        "        if self._replicated is None:\n",
        f"{_TAKING_OVER}::test_a_bookie_that_fails_again_later_is_tried_as_long_as_the_first_time",
    ),
    _planted(
        "length-before-a-take-over-forgotten",
        "a bookie that a take-over replaces before anything is replicated leaves a fragment before which nothing was",
        _WRITER,
        "        if not self._pending:\n            self.replicated_length = length\n",
        "",
        f"{_TAKING_OVER}::test_a_bookie_that_is_replaced_first_of_all_leaves_the_length_before_its_fragment",
    ),
    _planted(
        "take-over-reads-where-it-adds",
        "a take-over reads from the bookies that it has put in the place of others",
        _TAKE_OVER,
        "        return self._reads.begin(first, end, self._largest)\n",
        "        from dataclasses import replace\n\n"
        "        last = replace(self._metadata.last_fragment, ensemble=self._writer.ensemble)\n"
        "        self._reads._metadata = replace(self._metadata, fragments=(*self._metadata.fragments[:-1], last))\n"
        "        return self._reads.begin(first, end, self._largest)\n",
        f"{_TAKING_OVER}::test_entries_are_read_from_the_fragment_as_it_was",
    ),
    _planted(
        "take-over-tells-what-it-has-replicated",
        "the adds of a take-over tell how far it is: if it dies, the next one begins there, on other bookies",
        _WRITER,
        "        horizon = self._frozen or (self.last_add_confirmed, self.lafr)\n",
        "        horizon = ((self._frozen or (self.last_add_confirmed,))[0], self.lafr)\n",
        f"{_TAKING_OVER}::test_its_adds_do_not_tell_how_far_it_is",
    ),
)

_READERS = (
    _planted(
        "trimmed-entries-asked-for",
        "a reader below the watermark asks bookies, and is told that an entry is missing",
        _VIEW,
        "        if metadata.is_unbounded and entry_id < deleted_before(metadata):\n",
        "        if metadata.is_unbounded and entry_id < 0:\n",
        f"{_READING}::test_below_the_watermark_the_reader_is_told_what_there_is",
    ),
    _planted(
        "readers-tell-bookies-nothing",
        "the bookies of a complete fragment do not show its last entries, whose LAC they were never told",
        _VIEW,
        "        return known_last_entry(self.record) if self.record.metadata.is_unbounded else None\n",
        "        return None\n",
        f"{_READING}::test_bookies_are_told_the_end_of_the_complete_fragments_and_never_the_lac",
    ),
    _planted(
        "last-fragment-read-in-batches",
        "entries of the last fragment come in batches, which tell no term",
        _RANGE,
        "        self._batches_to = last if batches_to is None else batches_to\n",
        "        self._batches_to = last\n",
        f"{_READING}::test_bookies_are_told_the_end_of_the_complete_fragments_and_never_the_lac",
    ),
    _planted(
        "not-confirmed-taken-for-a-failure",
        "a read that no bookie serves for want of the LAC fails at once",
        _VIEW,
        "            if now < waiting.until:\n",
        "            if now < 0:\n",
        f"{_READING}::test_what_no_bookie_knows_to_be_confirmed_is_waited_for",
    ),
    _planted(
        "missing-taken-for-lost",
        "a reader does not look at the metadata again when bookies lack an entry",
        _VIEW,
        "        if self.record.version == tried.version and self._asks_metadata:\n",
        "        if self.record.version < 0 and self._asks_metadata:\n",
        f"{_READING}::test_what_all_bookies_lack_may_be_trimmed_and_is_lost_only_if_the_metadata_say_no_more",
    ),
    _planted(
        "batches-not-repeated-singly",
        "a batch that no bookie of an unbounded ledger serves fails the read",
        _RANGE,
        "            self._singly_to = max(self._singly_to, run.last)\n            return True\n",
        "            return False\n",
        f"{_BATCHES}::test_a_batch_that_no_bookie_of_an_unbounded_ledger_serves_is_read_singly",
    ),
    _planted(
        "what-a-take-over-shows-believed-when-it-is-over",
        "entries that bookies named at its beginning showed are taken though the take-over may have ended meanwhile",
        _VIEW,
        "        if not is_provisional(tried.metadata, last):\n            return True\n",
        "        if last >= 0:\n            return True\n",
        f"{_READING}::test_what_was_read_when_a_take_over_ended_is_read_again_with_the_metadata_that_it_left",
    ),
    _planted(
        "take-over-goes-on-by-a-store-that-lags",
        "metadata of a store that has not caught up say that a take-over still goes on",
        _VIEW,
        "        await self.context.catch_up()\n",
        "",
        f"{_READING}::test_what_was_read_when_a_take_over_ended_is_read_again_with_the_metadata_that_it_left",
    ),
    _planted(
        "long-polls-believed-during-a-take-over",
        "an entry that comes with the answer to a long poll is taken whether or not the take-over still goes on",
        "thinclient/handles/lac_reads.py",
        " or is_provisional(record.metadata, entry.entry_id):\n",
        ":\n",
        f"{_READING}::test_during_a_take_over_a_long_poll_tells_the_lac_alone",
    ),
    _planted(
        "long-polls-take-entries-of-any-bookie",
        "an entry that comes with the answer to a long poll is taken from a bookie outside of its write set",
        "thinclient/handles/lac_reads.py",
        "    if asked is None or bookie_id not in write_set_bookies(record.metadata, asked):\n",
        "    if asked is None:\n",
        f"{_READING}::test_a_long_poll_takes_an_entry_from_its_write_set_only",
    ),
    _planted(
        "end-moves-back",
        "a reader's end follows whatever a bookie tells last",
        _VIEW,
        "        if lac > self.last_add_confirmed:\n",
        "        if lac >= 0:\n",
        f"{_READING}::test_the_end_never_moves_back",
    ),
)

_COLLECTION = (
    _planted(
        "falling-watermark-counts-on",
        "a watermark that fell, as that of a restored store does, does not begin anew",
        "bookie/collection/trimmed_ledgers.py",
        "            if before is None or watermark < before.watermark:\n",
        "            if before is None:\n",
        f"{_TRIMMED}::test_a_watermark_counts_after_a_period",
    ),
    _planted(
        "trims-by-a-store-that-lags",
        "metadata of a store that has not caught up say what a bookie deletes",
        "bookie/collection/trimmed_ledgers.py",
        "        await self._within_timeout(self._metadata.catch_up(None))\n",
        "",
        f"{_TRIMMED}::test_nothing_goes_by_a_store_that_does_not_catch_up",
    ),
)

_REPAIRED = (
    Mutation(
        "copies-truncate",
        "auto-recovery",
        (),
        "the copy of a truncate entry deletes what is above it",
        "bookie/replication/copies/bookies.py",
        "            frame = encoder.encode(txn_id, entry.entry_id, packet)\n",
        "            frame = encoder.encode(txn_id, entry.entry_id, packet)\n"
        "            if not entry.payload:\n"
        "                from bookgate.ledger.wire.messages import AddRequest\n"
        "                from bookgate.ledger.wire.v3 import encode_request\n\n"
        "                ids, key = (txn_id, ledger_id, entry.entry_id), secrets.master_key\n"
        "                copy = AddRequest(*ids, key, packet, recovery=True, term=self.term, truncate=True)\n"
        "                frame = encode_request(copy)\n",
        more=(
            Edit(
                "bookie/replication/copies/bookies.py",
                "        request = ReadRequest(self._pool.next_txn_id(), ledger_id, 0, False, secrets.master_key, "
                "term=term)\n",
                "        self.term = term\n"
                "        request = ReadRequest(self._pool.next_txn_id(), ledger_id, 0, False, secrets.master_key, "
                "term=term)\n",
            ),
        ),
        tests=(f"{_REPAIRS}::test_only_complete_fragments_are_repaired_and_with_what_was_confirmed",),
    ),
    _planted(
        "any-bookie-holds-a-ledger",
        "a bookie that does not announce what a ledger needs is chosen for it",
        "thinclient/placement/chooser.py",
        "    return [each for each in known if all(map(each.info.understands, needs))] if needs else known\n",
        "    return known\n",
        f"{_FEATURES}::test_only_bookies_that_understand_a_ledger_are_chosen",
    ),
)

MUTATIONS = (*_BOOKIE, *_WRITERS, *_TAKE_OVERS, *_READERS, *_COLLECTION, *_REPAIRED)
