"""Code counted by another process, into the cache."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest

from compare import registry
from compare.code_size.ahead import CountingAhead
from compare.code_size.count import code_size, known_code_size
from compare.stages.sources import Counting
from processes import running, started, until


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPARE_CACHE_DIR", str(tmp_path))


@pytest.mark.thorough
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


def test_an_interruption_does_not_wait_for_the_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"  # as if it had imported all
    python.write_text("#!/bin/sh\ncat\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    impls = registry.implementations("matmul")
    counting = Counting(impls, mock.Mock())
    counting.finish(interrupted=True)
    assert counting._ahead._process is not None
    assert counting._ahead._process.returncode == 3
    assert len(counting.code_sizes) < len(impls)
    assert not counting.uncounted


STARTER = """
import signal
from compare import registry
from compare.code_size.ahead import CountingAhead

ahead = CountingAhead(registry.implementations("matmul"))
print(ahead._process.pid, flush=True)
signal.pause()
"""


@pytest.mark.thorough
def test_it_ends_with_the_process_that_started_it() -> None:
    with started("-c", STARTER) as (starter, stdout):
        counter = int(stdout.readline())
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert until(lambda: os.getpriority(os.PRIO_PROCESS, counter) > mine)  # it counts now
        os.kill(starter, signal.SIGKILL)
    assert until(lambda: not running(counter), 30)
