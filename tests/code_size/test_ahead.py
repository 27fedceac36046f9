"""Code counted by another process, into the cache."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from compare import registry
from compare.code_size.ahead import CountingAhead
from compare.code_size.count import code_size, known_code_size
from compare.stages.sources import Counting
from processes import running, until


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))


def test_another_process_counts_what_this_one_would() -> None:
    impls = registry.implementations("vector_add")
    ahead = CountingAhead(impls)
    assert ahead._process is not None
    ahead.wait()
    assert ahead._process.returncode == 0
    assert [known_code_size(impl) for impl in impls] == [code_size(impl) for impl in impls]
    assert CountingAhead(impls)._process is None, "all is known"


def test_few_are_counted_here() -> None:
    impls = registry.implementations("vector_add", ["torch.*"])
    assert CountingAhead(impls)._process is None
    counting = Counting(impls, mock.Mock())
    counting.finish(interrupted=False)
    assert counting.code_sizes == {impl.label: code_size(impl) for impl in impls}
    assert not counting.uncounted


def test_an_interruption_does_not_wait_for_the_count() -> None:
    impls = registry.implementations("matmul")
    counting = Counting(impls, mock.Mock())
    counting.finish(interrupted=True)
    assert counting._ahead._process is not None
    assert counting._ahead._process.returncode != 0
    assert len(counting.code_sizes) < len(impls)
    assert not counting.uncounted


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    text = (
        "import time; from compare import registry; from compare.code_size.ahead import CountingAhead\n"
        "ahead = CountingAhead(registry.implementations('matmul'))\n"
        "print(ahead._process.pid, flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, cwd=registry.ROOT)
    assert process.stdout is not None
    counter = int(process.stdout.readline())
    time.sleep(3.0)  # it may not have looked at its standard input before
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert until(lambda: not running(counter), 30)
