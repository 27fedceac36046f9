"""Progress on stderr: where that is no terminal, a line now and then."""

from __future__ import annotations

import pytest

from compare.report import progress


def test_into_a_pipe_goes_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    told = progress.lines("softmax", lambda: now_s)
    for i in range(100):
        now_s = 0.5 * i
        told(f"step {i} (built in 0.10 s)", i / 100)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"softmax: {2 * s}% after {s} s, step {2 * s}" for s in (10, 20, 30, 40)
    ]
    assert printed.out == ""
    assert "\r" not in printed.err
