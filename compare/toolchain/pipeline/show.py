"""The work of ``python -m compare pipeline``: compile stage by stage, write, show."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from compare import registry
from compare.command_line import outputs
from compare.report import terminal
from compare.spec import ROUTES, UsageError
from compare.toolchain.pipeline.caches import with_entries
from compare.toolchain.pipeline.opening import select
from compare.toolchain.pipeline.records import Found, Opened, as_data
from compare.toolchain.pipeline.report import highlight, page, stages

COMPILED, STOPPED, NOTHING = 0, 1, 3

_SUFFIXES = {
    "host-preprocessed": "host.ii",
    "preprocessed": "device.ii",
    "cudafe": "cudafe1.cpp",
    "object": "o",
    "library": "so",
    "llir": "ll",
    "frontend": "frontend.ttir",
    "ast": "ast.txt",
    "inductor": "inductor.py",
}
"""How the file of a stage ends, where that is not the stage's name."""


def run(arguments: argparse.Namespace, find: Callable[[], Found]) -> int:
    """Write and show what ``find`` returns; the command's exit status."""
    stage = select(arguments.stage) if arguments.stage else ""
    found = find()
    opened, signature = with_entries(found.opened), found.signature
    dump = arguments.passes or bool(arguments.pass_name)
    if dump and not any(one.passes or one.failure or one.unavailable for one in opened):
        raise UsageError("the passes that this Triton prints cannot be read here; please report it")
    writes = _writes(opened, signature, arguments)
    outputs.beside(lambda: _show(opened, signature, arguments, stage), writes)
    if any(one.failure for one in opened):
        return STOPPED
    return COMPILED if any(one.stages for one in opened) else NOTHING


def _writes(
    opened: Sequence[Opened], signature: str, arguments: argparse.Namespace
) -> Iterator[Callable[[], None]]:
    if arguments.json:
        yield lambda: outputs.write_json(arguments.json, [as_data(one) for one in opened])
    if arguments.html:
        yield lambda: outputs.write(arguments.html, page.render(opened, signature))
    if arguments.out:
        yield lambda: _write_stages(arguments.out, opened)


def _show(opened: Sequence[Opened], signature: str, arguments: argparse.Namespace, stage: str) -> None:
    texts: list[highlight.Code] = []
    if stage:
        texts = [stages.stage_text(one, found) for one in opened if (found := one.stage(stage))]
        if not texts:
            _refuse_stage(opened, stage)
    elif arguments.caches:
        terminal.put(lambda width: stages.caches(opened, width))
        return
    elif arguments.pass_name:
        names = list(dict.fromkeys(ran.name for one in opened for ran in one.passes))
        if arguments.pass_name not in names and names:
            raise UsageError(registry.unknown("pass", arguments.pass_name, names))
        texts = [text for one in opened for text in stages.pass_diffs(one, arguments.pass_name)]
    elif arguments.passes:
        terminal.put(lambda width: "\n\n".join(stages.pass_table(one, width) for one in opened if one.passes))
    elif arguments.source_map:
        texts = [stages.mapped(one) for one in opened if one.instructions]
    else:
        terminal.put(lambda width: stages.render(opened, signature, width))
        return
    if texts:
        highlight.put(texts)
    failed = [one for one in opened if one.failure]
    if failed:
        terminal.put(lambda width: "\n".join(["", *(stages.failure(one, width) for one in failed)]))


def _refuse_stage(opened: Sequence[Opened], stage: str) -> None:
    if any(one.failure for one in opened):
        return  # the failure is on the screen
    there = dict.fromkeys(found.name for one in opened for found in one.stages)
    labels = ", ".join(dict.fromkeys(one.label for one in opened))
    reasons = "; ".join(dict.fromkeys(one.unavailable for one in opened if one.unavailable))
    said = f"there are {', '.join(there)}" if there else reasons
    raise UsageError(f"--stage {stage}: {labels} has no such stage; {said}")


def _write_stages(out: Path, opened: Sequence[Opened]) -> None:
    """As ``DIR/triton.online/sm_90/softmax_online_kernel/3-kernel.ttir``."""
    try:
        for one in opened:
            kernel = re.sub(r"\W+", "_", one.kernel).strip("_")
            folder = out / one.label / one.arch / kernel
            for count, stage in enumerate(one.stages):
                folder.mkdir(parents=True, exist_ok=True)
                suffix = _SUFFIXES.get(stage.name, stage.name)
                if stage.name == "source":
                    suffix = "cuh" if one.label.startswith(ROUTES) else "py"
                (folder / f"{count}-kernel.{suffix}").write_bytes(stage.content)
    except OSError as error:
        raise UsageError(f"--out {out}: could not be written: {error}") from None
