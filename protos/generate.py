"""Regenerates the Python stubs from the `.proto` files: `python -m bookgate.protos.generate` (or `make protos`).

`--check` writes nothing and exits 1 where a committed stub differs from what would be generated.

The proto files import each other by their path below this folder, as every other language expects. Python needs the
package's own name in front, so the generated imports are rewritten.

A client library lives beside the protobuf and gRPC that its users' other packages want. So messages come from an old
protoc (26.1, whose code every protobuf from 5.26 on runs; later compilers write code that demands a runtime as new as
themselves), and the guard that the gRPC plugin writes asks for `GRPC_FLOOR`, the lowest release that the tests run on
(`make test-dependencies`), instead of the plugin's own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent
GRPC_FLOOR = "1.66.2"
"""The lowest grpcio that the generated services run on; `pyproject.toml` says the same."""

_IMPORT = re.compile(r"^(from|import) bookkeeper\.", re.MULTILINE)
_GRPC_GUARD = re.compile(r"^(GRPC_GENERATED_VERSION = )'[^']*'$", re.MULTILINE)


def generate(target: Path) -> None:
    """Generates all stubs below `target`. Raises RuntimeError when protoc refuses a file."""
    sources = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.proto"))
    tools = Path(sys.executable).parent
    well_known = tools / "include"
    messages = [str(tools / "protoc"), f"-I{ROOT}", f"-I{well_known}", f"--python_out={target}", f"--pyi_out={target}"]
    if subprocess.run([*messages, *sources], check=False).returncode != 0:
        raise RuntimeError("protoc failed; its own message stands above")
    services = [
        "protoc",
        f"-I{ROOT}",
        f"-I{well_known}",
        f"--grpc_python_out={target}",
        f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}",
        f"--mypy_grpc_out=quiet:{target}",
        *sources,
    ]
    if protoc.main(services) != 0:
        raise RuntimeError("protoc's plugins for gRPC failed; their own message stands above")
    for stub in _stubs(target):
        code = _IMPORT.sub(r"\1 bookgate.protos.bookkeeper.", stub.read_text())
        stub.write_text(_GRPC_GUARD.sub(rf"\g<1>'{GRPC_FLOOR}'", code))
    _remove_empty_services(target)


def _remove_empty_services(target: Path) -> None:
    """Drops the service stubs of files that define no service."""
    for stub in target.rglob("*_pb2_grpc.py"):
        if "class " not in stub.read_text():
            stub.unlink()
            stub.with_suffix(".pyi").unlink(missing_ok=True)


def _stubs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*_pb2*") if path.suffix in {".py", ".pyi"})


def differences() -> list[str]:
    """Names of the committed stubs that are missing, stale or left over."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.relative_to(scratch).as_posix(): path.read_text() for path in _stubs(Path(scratch))}
    committed = {path.relative_to(ROOT).as_posix(): path.read_text() for path in _stubs(ROOT)}
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


def main() -> int:
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return 0
    stale = differences()
    for name in stale:
        print(f"protos/{name} differs from its .proto file: run `make protos` and commit the result", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
