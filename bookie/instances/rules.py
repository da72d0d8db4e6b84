"""How the settings of one host become those of its instances: ids, ports and directories. No I/O.

Instances count from 1. An instance has the host's settings except for what two bookies can't share:

- its id is the host's with `-NUMBER`, or follows from its own port as any bookie's does;
- its entry port and gateway port are the host's plus NUMBER - 1, its HTTP port the host's plus NUMBER, for the host's
  own HTTP port is the supervisor's; 0 stays 0;
- lists of directories are dealt out in turn, so that with at least as many directories as instances no two share one;
  each instance has a subfolder `instance-NUMBER` of its own in what it is dealt, and in `data_dir`.

Not its job: what lies in the directories (`directories`), running instances (`supervisor`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.ledger.errors import IncorrectParameterException

_FOLDER = re.compile(r"instance-([1-9][0-9]{0,3})")
_LAST_PORT = 65535


class _Ports(NamedTuple):
    setting: str
    first: int
    last: int


def folder_of(number: int) -> str:
    """The name of an instance's subfolders."""
    return f"instance-{number}"


def number_in(folder: str) -> int | None:
    """Whose subfolder this name is; None for any other name."""
    found = _FOLDER.fullmatch(folder)
    return int(found[1]) if found else None


def deal(directories: tuple[Path, ...], number: int, count: int) -> tuple[Path, ...]:
    """The share of one of `count` instances, each directory in the instance's subfolder."""
    if not directories:
        return ()
    share = directories[number - 1 :: count] or (directories[(number - 1) % len(directories)],)
    return tuple(path / folder_of(number) for path in share)


def settings_of(host: BookieConfig, number: int, count: int) -> BookieConfig:
    """The settings of one of `count` instances. Raises IncorrectParameterException for ports that collide."""
    check_ports(host, count)
    name = folder_of(number)
    own: dict[str, Any] = {
        "instances": count,
        "instance": number,
        "bookie_id": host.bookie_id and f"{host.bookie_id}-{number}",
        "port": host.port and host.port + number - 1,
        "gateway_port": host.gateway_port and host.gateway_port + number - 1,
        "http_port": host.http_port and host.http_port + number,
        # A file is one process's.
        "audit_file": _with_number(host.audit_file, number),
    }
    for key in ("data_dir", "journal_directory", "ledger_directory"):
        path: Path | None = getattr(host, key)
        own[key] = path and path / name
    for key in ("journal_directories", "ledger_directories", "index_directories"):
        own[key] = deal(getattr(host, key), number, count)
    return host.model_copy(update=own)


def check_ports(host: BookieConfig, count: int) -> None:
    """Raises IncorrectParameterException if the instances' ports run into each other, or beyond the last one."""
    used = list(_used_ports(host, count))
    for each in used:
        if each.last > _LAST_PORT:
            raise IncorrectParameterException(
                f"{count} instances need the ports {each.first} to {each.last} for {each.setting}, and {_LAST_PORT} is "
                f"the last one; set {each.setting} lower"
            )
    for one, other in combinations(used, 2):
        if one.first <= other.last and other.first <= one.last:
            raise IncorrectParameterException(
                f"the ports of {count} instances collide: {one.setting} takes {one.first} to {one.last}, "
                f"{other.setting} {other.first} to {other.last}; set them further apart"
            )


def _used_ports(host: BookieConfig, count: int) -> Iterator[_Ports]:
    last = count - 1
    wanted = [_Ports("port", host.port, host.port + last)]
    if not host.metadata_behind_gateway:
        wanted.append(_Ports("gateway_port", host.gateway_port, host.gateway_port + last))
    wanted.append(_Ports("http_port", host.http_port, host.http_port + count))
    return (each for each in wanted if each.first)


def _with_number(file: Path | None, number: int) -> Path | None:
    return file and file.with_stem(f"{file.stem}-{number}")
