"""The workers of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from compare import registry
from compare.checking.reference import expected_outputs
from compare.spec import UsageError
from compare.worker.exchange import Exchange
from compare.worker.pool import Crew
from compare.worker.process import Ended
from loaded_files import CPU, SMALL, written


def test_a_worker_that_is_dismissed_ends_and_the_next_is_another() -> None:
    op = registry.get_op("vector_add")
    (impl, *_) = registry.implementations("vector_add")
    with Crew(op, CPU, 60.0) as crew:
        first = crew.of(impl)
        assert crew.contexts_s[impl.label] >= 0
        with Exchange(op, SMALL, CPU, expected_outputs(op, SMALL, CPU)) as exchange:
            exchange.hand_to(first)
            crew.dismiss(impl)
        with pytest.raises(Ended):
            first.ask("rest")
        second = crew.of(impl)
        assert second.pid != first.pid
        assert second.ask("rest")["kept_bytes"] == 0


def test_what_keeps_a_worker_from_getting_ready_is_said_every_time(tmp_path: Path) -> None:
    """As of a file that raises when it is loaded again."""
    file = written(tmp_path / "mine.py", "1 / 0\n")
    (impl, *_) = registry.implementations("vector_add")
    impl = dataclasses.replace(impl, label="triton.right", foreign=True, origin=file)
    with Crew(registry.get_op("vector_add"), CPU, 60.0) as crew:
        for _ in range(3):
            with pytest.raises(UsageError, match="ZeroDivisionError at line 18"):
                crew.of(impl)
