"""The bookie: its rules, and the fast path of what is done by the thousand."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Edit, Mutation

_TLS = "tests/integration/bookie/test_tls_and_authentication.py"
_PLAN = "tests/simulation/test_seeds.py::test_no_invariant_is_broken"
_UNHEARD_FENCE = f"{_PLAN}[fence-of-a-recovery-that-a-bookie-does-not-hear]"

MUTATIONS = (
    # The bookie's rules
    Mutation(
        "fence-not-checked",
        "bookie",
        ("P7",),
        "a fenced ledger takes ordinary adds",
        "bookie/storage/ledger_state.py",
        "        if self.fenced and not recovery:\n",
        "        if recovery is None:\n",
    ),
    Mutation(
        "fence-not-persisted",
        "bookie",
        ("P7", "S6"),
        "a fence lives in memory only",
        "bookie/storage/writer.py",
        "            self._write_state(ledger, journal_format.encode_fence(ledger.number), completion)\n",
        "            self._journal_of(ledger.number).force(completion)\n",
    ),
    Mutation(
        "fence-answered-at-once",
        "bookie",
        ("S6", "P7"),
        "a fencing read of a ledger that was fenced a moment ago does not wait for the fence to be durable",
        "bookie/storage/writer.py",
        "            self._journal_of(ledger.number).force(completion)\n            return\n",
        "            self._events.stored((completion,))\n            return\n",
    ),
    Mutation(
        "fence-lost-in-header",
        "storage",
        ("P7",),
        "a checkpoint writes index headers without the fence",
        "bookie/storage/ledger_store.py",
        "                header = IndexHeader(ledger.master_key, ledger.fenced, ledger.explicit_lac)\n",
        "                header = IndexHeader(ledger.master_key, False, ledger.explicit_lac)\n",
    ),
    Mutation(
        "replay-forgets-fences",
        "storage",
        ("P7", "S1"),
        "replay passes over the journal's fence records",
        "bookie/storage/replay.py",
        "        if record.entry_id == fmt.FENCE:\n            ledger.fenced = True\n",
        "        if record.entry_id == fmt.FENCE:\n            return\n",
    ),
    Mutation(
        "key-not-checked",
        "bookie",
        ("S7",),
        "any master key may add",
        "bookie/storage/ledger_state.py",
        "        if master_key != self.master_key:\n            return Status.EUA\n        if "
        "self.fenced and not recovery:\n",
        "        if self.fenced and not recovery:\n",
    ),
    Mutation(
        "key-not-checked-in-the-fast-path",
        "bookie",
        ("S7",),
        "any master key may add what is served without a second look",
        "bookie/protocol/request_processor.py",
        "            or ledger.master_key != master_key\n",
        "",
    ),
    # The fast path: what is done by the thousand, and knows the ordinary case only
    Mutation(
        "fence-not-checked-in-the-fast-path",
        "bookie",
        ("P7", "P2"),
        "a fenced ledger takes the adds that are served without a second look",
        "bookie/protocol/request_processor.py",
        "            or ledger.fenced\n",
        "",
    ),
    Mutation(
        "lac-of-the-entry-itself-in-the-fast-path",
        "bookie",
        ("P10",),
        "a bookie takes an entry that it is given for confirmed, not what the entry says of its predecessors",
        "bookie/protocol/request_processor.py",
        "        if last_add_confirmed > ledger.known_lac:\n            ledger.known_lac = last_add_confirmed\n",
        "        ledger.known_lac = max(entry_id, ledger.known_lac)\n",
    ),
    Mutation(
        "answered-at-once-in-the-fast-path",
        "bookie",
        ("S5",),
        "the answer to an ordinary add leaves before the add is durable",
        "bookie/protocol/request_processor.py",
        "            self._writer.add_checked_entry(ledger, entry_id, body, "
        "AddCompletion(client, stored, timer, body, txn_id))\n",
        "            self._writer.add_checked_entry(ledger, entry_id, body, "
        'AddCompletion(client, b"", timer, body, txn_id))\n'
        "            client.send(stored)\n",
    ),
    Mutation(
        "declined-adds-are-lost",
        "bookie",
        ("P12",),
        "what the fast path of adds leaves to the general one is served by nobody",
        "bookie/protocol/connection.py",
        ", add):\n                    continue\n",
        ", add) or add is not None:\n                    continue\n",
    ),
    Mutation(
        "ordinary-add-of-another-entry",
        "bookie",
        ("P12", "P1", "P9"),
        "an ordinary add is stored under the last add confirmed that its packet has, not under its own id",
        "ledger/wire/fast_add.py",
        "    return _new(FastAdd, (stored, ledger_id, entry_id, last_add_confirmed, master_key,"
        " bytes(packet[start:]), txn_id))\n",
        "    return _new(\n        FastAdd,\n        (stored, ledger_id, last_add_confirmed, last_add_confirmed,"
        " master_key, bytes(packet[start:]), txn_id),\n    )\n",
    ),
    Mutation(
        "any-answer-is-stored",
        "client",
        ("P1", "P9"),
        'the client\'s short way takes an answer to an add for "stored" whatever its status says',
        "ledger/wire/fast_responses.py",
        "\\x18(%(n)b)\\x10\\x00\\xaa\\x06(.)\\x08\\x00(\\x10%(n)b",
        "\\x18(%(n)b)\\x10%(n)b\\xaa\\x06(.)\\x08%(n)b(\\x10%(n)b",
        more=(Edit("ledger/wire/fast_responses.py", " or length[0] != 2 + len(ids):\n", ":\n"),),
    ),
    Mutation(
        "fence-flag-forgotten",
        "client",
        (),
        "the reads of recovery carry the master key, and not the flag that makes them fence",
        "ledger/wire/fast_requests.py",
        '        self._ledger = (b"" if fence_with is None else _FENCE_FLAG) + b',
        "        self._ledger = b",
        tests=(_UNHEARD_FENCE,),
    ),
    Mutation(
        "recovery-flag-forgotten",
        "client",
        ("P12", "P3"),
        "the adds of recovery do not say that they are such, and a fenced ledger refuses them",
        "ledger/wire/fast_requests.py",
        '        self._ledger = (_RECOVERY_FLAG if recovery else b"") + b',
        "        self._ledger = b",
    ),
    Mutation(
        "read-only-takes-ordinary-adds",
        "bookie",
        (),
        "a bookie that is read-only takes the adds that are served without a second look",
        "bookie/protocol/request_processor.py",
        "            or self._mode.read_only\n",
        "",
        tests=("tests/integration/bookie/test_read_only.py::test_the_operators_switch",),
    ),
    Mutation(
        "fast-path-wakes-no-long-poll",
        "bookie",
        (),
        "who waits for the last add confirmed to grow is not told of ordinary adds",
        "bookie/protocol/request_processor.py",
        "            return False  # fails again there, and is answered\n        if ledger_id in self._awaited:\n",
        "            return False  # fails again there, and is answered\n        if False:\n",
        tests=("tests/integration/bookie/test_long_poll.py",),
    ),
    Mutation(
        "fast-path-beside-the-gate",
        "bookie",
        (),
        "ordinary adds are served before authentication or TLS has let the connection in",
        "bookie/protocol/connection.py",
        "        shortcut = self._processor.add if serve == self._processor.process else None\n",
        "        shortcut = self._processor.add\n",
        tests=(_TLS,),
    ),
    Mutation(
        "asked-in-clear-answered-inside-tls",
        "bookie",
        (),
        "a connection becomes TLS after it has served something in clear, which anybody may have asked",
        "bookie/protocol/connection.py",
        "        if self._tls is not None or self._served_in_clear or self._security.certificates is None:\n",
        "        if self._tls is not None or self._security.certificates is None:\n",
        tests=(_TLS,),
    ),
    Mutation(
        "answers-from-clear-are-taken-inside-tls",
        "client",
        (),
        "the ids by which a client that uses TLS tells its answers can be guessed by whoever stands in between",
        "thinclient/bookies/pool.py",
        "itertools.count(1 + (self._rng.getrandbits(_SECRET_BITS) if secret_txn_ids else 0))",
        "itertools.count(1)",
        tests=("tests/unit/thinclient/bookies/test_secure_connections.py",),
        more=(
            Edit(
                "thinclient/bookies/handshake.py",
                "itertools.count(secrets.randbits(62))",
                "itertools.count(1)",
            ),
        ),
    ),
)
