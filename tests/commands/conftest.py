"""What a mistaken command says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compare import cli
from compare.command_line.status import USAGE


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command: the one line that it prints; nothing else, and status 2."""

    def printed(*arguments: str) -> str:
        assert cli.main(arguments) == USAGE
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        assert len(printed.err.strip().splitlines()) == 1
        return printed.err

    return printed
