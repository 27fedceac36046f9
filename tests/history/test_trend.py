"""``diff`` of three files or more: each row's median in every file, and the verdict of first and last."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

import made_up
from compare import cli
from compare.model.result import Comparison
from compare.records import archive
from compare.report.sparkline import sparkline
from compare.report.terminal import writable
from loops import for_each
from tools.docs import schemas

LABEL = "triton.online"


def run_of(day: int, factor: float, **changes: object) -> Comparison:
    """The made-up run of a day in November, with one row's times multiplied."""
    case = made_up.slowed(LABEL, factor, **changes)
    return made_up.comparison(case, created=f"2026-11-{day:02}T00:00:00+00:00")


def diff_of(folder: Path, runs: Sequence[Comparison], *options: str) -> int:
    files = [folder / f"{i}.json" for i in range(len(runs))]
    for file, run in zip(files, runs, strict=True):
        file.write_text(archive.dumps([run]))
    return cli.main(["diff", *map(str, files), *options])


WRONG = {"status": "disagrees", "reason": "12 are NaN", "timing": None}


@for_each(
    "runs, status, bars, verdict",
    [
        ([run_of(1, 1.0), run_of(2, 1.1), run_of(3, 1.4)], 1, "▁▃█", "SLOWER"),
        ([run_of(1, 1.0), run_of(2, 2.0), run_of(3, 0.5)], 0, "▃█▁", "faster"),
        ([run_of(1, 1.0), run_of(2, 1.4, **WRONG), run_of(3, 1.2)], 1, "▁·█", "SLOWER"),
        ([run_of(1, 1.0), run_of(2, 1.4), run_of(3, 1.2, **WRONG)], 1, "▁█·", "BROKEN"),
        ([run_of(1, 1.0), run_of(2, 2.0), run_of(3, 1.0)], 0, "▁█▁", "same"),
        ([run_of(day, 1.0) for day in range(1, 7)], 0, "▁▁▁▁▁▁", "same"),
    ],
    ids=lambda case: case[2],
)
def test_a_row_has_a_bar_for_each_file_and_a_verdict(
    runs: list[Comparison],
    status: int,
    bars: str,
    verdict: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert diff_of(tmp_path, runs, "--all") == status
    out = capsys.readouterr().out
    assert f"{len(runs)} files: 0.json (2026-11-01), 1.json (2026-11-02), " in out
    (line,) = (line for line in out.splitlines() if line.startswith(f"- {LABEL} "))
    assert line.split()[2:4] == [bars, verdict]
    assert {"first", "last"} <= set(out.split())
    assert "do not ascend" not in out


def test_files_out_of_order_are_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff_of(tmp_path, [run_of(3, 1.0), run_of(2, 1.0), run_of(1, 1.0)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Their dates do not ascend: give the oldest first." in out


def test_the_file_from_which_the_machine_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = replace(made_up.H100, driver="590.1")
    runs = [run_of(1, 1.0), replace(run_of(2, 1.0), environment=newer), run_of(3, 1.0)]
    assert diff_of(tmp_path, runs) == 0
    out = capsys.readouterr().out
    assert "1.json: driver: 580.95.05 -> 590.1" in out
    assert "2.json: driver: 590.1 -> 580.95.05" in out


def test_files_of_one_name_are_told_apart_by_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for day in (1, 2, 3):
        Path(str(day)).mkdir()
        Path(f"{day}/a.json").write_text(archive.dumps([run_of(day, 1.0)]))
    assert cli.main(["diff", "1/a.json", "2/a.json", "3/a.json"]) == 0
    assert "3 files: 1/a.json (2026-11-01), 2/a.json (2026-11-02)," in capsys.readouterr().out


def test_files_hold_every_median(tmp_path: Path) -> None:
    runs = [run_of(1, 1.0), run_of(2, 1.4, **WRONG), run_of(3, 1.2)]
    table, document = tmp_path / "out.csv", tmp_path / "out.js"
    assert diff_of(tmp_path, runs, "--csv", str(table), "--json", str(document)) == 1
    (line,) = (
        line for line in csv.DictReader(table.read_text().splitlines()) if line["implementation"] == LABEL
    )
    first, middle, last = line["history_us"].split(";")
    assert (float(first), middle, float(last)) == (float(line["old_us"]), "", float(line["new_us"]))
    content = json.loads(document.read_text())
    assert content["files"] == ["0.json (2026-11-01)", "1.json (2026-11-02)", "2.json (2026-11-03)"]
    (change,) = (change for change in content["changes"] if change["label"] == LABEL)
    assert change["history_us"][1] is None
    jsonschema.Draft202012Validator(schemas.schema("diff")).validate(content)


def test_a_sparkline_in_an_encoding_without_bars_is_in_digits(tmp_path: Path) -> None:
    assert sparkline([1.0, None, 2.0]) == "▁·█"
    assert sparkline([None, None]) == "··"
    assert sparkline([1.0, 1.01], least=0.02) == "▁▁"
    with (tmp_path / "ascii").open("w", encoding="ascii") as stream:
        assert writable("▁·█", stream) == "1|8"
