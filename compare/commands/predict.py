"""Predict the fastest way, what limits it, its speedup and its registers; then measure and score.

examples:
  python -m compare predict softmax
  python -m compare predict softmax --answers mine.toml

Answers in a file: fastest = "triton", binding = "memory", speedup = 1.5, registers = 40

exit status:
  0  measured and scored
  2  a mistake in the command or its files
  3  inconclusive: nothing could be measured
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compare import registry
from compare.command_line import options, outputs, status
from compare.model.op import UsageError

if TYPE_CHECKING:
    from compare.labs.lab import Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", nargs="?", metavar="OP", help="the op")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="read the predictions from a TOML file")
    options.add_device(parser.add_argument)
    options.add_timeout(parser.add_argument)


def run(arguments: argparse.Namespace) -> int:
    """Ask, or read ``--answers``; measure, and show both side by side; the exit status."""
    if arguments.op is None:
        raise UsageError("predict takes an op: python -m compare predict softmax")
    options.check_op(arguments.op)
    options.check_timeout(arguments.timeout)
    return measure(arguments.op, arguments.answers, arguments.device, arguments.timeout)


def measure(name: str, file: Path | None, device: str, timeout_s: float) -> int:
    from compare.labs import prediction
    from compare.report import labs as pages
    from compare.report import terminal
    from compare.report.tables import Block
    from compare.worker.start import prepare

    prepare(device, [name])
    questions = prediction.standard(registry.get_op(name))
    answers = _from_file(file, questions) if file else _typed(questions)
    outputs.say(f"measuring {name}")
    outcomes = prediction.outcomes(questions, answers, name, device, timeout_s)
    table = pages.outcomes_table(outcomes)
    blocks: list[Block] = [table, *table.legend]
    terminal.put(lambda width: "\n".join(terminal.laid_out(block, width) for block in blocks))
    print(f"\nNEXT  python -m compare {name}")
    return status.SUCCESS if any(each.score is not None for each in outcomes) else status.INCONCLUSIVE


def _from_file(file: Path, questions: Sequence[Prediction]) -> Mapping[str, str | float]:
    from compare.labs import prediction
    from compare.labs.lab import toml

    content = toml(file)
    unknown = content.keys() - {each.name for each in questions}
    if unknown:
        names = ", ".join(each.name for each in questions)
        raise UsageError(f"{file}: {', '.join(sorted(unknown))} is no prediction; there are {names}")
    return prediction.read_all(questions, content, file)


def _typed(questions: Sequence[Prediction]) -> Mapping[str, str | float]:
    """Answers from the terminal; an empty line leaves one out."""
    from compare.labs import prediction

    answers: dict[str, str | float] = {}
    for each in questions:
        while each.name not in answers:
            print(f"{each.question} ", end="", flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                if not line:
                    print()
                break
            try:
                answers[each.name] = prediction.read(each, line.strip())
            except ValueError as error:
                print(f"  {error}")
    if not answers:
        raise UsageError("nothing was predicted: answer at least one question, or give --answers FILE")
    return answers
