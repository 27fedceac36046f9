"""``map --devices``: ways across devices, by ratios within each."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

import made_up
from compare import cli
from compare.command_line.status import SUCCESS, USAGE
from compare.history.devices import Devices, side_by_side
from compare.model.op import UsageError
from compare.model.result import Comparison
from compare.records import archive
from compare.report import devices as rendering
from made_up import charted, one

H200 = replace(
    made_up.H100,
    device="NVIDIA H200",
    driver="590.1",
    clocks={"sm_mhz_after": 1980.0, "memory_mhz_after": 3201.0, "power_limit_w_after": 700.0},
)
ON_H100 = {
    "torch.eager": ("vendor", 80.0),
    "triton.onepass": ("tiled", 40.0),
    "cupy.onepass": ("tiled", 40.1),
}
ON_H200 = {
    "torch.eager": ("vendor", 60.0),
    "triton.onepass": ("tiled", 40.0),
    "cupy.onepass": ("tiled", 20.0),
}


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.history.recorded.source_hash", lambda impl: f"hash of {impl.label}")


def runs() -> list[Comparison]:
    return [one(ON_H100), one(ON_H200, environment=H200)]


def shown(*of: Comparison) -> Devices:
    return side_by_side([charted(run) for run in of], of)


def test_a_speedup_is_of_two_times_of_one_device() -> None:
    (op,) = shown(*runs()).ops
    medians = {pair: [each and round(each.median, 1) for each in mine] for pair, mine in op.speedups.items()}
    assert medians == {
        ("triton", "cuda"): [1.0, 0.5],
        ("triton", "torch"): [2.0, 1.5],
        ("cuda", "torch"): [2.0, 3.0],
    }
    noise = [each and each.within_noise for each in op.speedups["triton", "cuda"]]
    assert noise == [True, False]
    said = "softmax: Triton over CUDA is within noise on the NVIDIA H100 80GB HBM3, 0.50x on the NVIDIA H200."
    assert rendering.sentence(op, (made_up.H100.device, H200.device)) == said


def test_only_cases_that_all_devices_have_count_and_the_rest_is_named() -> None:
    first, second = runs()
    other = made_up.case("M=8,N=8,fp32", made_up.rows(dict(ON_H200)))
    more = replace(second, cases=(*second.cases, other))
    alone = replace(second, op="matmul")
    maps = [charted(first), charted(more, alone)]
    found = side_by_side(maps, [first, more, alone])
    assert [(op.op, op.cases) for op in found.ops] == [("softmax", 1)]
    assert found.alone == ("matmul",)
    with pytest.raises(UsageError, match="no case is on record on each of"):
        side_by_side([charted(first), charted(alone)], [first, alone])
    with pytest.raises(UsageError, match="are of NVIDIA H200 alone"):
        side_by_side([charted(second)], [second])


def test_the_command_shows_each_card_and_writes_the_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for run in runs():
        files.append(str(archive.record(run, tmp_path)))
    table = tmp_path / "devices.csv"
    assert cli.main(["map", "softmax", "--devices", "--csv", str(table), "--records", *files]) == SUCCESS
    out = capsys.readouterr().out
    card = (
        "NVIDIA H200: driver 590.1, SM 1980 MHz, memory 3201 MHz, power cap 700 W; torch 2.11.0 triton 3.6.0"
    )
    assert card in out
    lines = list(csv.DictReader(io.StringIO(table.read_text())))
    ours = [line for line in lines if (line["way"], line["over"]) == ("triton", "cuda")]
    assert [(line["device"], f"{float(line['median']):.1f}") for line in ours] == [
        ("NVIDIA H100 80GB HBM3", "1.0"),
        ("NVIDIA H200", "0.5"),
    ]
    assert cli.main(["map", "--devices", "--all", "--records", *files]) == USAGE
