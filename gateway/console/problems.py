"""Problems of a cluster as far as its metadata and its bookies' responses show them, worded for the console's banner.

This is the view from one server. `bookgate doctor` examines more: addresses, cookies, clocks, certificates.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bookgate.ledger.bookie_info import version_of
from bookgate.ledger.metadata_store import RegisteredBookie
from bookgate.runtime.security.exposure import insecure_text
from bookgate.runtime.security.refused_files import FileKind, RefusedFiles

_NEARLY_FULL = 0.90
_FULL = 0.95
_USUAL_ENSEMBLE = 3


class Severity(enum.Enum):
    """ERROR: someone can't read or write, or soon won't; WARNING: it should be looked at."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class ConsoleProblem:
    severity: Severity
    subject: str
    text: str
    advice: str


Space = tuple[int, int]
"""Free and total bytes."""

Spaces = Mapping[str, Space | None]
"""By bookie id; None for a bookie that was asked and did not answer."""


def store_problem(error: str) -> ConsoleProblem:
    """The metadata store is unreachable."""
    return ConsoleProblem(
        Severity.ERROR,
        "metadata store",
        f"out of reach from this server: {error}",
        "see that the store runs and that this server reaches it; ledgers can't be opened or made here meanwhile",
    )


def recovery_problems(lacking: int, unrecoverable: int) -> list[ConsoleProblem]:
    """Ledgers lack copies; those of them that can't be repaired are an error."""
    lack = f"{lacking:,} ledger lacks copies" if lacking == 1 else f"{lacking:,} ledgers lack copies"
    if unrecoverable:
        advice = "bring back the bookies that had the copies: the page Auto-recovery names them"
        return [ConsoleProblem(Severity.ERROR, "auto-recovery", f"{lack}, {unrecoverable:,} can't be repaired", advice)]
    if lacking:
        advice = "the page Auto-recovery shows what is copied again, and what prevents it"
        return [ConsoleProblem(Severity.WARNING, "auto-recovery", lack, advice)]
    return []


def insecure_problem(open_doors: Sequence[str]) -> ConsoleProblem:
    """This server accepts everyone, as configured."""
    return ConsoleProblem(
        Severity.WARNING,
        "security",
        insecure_text(open_doors),
        "authenticate: docs/security.md; `bookgate security init` makes what is needed to begin with",
    )


def refused_file_problems(refused: RefusedFiles) -> list[ConsoleProblem]:
    """A policy, token file or key set changed and can't be used: who may what is as before."""
    return [
        ConsoleProblem(
            Severity.WARNING,
            "security",
            f"{reason}; this server goes by what it read before",
            "correct the file: it counts within seconds, without a restart"
            + ("; `bookgate policy check FILE` tells all that is wrong with it" if kind is FileKind.POLICY else ""),
        )
        for kind, reason in refused.items()
    ]


def bookie_problems(bookies: Sequence[RegisteredBookie], spaces: Spaces) -> list[ConsoleProblem]:
    """Errors first."""
    found = [problem for bookie in bookies for problem in _of_bookie(bookie, spaces)]
    found.extend(_of_cluster(bookies, spaces))
    return sorted(found, key=lambda problem: problem.severity is not Severity.ERROR)


def _of_bookie(bookie: RegisteredBookie, spaces: Spaces) -> Iterator[ConsoleProblem]:
    subject = bookie.bookie_id
    if not bookie.writable and not bookie.read_only:
        yield ConsoleProblem(
            Severity.ERROR,
            subject,
            "is not registered: it does not run, or can't reach the metadata store",
            "start it, or see its log; if it is gone for good, leave its ledgers to auto-recovery (bookgate "
            "autorecovery status), and delete its cookie once none names it (bookgate ledger list --bookie)",
        )
        return
    if bookie.bookie_id in spaces and spaces[bookie.bookie_id] is None:
        yield ConsoleProblem(
            Severity.ERROR,
            subject,
            "is registered, and does not answer at its entry port",
            "see whether it still runs, and whether its address can be reached from here",
        )
    used = used_fraction(spaces.get(bookie.bookie_id))
    if not bookie.writable:
        yield ConsoleProblem(
            Severity.WARNING,
            subject,
            "is read-only" + (f", its disks are {used:.0%} full" if used >= _NEARLY_FULL else ""),
            "free space or add a disk" if used >= _NEARLY_FULL else "make it writable again when you are done with it",
        )
    elif used >= _NEARLY_FULL:
        severity = Severity.ERROR if used >= _FULL else Severity.WARNING
        yield ConsoleProblem(severity, subject, f"its disks are {used:.0%} full", "free space, or add disks or bookies")


def used_fraction(space: Space | None) -> float:
    """0 if unknown."""
    return 1 - space[0] / space[1] if space is not None and space[1] > 0 else 0.0


def _of_cluster(bookies: Sequence[RegisteredBookie], spaces: Spaces) -> Iterator[ConsoleProblem]:
    writable = [bookie for bookie in bookies if bookie.writable and spaces.get(bookie.bookie_id, (0, 0)) is not None]
    if not writable:
        yield ConsoleProblem(
            Severity.ERROR, "cluster", "no bookie can be written: there can be no new ledger", "start bookies"
        )
    elif len(writable) < min(_USUAL_ENSEMBLE, len(bookies)):
        yield ConsoleProblem(
            Severity.ERROR,
            "cluster",
            f"only {len(writable)} of {len(bookies)} bookies can be written: too few for an ensemble of three",
            "bring bookies back, or start new ones",
        )
    versions = sorted({version for bookie in bookies if (version := version_of(bookie.info)) is not None})
    if len(versions) > 1:
        yield ConsoleProblem(
            Severity.WARNING,
            "cluster",
            f"bookies run different versions: {', '.join(versions)}",
            "let them run the same one, unless an upgrade is under way",
        )
