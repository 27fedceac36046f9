"""``python -m compare pipeline OP``: arguments in, exit code out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from compare.command_line import options, outputs
from compare.spec import Options, UsageError
from compare.toolchain.pipeline import apart
from compare.toolchain.pipeline.records import Wanted

_EPILOG = """\
examples:
  python -m compare pipeline vector_add
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
  3  nothing could be compiled here
"""


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
        help="with --load, most time for loading a file, and for compiling one kernel by Triton "
        f"(default: {Options.timeout_s:.0f})",
    )
    add = found.add_argument_group("what is shown, in place of the overview").add_argument
    add("--stage", metavar="NAME", help="the text of one stage: ttgir, ptx, sass ... or of the tool: ptxas")
    add("--passes", action="store_true", help="Triton: every MLIR pass, and which changed the module")
    add("--pass", dest="pass_name", metavar="NAME", help="Triton: what this MLIR pass changed")
    add("--source-map", action="store_true", help="each source line beside the PTX and SASS it became")
    add("--caches", action="store_true", help="what each compiler keeps on disk, and what its key is made of")
    add = found.add_argument_group("what is written, beside the screen").add_argument
    add("--out", type=Path, metavar="DIR", help="every stage as a file")
    add("--json", type=Path, metavar="FILE", help="everything")
    add(
        "--html",
        type=Path,
        metavar="FILE",
        help="one page that needs no network: source beside SASS, then every stage",
    )
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command on what follows ``pipeline``.

    Raises:
        UsageError: the command asks for what does not exist.
    """
    arguments = parser().parse_args(argv)
    shown = ("stage", "passes", "pass_name", "source_map", "caches")
    if sum(bool(getattr(arguments, name)) for name in shown) > 1:
        raise UsageError("--stage, --passes, --pass, --source-map and --caches exclude each other; give one")
    options.check_timeout(arguments.timeout)
    if not arguments.load:
        options.check_op(arguments.op)
    archs = options.archs(arguments.arch)
    outputs.check({"--json": arguments.json, "--html": arguments.html})
    if arguments.out:
        outputs.made(arguments.out)
    dump = arguments.passes or bool(arguments.pass_name)
    wanted = Wanted(
        op=arguments.op,
        load=tuple(str(Path(path).absolute()) for path in arguments.load),
        only=tuple(arguments.only),
        case=arguments.case or "",
        archs=archs,
        dump=dump or bool(arguments.html),
        triton_only=dump,
    )
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is decorated; here all are compiled
    if arguments.load:
        with apart.Apart(wanted, arguments.timeout) as started:
            # Start-up: imported while the other process imports the same.
            from compare.toolchain.pipeline import show

            return show.run(arguments, started.found)
    # Start-up: --help and mistakes need neither PyTorch nor Triton.
    from compare.toolchain.pipeline import opener, show

    return show.run(arguments, lambda: opener.found(wanted))
