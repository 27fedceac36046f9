"""What a command prints, and what a mistaken one says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compare import cli
from compare.command_line.status import SUCCESS, USAGE


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run a command, which ends with this status: what it prints, on stdout and on stderr."""

    def ran(*words: str, status: int = SUCCESS) -> tuple[str, str]:
        assert cli.main(words) == status
        captured = capsys.readouterr()
        return captured.out, captured.err

    return ran


@pytest.fixture
def complaint(printed: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """Run a command: the one line that it prints; nothing else, and status 2."""

    def said(*words: str) -> str:
        out, err = printed(*words, status=USAGE)
        assert out == ""
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1
        return err

    return said
