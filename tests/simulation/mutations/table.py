"""All bugs to plant, by area, in the order in which MUTATIONS.md lists them."""

from __future__ import annotations

from tests.simulation.mutations.planted import (
    bookie,
    claims,
    client,
    gateway,
    guaranteed,
    leases,
    repair,
    scopes,
    small_streams,
    small_worlds,
    spark,
    sqlite,
    storage,
    stream_worlds,
    streams,
    terms,
    unbounded,
    unbounded_repairs,
    unbounded_rules,
    unbounded_worlds,
)

MUTATIONS = (
    *client.MUTATIONS,
    *guaranteed.MUTATIONS,
    *small_worlds.MUTATIONS,
    *small_streams.MUTATIONS,
    *bookie.MUTATIONS,
    *storage.MUTATIONS,
    *terms.MUTATIONS,
    *scopes.MUTATIONS,
    *gateway.MUTATIONS,
    *leases.MUTATIONS,
    *repair.MUTATIONS,
    *claims.MUTATIONS,
    *sqlite.MUTATIONS,
    *spark.MUTATIONS,
    *unbounded.MUTATIONS,
    *unbounded_repairs.MUTATIONS,
    *unbounded_worlds.MUTATIONS,
    *unbounded_rules.MUTATIONS,
    *streams.MUTATIONS,
    *stream_worlds.MUTATIONS,
)
