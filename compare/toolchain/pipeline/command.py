"""``python -m compare pipeline OP``: arguments in, exit code out."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compare import registry
from compare.command_line import options, outputs
from compare.spec import ROUTES, Case, Options, UsageError
from compare.toolchain.pipeline import apart

if TYPE_CHECKING:
    from compare.toolchain.pipeline.records import Opened
    from compare.toolchain.pipeline.report import highlight

COMPILED, STOPPED, NOTHING = 0, 1, 3

_EPILOG = """\
examples:
  python -m compare pipeline vector_add
  python -m compare pipeline softmax --only triton.online --arch sm_90 --stage ttgir
  python -m compare pipeline softmax --only triton.online --arch sm_90 --passes
  python -m compare pipeline softmax --only triton.online --arch sm_90 --pass tritongpu-coalesce
  python -m compare pipeline matmul --only triton.tiled --arch sm_90 --layout mma
  python -m compare pipeline vector_add --only '*.vectorized' --arch sm_90 --source-map
  python -m compare pipeline vector_add --out stages/
  python -m compare pipeline softmax --arch sm_90 --html softmax.html

exit status:
  0  everything that can be compiled here went through every stage
  1  a kernel did not get through a stage
  2  a mistake in the command, its files or the machine's setup
  3  nothing could be compiled here
"""

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


def parser() -> argparse.ArgumentParser:
    found = options.parser(
        "pipeline",
        "What each compiler makes of an op's kernels, stage by stage, for any architecture, with or without "
        "a GPU.",
        _EPILOG,
    )
    add = found.add_argument
    add("op", metavar="OP", help="the op")
    options.add_only(add)
    options.add_arch(add, "compile")
    add("--case", metavar="CASE", help="sizes and dtype, e.g. M=4096,N=781,fp16 (default: the op's own)")
    options.add_load(add)
    add(
        "--timeout",
        type=float,
        default=Options.timeout_s,
        metavar="SECONDS",
        help="with --load, most time for loading a file, and for one kernel on its way through Triton "
        f"(default: {Options.timeout_s:.0f})",
    )
    add = found.add_argument_group("what is shown, in place of the overview").add_argument
    add("--stage", metavar="NAME", help="the text of one stage: ttgir, ptx, sass ... or of the tool: ptxas")
    add("--layout", metavar="NAME", help="Triton: a layout in words and drawn: #blocked, slice; all: each")
    add("--passes", action="store_true", help="Triton: every MLIR pass, and which changed the module")
    add("--pass", dest="pass_name", metavar="NAME", help="Triton: what this MLIR pass changed")
    add("--source-map", action="store_true", help="each source line beside the PTX and SASS it became")
    add = found.add_argument_group("what is written, beside the screen").add_argument
    add("--out", type=Path, metavar="DIR", help="every stage as a file")
    add("--json", type=Path, metavar="FILE", help="everything")
    add("--html", type=Path, metavar="FILE", help="one page that needs no network, with the passes")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``pipeline``.

    Raises:
        UsageError: the command asks for what does not exist.
    """
    arguments = parser().parse_args(argv)
    shown = ("stage", "layout", "passes", "pass_name", "source_map")
    if sum(bool(getattr(arguments, name)) for name in shown) > 1:
        raise UsageError(
            "--stage, --layout, --passes, --pass and --source-map each show something else; give one"
        )
    options.check_timeout(arguments.timeout)
    if not arguments.load:
        options.check_op(arguments.op)
    archs = options.archs(arguments.arch)
    outputs.check({"--json": arguments.json, "--html": arguments.html})
    if arguments.out:
        outputs.made(arguments.out)
    if arguments.load and not apart.is_here():
        return apart.run(argv, arguments.timeout)
    with apart.limited() as begin:
        return _run(arguments, archs, begin)


def _run(arguments: argparse.Namespace, archs: tuple[str, ...], begin: apart.Begin) -> int:
    """Open up what is asked for, and write and show it."""
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is decorated; here all are compiled

    from compare.device import default_archs, pick
    from compare.toolchain.pipeline.opening import open_up, select

    stage = select(arguments.stage) if arguments.stage else ""
    if arguments.load and arguments.op in registry.op_names():
        registry.implementations(arguments.op)  # the project's own come first
    for path in arguments.load:
        begin(f"loading {path}")
        registry.load(path).check_has(arguments.op, path)
    begin(f"opening up {arguments.op}", limited=False)
    op = registry.get_op(arguments.op)
    impls = registry.implementations(op.name, arguments.only)
    case = Case.parse(arguments.case, op) if arguments.case else op.cases.default
    dump = arguments.passes or bool(arguments.pass_name)
    if dump or arguments.layout:
        impls = [impl for impl in impls if impl.way == "triton"]
        if not impls:
            raise UsageError(
                "--layout, --passes and --pass show what only Triton has, and no Triton kernel is among these"
            )
    opened = open_up(op, impls, case, archs or default_archs(pick()), dump or bool(arguments.html), begin)
    if dump and not any(one.passes or one.failure or one.unavailable for one in opened):
        raise UsageError(
            "this Triton prints its passes in a way that is not understood here; please report it"
        )
    outputs.beside(
        lambda: _show(opened, op.signature, arguments, stage), _writes(opened, op.signature, arguments)
    )
    if any(one.failure for one in opened):
        return STOPPED
    return COMPILED if any(one.stages for one in opened) else NOTHING


def _writes(
    opened: Sequence[Opened], signature: str, arguments: argparse.Namespace
) -> Iterator[Callable[[], None]]:
    if arguments.json:
        from compare.toolchain.pipeline.records import as_data

        yield lambda: outputs.write_json(arguments.json, [as_data(one) for one in opened])
    if arguments.html:
        from compare.toolchain.pipeline.report import page

        yield lambda: outputs.write(arguments.html, page.render(opened, signature))
    if arguments.out:
        yield lambda: _write_stages(arguments.out, opened)


def _show(opened: Sequence[Opened], signature: str, arguments: argparse.Namespace, stage: str) -> None:
    from compare.report import terminal
    from compare.toolchain.pipeline.report import highlight, stages

    texts: list[highlight.Code] = []
    if stage:
        texts = [stages.stage_text(one, found) for one in opened if (found := one.stage(stage))]
        if not texts:
            _refuse_stage(opened, stage)
    elif arguments.layout:
        _show_layouts(opened, arguments.layout)
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


def _show_layouts(opened: Sequence[Opened], name: str) -> None:
    from compare.report import terminal
    from compare.toolchain.pipeline.layouts import layouts
    from compare.toolchain.pipeline.report import layouts as report

    of_kernels = [(one, layouts(one)) for one in opened]
    known = {layout.name for _, found in of_kernels for layout in found}
    known |= {layout.kind for _, found in of_kernels for layout in found} | {"all"}
    wanted = name if name in known or f"#{name}" not in known else f"#{name}"
    if known != {"all"} and wanted not in known:
        raise UsageError(registry.unknown("layout", name, sorted(known)))
    shown = [
        (one, [layout for layout in found if wanted in ("all", layout.name, layout.kind)])
        for one, found in of_kernels
    ]
    terminal.put(
        lambda width: "\n\n".join(
            report.render(one, found, min(width, terminal.PROSE_WIDTH)) for one, found in shown if found
        )
    )


def _refuse_stage(opened: Sequence[Opened], stage: str) -> None:
    if any(one.failure for one in opened):
        return  # why is said
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
