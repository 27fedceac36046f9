"""``python -m compare diff OLD.json NEW.json``: the changes, shown and written."""

from __future__ import annotations

import argparse

from compare.command_line import outputs, status
from compare.history.diff import diff
from compare.records import archive
from compare.report import differences, terminal
from compare.spec import UsageError


def run(arguments: argparse.Namespace) -> int:
    """Compare the two files of ``arguments``; the exit status."""
    old, new = map(archive.read, arguments.files)
    found = diff(old, new, arguments.only)
    if not found.changes:
        which = f"--only {' '.join(arguments.only)}: " if arguments.only else ""
        raise UsageError(f"{which}neither {arguments.files[0]} nor {arguments.files[1]} holds such a row")
    writes = outputs.writes(
        arguments, found, differences.as_json, differences.as_csv, differences.as_markdown
    )
    every = bool(arguments.all)
    outputs.beside(lambda: terminal.put(lambda width: differences.render(found, width, every=every)), writes)
    return status.FAILURE if found.worse else status.INCONCLUSIVE if found.undecided else status.SUCCESS
