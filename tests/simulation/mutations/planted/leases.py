"""Leases of bookies at gateways."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Mutation

_IN_VAIN = "tests/unit/gateway/stores/test_registrations_in_vain.py"
_REPLACED = "tests/unit/gateway/services/test_replaced_streams.py"
_REGISTRATION = "tests/integration/gateway/test_registration.py"
_AWKWARD_MOMENTS = "tests/unit/gateway/stores/test_registration.py"
_ZOOKEEPER = "gateway/stores/zookeeper/registration.py"
_IDS, _ID_GENERATOR = "gateway/stores/zookeeper/id_generator.py", "tests/unit/gateway/stores/test_id_generator.py"
_LATER_WATCH = (
    "tests/simulation/test_metadata_seeds.py"
    "::test_an_answer_that_there_is_no_node_leaves_the_watch_of_a_later_request_alone"
)
"""A case with its moments written out: few seeds have a creation within the millisecond between two reads."""

MUTATIONS = (
    # Leases of bookies
    Mutation(
        "watcher-for-each-refusal",
        "gateway",
        (),
        "each refused registration leaves a watcher behind, for as long as the other's node stays",
        "gateway/stores/zookeeper/registration.py",
        "@dataclass(frozen=True, slots=True)\nclass _NodeWatch:\n",
        "@dataclass(frozen=True, slots=True, eq=False)\nclass _NodeWatch:\n",
        tests=(f"{_IN_VAIN}::test_refused_registrations_leave_one_watcher",),
    ),
    Mutation(
        "lock-kept-for-each-id",
        "gateway",
        (),
        "a gateway keeps a lock for each bookie id that has ever registered",
        "gateway/stores/zookeeper/registration.py",
        "WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()\n",
        "dict[str, asyncio.Lock] = {}\n",
        tests=(f"{_IN_VAIN}::test_nothing_is_kept_of_bookies_that_have_left",),
    ),
    Mutation(
        "replaced-stream-goes-on",
        "gateway",
        (),
        "a request of a stream that a newer one replaces registers the bookie, for as long as the gateway lives",
        "gateway/services/registration.py",
        "        other.over = True\n",
        "",
        tests=(f"{_REPLACED}::test_a_replaced_stream_starts_no_work",),
    ),
    Mutation(
        "who-leaves-while-replacing-stays",
        "gateway",
        (),
        "a bookie that leaves while its newer stream waits for the older one's work stays registered",
        "gateway/services/registration.py",
        "        if newer.over:\n",
        "        if False:\n",
        tests=(f"{_REPLACED}::test_who_leaves_over_the_second_stream_is_gone",),
    ),
    Mutation(
        "unanswered-lock-looked-for-at-a-lagging-server",
        "gateway",
        (),
        "a lock whose creation was not answered stays for the session where the server connected to since lags",
        "gateway/stores/zookeeper/ledger_locks.py",
        "                    await self._session.sync(self._paths.base)\n",
        "",
        tests=("tests/unit/gateway/stores/test_ledger_locks.py",),
    ),
    Mutation(
        "lease-of-another-claims",
        "gateway",
        (),
        "a bookie id that one lease has registered is given to another that asks for it",
        "gateway/stores/claims.py",
        "        return held is None or same_life(held[0].lease, lease)\n",
        "        return True\n",
        tests=(_REGISTRATION + "::test_a_process_tells_the_owners_of_its_registrations_apart",),
    ),
    Mutation(
        "lease-claims-the-hosts-own-id",
        "gateway",
        (),
        "a lease registers the id of the bookie that hosts the gateway",
        "gateway/stores/claims.py",
        "        if bookie_id in self._own:\n            return lease is None\n",
        "",
        tests=(_REGISTRATION + "::test_a_process_tells_the_owners_of_its_registrations_apart",),
    ),
    Mutation(
        "lease-kept-when-it-is-over",
        "gateway",
        (),
        "a bookie that has fallen silent stays registered",
        "gateway/services/registration.py",
        "        if registration.expires > asyncio.get_running_loop().time():\n",
        "        if registration.expires > 0:\n",
        tests=(_REGISTRATION + "::test_a_bookie_that_dies_leaves_discovery_with_its_lease",),
    ),
    Mutation(
        "lease-not-lengthened",
        "gateway",
        (),
        "a heartbeat does not lengthen the lease of its bookie",
        "gateway/services/registration.py",
        "        registration.expires = asyncio.get_running_loop().time() + self._lease_seconds\n"
        "        if request.unregister:\n",
        "        if request.unregister:\n",
        tests=(_REGISTRATION,),
    ),
    Mutation(
        "waiting-lease-takes-the-id-in-the-end",
        "gateway",
        (),
        "a bookie that was unregistered while it waited for its id is given the id nevertheless",
        "gateway/services/registration.py",
        "        if registration.over:\n            self._forget(registration)\n        elif registration",
        "        if registration",
        tests=(_REGISTRATION + "::test_a_bookie_that_gives_up_waiting_for_its_id_leaves_it_to_others",),
    ),
    Mutation(
        "unregistration-overtakes-a-repetition",
        "gateway",
        (),
        "a bookie leaves while its gateway registers it again, the answer is lost, and it stays registered",
        _ZOOKEEPER,
        "        async with self._turn(bookie_id):\n            if not self._claims.may_change",
        "        if self._turn(bookie_id):\n            if not self._claims.may_change",
        tests=(_AWKWARD_MOMENTS,),
    ),
    Mutation(
        "unregistration-waits-for-another-session",
        "gateway",
        (),
        "a bookie that leaves waits until its gateway has done with registering it again",
        _ZOOKEEPER,
        "            repeating.reschedule(0)\n",
        "            repeating.when()\n",
        tests=(_AWKWARD_MOMENTS,),
    ),
    Mutation(
        "taken-back-from-a-server-that-lags",
        "gateway",
        (),
        "a node whose creation was not answered stays, since the next server does not show it yet",
        _ZOOKEEPER,
        "        await self._session.sync(self._paths.available)\n        for path",
        "        for path",
        tests=(_AWKWARD_MOMENTS,),
    ),
    Mutation(
        "moved-on-from-its-own-node",
        "gateway",
        (),
        "what a gateway has put of a bookie that moved on meanwhile stays in the other list",
        _ZOOKEEPER,
        "            await self._take_back(info.bookie_id, info.lease)\n            raise\n",
        "            raise\n",
        tests=(_AWKWARD_MOMENTS,),
    ),
    Mutation(
        "deletion-that-waited-for-a-connection",
        "gateway",
        (),
        "a bookie moves twice while a gateway that it left waits for a connection: its node of the same version goes",
        "gateway/stores/zookeeper/nodes.py",
        "        if session.connected and session.connection_epoch == epoch:\n",
        "        if session.connection_epoch >= epoch:\n",
        tests=("tests/unit/gateway/stores/test_deleted_nodes.py",),
    ),
    Mutation(
        "replaced-stream-registers-again",
        "gateway",
        (),
        "a stream of a bookie that a newer one has replaced changes the newer one's registration",
        "gateway/stores/claims.py",
        "        if held is not None and info.superseded_by(held[0].encode()):\n",
        "        if held is not None and info is None:\n",
        tests=(_AWKWARD_MOMENTS,),
    ),
    # Ids of ledgers
    Mutation(
        "advanced-ids-unheard-by-who-runs",
        "gateway",
        (),
        "a gateway that runs goes on below the id beyond which an operator has advanced",
        _IDS,
        "        hobs = await self._list_hobs()\n        if hobs is None and self._last < 0:\n",
        "        hobs = [self._last >> 32] if self._last > 0 else await self._list_hobs()\n"
        "        if hobs is None and self._last < 0:\n",
        tests=(_ID_GENERATOR,),
    ),
    Mutation(
        "counter-of-ids-made-anew",
        "gateway",
        (),
        "the node under which a gateway counts is gone, is made again, and ids come a second time",
        _IDS,
        "self._root, counts_on=True)",
        "self._root)",
        tests=(_ID_GENERATOR,),
    ),
    Mutation(
        "ids-from-a-counter-made-anew",
        "gateway",
        (),
        "somebody else has made the node again under which a gateway counts, and ids come a second time",
        _IDS,
        "        if taken is None or taken.start <= self._last:\n",
        "        if taken is None:\n",
        tests=(_ID_GENERATOR,),
    ),
    Mutation(
        "watch-of-another-thrown-away",
        "gateway",
        (),
        "an answer that there is no node throws away every watch of the path, also a later request's",
        "gateway/stores/zookeeper/session.py",
        "        found: tuple[bytes, ZnodeStat] = await self._read(lambda kazoo: GetData(path, "
        "kazoo.watcher(watch)))\n"
        "        return found\n",
        "        try:\n"
        "            found: tuple[bytes, ZnodeStat] = await self._read(lambda kazoo: GetData(path, "
        "kazoo.watcher(watch)))\n"
        "        except NoNodeError:\n"
        "            if self.kazoo is not None:\n"
        "                self.kazoo.client._data_watchers.pop(path, None)\n"
        "            raise\n"
        "        return found\n",
        tests=(_LATER_WATCH,),
    ),
)
