"""What the tests of --cluster run in Dask's workers: real processes, with made-up GPUs and answers.

It imports little: each worker imports it anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from distributed import get_worker

from compare.cluster.workers import Facts, WorkFailed

DEVICE = "NVIDIA H100 80GB HBM3"
WAIT_S = 60.0


def facts(gpu: str = "GPU-a", **changes: str) -> Facts:
    made = {"host": "node", "gpu": gpu, "device": DEVICE, "driver": "580.95.05"}
    return {**made, "versions": "torch 2.13.0", "sources": "of today", "problem": "", **changes}


def describe() -> Facts:
    return facts(os.environ["CUDA_VISIBLE_DEVICES"])


@dataclass(frozen=True)
class LoggedWork:
    """Logs, does what the first word of the op's name says, and answers with ``text``."""

    folder: Path
    text: str

    def __call__(self, op: str) -> str:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        with Path(self.folder, f"{gpu}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if the GPU is shared
            with Path(self.folder, "log").open("a") as log:
                log.write(f"{op} {gpu} {os.getpid()}\n")
            self._act(op.partition("-")[0], op, gpu)
        return self.text.replace('"op": "softmax"', f'"op": "{op}"')

    def _act(self, what: str, op: str, gpu: str) -> None:
        end_s = time.monotonic() + WAIT_S
        while what == "waits" and not Path(self.folder, f"go-{op}").exists() and time.monotonic() < end_s:
            time.sleep(0.02)
        if what == "kills":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "full" and gpu == "GPU-a":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run.json")
        if what == "lost" and gpu == "GPU-a":
            raise WorkFailed(f"its GPU, {gpu}, no longer answers", get_worker().address, gpu_lost=True)
        time.sleep(0.05)
