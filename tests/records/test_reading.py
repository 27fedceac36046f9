"""The one reader of others' files: whatever a path is, it ends with the content or one sentence."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compare.labs.lab import toml
from compare.labs.prediction import read_all, standard
from compare.labs.work import read_folder
from compare.model.op import UsageError
from compare.records import archive
from compare.records.reading import read_bytes, read_text
from compare.registry import get_op
from compare.worker import user_files

Make = Callable[[Path], object]


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        os.chdir(path.parent)  # a socket's path is short
        end.bind(path.name)


def loop(path: Path) -> None:
    path.with_name("other").symlink_to(path)
    path.symlink_to(path.with_name("other"))


NO_FILES: dict[str, tuple[Make, str]] = {
    "missing": (lambda path: None, "No such file"),
    "a folder": (Path.mkdir, "no regular file"),
    "a pipe": (os.mkfifo, "no regular file"),
    "a socket": (bound, "No such device|no regular file"),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "a terminal": (lambda path: path.symlink_to("/dev/tty"), "No such device|no regular file"),
    "a loop": (loop, "loop|levels of symbolic links"),
    "memory": (lambda path: path.symlink_to("/proc/self/mem"), "Input/output error|more than"),
    "all memory": (lambda path: path.symlink_to("/proc/kcore"), "."),
    "messages": (lambda path: path.symlink_to("/proc/kmsg"), "."),
    "a map without a size": (lambda path: path.symlink_to("/proc/self/pagemap"), "Invalid argument|more"),
    "sparse": (sparse, "more than"),
    "too long": (lambda path: path.write_bytes(b"#" * (1 << 19)), "more than 262144 bytes"),
}
"""A path that is no file to be read, and why."""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    NO_FILES[request.param][0](path)
    return path


@pytest.mark.parametrize("hostile", NO_FILES, indirect=True)
def test_what_is_no_file_is_one_sentence_at_once(hostile: Path, request: pytest.FixtureRequest) -> None:
    """Also as a hand-in's answers, ``--answers``, ``--load`` and a record."""
    says = NO_FILES[request.node.callspec.params["hostile"]][1]
    begin = time.monotonic()
    readers = (lambda path: read_bytes(path, 1 << 18), toml, lambda path: user_files.load([str(path)]))
    for read in readers:
        with pytest.raises(UsageError, match=rf"mine\.py cannot be read: \S.*({says})|{says}") as caught:
            read(hostile)
        assert str(caught.value).isprintable()
    hostile.rename(hostile.with_name("answers.toml")) if os.path.lexists(hostile) else None
    with pytest.raises(UsageError, match=r"answers\.toml cannot be read"):
        read_folder(hostile.parent)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "a\0b", "\udcff" * 200])
def test_a_name_that_no_file_has_is_one_sentence(name: str, tmp_path: Path) -> None:
    for read in (read_bytes, archive.read):
        with pytest.raises(UsageError, match="cannot be read: "):
            read(tmp_path / name)


def test_a_link_stays_within_its_folder(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine2"
    for folder in (mine, other):
        (folder / "deep").mkdir(parents=True)
        (folder / "own.txt").write_text("text")
    (tmp_path / "to_mine").symlink_to(mine)
    (mine / "inner").symlink_to("own.txt")
    (mine / "outer").symlink_to("../mine2/own.txt")
    (mine / "absolute").symlink_to(other / "own.txt")
    (mine / "folder").symlink_to(other)
    for name in ("own.txt", "inner", "deep/../own.txt"):
        assert read_bytes(mine / name, 9, mine) == b"text"
        assert read_bytes(tmp_path / "to_mine" / name, 9, tmp_path / "to_mine") == b"text"
    for name in ("outer", "absolute", "folder/own.txt", "../mine2/own.txt", "/proc/self/cmdline"):
        with pytest.raises(UsageError, match="a link that leads out of"):
            read_bytes(mine / name, 9, mine)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a\r\nb\n", "a\nb\n"),
        ("\ufeffé".encode(), "é"),
        (b"\xff\xfea\0", None),
        (b"caf\xe9", None),
    ],
)
def test_text_is_utf_8_with_or_without_a_mark(content: bytes, text: str | None, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(content)
    if text is not None:
        assert read_text(tmp_path / "text") == text
    else:
        with pytest.raises(
            UsageError, match=r"text cannot be read: it is not UTF-8 at byte \d; save it as UTF-8"
        ):
            read_text(tmp_path / "text")


NUMBERS = ("9" * 5000, "1" + "0" * 400, f"0x{'f' * 5000}", "-" + "9" * 25)
NO_TOML = {
    **{f"registers = {number[:9]}": f"registers = {number}" for number in NUMBERS},
    "deep lists": f"a = {'[' * 100_000}",
    "closed lists": f"a = {'[' * 400}{']' * 400}",
    "deep tables": f"a = {'{a=' * 50_000}",
    "deep headers": "[" + '"a" . ' * 20_000 + "a]",
    "deep names": f"{'a.' * 50_000}a = 1",
    "many values": f"a = [{'1,' * 100_000}]",
    "a date": "a = 9999-99-99",
    "half a text": 'a = "',
    "twice": "a = 1\na = 2",
}


@pytest.mark.parametrize("what", NO_TOML)
def test_what_is_no_toml_is_one_sentence_at_once(what: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.toml"
    file.write_text(NO_TOML[what])
    begin = time.monotonic()
    with pytest.raises(UsageError, match=r"answers\.toml is not TOML: ") as caught:
        toml(file)
    assert time.monotonic() - begin < 5
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "value", [1e300, -1, float("nan"), float("inf"), 10**400, 1 << 60, "9" * 5000, "nan", True]
)
def test_a_prediction_is_finite_and_bounded(value: float | str) -> None:
    with pytest.raises(
        UsageError, match=r"mine\.toml: registers: got .*, expected a number from 0 to"
    ) as caught:
        read_all(standard(get_op("softmax")), {"registers": value}, Path("mine.toml"))
    assert len(str(caught.value)) < 200
