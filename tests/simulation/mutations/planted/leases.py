"""Leases of bookies at gateways."""

from __future__ import annotations

from tests.simulation.mutations.mutation import Mutation

_REGISTRATION = "tests/integration/gateway/test_registration.py"
_LATER_WATCH = (
    "tests/simulation/test_metadata_seeds.py"
    "::test_an_answer_that_there_is_no_node_leaves_the_watch_of_a_later_request_alone"
)
"""A case with its moments written out: few seeds have a creation within the millisecond between two reads."""

MUTATIONS = (
    # Leases of bookies
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
