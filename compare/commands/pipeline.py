"""What each compiler makes of an op's kernels, stage by stage, for any architecture, with or
without a GPU.

examples:
  python -m compare pipeline vector_add
  python -m compare pipeline vector_add --arch sm_90 --all
  python -m compare pipeline softmax --only triton.online --arch sm_90 --stage ttgir
  python -m compare pipeline softmax --only triton.online --arch sm_90 --passes
  python -m compare pipeline softmax --only triton.online --arch sm_90 --pass tritongpu-coalesce
  python -m compare pipeline vector_add --only '*.vectorized' --arch sm_90 --source-map
  python -m compare pipeline vector_add --arch sm_90 --caches
  python -m compare pipeline vector_add --out stages/
  python -m compare pipeline softmax --arch sm_90 --html softmax.html

exit status:
  0  everything that can be compiled here passed every stage
  1  a kernel failed at a stage
  2  a mistake in the command, its files or the machine's setup
  3  inconclusive: nothing could be compiled here
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from compare import registry
from compare.command_line import options, outputs
from compare.command_line.status import FAILURE, INCONCLUSIVE, SUCCESS
from compare.model.op import ROUTES, UsageError
from compare.model.result import Options
from compare.pipeline import isolated
from compare.pipeline.records import Opened, OpenedOp, OpenRequest, as_data

_SHOWN = ("stage", "passes", "pass_name", "source_map", "caches")
"""Options that show something in place of the summary."""

_SUFFIXES = {
    "module": "module.cu",
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
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
        help="with --load, most time for loading a file, and for compiling one kernel by Triton "
        f"(default: {Options.timeout_s:.0f})",
    )
    add("--all", action="store_true", help="every stage, instruction and difference; with --caches every key")
    add = parser.add_argument_group("what is shown, in place of the summary").add_argument
    add("--stage", metavar="NAME", help="the text of one stage: ttgir, ptx, sass ... or of the tool: ptxas")
    add("--passes", action="store_true", help="Triton: every MLIR pass, and which changed the module")
    add("--pass", dest="pass_name", metavar="NAME", help="Triton: what this MLIR pass changed")
    add("--source-map", action="store_true", help="each source line beside the PTX and SASS it became")
    add("--caches", action="store_true", help="what each compiler keeps on disk, and what its key is made of")
    add = parser.add_argument_group("what is written, beside the screen").add_argument
    add("--out", type=Path, metavar="DIR", help="every stage as a file")
    options.add_file(add, "json", "everything")
    options.add_file(add, "html", "one page that needs no network: source beside SASS, then every stage")


def run(arguments: argparse.Namespace) -> int:
    """Check the arguments, and do it; the exit status."""
    if sum(bool(getattr(arguments, name)) for name in _SHOWN) > 1:
        raise UsageError("--stage, --passes, --pass, --source-map and --caches exclude each other; give one")
    options.check_timeout(arguments.timeout)
    if not arguments.load:
        options.check_op(arguments.op)
    request = _request(arguments, options.archs(arguments.arch))
    if arguments.out:
        outputs.create_folder(arguments.out)
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is decorated; here all are compiled
    return open_and_show(arguments, request)


def _request(arguments: argparse.Namespace, archs: tuple[str, ...]) -> OpenRequest:
    passes = arguments.passes or bool(arguments.pass_name)
    return OpenRequest(
        op=arguments.op,
        load=tuple(str(Path(path).absolute()) for path in arguments.load),
        only=tuple(arguments.only),
        case=arguments.case or "",
        archs=archs,
        dump=passes or bool(arguments.html),
        triton_only=passes,
    )


def open_and_show(arguments: argparse.Namespace, request: OpenRequest) -> int:
    """Compile, users' files in an isolated process; write and show; the exit status."""
    if not request.load:
        return _show(arguments, request)
    with isolated.started(request, arguments.timeout) as result:
        return _show(arguments, request, result)


def _show(
    arguments: argparse.Namespace, request: OpenRequest, result: Callable[[], OpenedOp] | None = None
) -> int:
    # Start-up: mistakes need neither PyTorch nor Triton; an isolated process imports the same meanwhile.
    from compare.pipeline import caches, opening, page, screen
    from compare.report.progress import of_run

    stage = opening.select(arguments.stage) if arguments.stage else ""
    if result:
        of_op = result()
    else:
        with of_run(request.op, None) as progress:
            of_op = opening.open_op(request, progress=progress)
    opened = caches.with_entries(of_op.opened)
    if not request.triton_only and opened:
        options.check_only(arguments.only, [one.label for one in opened])
    dump = arguments.passes or bool(arguments.pass_name)
    if dump and not any(one.passes or one.failure or one.unavailable for one in opened):
        raise UsageError("the passes that this Triton prints cannot be read here; please report it")
    if arguments.pass_name:
        names = list(dict.fromkeys(one_pass.name for one in opened for one_pass in one.passes))
        if arguments.pass_name not in names and names:
            raise UsageError(registry.unknown("pass", arguments.pass_name, names))
    if stage and not any(one.stage(stage) or one.failure for one in opened):
        raise _no_such_stage(opened, stage)
    shown = next((name for name in _SHOWN if getattr(arguments, name)), "summary")
    if arguments.all:
        shown = {"summary": "overview", "caches": "every_cache"}.get(shown, shown)
    writes = outputs.writes(
        *(arguments, opened),
        json=lambda opened: outputs.as_json([as_data(one) for one in opened]),
        html=lambda opened: page.render(opened, of_op.signature),
    )
    if arguments.out:
        writes.append(lambda: _write_stages(arguments.out, opened))
    outputs.beside(
        lambda: screen.put(opened, of_op.signature, shown, stage or arguments.pass_name or ""), writes
    )
    if any(one.failure for one in opened):
        return FAILURE
    return SUCCESS if any(one.stages for one in opened) else INCONCLUSIVE


def _no_such_stage(opened: Sequence[Opened], stage: str) -> UsageError:
    names = dict.fromkeys(each.name for one in opened for each in one.stages)
    labels = ", ".join(dict.fromkeys(one.label for one in opened))
    reasons = "; ".join(
        dict.fromkeys(one.unavailable.partition("\n")[0] for one in opened if one.unavailable)
    )
    why = f"there are {', '.join(names)}" if names else reasons
    return UsageError(f"--stage {stage}: no such stage of {labels}: {why}")


def _write_stages(out: Path, opened: Sequence[Opened]) -> None:
    """As ``DIR/triton.online/sm_90/softmax_online_kernel/3-kernel.ttir``."""
    try:
        for one in opened:
            kernel = re.sub(r"\W+", "_", one.kernel).strip("_")
            # A user's file may have given it any label.
            folder = out.joinpath(*(re.sub(r"/|^\.+$", "_", part) for part in (one.label, one.arch, kernel)))
            for count, stage in enumerate(one.stages):
                folder.mkdir(parents=True, exist_ok=True)
                suffix = _SUFFIXES.get(stage.name, stage.name.replace("/", "_"))
                if stage.name == "source":
                    suffix = "cuh" if one.label.startswith(ROUTES) else "py"
                (folder / f"{count}-kernel.{suffix}").write_bytes(stage.content)
    except OSError as error:
        raise UsageError(f"--out {out}: could not be written: {error}") from None
