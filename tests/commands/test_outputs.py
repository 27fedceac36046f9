"""What a command writes: whole files, and into devices and pipes what belongs there."""

from __future__ import annotations

import os
import stat
import threading
from functools import partial
from pathlib import Path

import pytest

from compare.command_line import outputs
from compare.model.op import UsageError


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    outputs.check({"--json": pipe, "--csv": pipe})  # without a reader: it must not wait for one
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    outputs.write(pipe, "all of it")
    reader.join(20)
    assert read == ["all of it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_a_link_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real" / "file.csv")
    outputs.check({"--csv": link})
    outputs.write(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real" / "file.csv").read_text() == "new"


def test_all_is_written_and_shown_that_can_be_and_of_the_rest_is_said_why() -> None:
    done: list[str] = []

    def refused(why: str) -> None:
        raise UsageError(why)

    writes = (partial(refused, "a is full"), partial(done.append, "b"), partial(refused, "c is gone"))
    with pytest.raises(UsageError, match=r"^a is full; c is gone$"):
        outputs.beside(partial(done.append, "shown"), writes)
    assert done == ["b", "shown"]


def test_only_those_that_are_the_same_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with pytest.raises(UsageError, match=r"^--json and --markdown name the same file"):
        outputs.check({"--plot": other, "--json": one, "--csv": None, "--markdown": one})


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for path in (tmp_path / ("x" * 300), loop, loop / "inside", tmp_path / ("x" * 300) / "inside"):
        with pytest.raises(UsageError):
            outputs.check({"--json": path})
    assert [*tmp_path.iterdir()] == [loop]
