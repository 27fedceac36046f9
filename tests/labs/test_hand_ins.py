"""Hand-ins of a class: folders, zips, names."""

from __future__ import annotations

import csv
import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from compare.labs import hand_ins
from compare.labs import lab as labs
from compare.labs.hand_ins import HandIn
from compare.labs.marking import Marks, Part, nothing
from compare.labs.work import start
from compare.report import labs as pages

LAB = labs.find("01")


def found_in(folder: Path) -> dict[str, HandIn]:
    return {each.student: each for each in hand_ins.of_class(folder, folder / "_unpacked-1")[0]}


def zipped(file: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(name, text)


def test_folders_and_zips_are_students(tmp_path: Path) -> None:
    start(LAB, tmp_path / "alice")
    start(LAB, tmp_path / "bob" / "lab01" / "my_lab")
    zipped(tmp_path / "carol.zip", {"answers.toml": "", "cuda_add.py": "c"})
    zipped(tmp_path / "dan.ZIP", {"__MACOSX/._x.py": "", "dan/lab01/answers.toml": "", "dan/lab01/a.py": ""})
    for name in ("_marks", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "marks.csv").touch()
    assert hand_ins.is_class(tmp_path)
    assert not hand_ins.is_class(tmp_path / "alice")
    found = found_in(tmp_path)
    assert [*found] == ["alice", "bob", "carol", "dan"]
    assert not any(each.problem for each in found.values())
    assert all((each.folder / "answers.toml").is_file() for each in found.values())
    assert (found["carol"].folder / "cuda_add.py").read_text() == "c"
    assert hand_ins.of_one(tmp_path / "bob").folder == found["bob"].folder


def link(file: Path) -> None:
    entry = zipfile.ZipInfo("cuda_add.py")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr(entry, "/etc/passwd")


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("a.zip", lambda file: file.write_text("no zip"), "a.zip cannot be unpacked: BadZipFile"),
        ("a.zip", lambda file: zipped(file, {"../b/answers.toml": ""}), "lies outside of it"),
        ("a.zip", lambda file: zipped(file, {"/tmp/x.py": ""}), "lies outside of it"),
        ("a.zip", lambda file: zipped(file, {"x.py": "0" * (17 << 20)}), "unpacks to more than 16 MB"),
        ("a.zip", lambda file: zipped(file, {f"{n}.py": "" for n in range(501)}), "holds 501 files"),
        ("a.zip", link, "'cuda_add.py', which is no regular file"),
        ("a.zip", os.mkfifo, "a.zip is no file"),
        ("a.tar.gz", lambda file: file.touch(), "is no folder and no .zip"),
        ("a", lambda file: file.symlink_to(file.parent / "b"), "a is a link: hand in the folder itself"),
    ],
)
def test_what_cannot_be_unpacked_costs_one_student(
    name: str, make: object, says: str, tmp_path: Path
) -> None:
    start(LAB, tmp_path / "b")
    make(tmp_path / name)  # type: ignore[operator]
    found = found_in(tmp_path)
    assert len(found) == 2
    assert not found["b"].problem
    assert any(says in each.problem for each in found.values()), found
    assert (tmp_path / "b" / "answers.toml").read_text()


@pytest.mark.parametrize(
    ("first", "other"),
    [("alice", "alice.zip"), ("al\u202eice", "al\u202dice"), ("ann  lee", "ann lee"), ("a\nb", "a b")],
)
def test_two_hand_ins_of_one_name_are_refused(first: str, other: str, tmp_path: Path) -> None:
    start(LAB, tmp_path / first)
    if other.endswith(".zip"):
        zipped(tmp_path / other, {"answers.toml": ""})
    else:
        start(LAB, tmp_path / other)
    found = hand_ins.of_class(tmp_path, tmp_path / "_unpacked-1")[0]
    assert len({each.key for each in found}) == (1 if other.endswith(".zip") else 2)
    assert all("another hand-in of this name" in each.problem for each in found)


NAMES = [
    "=1+1",
    "@x",
    "<b>|*x*",
    "![x](x.png)",
    "al\u202eice\x1b[2J",
    "a\nb",
    "&#x202e;",
    os.fsdecode(b"\xff"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_changes_nothing_around_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).mkdir()
    (hand_in,) = hand_ins.of_class(tmp_path, tmp_path / "_unpacked-1")[0]
    marks = nothing(hand_in.student, "why", LAB)
    others = Marks("bob", LAB.name, "", False, "", "", (Part("x", 1, 1, "passed"),))
    pages.put_marks([LAB], [marks, others], None)
    (line,) = csv.DictReader(io.StringIO(pages.csv([marks])))
    page = pages.html(pages.class_page([LAB], [marks, others], None), "Marks")
    everything = capsys.readouterr().out + line["student"] + page + pages.as_junit([marks])
    assert all(character.isprintable() or character == "\n" for character in everything)
    assert not line["student"].startswith(("=", "+", "-", "@"))
    assert "<b>" not in page
    assert "<img" not in page
    assert "&#x202e;" not in page
