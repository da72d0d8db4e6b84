"""What earlier starts left in a host's directories: whose data lie there, and whether all of them will be served.

A start under other settings must not leave data behind unnoticed. Data are whatever has a cookie. Not its job: whether
a directory is of this bookie and cluster (the cookie check of each bookie), locks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.disks.directories import VERSION_FILE, current
from bookgate.bookie.instances.rules import folder_of, number_in, settings_of
from bookgate.ledger.errors import IncorrectParameterException


class Found(NamedTuple):
    """A directory with a cookie, and whose it is; 0: that of a bookie without instances."""

    path: Path
    number: int


def count_of(host: BookieConfig) -> int:
    """How many instances the settings mean; with `auto` as many as there are directories of, or cores at first."""
    if host.instances != "auto":
        return host.instances
    return max((each.number for each in _found(host)), default=0) or len(os.sched_getaffinity(0))


def chosen_instance(host: BookieConfig) -> BookieConfig:
    """The settings of the bookie that a command means: of the instance that is named, or of the only bookie.

    Raises IncorrectParameterException if there are several and none is named, or data that no instance would serve.
    """
    count = count_of(host)
    check_directories(host, count)
    if host.instance is not None:
        if host.instance > count:
            raise IncorrectParameterException(f"there is no instance {host.instance}: the directories are of {count}")
        return settings_of(host, host.instance, count) if is_supervised(host) else host
    if is_supervised(host):
        raise IncorrectParameterException(
            f"these settings are of {count} instances; say which one is meant: --set instance=1 to {count}"
        )
    return host


def is_supervised(host: BookieConfig) -> bool:
    """Whether the bookies of these settings are instances. One that is the last of several stays one."""
    if host.instances != 1:
        return True
    numbers = {each.number for each in _found(host)}
    return bool(numbers) and 0 not in numbers


def check_directories(host: BookieConfig, count: int) -> None:
    """Raises IncorrectParameterException naming data that `count` instances would not serve, and what to do.

    With `auto` also where an instance with data lacks a directory: the number then comes from what is found, and a disk
    that is not mounted may have had the last instance's, so that all would be dealt out otherwise.
    """
    supervised = is_supervised(host)
    served = {number: _directories(settings_of(host, number, count)) for number in range(1, count + 1)}
    if not supervised:
        served = {0: _directories(host)}
    found = _found(host)
    if supervised and host.instances == "auto":
        _check_complete(served, found)
    for path, number in sorted(found, key=lambda each: -each.number):
        if path in served.get(number, ()):
            continue
        if number == 0:
            raise IncorrectParameterException(
                f"{path} holds the data of a bookie without instances, which instances would not serve: start it with "
                "instances = 1, or give the instances other directories. To change over, decommission that bookie and "
                "move its directories away"
            )
        if number in served:
            raise IncorrectParameterException(
                f"{path} holds data of instance {number}, to which these settings do not deal it: keep the number of "
                "instances and the lists of directories, in their order, as they were. To change them, decommission "
                f"instance {number} and move its directories away"
            )
        raise IncorrectParameterException(
            f"{path} holds data of instance {number}, and instances is {host.instances}: nobody would serve them. Set "
            f"instances to {number} or more; to do without it, decommission instance {number} first and move its "
            f"directories ({folder_of(number)}) away"
        )


def _check_complete(dealt: dict[int, set[Path]], found: list[Found]) -> None:
    there = {each.path for each in found}
    for number in sorted({each.number for each in found} & dealt.keys()):
        if missing := sorted(dealt[number] - there):
            raise IncorrectParameterException(
                f"{missing[0]} has no data, and other directories of instance {number} have: is its disk mounted? "
                "Without it nobody knows how many instances there are: mount it, or set instances to their number in "
                f"place of auto ({len(dealt)}, if none is missing)"
            )


def _directories(settings: BookieConfig) -> set[Path]:
    return {*settings.journals, *settings.ledgers, *settings.indexes}


def _found(host: BookieConfig) -> list[Found]:
    """All directories with a cookie where these settings could have had a bookie."""
    own = list(dict.fromkeys((*host.journals, *host.ledgers, *host.indexes)))
    parents = own if host.data_dir is None else [*own, host.data_dir.absolute()]
    try:
        single = [Found(path, 0) for path in own if _has_cookie(path)]
        return single + [each for parent in parents for each in _of_instances(parent)]
    except OSError as error:
        raise IncorrectParameterException(
            f"{error.filename} can't be read: {error.strerror}; make it readable, or set another directory"
        ) from error


def _of_instances(parent: Path) -> Iterator[Found]:
    for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
        number = number_in(folder.name)
        if number is not None:
            # What is dealt out has the cookie in itself; in `data_dir` journal and ledgers have it.
            inner = (folder, folder / "journal", folder / "ledgers")
            yield from (Found(path, number) for path in inner if _has_cookie(path))


def _has_cookie(directory: Path) -> bool:
    return (current(directory) / VERSION_FILE).is_file()
