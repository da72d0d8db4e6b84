"""No start leaves data behind that lie where its settings point."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.commands.local_options import read_settings
from bookgate.bookie.config.bookie import BookieConfig, load_config
from bookgate.bookie.instances.directories import check_directories, chosen_instance, count_of, is_supervised
from bookgate.ledger.errors import IncorrectParameterException


def host(data_dir: Path | None, instances: int | str = 2, **values: Any) -> BookieConfig:
    return load_config(metadata_uri="sqlite:///m", data_dir=data_dir, instances=instances, **values)


def stamp(*directories: Path) -> None:
    for directory in directories:
        (directory / "current").mkdir(parents=True)
        (directory / "current" / "VERSION").write_text("a cookie")


def instances_of(data_dir: Path, *numbers: int) -> None:
    stamp(*(data_dir / f"instance-{number}" / kind for number in numbers for kind in ("journal", "ledgers")))


def disks(root: Path, *names: str) -> dict[str, Any]:
    return {key: ",".join(str(root / name) for name in names) for key in ("journal_directories", "ledger_directories")}


def test_first_and_later_starts_are_fine(tmp_path: Path) -> None:
    check_directories(host(tmp_path / "none"), 2)
    instances_of(tmp_path, 1, 2)
    check_directories(host(tmp_path), 2)
    check_directories(host(tmp_path, 3), 3)


@pytest.mark.parametrize("instances", [1, 2])
def test_fewer_instances_are_refused(tmp_path: Path, instances: int) -> None:
    instances_of(tmp_path, 1, 2, 3)
    with pytest.raises(
        IncorrectParameterException, match="Set instances to 3 or more; to do without it, decommission instance 3"
    ) as refused:
        check_directories(host(tmp_path, instances), instances)
    assert f"instances is {instances}: nobody would serve them" in str(refused.value)


def test_bookie_without_instances_is_not_taken_for_one(tmp_path: Path) -> None:
    stamp(tmp_path / "journal", tmp_path / "ledgers")
    check_directories(host(tmp_path, 1), 1)
    with pytest.raises(IncorrectParameterException, match="holds the data of a bookie without instances"):
        check_directories(host(tmp_path, 2), 2)
    with pytest.raises(IncorrectParameterException, match="start it with instances = 1"):
        check_directories(host(tmp_path, "auto"), 1)


def test_instances_beside_a_bookie_without_them_are_not_forgotten(tmp_path: Path) -> None:
    stamp(tmp_path / "ledgers")
    instances_of(tmp_path, 1)
    assert not is_supervised(host(tmp_path, 1))
    with pytest.raises(IncorrectParameterException, match="holds data of instance 1, and instances is 1"):
        check_directories(host(tmp_path, 1), 1)


def test_last_of_several_instances_stays_one(tmp_path: Path) -> None:
    assert not is_supervised(host(tmp_path, 1))
    instances_of(tmp_path, 1)
    settings = host(tmp_path, 1)
    assert is_supervised(settings)
    check_directories(settings, count_of(settings))


def test_directories_dealt_otherwise_than_before_are_refused(tmp_path: Path) -> None:
    stamp(tmp_path / "a" / "instance-1", tmp_path / "b" / "instance-2")
    check_directories(host(None, **disks(tmp_path, "a", "b")), 2)
    check_directories(host(None, **disks(tmp_path, "a", "b", "c")), 2)
    for names in (("b", "a"), ("c", "a", "b")):
        with pytest.raises(IncorrectParameterException, match="holds data of instance 2, to which these settings do"):
            check_directories(host(None, **disks(tmp_path, *names)), 2)
    stamp(tmp_path / "b")
    with pytest.raises(IncorrectParameterException, match="b holds the data of a bookie without instances"):
        check_directories(host(None, **disks(tmp_path, "a", "b")), 2)


def test_other_folders_and_empty_ones_are_not_looked_at(tmp_path: Path) -> None:
    stamp(tmp_path / "instance-2.old", tmp_path / "backup")
    (tmp_path / "instance-7" / "journal" / "current").mkdir(parents=True)
    check_directories(host(tmp_path), 2)


def test_unreadable_directory_is_named(tmp_path: Path) -> None:
    name = "x" * 300
    with pytest.raises(IncorrectParameterException, match=r"x{300}.* can't be read: File name too long"):
        check_directories(host(None, **disks(tmp_path, name)), 2)


def test_auto_is_the_number_of_cores_and_then_stays(tmp_path: Path) -> None:
    assert count_of(host(tmp_path, "auto")) == len(os.sched_getaffinity(0))
    instances_of(tmp_path, 1, 2, 3, 4, 5)
    assert count_of(host(tmp_path, "auto")) == 5
    assert count_of(host(tmp_path, 3)) == 3


def test_auto_refuses_to_count_without_a_disk_that_may_have_the_last_instance(tmp_path: Path) -> None:
    of_four = host(None, "auto", **disks(tmp_path, "d1", "d2", "d3", "d4"))
    stamp(*(tmp_path / f"d{number}" / f"instance-{number}" for number in (1, 2, 3)))
    with pytest.raises(IncorrectParameterException, match=r"d4/instance-1 has no data.* is its disk mounted"):
        check_directories(of_four, count_of(of_four))
    stamp(tmp_path / "d4" / "instance-4")
    check_directories(of_four, count_of(of_four))


def test_commands_mean_the_instance_that_is_named(tmp_path: Path) -> None:
    assert chosen_instance(host(tmp_path, 2, instance=2)).journals == (tmp_path / "instance-2" / "journal",)
    assert chosen_instance(host(tmp_path, 1)).journals == (tmp_path / "journal",)
    with pytest.raises(IncorrectParameterException, match="of 2 instances; say which one is meant: --set instance=1"):
        chosen_instance(host(tmp_path, 2))
    given = ["metadata_uri=sqlite:///m", f"data_dir={tmp_path}", "instances=2"]
    assert read_settings(None, [*given, "instance=1"]).http_port == 8081
    with pytest.raises(IncorrectParameterException, match="say which one is meant"):
        read_settings(None, given)
    instances_of(tmp_path, 1)
    with pytest.raises(IncorrectParameterException, match="there is no instance 2: the directories are of 1"):
        chosen_instance(host(tmp_path, "auto", instance=2))
