"""Locks, votes and surplus copies, over gateways and ZooKeeper, beside processes of BookKeeper's."""

from __future__ import annotations

from tests.simulation.mutations.mutation import PEERS, Mutation

_LOCKS = "gateway/stores/zookeeper/ledger_locks.py"
_ELECTION = "gateway/stores/zookeeper/auditor_election.py"
_VOTES = "tests/unit/gateway/stores/test_auditor_election.py"
_SESSIONS = "gateway/services/replication_sessions.py"
_SURPLUS = "bookie/collection/over_replicated.py"
_MARK = "ledger/replication.py"

MUTATIONS = (
    Mutation(
        "every-candidate-acts",
        "auto-recovery",
        ("R12",),
        "a candidate that waits for the office acts as if it had it",
        _ELECTION,
        "        if before:\n            vote.become(VoteState.WAITING)\n        elif vote",
        "        if vote",
        PEERS,
    ),
    Mutation(
        "removal-of-votes-looks-once",
        "auto-recovery",
        (),
        "a vote whose withdrawal failed while others were being removed keeps everybody from the office",
        _ELECTION,
        "        self._sweep_wanted = True\n        if self",
        "        self._sweep_wanted = not self._sweep or self._sweep.done()\n        if self",
        tests=(_VOTES,),
    ),
    Mutation(
        "vote-removed-at-a-server-that-lags",
        "auto-recovery",
        (),
        "a vote whose creation was not answered stays, since the next server does not show it yet",
        _ELECTION,
        "            await self._session.sync(self._paths.election)\n",
        "",
        tests=(_VOTES,),
    ),
    Mutation(
        "mark-forgets-the-others",
        "auto-recovery",
        ("R12",),
        "a mark that is made again names the last bookie only",
        _MARK,
        "        named = dict.fromkeys(self.replicas)\n",
        "        named = dict.fromkeys(())\n",
        PEERS,
    ),
    Mutation(
        "surplus-of-a-locked-ledger",
        "bookie",
        ("R16",),
        "surplus copies are collected of a ledger whose lock another has",
        _SURPLUS,
        "            if lock is None:\n                return\n",
        "            if lock is None:\n                await self._delete(number)\n                return\n",
        PEERS,
    ),
    Mutation(
        "surplus-of-an-earlier-fragment",
        "bookie",
        ("R16",),
        "copies are surplus as soon as the last fragment names another bookie",
        _SURPLUS,
        "all(bookie_id not in fragment.ensemble for fragment in metadata.fragments)",
        "bookie_id not in metadata.last_fragment.ensemble",
        PEERS,
    ),
    Mutation(
        "write-without-the-lock",
        "gateway",
        ("R17",),
        "the lock is looked at where it was taken, and not in the transaction that writes",
        _LOCKS,
        "            return await self._session.set_guarded(path, data, version, guard, held.session_id)\n",
        "            return await self._session.set(path, data, version)\n",
        PEERS,
    ),
    Mutation(
        "lease-leaves-its-claims",
        "gateway",
        ("R17",),
        "what a lease held stays when it is over",
        _SESSIONS,
        '        """Releases all locks and votes; retried while the store is unreachable."""\n',
        '        """Releases all locks and votes; retried while the store is unreachable."""\n'
        "        self._locks.clear()\n        self._votes.clear()\n",
        PEERS,
    ),
    Mutation(
        "lost-vote-cast-again",
        "gateway",
        (),
        "a request to cast a vote that is repeated after the store has ended it casts another, which nobody follows",
        _SESSIONS,
        "        if state is VoteState.LOST:\n            self._vote_is_over(number)\n",
        "        if state is VoteState.LOST:\n            self._votes.pop(number, None)\n",
        tests=("tests/unit/gateway/services/test_replication_sessions.py",),
    ),
    Mutation(
        "withdrawn-vote-cast-again",
        "gateway",
        (),
        "a request to cast a vote that arrives after its owner has withdrawn it casts it all the same",
        _SESSIONS,
        "            if number <= self._votes_over:\n",
        "            if number < 0:\n",
        tests=("tests/unit/gateway/services/test_replication_sessions.py",),
    ),
    Mutation(
        "lock-of-another-taken",
        "gateway",
        ("R18",),
        "a lock that BookKeeper's has is taken away and made anew",
        _LOCKS,
        "            except NodeExistsError:\n                return None\n",
        "            except NodeExistsError:\n                await self._session.delete(path)\n",
        PEERS,
    ),
    Mutation(
        "votes-of-others-passed-over",
        "gateway",
        ("R18", "R12"),
        "only votes that were cast through the same gateway count",
        _ELECTION,
        "        before = names[: names.index(vote.name)]\n",
        "        before = [name for name in names[: names.index(vote.name)] if name in self._votes]\n",
        PEERS,
    ),
    Mutation(
        "mark-loses-unknown-fields",
        "auto-recovery",
        ("R18",),
        "a mark that is made again loses the fields that Bookgate does not know",
        _MARK,
        '"".join(f"{line}\\n" for line in (*lines, *self.unknown_fields)).encode()',
        '"".join(f"{line}\\n" for line in lines).encode()',
        PEERS,
    ),
)
