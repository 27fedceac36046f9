"""Nsight Compute's counters: `compare.resources.ncu`, and what the tables and sentences make of them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from compare import registry
from compare.model.op import UsageError
from compare.model.result import KernelCounters
from compare.report import sentences, tables
from compare.resources import ncu
from compare.worker import profiled
from made_up import case, comparison

NAMES = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"),
    *("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
    "lts__t_sector_hit_rate.pct",
    *(
        f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
        for reason in ("barrier", "long_scoreboard", "selected")
    ),
)
UNITS = (*("",) * 8, "", "", "%", *("inst",) * 3)
VALUES = (
    *("0", "71", "python3.12", "127.0.0.1", "void softmax_online_kernel<float, 4>(T1 *, T2)", "1", "7"),
    *("(1024, 1, 1)", "1,536", "6,144", "12.5", "2", "7", "1"),
)
BEFORE = "==PROF== Connected to process 71 (python3.12)\n==PROF== Profiling softmax: 0%....100% - 5 passes\n"


def csv_of(*rows: tuple[str, ...]) -> str:
    return BEFORE + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def test_a_file_of_ncus_has_stalls_hits_and_conflicts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of(NAMES, UNITS, VALUES))
    (kernel,) = ncu.read(tmp_path / "a.csv")
    assert kernel == KernelCounters(
        "void softmax_online_kernel<float, 4>(T1 *, T2)",
        {"long_scoreboard": 0.7, "barrier": 0.2},
        l2_hit_rate=0.125,
        bank_conflicts=0.25,
    )


def test_what_was_not_counted_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of(NAMES[:8], UNITS[:8], VALUES[:8]))
    assert ncu.read(tmp_path / "a.csv") == (KernelCounters(VALUES[4]),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
        (csv_of(NAMES, UNITS), "by the command"),
        ("", "by the command"),
    ],
)
def test_a_file_without_kernels_says_why(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UsageError, match=f"a.csv.*{why}"):
        ncu.read(tmp_path / "a.csv")


def test_tables_and_sentences_say_what_stands_out() -> None:
    kernel = KernelCounters("online", {"long_scoreboard": 0.7, "barrier": 0.2}, 0.125, 0.25)
    plain = case()
    counted = replace(plain, rows=(replace(plain.rows[0], counters=(kernel,)), *plain.rows[1:]))
    table = tables.counters(counted)
    assert tables.counters(plain) is None
    assert table.rows == ((plain.rows[0].label, "online", "12%", "25%", "long_scoreboard 70%, barrier 20%"),)
    why = " ".join(sentences.evidence(comparison(counted), counted))
    assert "wait 70% of their time for global memory (long scoreboard), L2 hit rate 12%" in why
    assert "bank conflicts are 25%" in why


def test_the_command_names_the_row_and_its_file() -> None:
    op = registry.get_op("softmax")
    (impl,) = registry.implementations("softmax", ["triton.online"])
    words = profiled.command(op, impl, op.cases.default).split()
    assert words[0] == "ncu"
    assert words[words.index("--log-file") + 1] == "triton.online.csv"
    assert words[-3:] == ["softmax", "triton.online", str(op.cases.default)]


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("ncu") is None, reason="no ncu on PATH")
@pytest.mark.parametrize("label", ["triton.online", "cupy.online", "pybind.online"])
def test_ncu_counts_a_rows_kernel(label: str, tmp_path: Path) -> None:
    op = registry.get_op("softmax")
    (impl,) = registry.implementations("softmax", [label])
    command = profiled.command(op, impl, op.cases.smoke[0])
    command = command.replace(f"{label}.csv", str(tmp_path / "a.csv"))
    subprocess.run(command, shell=True, cwd=registry.ROOT, check=False)
    if "ERR_NVGPUCTRPERM" in (tmp_path / "a.csv").read_text():
        pytest.skip("this user may not read the GPU's counters")
    (kernel,) = ncu.read(tmp_path / "a.csv")
    assert "softmax_online_kernel" in kernel.kernel
    assert kernel.stalls
    assert kernel.l2_hit_rate is not None
