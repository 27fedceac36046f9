"""Two processes on a CPU check an op of several GPUs, and find kernels that wait too little."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compare import cli, registry
from compare.places import ROOT
from copies import copy_of_code
from processes import running, until

CASE = "D=2,N=20013,fp16"
KERNELS = "cuda_impl/kernels/all_reduce.cuh"
FIRST = "wait_for_ranks<RANKS, RELAXED, ACQUIRE>(flag_ptrs, epoch + 1, rank);"


def compared(*words: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "compare", "all_reduce", *words]
    return subprocess.run(line, cwd=root, capture_output=True, text=True, timeout=300, check=False)


def test_two_processes_check_what_a_cpu_runs():
    done = compared("--case", "D=2,N=4099,bf16")
    assert done.returncode == 0, done.stderr
    assert "CORRECT  7 of 7 match fp64 in all processes, on 1 case" in done.stdout
    without = "torch.one_shot torch.two_shot triton.one_shot triton.two_shot triton.low_latency"
    line = f"not run: {', '.join(without.split())}: needs a GPU: its kernels have no CPU version"
    assert line in " ".join(done.stdout.split())
    assert "takes 2 GPUs, and this process sees 0: checked is what a CPU runs" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.gpu
def test_two_gpus_have_the_same_sums():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs of one host")
    cases = [f"--case={case}" for case in registry.get_op("all_reduce").cases.edge]
    done = compared(*cases, "--budget", "0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout


def test_a_mistake_in_the_command_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    for words, why in (
        ("--case D=1,N=4,bf16", "takes at least 2"),
        ("--case D=64,N=4,bf16", "a host has at most 16 GPUs"),
        ("--case D=2,N=4,bf16 --case D=4,N=4,bf16", "one run takes one number of them"),
        ("--case N=4,bf16", "D is missing"),
        ("--only rocm.*", "no implementation 'rocm.*'"),
        ("--record", "nothing is timed, so there is nothing to record"),
        ("--budget nan", "give seconds above 0"),
        ("--load x.py", "--load goes with an op of one GPU; leave it out"),
        ("--nonsense", "a comparison of several GPUs takes no such argument"),
    ):
        assert cli.main(["all_reduce", *words.split()]) == 2, words
        error = capsys.readouterr().err
        assert why in error
        assert error.count("\n") == 1


def test_a_command_for_one_gpu_says_what_takes_it(capsys: pytest.CaptureFixture[str]):
    for words in ("show all_reduce", "pipeline all_reduce", "list all_reduce", "predict all_reduce"):
        assert cli.main(words.split()) == 2
        assert "all_reduce is an op of several GPUs; of all commands only" in capsys.readouterr().err


def ranks_of(pid: int) -> list[int]:
    """The process numbers of a command's ranks, once two import PyTorch."""
    ranks: list[int] = []

    def found() -> bool:
        ranks[:] = [
            int(each)
            for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if "libtorch" in Path(f"/proc/{each}/maps").read_text()
        ]
        return len(ranks) == 2

    assert until(found)
    return ranks


def blocked(pid: int) -> set[int]:
    """The numbers of the signals that wait until the process asks for them."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("SigBlk:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_command_that_ends_while_ranks_start_ends_them(number: signal.Signals):
    """They import PyTorch for seconds; a terminal sends its signals to all processes."""
    line = [sys.executable, "-m", "compare", "all_reduce"]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=ROOT, stderr=pipe, text=True, start_new_session=True) as command:
        ranks = ranks_of(command.pid)
        assert all({signal.SIGINT, signal.SIGHUP} <= blocked(rank) for rank in ranks)
        send = os.kill if number == signal.SIGKILL else os.killpg
        send(command.pid, number)
        assert until(lambda: not any(map(running, ranks)))
        error = command.communicate()[1]
    if number != signal.SIGKILL:
        assert (command.returncode, "Traceback" in error) == (3, False), error
        assert "interrupted before anything was finished" in error


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project's code, to be made wrong."""
    return copy_of_code(tmp_path)


def change(root: Path, right: str, wrong: str) -> None:
    text = (root / KERNELS).read_text()
    assert right in text
    (root / KERNELS).write_text(text.replace(right, wrong))


MISTAKES = {
    "one_shot reads before all x are there": ("one_shot", FIRST, ""),
    "two_shot reads before all x are there": ("two_shot", FIRST, ""),
    "one_shot ends before all have read": (
        "one_shot",
        "wait_for_ranks<RANKS, RELAXED, RELAXED>(flag_ptrs, epoch + 2, rank);",
        "",
    ),
    "two_shot ends before all sums are there": (
        "two_shot",
        "wait_for_ranks<RANKS, RELEASE, RELAXED>(flag_ptrs, epoch + 2, rank);",
        "",
    ),
    "epochs do not grow": ("one_shot", "epochs[blockIdx.x] = epoch + 2", "epochs[blockIdx.x] = epoch"),
    "a tail is written to one rank": (
        "two_shot",
        "for (int r = 0; r < RANKS; ++r) x[r][n] = sum;",
        "x[rank][n] = sum;",
    ),
    "parts leave vectors out": (
        "two_shot",
        "end = vectors * (rank + 1) / RANKS",
        "end = begin + vectors / RANKS",
    ),
    "a message is not waited for": (
        "low_latency",
        "while (static_cast<unsigned>(word >> 32) != epoch) word = *from;",
        "",
    ),
    "a half word is written behind y": (
        "low_latency",
        "if (n + v < N) y_ptr[n + v] = T(sums[v]);",
        "y_ptr[n + v] = T(sums[v]);",
    ),
    "messages' epochs do not grow": (
        "low_latency",
        "if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;",
        "",
    ),
}
OFTEN = {
    "one_shot reads before all x are there",
    "two_shot ends before all sums are there",
    "a message is not waited for",
}
"""One a variant: each starts two processes that compile."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("variant", "right", "wrong"),
    [
        pytest.param(*mistake, id=name, marks=[] if name in OFTEN else [pytest.mark.exhaustive])
        for name, mistake in MISTAKES.items()
    ],
)
def test_a_mistake_in_a_kernel_is_found(copy: Path, variant: str, right: str, wrong: str):
    change(copy, right, wrong)
    for _ in range(5):  # a race is lost by chance
        done = compared("--only", f"cupy.{variant}", "--case", CASE, root=copy)
        if done.returncode == 1:
            break
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^WRONG  cupy\.{variant} on D=2,N=", done.stdout, re.MULTILINE)


@pytest.mark.thorough
def test_ranks_that_wait_for_ever_are_ended(copy: Path):
    change(copy, "+ row + rank, epoch);", "+ row + rank, 0);")
    done = compared("--only", "cupy.two_shot", "--timeout", "40", "--case", CASE, root=copy)
    assert done.returncode == 3
    assert f"not finished: checking cupy.two_shot on {CASE}: not finished after 40 s" in done.stderr
    assert "NOT FINISHED" in done.stdout
