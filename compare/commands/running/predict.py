"""``python -m compare predict``: predictions asked for, then measured and scored."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from compare import registry
from compare.command_line import status
from compare.commands.running import marked
from compare.labs import prediction
from compare.labs.lab import Prediction, toml
from compare.report import labs as pages
from compare.report import terminal
from compare.spec import UsageError
from compare.worker.start import prepare


def run(name: str, file: Path | None, device: str, timeout_s: float) -> int:
    """Ask, or read ``file``; measure, and show both side by side."""
    prepare(device, [name])
    asked = prediction.standard(registry.get_op(name))
    answers = _given(file, asked) if file else _typed(asked)
    marked.say(f"measuring {name}")
    outcomes = prediction.outcomes(asked, answers, name, device, timeout_s)
    table = pages.outcomes_table(outcomes)
    terminal.put(lambda width: terminal.laid_out(table, width))
    print(*table.legend, sep="\n")
    print(f"\nNEXT  python -m compare {name}")
    return status.SUCCESS if any(each.score is not None for each in outcomes) else status.INCONCLUSIVE


def _given(file: Path, asked: Sequence[Prediction]) -> Mapping[str, str | float]:
    content = toml(file)
    unknown = content.keys() - {each.name for each in asked}
    if unknown:
        names = ", ".join(each.name for each in asked)
        raise UsageError(f"{file}: {', '.join(sorted(unknown))} is no prediction; there are {names}")
    try:
        made = (each for each in asked if each.name in content)
        return {each.name: prediction.read(each, content[each.name]) for each in made}
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None


def _typed(asked: Sequence[Prediction]) -> Mapping[str, str | float]:
    """Answers from the terminal; an empty line leaves one out."""
    found: dict[str, str | float] = {}
    for each in asked:
        while each.name not in found:
            print(f"{each.question} ", end="", flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                if not line:
                    print()
                break
            try:
                found[each.name] = prediction.read(each, line.strip())
            except ValueError as error:
                print(f"  {error}")
    if not found:
        raise UsageError("nothing was predicted: answer at least one question, or give --answers FILE")
    return found
