"""Records: comparisons survive JSON whole, damage is named, and nothing recorded is lost."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare.model.op import UsageError
from compare.records import archive
from loops import for_each


def test_a_comparison_survives_json() -> None:
    original = made_up.comparison()
    text = archive.dumps([original])
    (read,) = archive.loads(text)
    assert read.environment == original.environment
    assert read.code_sizes == original.code_sizes
    assert read.cases[0].rows[3].resources == original.cases[0].rows[3].resources
    before, after = (run.cases[0].rows[1].timing for run in (original, read))
    assert after.cold_us.samples == pytest.approx(before.cold_us.samples, rel=1e-5)
    assert archive.dumps([read]) == text, "what was read is written again to the letter"


def test_nan_and_infinity_survive_strict_json() -> None:
    wrong = made_up.with_row(
        made_up.case(), "cupy.online", status="disagrees", agreement=made_up.DISAGREEMENT, timing=None
    )
    text = archive.dumps([made_up.comparison(wrong)])

    def refuse(constant: str) -> None:
        raise AssertionError(f"bare {constant} is no JSON")

    json.loads(text, parse_constant=refuse)
    (read,) = archive.loads(text)
    agreement = read.cases[0].rows[5].agreement
    assert math.isnan(agreement.max_abs)
    assert agreement.error == math.inf


def changed(pattern: str, to: str) -> Callable[[str], str]:
    """A document with the number behind the first match of the pattern replaced."""
    return lambda text: re.sub(rf"({pattern})[\d.]+", rf"\g<1>{to}", text, count=1)


COLD = r'"cold_us":{"median":'


@for_each(
    "damage, named",
    [
        (lambda text: text[: len(text) // 2], "damaged, or not written by --json"),
        (lambda text: "[]", "Expected `object`"),
        (lambda text: "{}", "missing required field `schema`"),
        (lambda text: text.replace('"schema": 3,', '"schema": 4,', 1), "schema 4, this checkout reads 3"),
        (lambda text: '{"schema":2,"run":{"op":"softmax"}}\n{"of":"2026"}\n', "schema 2, .* record anew"),
        (lambda text: text.replace('"op": "softmax"', '"op": 7'), r"Expected `str`.*runs\[0\].op"),
        (lambda text: text.replace('"status":"ok"', '"status":"fine"', 1), "'fine'"),
        (lambda text: text.replace('"label":', '"lable":', 1), "missing required field `label`"),
        (lambda text: text.replace('"rounds":40', '"rounds":true', 1), "rounds"),
        (changed(COLD, "0.0"), r"> 0.0 - at `.*rows\[0\].timing.cold_us"),
        (changed(r'"cold_us":{[^[]*"samples":\[', "0"), r"samples\[0\]"),
        (changed(COLD, '"NaN"'), "cold_us.median"),
        (changed(COLD, "1e400"), "cold_us.median"),
        (changed(COLD, f"1{'0' * 400}"), "a number of 401 digits"),
        (changed('"memory_bytes": ', f"1{'0' * 400}"), "a number of 401 digits"),
        (changed('"copy_gbs":', "-1.0"), "copy_gbs"),
        (changed('"flops":', "-1"), "flops"),
        (lambda text: text.replace('"rounds":40', '"detectable":1e308', 1), "detectable"),
        (
            lambda text: text.replace(
                '"host"', '"calibration": {"classes": [{"below_us": 10.0, "share": 1e308}]}, "host"', 1
            ),
            r"calibration.classes\[0\].share",
        ),
        (lambda text: text.replace('"label":"torch.naive"', r'"label":"\u001b[2J"', 1), "cannot be printed"),
        (lambda text: text.replace('"label":"torch.naive"', r'"label":"\ud800"', 1), "cannot be printed"),
        (lambda text: text.replace('"label":"torch.naive"', r'"label":"a\rb"', 1), "cannot be printed"),
        (lambda text: text.replace('"label":"torch.naive"', '"label":"\u202e"', 1), "cannot be printed"),
        (lambda text: '{"schema": 3, "runs": ' + "[" * 100_000, "recursion"),
    ],
)
def test_damage_is_named_with_the_file(tmp_path: Path, damage: object, named: str) -> None:
    file = tmp_path / "softmax.json"
    text = archive.dumps([made_up.comparison()])
    damaged = damage(text)  # type: ignore[operator]
    assert damaged != text
    file.write_text(damaged)
    with pytest.raises(UsageError, match=named) as caught:
        archive.read(file)
    assert str(file) in str(caught.value)


def test_a_row_has_a_line_and_default_values_are_left_out() -> None:
    short = made_up.case("M=8,N=8,fp32", made_up.rows({"torch.eager": ("vendor", 3.0)}))
    text = archive.dumps([made_up.comparison(made_up.case(), short)])
    rows = [json.loads(line.strip(" ,")) for line in text.splitlines() if line.strip().startswith('{"label"')]
    assert [row["label"] for row in rows] == [*made_up.MEDIANS_US, "torch.eager"]
    assert [row["label"] for case in json.loads(text)["runs"][0]["cases"] for row in case["rows"]] == [
        row["label"] for row in rows
    ]
    assert "recorded" not in rows[0]
    assert "null" not in text


def test_escapes_of_printable_characters_are_read() -> None:
    text = archive.dumps([made_up.comparison()]).replace('"torch.naive"', r'"\u00b5 \\u001b \n"')
    labels = {row.label for row in archive.loads(text)[0].cases[0].rows}
    assert "\u00b5 \\u001b \n" in labels


def test_recording_keeps_what_was_not_measured_anew(tmp_path: Path) -> None:
    first = made_up.comparison(made_up.case(), made_up.case("M=1,N=8,fp32"))
    path = archive.record(first, tmp_path)
    assert path == tmp_path / "nvidia-h100-80gb-hbm3" / "softmax.json"

    again = tuple(row for row in made_up.rows() if row.label != "cupy.online")
    archive.record(
        made_up.comparison(made_up.case(made=again), created="2026-12-01T00:00:00+00:00"), tmp_path
    )

    newest, older = archive.read(path)
    assert newest.created.startswith("2026-12-01")
    assert {row.label for row in newest.cases[0].rows} == made_up.MEDIANS_US.keys() - {"cupy.online"}
    # The row that was not measured stays under its own date, and the other case stays whole.
    assert {case.case: [row.label for row in case.rows] for case in older.cases} == {
        made_up.CASE: ["cupy.online"],
        "M=1,N=8,fp32": list(made_up.MEDIANS_US),
    }
    found = archive.find("softmax", made_up.CASE, tmp_path)
    assert found.keys() == made_up.MEDIANS_US.keys()
    assert found["cupy.online"].run.created.startswith("2026-11-21")
    assert found["torch.eager"].run.created.startswith("2026-12-01")


def test_recording_without_resources_keeps_those_of_the_same_source(tmp_path: Path) -> None:
    first = made_up.rows()
    archive.record(made_up.comparison(made_up.case(made=first)), tmp_path)
    bare = tuple(replace(row, resources=()) for row in first)
    changed = tuple(replace(row, source_hash="other") if row.label == "cupy.online" else row for row in bare)
    archive.record(made_up.comparison(made_up.case(made=changed)), tmp_path)
    found = archive.find("softmax", made_up.CASE, tmp_path)
    kept = {label for label, recorded in found.items() if recorded.row.resources}
    assert kept == {row.label for row in first if row.resources} - {"cupy.online"}
    assert kept


def test_only_finished_measurements_are_recorded(tmp_path: Path) -> None:
    path = archive.record(made_up.comparison(), tmp_path)
    cut = made_up.with_row(made_up.case(), "cupy.online", timing=None)
    cut = made_up.with_row(cut, "cupy.onepass", recorded=made_up.RECORDED)
    ended = made_up.case("M=1,N=8,fp32")
    stopped = made_up.comparison(cut, ended, interrupted=True, created="2026-12-01T00:00:00+00:00")
    archive.record(stopped, tmp_path)
    newest, older = archive.read(path)
    assert [case.case for case in newest.cases] == [made_up.CASE]  # the one that was ended has few samples
    with pytest.raises(UsageError, match="no case of softmax was measured"):
        archive.record(made_up.comparison(ended, interrupted=True), tmp_path)
    assert {"cupy.online", "cupy.onepass"}.isdisjoint(row.label for row in newest.cases[0].rows)
    assert [row.label for row in older.cases[0].rows] == ["cupy.online", "cupy.onepass"]
    assert older.cases[0].rows[0].timing is not None


def test_a_failure_goes_once_a_run_says_something_else(tmp_path: Path) -> None:
    failed = made_up.with_row(made_up.case(), "cupy.online", timing=None, status="failed")
    path = archive.record(made_up.comparison(failed), tmp_path)
    gone = {name: {"timing": None, "status": "unavailable"} for name in ("cupy.online", "cupy.onepass")}
    now = made_up.case()
    for label, changes in gone.items():
        now = made_up.with_row(now, label, **changes)
    archive.record(made_up.comparison(now, created="2026-12-01T00:00:00+00:00"), tmp_path)
    newest, older = archive.read(path)
    assert {"cupy.online", "cupy.onepass"}.isdisjoint(row.label for row in newest.cases[0].rows)
    assert [row.label for row in older.cases[0].rows] == ["cupy.onepass"], "its times stay"


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({"status": "failed"}, True),
        ({"status": "failed", "source_hash": "of today"}, False),
        ({"status": "disagrees", "agreement": made_up.DISAGREEMENT}, False),
    ],
)
def test_times_are_not_replaced_by_a_failure_of_the_same_source(
    changes: dict[str, object], stays: bool, tmp_path: Path
) -> None:
    archive.record(made_up.comparison(), tmp_path)
    now = made_up.with_row(made_up.case(), "cupy.online", timing=None, **changes)
    archive.record(made_up.comparison(now, created="2026-12-01T00:00:00+00:00"), tmp_path)
    found = archive.find("softmax", made_up.CASE, tmp_path)
    assert found.keys() == made_up.MEDIANS_US.keys()
    assert (found["cupy.online"].row.timing is not None) == stays
    assert found["torch.eager"].run.created.startswith("2026-12-01")


def test_two_runs_that_record_at_once_lose_nothing(tmp_path: Path) -> None:
    names = [f"M=1,N={n},fp32" for n in range(1, 9)]
    runs = [made_up.comparison(made_up.case(name)) for name in names]
    threads = [threading.Thread(target=archive.record, args=(run, tmp_path)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = archive.path_of(made_up.H100.device, "softmax", tmp_path)
    assert sorted(case.case for run in archive.read(path) for case in run.cases) == sorted(names)


def test_a_damaged_record_is_not_overwritten(tmp_path: Path) -> None:
    path = archive.record(made_up.comparison(), tmp_path)
    path.write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        archive.record(made_up.comparison(), tmp_path)
    assert path.read_text() == "{"


def test_replay_takes_the_device_recorded_last(tmp_path: Path) -> None:
    archive.record(made_up.comparison(), tmp_path)
    other = replace(made_up.H100, device="NVIDIA L4")
    archive.record(made_up.comparison(environment=other, created="2026-12-24T00:00:00+00:00"), tmp_path)
    found = archive.find("softmax", made_up.CASE, tmp_path)
    assert {recorded.run.environment.device for recorded in found.values()} == {"NVIDIA L4"}
    assert archive.find("softmax", "M=7,N=7,fp16", tmp_path) == {}


def test_a_record_of_a_whole_sweep_stays_small(tmp_path: Path) -> None:
    cases = [made_up.case(f"M=4096,N={128 * n},bf16") for n in range(1, 41)]
    path = archive.record(made_up.comparison(*cases), tmp_path)
    assert path.stat().st_size < 1_000_000, path.stat().st_size


def test_every_record_in_the_repository_can_be_read() -> None:
    for path in archive.RESULTS.glob("*/*.json"):
        for run in archive.read(path):
            assert run.op == path.stem
            assert archive.device_slug(run.environment.device) == path.parent.name
            # What a figure of a card depends on beside the card.
            assert run.environment.driver
            assert {
                "sm_mhz_after",
                "memory_mhz_after",
                "power_limit_w_after",
            } <= run.environment.clocks.keys()


def test_a_lock_that_is_held_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_LOCK_S", 0.1)
    locked: list[str] = []

    class HeldLock(archive.FileLock):
        def acquire(self, *_: object, **__: object) -> object:  # type: ignore[override]
            locked.append(str(self.lock_file))
            raise archive.Timeout(self.lock_file)

    monkeypatch.setattr(archive, "FileLock", HeldLock)
    with pytest.raises(UsageError, match=r"was not written: \S+\.lock has been held for 0\.1 s"):
        archive.record(made_up.comparison(), tmp_path)
    assert len(Path(locked[0]).name) < 100


def test_a_record_has_a_limit_of_size(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 29)
    with pytest.raises(UsageError, match=r"large cannot be read: it has more than .*256 MB"):
        archive.read(tmp_path / "large")
