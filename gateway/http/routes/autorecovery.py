"""Auto-recovery over HTTP: marks, the switch, the auditor, the delay, and bookies to be emptied.

Paths, parameters and bodies are BookKeeper's, but for the progress, and so are textual responses. Long operations are
only started here: BookKeeper's server copies a bookie's ledgers itself, in the background, until it is restarted; here
a record in the metadata says that the bookie is to be emptied, and the auditor and the workers do the rest.

Not its job: the rules (`ledger.replication_control`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from starlette.responses import Response

from bookgate.gateway.http.api import TEXT, Body, Boolean, Call, LedgerHalf, NoBody, Query, Route, change, get
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import STORE_AWAY, sent_by_parts
from bookgate.ledger import replication_control as control
from bookgate.ledger.ledger_id import halves_of, number_in_json, scope_of
from bookgate.ledger.metadata_store import LedgerManagerFactory
from bookgate.ledger.replication import MOST_DELAY_SECONDS
from bookgate.ledger.replication_checks import Check, order_check
from bookgate.ledger.replication_progress import cluster_progress, facts_of
from bookgate.ledger.replication_store import Mark, RecordKind
from bookgate.runtime.clock import now_ms

LIST_MARKS = "/api/v1/autorecovery/list_under_replicated_ledger"

NO_PLACE = {409: "the metadata store has no place for auto-recovery", **STORE_AWAY}

_LOSSES_SHOWN = 100
_NUMBER, _MAYBE = {"type": "number"}, {"type": ["number", "null"]}
_ROWS = {"type": "array", "items": {"type": "object"}}
_PROGRESS = {
    "type": "object",
    "required": ["classes", "bookies", "repairing", "unrecoverable", "seconds_left"],
    "properties": {
        "workers": _NUMBER,
        "classes": _ROWS,
        "bookies": _ROWS,
        "repairing": _ROWS,
        "ledgers_left": _NUMBER,
        "entries_left": _NUMBER,
        "bytes_left": _NUMBER,
        "entries_a_second": _NUMBER,
        "bytes_a_second": _NUMBER,
        "ledgers_a_minute": _MAYBE,
        "seconds_left": _MAYBE,
        "unrecoverable_ledgers": _NUMBER,
        "unrecoverable": _ROWS,
    },
}

BookieName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:._-]{1,255}$")]


def _whole(value: Any) -> Any:
    """In JSON 5.0 is a whole number too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Seconds = Annotated[int, Field(ge=0, le=MOST_DELAY_SECONDS), BeforeValidator(_whole)]


class MarksQuery(Query):
    ledger_scope_id: LedgerHalf = Field(0, description="the scope; 0 for BookKeeper's own ids")
    missingreplica: str = Field("", description="only marks that name this bookie")
    excludingmissingreplica: str = Field("", description="only marks that do not name this bookie")
    printmissingreplica: Literal["", "true", "false"] = Field(
        "false", description="with the bookies whose copies are missing; true if it is there without a value"
    )


class SwitchQuery(Query):
    enabled: Boolean = Field(description="on or off")


class TriggerQuery(Query):
    check: Literal["", "replicas", "placement", "scrub"] = Field(
        "", description="not lost bookies: begin this check of all ledgers; not BookKeeper's"
    )


class DelayBody(Body):
    delay_seconds: Seconds = Field(description="how long a bookie may be away")


class RecoverBody(Body):
    bookie_src: list[BookieName] = Field(min_length=1, max_length=100, description="bookies to empty")
    delete_cookie: bool = Field(False, strict=True, description="delete their cookies once they are empty and stopped")


class DecommissionBody(Body):
    bookie_src: BookieName = Field(description="the bookie to empty, which must be stopped")
    delete_cookie: Literal[False, True, "false", "true"] = Field(
        False, description="delete its cookie once it is empty"
    )
    force: bool = Field(
        False, strict=True, description="also if ledgers stay that have lost entries for good; not BookKeeper's"
    )

    @model_validator(mode="after")
    def _force_what(self) -> Self:
        if self.force and self.delete_cookie in (False, "false"):
            raise ValueError("force is for the deletion of the cookie: it goes with delete_cookie")
        return self


def auto_recovery_routes(factory: LedgerManagerFactory) -> list[Route]:
    """The rows of auto-recovery; all work in the metadata of `factory`."""
    return [*_state_routes(factory), *_auditor_routes(factory), *_draining_routes(factory)]


def _state_routes(factory: LedgerManagerFactory) -> list[Route]:
    async def status(_call: Call[Query, NoBody]) -> Any:
        return {"enabled": await factory.replication_metadata.is_enabled()}

    async def set_status(call: Call[SwitchQuery, NoBody]) -> Any:
        await control.switch(factory.replication_metadata, call.query.enabled)
        return {"enabled": await factory.replication_metadata.is_enabled()}

    async def progress(_call: Call[Query, NoBody]) -> Any:
        store = factory.replication_metadata
        records = await store.records(RecordKind.UNRECOVERABLE_LEDGER)
        losses = [
            {"ledger_id": number_in_json(number), **loss.facts}
            for number, loss in control.losses_in(records, _LOSSES_SHOWN)
        ]
        told = facts_of(await cluster_progress(store, now_ms()))
        return {**told, "unrecoverable_ledgers": len(records), "unrecoverable": losses}

    async def listing(call: Call[MarksQuery, NoBody]) -> Response:
        query = call.query
        with_replicas = query.printmissingreplica != "false"
        # What is blank says nothing, as in BookKeeper.
        pages = control.marks_of(
            factory.replication_metadata,
            query.missingreplica.strip() or None,
            query.excludingmissingreplica.strip() or None,
        )
        members = _listed(pages, query.ledger_scope_id, with_replicas)
        first = await anext(members, None)
        if first is None:
            # BookKeeper's word, and status.
            raise HttpError(404, "No under replicated ledgers found")
        return await sent_by_parts(members, first=first, brackets="{}" if with_replicas else "[]")

    path = "/api/v1/autorecovery/status"
    enabled = {"type": "object", "required": ["enabled"], "properties": {"enabled": {"type": "boolean"}}}
    ids = {"type": "array", "items": {"type": "integer"}}
    replicas = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}
    return [
        get(path, "Whether auto-recovery is on", status, answer=enabled, failures=NO_PLACE),
        change(
            "PUT",
            path,
            "Turn auto-recovery on or off, for the whole cluster",
            set_status,
            query=SwitchQuery,
            answer=enabled,
            failures=NO_PLACE,
        ),
        get(
            "/api/v1/autorecovery/progress",
            "What is endangered, being repaired and lost, how fast it goes and how long it will take",
            progress,
            answer=_PROGRESS,
            failures=NO_PLACE,
        ),
        get(
            LIST_MARKS,
            "Ledgers that lack copies",
            listing,
            query=MarksQuery,
            answer={"anyOf": [ids, replicas]},
            failures={404: "no ledger is marked, or none that was asked for", **NO_PLACE},
        ),
    ]


async def _listed(
    pages: AsyncGenerator[Sequence[Mark], None], scope_id: int, with_replicas: bool
) -> AsyncGenerator[str, None]:
    """Members of the answer, a page at a time: the ledgers of one scope."""
    async with aclosing(pages):
        async for page in pages:
            if found := [mark for mark in page if scope_of(mark.value.ledger_id) == scope_id]:
                yield ",".join(_member(mark, with_replicas) for mark in found)


def _member(mark: Mark, with_replicas: bool) -> str:
    number = halves_of(mark.value.ledger_id)[1]
    return f'"{number}":{json.dumps(list(mark.value.replicas))}' if with_replicas else str(number)


def _auditor_routes(factory: LedgerManagerFactory) -> list[Route]:
    async def who_is_auditor(_call: Call[Query, NoBody]) -> str:
        auditor = await factory.replication_metadata.auditor()
        if auditor is None:
            raise HttpError(404, "there is no auditor: auto-recovery does not run in this cluster")
        return f"Auditor: {auditor}"

    async def trigger_audit(call: Call[TriggerQuery, NoBody]) -> str:
        if check := call.query.check:
            await order_check(factory.replication_metadata, Check(check))
            return f"Success trigger {check} check."
        await control.order_audit(factory.replication_metadata)
        return "Success trigger audit."

    async def delay(_call: Call[Query, NoBody]) -> str:
        seconds = await factory.replication_metadata.lost_bookie_delay()
        if seconds is None:
            raise HttpError(404, "nobody has set the delay yet: the first auditor will, from its own settings")
        return f"lostBookieRecoveryDelay value: {seconds}"

    async def set_delay(call: Call[Query, DelayBody]) -> str:
        seconds = await factory.replication_metadata.set_lost_bookie_delay(call.body.delay_seconds)
        return f"Success set lostBookieRecoveryDelay to {seconds}"

    text = {"answer": None, "media_type": TEXT}
    path = "/api/v1/autorecovery/lost_bookie_recovery_delay"
    nobody = {404: "there is no auditor", **NO_PLACE}
    not_set = {404: "nobody has set it yet", **NO_PLACE}
    refused = {**NO_PLACE, 409: "auto-recovery is disabled, or there is no auditor"}
    return [
        get("/api/v1/autorecovery/who_is_auditor", "Which bookie audits", who_is_auditor, failures=nobody, **text),
        change(
            "PUT",
            "/api/v1/autorecovery/trigger_audit",
            "Look for lost bookies now, or begin a check",
            trigger_audit,
            query=TriggerQuery,
            failures=refused,
            **text,
        ),
        get(path, "How long a lost bookie is waited for", delay, failures=not_set, **text),
        change("PUT", path, "Set that", set_delay, body=DelayBody, failures=NO_PLACE, **text),
    ]


def _draining_routes(factory: LedgerManagerFactory) -> list[Route]:
    async def begun(bookie_ids: Sequence[str], *, delete_cookie: bool, force: bool = False) -> str:
        began_ms = now_ms()
        for bookie_id in dict.fromkeys(bookie_ids):
            await control.begin_draining(factory, bookie_id, began_ms, delete_cookie=delete_cookie, force=force)
        names = ", ".join(dict.fromkeys(bookie_ids))
        problem = await control.obstacle(factory.replication_metadata)
        return (
            f"Success: to be emptied: {names}. The auditor marks the ledgers, workers move them; GET {LIST_MARKS} "
            f"shows those that wait, `bookgate bookie drain` how many are left."
            + (
                " Cookies go when no ledger names their bookies any more and these are stopped."
                if delete_cookie
                else ""
            )
            + ("" if problem is None else f" But nothing happens yet: {problem}.")
        )

    async def recover(call: Call[Query, RecoverBody]) -> str:
        return await begun(call.body.bookie_src, delete_cookie=call.body.delete_cookie)

    async def decommission(call: Call[Query, DecommissionBody]) -> str:
        await control.require_unregistered(factory, call.body.bookie_src, "it is decommissioned")
        body = call.body
        return await begun([body.bookie_src], delete_cookie=body.delete_cookie in (True, "true"), force=body.force)

    text = {"answer": None, "media_type": TEXT}
    unknown = {404: "there is no such bookie", **NO_PLACE}
    registered = {**unknown, 409: "the bookie is registered"}
    return [
        change(
            "PUT",
            "/api/v1/autorecovery/bookie",
            "Copy bookies' ledgers to others",
            recover,
            body=RecoverBody,
            failures=unknown,
            **text,
        ),
        change(
            "PUT",
            "/api/v1/autorecovery/decommission",
            "Empty a bookie that is stopped for good",
            decommission,
            body=DecommissionBody,
            failures=registered,
            **text,
        ),
    ]
