"""Which tests go to the same process when several share a run (`pytest -n 4 --dist loadfile`).

A file's tests stay together, as pytest-xdist has it. So do the files of `tests/spark` that use the one session and the
one cluster of `tests/spark/conftest.py`: a session's JVM and its Python workers cost tens of seconds of CPU before the
first row, and each process that got one of these files would have a session of its own.

Not its job: the order of the tests (`tests/conftest.py`).
"""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler.loadfile import LoadFileScheduling  # type: ignore[import-untyped]

ONE_SESSION = "tests/spark"
OF_THEIR_OWN = frozenset({"test_application_folder.py", "test_exactly_once.py", "test_main_job.py"})
"""Files there whose tests, all or the longest of them, start a Spark of their own in any case."""


def scope_of(nodeid: str) -> str:
    """What a test stays together with."""
    file = PurePosixPath(nodeid.partition("::")[0])
    return ONE_SESSION if file.parent == PurePosixPath(ONE_SESSION) and file.name not in OF_THEIR_OWN else str(file)


class TogetherScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, and those of the one session as if they were one file."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
