"""The generated parts of README.md and docs/: ``python -m tools.docs.blocks [--check] [FILE...]``.

A document holds a block between two comments; what lies between is replaced:

    <!-- generated: results softmax -->
    ...
    <!-- end -->

``screen OP`` is the screen that ``python -m compare OP`` showed, ``gain OP`` every level's time on the
default case and its speedup over the level before, ``overview`` a line for each op on its default case,
``choices`` which way is the fastest on which ops, ``implementations`` the list of everything there is,
``pages FOLDER`` the pages of a folder of docs/, ``quantization`` the error of quantized matrices' products,
``crosscheck`` cold times by other instruments, ``switch VARIABLE OP`` what an environment variable makes the
compilers print, ``banks OP`` its bank conflicts in shared memory, ``rooms`` the folders of the driver,
``excerpt FILE TEXT... +LINES`` lines of a source, ``lab NUMBER`` what a lab's predictions and references
measure, ``machines NUMBER`` what it needs a GPU for, ``labs`` a line for each lab, ``devices`` the ways on
all devices on record, ``simulation`` a sweep at scale, ``ranks OP`` an op of several GPUs. Of a kernel's
compilation ``stage ...`` is an excerpt, ``became ...`` a line for each source line, ``pass ...`` what a pass
changed, and ``dots`` what ``tl.dot`` becomes. ``abstraction OP`` is what each level of abstraction costs and
buys. ``sweep OP`` says where the times of its curves are from, ``in-flight`` how many bytes of loads a speed
takes. ``limits`` is what Triton's limits cost, ``library-speed`` each level beside a library.
``windows`` are those of the transpose's picture. `PICTURES` are files of their own.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.history import reading
from compare.history.devices import side_by_side
from compare.history.map import Map, survey
from compare.history.recorded import most_recorded, recorded
from compare.model.op import LIBRARY, Op, UsageError
from compare.records import archive
from compare.records.encoding import write_whole
from compare.registry import ROOT
from compare.report import devices, maps, markdown, terminal
from compare.report.tables import Table
from compare.worker.start import prepare
from tools.docs import (
    abstraction,
    banks,
    crosscheck,
    dots,
    effort,
    flows,
    labs,
    levels,
    limits,
    notebooks,
    one_line,
    overview,
    pictures,
    programs,
    quantization,
    ranks,
    schemas,
    simulation,
    stages,
    sweeps,
    techniques,
    timing,
    windows,
)
from tools.docs.toolchain_variables import examples

SCREEN_WIDTH = 80

_BLOCK = re.compile(r"(?ms)^<!-- generated: (?P<what>[^\n]*?) -->\n(?P<body>.*?)^<!-- end -->$")


def documents(root: Path) -> list[Path]:
    """The files that may hold generated blocks."""
    pages = (path for folder in ("docs", "labs") for path in sorted((root / folder).rglob("*.md")))
    return [path for path in (root / "README.md", *pages) if path.is_file()]


def _rooms(part: str) -> str:
    from tools.docs import architecture  # import-linter: only this needs it, and a GPU machine may lack it

    return architecture.block() if part == "block" else architecture.picture()


PICTURES: dict[Path, Callable[[], str]] = {
    Path("docs/architecture.svg"): lambda: _rooms("picture"),
    Path("docs/cold-sample.svg"): timing.cold_sample,
    Path("docs/effort.svg"): lambda: _effort(),
    Path(one_line.PICTURE): one_line.picture,
    Path(programs.PICTURE): programs.picture,
    **techniques.PICTURES,
    Path(sweeps.PICTURE): sweeps.picture,
    Path(sweeps.SIZES_PICTURE): sweeps.sizes_picture,
    Path("docs/rounds.svg"): timing.rounds,
    Path("docs/ops/transpose_windowed.svg"): windows.windows,
    **flows.PICTURES,
    **pictures.pictures(),
}
"""Drawn files, relative to the root."""
FILES = {**PICTURES, **notebooks.every_notebook(), **schemas.every_schema()}
"""All that are generated whole."""


def rewritten(text: str, results: Path = archive.RESULTS) -> str:
    """``text`` with every generated block made anew; a `UsageError` for a block of unknown name."""

    def block(match: re.Match[str]) -> str:
        body = _generate(match["what"], results, match["body"].rstrip("\n"))
        return f"<!-- generated: {match['what']} -->\n{body}\n<!-- end -->"

    opened, closed = text.count("<!-- generated: "), len(_BLOCK.findall(text))
    if opened != closed:
        raise UsageError(f"{opened - closed} generated block(s) without a closing <!-- end --> line")
    return _BLOCK.sub(block, text)


def stale(only: Sequence[Path] = ()) -> dict[Path, str]:
    """The files, all or those of ``only``, that are not what would be generated now, and what would be."""
    fresh = {path: rewritten(path.read_text()) for path in only or documents(ROOT)}
    fresh |= {ROOT / path: make() for path, make in FILES.items() if not only}
    return {path: text for path, text in fresh.items() if not path.is_file() or path.read_text() != text}


def main(arguments: Sequence[str]) -> int:
    """Rewrite the documents, or with ``--check`` only say which are out of date (status 1)."""
    prepare("cpu")  # hashes and lists need the kernels imported, not a GPU
    outdated = stale([Path(word).resolve() for word in arguments if not word.startswith("--")])
    for path, text in outdated.items():
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: make docs")
        else:
            write_whole(path, text)
            print(f"rewrote {path.relative_to(ROOT)}")
    return 1 if outdated and "--check" in arguments else 0


# --------------------------------------------------------------------------- blocks


def _generate(what: str, results: Path, was: str = "") -> str:
    kind, _, name = what.partition(" ")
    whole: dict[str, Callable[[], str]] = {
        "implementations": _implementations,
        "overview": lambda: overview.block(results),
        "choices": lambda: _choices(results),
        "quantization": quantization.block,
        "rooms": lambda: _rooms("block"),
        "labs": labs.block,
        "crosscheck": crosscheck.block,
        "dots": lambda: dots.block(was),
        "limits": lambda: limits.block(results),
        "windows": windows.block,
        "library-speed": lambda: limits.effort(results),
        "in-flight": lambda: sweeps.in_flight(results, was),
        "devices": lambda: _devices(results),
        "simulation": simulation.block,
    }
    named: dict[str, Callable[[], str]] = {
        "screen": lambda: _screen(registry.get_op(name), results),
        "gain": lambda: levels.gain(name, functools.partial(recorded, root=results)),
        "excerpt": lambda: levels.excerpt(name),
        "banks": lambda: banks.block(registry.get_op(name)),
        "lab": lambda: labs.expected(name, functools.partial(recorded, root=results)),
        "machines": lambda: labs.machines(name),
        "switch": lambda: examples.block(name, was),
        **{made: functools.partial(stages.block, made, name, was) for made in ("stage", "became", "pass")},
        "pages": lambda: _pages(ROOT / "docs" / name),
        "sweep": lambda: sweeps.block(name, results),
        "ranks": lambda: ranks.block(name, results),
        "abstraction": lambda: abstraction.block(name, results),
    }
    if what in whole:
        return whole[what]()
    if kind in named and name:
        return named[kind]()
    raise UsageError(
        f"<!-- generated: {what} -->: write {', '.join(whole)}, or one of {', '.join(named)} and a name"
    )


def _choices(results: Path) -> str:
    """Which way is the fastest on which ops of the device with the most ops on record."""
    files = _records(results)
    if not files:
        return f"Nothing is recorded yet: `{reading.RECORD_IT}` on a machine with a GPU does it."
    return "\n".join(f"- {line}" for line in maps.choices(_surveyed(files)))


def _devices(results: Path) -> str:
    """The ways across all devices on record: each device's card, and the table."""
    runs = reading.read(sorted(results.glob("*/*.json")))
    names = sorted({run.environment.device for run in runs})
    maps = [survey([run for run in runs if run.environment.device == name]) for name in names]
    return devices.as_markdown(side_by_side(maps, runs)).rstrip()


def _effort() -> str:
    return effort.picture(_surveyed(_records(archive.RESULTS)))


def _records(results: Path) -> tuple[tuple[Path, int], ...]:
    """The recorded files, each with the time of its last change."""
    return tuple((file, file.stat().st_mtime_ns) for file in sorted(results.glob("*/*.json")))


@functools.lru_cache(1)
def _surveyed(files: tuple[tuple[Path, int], ...]) -> Map:
    """Read once for all blocks and pictures."""
    runs = reading.read(file for file, _ in files)
    device = most_recorded(runs)
    runs = [run for run in runs if run.environment.device == device]
    return survey(runs)


def _screen(op: Op, results: Path) -> str:
    """The screen of its default case, or of the first there is."""
    comparison = recorded(op, results)
    if comparison is None:
        record = f"python -m compare {op.name} --record"
        return f"Nothing is recorded yet: `{record}` on a machine with a GPU does it."
    cases = [case for case in comparison.cases if case.case == str(op.cases.default)] or comparison.cases[:1]
    shown = replace(comparison, cases=(cases[0],))
    return f"```text\n$ python -m compare {shown.op}\n{terminal.render(shown, SCREEN_WIDTH)}\n```"


def _implementations() -> str:
    """An op a line, a way a column: what stands before an implementation's name in its label."""
    headers = ("op", "torch", "triton", "cupy", LIBRARY)
    rows = []
    for name in registry.op_names():
        found: dict[str, list[str]] = {route: [] for route in headers[1:]}
        for impl in registry.implementations(name):
            needs = f" ({impl.requires})" if impl.requires else ""
            if impl.route in found:  # through pybind11 comes all that comes through cupy
                found[impl.route].append(f"`{impl.variant}`{needs}")
        rows.append((_linked(name), *(", ".join(names) or "-" for names in found.values())))
    title = "Implementations by op and way, slow to fast, and the least GPU architecture if not sm_75"
    shown = ("op", "torch", "triton", "cupy, pybind", LIBRARY)
    return markdown.table(Table(title, shown, tuple(rows), text_columns=shown))


def _linked(op: str) -> str:
    """Its name, which leads from README.md to its page, where it has one."""
    page = Path("docs", "ops", f"{op}.md")
    return f"[{op}]({page})" if (ROOT / page).is_file() else op


def _pages(folder: Path) -> str:
    """A list of the folder's pages, each by its first line; a `UsageError` if there are none."""
    titles = {page: page.read_text().partition("\n")[0].lstrip("# ") for page in sorted(folder.glob("*.md"))}
    if not titles:
        raise UsageError(f"<!-- generated: pages {folder.name} -->: docs/{folder.name}/ has no pages")
    return "\n".join(f"- [{title}]({folder.name}/{page.name})" for page, title in titles.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
