"""What a policy costs a bookie an add: CPU of the process and adds a second, beside a bookie without any security.

Both are whole bookies that sync their journals, loaded in turn over a socket with the same frames. Runs are short and
many, so that what else the machine does disturbs both of a pair alike. Part of `make bench-security`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

from benchmarks.entry_load import encoded_adds, requests_per_second
from benchmarks.harness import QUICK, Row, figures
from benchmarks.process_cpu import cpu_microseconds
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.wire.messages import AuthRequest
from bookgate.ledger.wire.v3 import encode_request
from bookgate.runtime.security.static_tokens import new_token

_ADDS, _OUTSTANDING = 10_000, 1000
_PAIRS = 5 if QUICK else 40
_SIZES = (100, 1024)
"""Payloads in bytes."""
_OTHERS = "".join(f'[[bindings]]\nprincipals = ["token:other-{number}"]\nrole = "reader"\n' for number in range(1000))
_POLICY = f'[[bindings]]\nprincipals = ["token:load"]\nrole = "writer"\n{_OTHERS}'


class _Bookie:
    """One bookie process."""

    def __init__(self, stack: ExitStack, directory: Path, *, guarded: bool) -> None:
        self._before: list[bytes] = []
        options: tuple[str, ...] = ()
        if guarded:
            directory.mkdir()
            token, line = new_token("load")
            (directory / "tokens").write_text(f"{line}\n")
            (directory / "policy.toml").write_text(_POLICY)
            options = (
                f"--set=security_tokens={directory}/tokens",
                f"--set=security_policy={directory}/policy.toml",
            )
            self._before = [encode_request(AuthRequest(0, "bookgate-token", token.encode()))]
        self._cluster = stack.enter_context(StandaloneCluster(directory, bookies=1, bookie_options=options))

    def run(self, frames: Sequence[bytes]) -> tuple[float, float]:
        """Adds a second, and CPU microseconds an add."""
        [running] = self._cluster.processes
        assert running.process is not None
        port = int(self._cluster.bookies[0].rpartition(":")[2])
        before = cpu_microseconds(running.process.pid)
        rate, _ = requests_per_second(port, [*self._before, *frames], _OUTSTANDING)
        return rate, (cpu_microseconds(running.process.pid) - before) / len(frames)


def entry_rows(directory: Path) -> Iterator[Row]:
    """Rates and CPU of adds with a policy, beside those without security."""
    with ExitStack() as stack:
        guarded, plain = (_Bookie(stack, directory / name, guarded=name == "guarded") for name in ("guarded", "plain"))
        for size in _SIZES:
            yield from _pairs(guarded, plain, size)


def _pairs(guarded: _Bookie, plain: _Bookie, size: int) -> Iterator[Row]:
    found: dict[_Bookie, list[tuple[float, float]]] = {guarded: [], plain: []}
    for number in range(_PAIRS + 1):
        frames = encoded_adds(size, _ADDS)
        # Whoever is second finds the machine as the first has left it.
        for bookie in (guarded, plain) if number % 2 else (plain, guarded):
            run = bookie.run(frames)
            if number:  # the first is the warm-up
                found[bookie].append(run)
    for place, what, unit, up in ((0, "adds", "adds/s", True), (1, "bookie's CPU an add", "µs", False)):
        ours, peer = ([run[place] for run in found[bookie]] for bookie in (guarded, plain))
        low, middle, high = quantiles((a / b for a, b in zip(ours, peer, strict=True)), n=4)
        print(f"{what} of {size} B, {_PAIRS} pairs: {middle:.3f} (quartiles {low:.3f} to {high:.3f})")
        yield figures(f"{what}, {size} B, {_OUTSTANDING} outstanding", unit, ours, peer, "without security", up=up)
