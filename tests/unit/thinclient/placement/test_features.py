"""Ledgers go to bookies that understand them: with any mixture of bookies, in ensembles and in replacements."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.bookie_info import (
    FEATURES_PROPERTY,
    LEDGER_SCOPE,
    LEDGER_TERM,
    BookieServiceInfo,
    Endpoint,
    Features,
    features_for,
)
from bookgate.ledger.errors import NotEnoughBookiesException
from bookgate.ledger.metadata_store import BookieSet, BookiesListener, RegisteredBookie, ServiceDiscovery
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.placement.chooser import Placement, create_policy, fit_for

_SETS = st.lists(st.frozensets(st.sampled_from((LEDGER_SCOPE, LEDGER_TERM, "another"))), min_size=1, max_size=7)
_NEEDS = st.builds(features_for, scoped=st.booleans(), unbounded=st.booleans())


class _Bookies:
    """A cluster whose bookies have these features; `told` has the watch tell of them at once."""

    def __init__(self, features: Sequence[Features], *, told: bool) -> None:
        self.known = [_bookie(number, each) for number, each in enumerate(features)]
        self._told = told

    async def bookies(self, _bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        return self.known

    async def watch_bookies(self, _bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        if self._told:
            listener(self.known)
        return lambda: None


def _bookie(number: int, features: Features) -> RegisteredBookie:
    properties = {FEATURES_PROPERTY: " , ".join(sorted(features))} if features else {}
    endpoint = Endpoint("bookie", f"host-{number}", 3181, "bookie-rpc", (), ())
    return RegisteredBookie(BookieServiceInfo(f"b{number}", (endpoint,), properties), writable=True, read_only=False)


@given(_SETS, _NEEDS, st.integers(1, 4), st.booleans(), st.sampled_from(("default", "rackaware")), st.integers())
@pytest.mark.asyncio
async def test_only_bookies_that_understand_a_ledger_are_chosen(
    features: list[Features], needs: Features, size: int, told: bool, policy: str, seed: int
) -> None:
    cluster, config = _Bookies(features, told=told), ClientConfig(placement_policy=policy)
    placement = Placement(
        cast(ServiceDiscovery, cluster), create_policy(config, random.Random(seed)), config, quarantined=tuple
    )
    fit = {each.bookie_id for each in cluster.known if needs <= features[int(each.bookie_id[1:])]}
    assert {each.bookie_id for each in fit_for(cluster.known, needs)} == fit
    request = EnsembleRequest(size, size, 1)
    for _ in range(2):  # by what was asked for, then by what the watch tells
        if len(fit) < size:
            with pytest.raises(NotEnoughBookiesException) as lacking:
                await placement.new_ensemble(request, needs=needs)
            assert ("do not understand" in str(lacking.value)) == (len(fit) < len(features))
            continue
        ensemble = await placement.new_ensemble(request, needs=needs)
        assert len({*ensemble}) == size
        assert {*ensemble} <= fit
        if len(fit) == size:
            with pytest.raises(NotEnoughBookiesException):
                await placement.replace_bookie(request, ensemble, 0, needs=needs)
        else:
            assert await placement.replace_bookie(request, ensemble, 0, needs=needs) in fit - {*ensemble}
    await placement.close()
