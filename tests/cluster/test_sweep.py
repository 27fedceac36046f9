"""A sweep without a cluster: which workers are refused, and the words and results of the command."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import made_up
from cluster_work import DEVICE, facts
from compare.cluster import engines, workers
from compare.cluster.command import Results, words_of
from compare.cluster.sweep import ClusterTask, refusal
from compare.cluster.workers import NO_GPU
from compare.command_line.status import USAGE
from compare.commands import compare
from compare.model.op import UsageError
from compare.records import archive
from loops import for_each
from processes import command

OTHERS = (facts("GPU-b"), facts("GPU-c", device="NVIDIA H200", driver="590.1"))


@for_each(
    "changes, needs_gpu, why",
    [
        ({}, True, ""),
        ({"problem": "it sees 2 GPUs"}, True, "it sees 2 GPUs"),
        ({"sources": "of yesterday"}, True, "its sources have the hash of yesterday, here it is of today"),
        ({"gpu": "GPU-b"}, True, "another worker has the same GPU, GPU-b"),
        ({"driver": "570.1"}, True, "it has 570.1 and not 580.95.05"),
        ({"versions": "torch 2.11.0"}, True, "it has torch 2.11.0 and not torch 2.13.0"),
        ({"device": "NVIDIA H200", "driver": "580.95.05"}, True, "it has 580.95.05 and not 590.1"),
        ({"device": "NVIDIA L4", "driver": "1"}, True, ""),  # a device model of its own
        ({"gpu": "", "device": NO_GPU}, True, "it has no GPU"),
        ({"gpu": "", "device": NO_GPU}, False, ""),
    ],
)
def test_workers_that_are_unlike_the_others_get_no_task(
    changes: dict[str, str], needs_gpu: bool, why: str
) -> None:
    answer = refusal(facts(**changes), OTHERS, "of today", needs_gpu)
    assert answer.startswith(why) if why else not answer


@for_each("resources", [{}, {"GPU": 2}, {"GPU": 1, "other": 1}])
def test_a_worker_without_the_resource_of_one_gpu_is_refused(resources: dict[str, float]) -> None:
    worker = SimpleNamespace(state=SimpleNamespace(total_resources=resources))
    assert workers.describe(worker)["problem"] == "start it with --nthreads 1 --resources GPU=1"


def parsed(*words: str) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return parser.parse_args(words), parser


def test_a_worker_gets_the_options_of_the_comparison_alone() -> None:
    words = (
        "all",
        "--sweep",
        "--record",
        "--only",
        "triton.*",
        "--only=torch.*",
        "--no-resources",
        "--seed",
        "7",
    )
    here = ("--cluster", "local", "--resume", "--results", "mine", "--json", "x.json", "--all", "-v")
    expected = [
        "--sweep=sweep",
        "--only=triton.*",
        "--only=torch.*",
        "--seed=7",
        "--no-resources",
        "--record",
    ]
    assert words_of(*parsed(*words, *here)) == expected
    assert words_of(*parsed(*expected, "all")) == expected
    with pytest.raises(UsageError, match="leave out --load"):
        words_of(*parsed("softmax", "--cluster=local", "--load=my.py"))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPARE_TMPDIR", str(tmp_path))
    arguments, _ = parsed("all", "--record", "--results", str(tmp_path / "results"))
    return Results(arguments, ["--sweep"])


TASK = ClusterTask("softmax", DEVICE)
TEXT = archive.dumps([made_up.comparison()])


def test_what_is_recorded_is_left_out_by_resume_while_the_record_holds_it(
    results: Results, tmp_path: Path
) -> None:
    assert not results.is_recorded("softmax", DEVICE)
    results.take(TASK, TEXT)
    assert results.is_recorded("softmax", DEVICE)
    assert not results.is_recorded("softmax", "NVIDIA L4")
    assert not results.is_recorded("matmul", DEVICE)
    arguments, _ = parsed("all", "--record", "--results", str(tmp_path / "results"))
    assert not Results(arguments, ["--sweep", "--seed=7"]).is_recorded("softmax", DEVICE)
    file = archive.path_of(DEVICE, "softmax", tmp_path / "results")
    whole = file.read_bytes()
    for damaged in (whole[:3000], whole + b"\xff"):
        file.write_bytes(damaged)
        assert not results.is_recorded("softmax", DEVICE)
    file.unlink()
    assert not results.is_recorded("softmax", DEVICE)


@pytest.mark.parametrize("freed", [True, False])
def test_a_full_disk_loses_no_result(
    results: Results, tmp_path: Path, freed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("no folder can be made here")
    results.take(TASK, TEXT)
    assert "it is tried again at the end" in capsys.readouterr().err
    if freed:
        (tmp_path / "results").unlink()
    errors = results.finish()
    root = tmp_path / ("results" if freed else "compare-unrecorded")
    (run,) = archive.read(archive.path_of(DEVICE, "softmax", root))
    assert len(run.cases[0].rows) == len(made_up.MEDIANS_US)
    assert results.is_recorded("softmax", DEVICE) == freed
    assert [str(tmp_path / "compare-unrecorded") in error for error in errors] == ([] if freed else [True])


# --------------------------------------------------------------------------- Slurm

SLURM = """jobs = 4
[slurm]
queue = "gpu"
account = "course"
walltime = "02:00:00"
memory = "32GB"
job_cpu = 8
job_extra_directives = ["--gres=gpu:1"]
scheduler_options = { host = "127.0.0.1" }
"""


@pytest.mark.thorough
def test_a_slurm_job_is_one_worker_with_one_gpu(tmp_path: Path) -> None:
    file = tmp_path / "slurm.toml"
    file.write_text(f'{SLURM}shared_temp_directory = "{tmp_path}"\n')
    done = command("all", "--sweep", "--record", "--cluster", str(file), PATH=str(tmp_path))
    assert done.returncode == USAGE
    _, _, script = done.stderr.partition("there is no sbatch here")
    for line in (
        "#SBATCH -p gpu",
        "#SBATCH -A course",
        "#SBATCH -t 02:00:00",
        "#SBATCH --gres=gpu:1",
        "#SBATCH --cpus-per-task=8",
        "-m distributed.cli.dask_worker tls://",
        "--nthreads 1 ",
        "--resources GPU=1",
        "--tls-key",
    ):
        assert line in script
    assert "--nworkers" not in script


@for_each(
    "change, why",
    [
        (("jobs = 4\n", ""), "it has no 'jobs'"),
        (("jobs = 4", "jobs = 0"), "jobs = NUMBER"),
        (("[slurm]", "[slurms]"), "it has no 'slurm'"),
        (('"02:00:00"', "02:00:00"), "walltime is 02:00:00, and should be text in quotation marks"),
        (('["--gres=gpu:1"]', '"--gres=gpu:1"'), "should be a list"),
        (('"--gres=gpu:1"', '"--exclusive"'), "no GPU is asked for"),
        (("job_cpu = 8", "processes = 8"), "leave out processes: each job is one worker"),
        (("job_cpu = 8", "cpus = 8"), "SLURMCluster has no argument cpus"),
        (('memory = "32GB"\n', ""), "it has no 'memory'"),
        (("jobs = 4", "jobs ="), "Invalid value"),
    ],
)
def test_a_wrong_slurm_file_is_named_with_the_reason(
    change: tuple[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "slurm.toml"
    assert change[0] in SLURM
    file.write_text(SLURM.replace(*change))
    with pytest.raises(UsageError, match=r"slurm\.toml") as caught:
        engines.slurm(file)
    assert why in str(caught.value)


@pytest.mark.thorough
def test_a_network_interface_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "slurm.toml"
    file.write_text(SLURM.partition("scheduler_options")[0] + 'interface = "ib9"\n')
    done = command("softmax", "--cluster", str(file), PATH=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (USAGE, 1), done.stderr
    assert "'ib9' is not a valid network interface" in done.stderr


@pytest.mark.thorough
def test_a_refused_submission_is_named_and_the_others_are_cancelled(tmp_path: Path) -> None:
    again = "echo sbatch: error: a limit of jobs >&2; exit 1"
    taken = f"mkdir {tmp_path}/first 2> {tmp_path}/log && echo Submitted batch job 77 && exit"
    for name, script in (("sbatch", f"{taken}; {again}"), ("scancel", f"echo $* > {tmp_path}/cancelled")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    file = tmp_path / "slurm.toml"
    file.write_text(f'{SLURM}shared_temp_directory = "{tmp_path}"\n')
    done = command("softmax", "--cluster", str(file), PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (done.returncode, done.stderr.count("\n")) == (USAGE, 1), done.stderr
    assert "sbatch did not take 4 jobs: sbatch: error: a limit of jobs" in done.stderr
    assert (tmp_path / "cancelled").read_text() == "77\n"


def test_what_listens_and_is_no_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        for scheme, why in (("tcp", "what listens is silent"), ("tls", "check your TLS configuration")):
            with pytest.raises(UsageError, match=why), engines.connected(f"{scheme}://{where}"):
                pass


# --------------------------------------------------------------------------- in a worker


@for_each(
    "text, gpu_after, lost",
    [
        ("", "GPU-a", False),
        ("", "", True),
        (archive.dumps([made_up.comparison(interrupted=True)]), "GPU-a", False),
        (archive.dumps([made_up.comparison(made_up.slowed("cupy.online", 1, status="failed"))]), "", True),
    ],
)
def test_a_comparison_without_its_end_or_its_gpu_fails(
    text: str, gpu_after: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([facts(), facts(gpu_after)])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        assert words[:5] == ("-m", "compare", "softmax", "--record", "--results")
        if text:
            Path(words[-1]).write_text(text)
        return subprocess.CompletedProcess(words, 2, "", "python -m compare: no space left on device\n")

    monkeypatch.setattr(workers, "describe", lambda: next(answers))
    monkeypatch.setattr(workers, "get_worker", lambda: SimpleNamespace(address="tcp://node"))
    monkeypatch.setattr(workers, "_python", run)
    with pytest.raises(workers.WorkFailed) as caught:
        workers.compare_op(["--record"], "softmax")
    assert caught.value.gpu_lost == lost
    assert caught.value.why == ("its GPU, GPU-a, no longer answers" if lost else "no space left on device")
