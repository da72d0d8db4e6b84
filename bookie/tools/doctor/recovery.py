"""Findings about lost bookies, and about auto-recovery, which restores the copies that they held. Pure.

What to do about a lost bookie depends on whether auto-recovery works: if so, a bookie that is gone for good is left to
it; otherwise nobody restores the copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from bookgate.bookie.tools.doctor.findings import Finding, FindingLevel, error, warning
from bookgate.bookie.tools.doctor.observations import Deployment, RecoveryView
from bookgate.ledger.replication_survey import Survey

OLD_MARK_SECONDS = 3600
"""A ledger that has lacked copies for this long is reported."""

_SUBJECT = "auto-recovery"


def lost_bookies(seen: Deployment) -> Iterator[Finding]:
    """Findings about bookies that have a cookie and no registration."""
    for bookie_id in seen.absent:
        yield error(
            f"bookie {bookie_id}",
            f"known by its cookie, but not registered{_since(bookie_id, seen.recovery)}: it does not run, or can't "
            "reach the metadata",
            "start it, or see why it can't (one that runs registers by itself within seconds, and logs not_registered "
            f"until then); or, if it is gone for good, {_without(bookie_id, seen.recovery)}",
        )


def _since(bookie_id: str, view: RecoveryView | None) -> str:
    since_ms = None if view is None or view.survey is None else view.survey.missed_since.get(bookie_id)
    return "" if view is None or since_ms is None else f", missed for {_time(view.at_ms - since_ms)}"


def _without(bookie_id: str, view: RecoveryView | None) -> str:
    if view is not None and view.works:
        leave = "leave its ledgers to auto-recovery, which has them copied from the other bookies"
    else:
        leave = "let auto-recovery copy its ledgers from the other bookies, which it does not now"
    return (
        f"{leave}, and decommission it (bookgate bookie decommission {bookie_id}), which waits until no ledger names it"
    )


def auto_recovery(seen: Deployment) -> Iterator[Finding]:
    """Findings about whether auto-recovery works, and ledgers that wait for it or can't be repaired."""
    view = seen.recovery
    if view is None:
        return
    if view.error is not None:
        yield warning(_SUBJECT, f"what it does could not be seen: {view.error}", "see the gateways")
    found = [*_office(view), *_storm(view), *([] if view.survey is None else _ledgers(view, view.survey))]
    yield from found
    if not found and view.error is None:
        yield Finding(FindingLevel.OK, _SUBJECT, f"enabled, {view.auditor} is the auditor{_marked(view.survey)}")


def _office(view: RecoveryView) -> Iterator[Finding]:
    if view.enabled is False:
        yield warning(
            _SUBJECT,
            "disabled for the whole cluster: copies that are lost are not made again",
            "when maintenance is over: bookgate autorecovery enable",
        )
    if view.enabled is not None and view.auditor is None:
        yield warning(
            _SUBJECT,
            "it does not run, for there is no auditor: copies that are lost are not made again",
            "set auto_recovery = true for the bookies, or run `bookgate autorecovery start`",
        )


def _storm(view: RecoveryView) -> Iterator[Finding]:
    held_back = view.held_back
    if not view.works or held_back is None:
        return
    yield error(
        _SUBJECT,
        f"{held_back.in_words}: it marks no ledger for repair but those of which entries have one copy left, since a "
        "fault of the network or of the metadata store is likelier",
        "bring them back, or their way to the metadata store; if they are gone for good, order the audit: "
        "bookgate autorecovery trigger",
    )


def _ledgers(view: RecoveryView, survey: Survey) -> Iterator[Finding]:
    if survey.unrecoverable:
        yield error(
            _SUBJECT,
            f"{survey.unrecoverable} ledgers have entries of which no copy is left",
            "bring back a bookie that had them, with its disks; which they are: bookgate ledger under-replicated",
        )
    age_ms = 0 if survey.oldest_mark_ms is None else view.at_ms - survey.oldest_mark_ms
    if age_ms > 1000 * OLD_MARK_SECONDS:
        yield warning(
            _SUBJECT,
            f"a ledger has lacked copies for {_time(age_ms)}{_marked(survey)}",
            "see who works on them (bookgate ledger under-replicated), and the logs of bookies with auto_recovery: "
            "event=ledger_repair state=postponed has the reason",
        )


def _marked(survey: Survey | None) -> str:
    return "" if survey is None else f", {survey.marked} ledgers are marked for repair"


def _time(milliseconds: int) -> str:
    return str(timedelta(seconds=max(0, milliseconds) // 1000))
