"""The generated parts of README.md and docs/: ``python -m tools.docs.blocks [--check]``.

A document holds a block between two comments; what lies between is replaced:

    <!-- generated: results softmax -->
    ...
    <!-- end -->

``results OP`` is the speed table of the op's default case, ``sweep OP`` one line for every recorded case,
``screen OP`` the screen that ``python -m compare OP`` showed, ``kernels OP`` its tables of resources
and of code sizes, ``implementations`` the list of everything there is, ``figures`` where the tables
of each op are, ``pages FOLDER`` the pages of a folder of docs/, ``map`` the fastest way on every op and case,
``ops`` the same in a line an op, ``wins`` how often each way is the fastest, ``effort`` every
implementation's code size against its speed, ``mutations`` the seeded bugs and what caught them,
``exploits`` the files that try to cheat and what catches those, ``quantization`` the error of quantized
matrices' products, ``crosscheck`` cold times by other instruments, ``switch VARIABLE OP`` what an environment
variable makes the compilers print, ``banks OP`` its bank conflicts in shared memory, ``rooms`` the folders of
the driver, ``excerpt FILE TEXT... +LINES`` lines of a source, ``step FILE FILE`` or ``step OP VARIANT
VARIANT`` what changes from one level to the next, ``gain OP VARIANT-OR-WAY [CASE]`` a level's times and its
speedup over the level before, ``lab NUMBER`` what a lab's predictions and references measure, ``labs`` a line
for each lab.  ``all`` in place of an op means each in turn.  `PICTURES` are files of their own.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from compare import registry
from compare.code_size.hashes import source_hash
from compare.history.map import reading
from compare.history.map.survey import Map, hashes, survey
from compare.records import archive
from compare.records.encoding import write_whole
from compare.registry import ROOT
from compare.report import maps, markdown, tables, terminal
from compare.report.tables import Table
from compare.spec import LIBRARY, CaseComparison, Comparison, Op, UsageError
from compare.tuning.matching import registered_as
from compare.worker.start import prepare
from tools.docs import (
    banks,
    crosscheck,
    effort,
    exploits,
    labs,
    levels,
    mutations,
    notebooks,
    pictures,
    quantization,
    timing,
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
    Path("docs/rounds.svg"): timing.rounds,
    **pictures.pictures(),
}
"""Drawn files, relative to the root."""
FILES = {**PICTURES, **notebooks.every_notebook()}
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


def stale() -> dict[Path, str]:
    """The files that are not what would be generated now, and what would be."""
    fresh = {path: rewritten(path.read_text()) for path in documents(ROOT)}
    fresh |= {ROOT / path: make() for path, make in FILES.items()}
    return {path: text for path, text in fresh.items() if not path.is_file() or path.read_text() != text}


def main(arguments: Sequence[str]) -> int:
    """Rewrite the documents, or with ``--check`` only say which are out of date (status 1)."""
    prepare("cpu")  # hashes and lists need the kernels imported, not a GPU
    outdated = stale()
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
        "figures": _figures,
        "mutations": lambda: mutations.block(results),
        "exploits": exploits.block,
        "quantization": quantization.block,
        "rooms": lambda: _rooms("block"),
        "labs": labs.block,
        "crosscheck": crosscheck.block,
    }
    if what in whole:
        return whole[what]()
    if what in _OF_THE_MAP:
        return _of_the_map(what, results)
    if kind == "switch":
        return examples.block(name, was)
    if kind == "pages" and (folder := ROOT / "docs" / name).is_dir():
        return _pages(folder)
    if kind == "banks" and name in registry.op_names():
        return banks.block(registry.get_op(name))
    if kind == "excerpt":
        return levels.excerpt(name)
    if kind == "step":
        return levels.step(name)
    if kind == "lab":
        return labs.expected(name, functools.partial(recorded, results=results))
    if kind == "gain":
        return levels.gain(name, functools.partial(recorded, results=results))
    if kind in _OF_AN_OP and name == "all":
        return "\n\n".join(f"### {op}\n\n{_generate(f'{kind} {op}', results)}" for op in registry.op_names())
    if kind not in _OF_AN_OP or name not in registry.op_names():
        raise UsageError(
            f"<!-- generated: {what} -->: write {', '.join(map(repr, [*whole, *_OF_THE_MAP]))}, "
            f"or one of {', '.join(_OF_AN_OP)} and an op or all, banks and an op, or pages and a folder"
        )
    op = registry.get_op(name)
    comparison = recorded(op, results)
    if comparison is None:
        return (
            f"Nothing is recorded yet: `python -m compare {name} --record` on a machine with a GPU does it."
        )
    return _OF_AN_OP[kind](_default(op, comparison) if kind != "sweep" else comparison)


def recorded(op: Op, results: Path = archive.RESULTS) -> Comparison | None:
    """Everything recorded of ``op`` on the device recorded last; a row says if its source has changed.

    Cases and rows come as they would from one run, however many they are from; its date and machine are
    those of the last to time the default case, which a screen shows.
    """
    files = sorted(results.glob(f"*/{op.name}.jsonl"))
    return _recorded(op, results, tuple((file, file.stat().st_mtime_ns) for file in files))


@functools.lru_cache(1)
def _recorded(op: Op, results: Path, files: tuple[tuple[Path, int], ...]) -> Comparison | None:
    """Read once for the blocks of a page; ``files`` tells when to read again."""
    runs = archive.runs_of(op.name, results)
    if not runs:
        return None
    runs = [run for run in runs if run.environment.device == runs[0].environment.device]
    hashes = {impl.label: source_hash(impl) for impl in registry.implementations(op.name)}
    cases: dict[str, CaseComparison] = {}
    for run in runs:
        for case in run.cases:
            rows = tuple(
                replace(
                    row,
                    replayed=archive.provenance(run, row, hashes.get(registered_as(row.label), "")),
                    ceilings=case.ceilings,
                )
                for row in case.rows
            )
            seen = cases.get(case.case)
            cases[case.case] = replace(seen, rows=(*seen.rows, *rows)) if seen else replace(case, rows=rows)
    place, case_place = _places(hashes), _places(map(str, (op.cases.default, *op.cases.sweep)))

    def label_place(label: str) -> int:
        return place(registered_as(label))

    sizes = {label: size for run in reversed(runs) for label, size in run.code_sizes.items()}
    default = str(op.cases.default)
    told = next((run for run in runs if any(case.case == default for case in run.cases)), runs[0])
    return replace(
        told,
        cases=tuple(
            replace(case, rows=tuple(sorted(case.rows, key=lambda row: label_place(row.label))))
            for case in sorted(cases.values(), key=lambda case: case_place(case.case))
        ),
        code_sizes={label: sizes[label] for label in sorted(sizes, key=label_place)},
    )


def _places(names: Iterable[str]) -> Callable[[str], int]:
    """Where a name stands among these: behind all that is none of them."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return lambda name: places.get(name, len(places))


_OF_THE_MAP: dict[str, Callable[[Map], str]] = {
    "map": lambda found: f"{markdown.table(maps.cases(found))}\n\n{maps.legend(found)}",
    "ops": lambda found: "\n\n".join(
        (*maps.choices(found), markdown.table(maps.ops(found)), maps.ops_legend(found))
    ),
    "wins": lambda found: markdown.table(maps.wins(found)),
    "effort": lambda found: f"{markdown.table(maps.efforts(found))}\n\n{maps.FRONT_LEGEND}",
}


def _of_the_map(what: str, results: Path) -> str:
    """A part of the map of the device recorded last."""
    files = _records(results)
    if not files:
        return f"Nothing is recorded yet: `{reading.RECORD_IT}` on a machine with a GPU does it."
    return _OF_THE_MAP[what](_surveyed(files))


def _effort() -> str:
    return effort.picture(_surveyed(_records(archive.RESULTS)))


def _records(results: Path) -> tuple[tuple[Path, int], ...]:
    """The recorded files, each with the time of its last change."""
    return tuple((file, file.stat().st_mtime_ns) for file in sorted(results.glob("*/*.jsonl")))


@functools.lru_cache(1)
def _surveyed(files: tuple[tuple[Path, int], ...]) -> Map:
    """Read once for all blocks and pictures."""
    runs = reading.read(file for file, _ in files)
    device = max(runs, key=lambda run: run.created).environment.device
    runs = [run for run in runs if run.environment.device == device]
    return survey(runs, hashes({run.op for run in runs}))


def _default(op: Op, comparison: Comparison) -> Comparison:
    """Only the op's default case, or the first there is."""
    cases = [case for case in comparison.cases if case.case == str(op.cases.default)]
    return replace(comparison, cases=tuple(cases or comparison.cases[:1]))


def _joined(shown: Iterable[Table | None], none: str = "") -> str:
    return "\n\n".join(markdown.table(table) for table in shown if table) or none


def _kernels(shown: Comparison) -> str:
    resources = _joined([tables.resources(shown.cases[0])], "No resources are recorded.")
    if (table := tables.code(shown)) is None:
        return f"{resources}\n\nNo code sizes are recorded."
    return "\n\n".join([resources, markdown.table(table), *table.legend[1:]])


def _screen(shown: Comparison) -> str:
    changed = [row.label for row in shown.cases[0].rows if archive.changed_since(row)]
    fresh = tuple(replace(row, replayed="") for row in shown.cases[0].rows)
    shown = replace(shown, cases=(replace(shown.cases[0], rows=fresh),))
    text = f"```text\n$ python -m compare {shown.op}\n{terminal.render(shown, SCREEN_WIDTH)}\n```"
    return f"{text}\n\nChanged since this screen was recorded: {', '.join(changed)}." if changed else text


_OF_AN_OP: dict[str, Callable[[Comparison], str]] = {
    "results": lambda one: _joined([tables.speed(one.cases[0]), tables.side_by_side(one.cases[0])]),
    "sweep": lambda whole: _joined([tables.sweep(whole.cases)]),
    "screen": _screen,
    "kernels": _kernels,
}
"""All but ``sweep`` are given the op's default case alone."""


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
    title = "Variants by op and way, slow to fast, and the least GPU architecture where it is not sm_75"
    shown = ("op", "torch", "triton", "cupy, pybind", LIBRARY)
    return markdown.table(Table(title, shown, tuple(rows), text_columns=shown))


def _linked(op: str) -> str:
    """Its name, which leads from README.md to its page, where it has one."""
    page = Path("docs", "ops", f"{op}.md")
    return f"[{op}]({page})" if (ROOT / page).is_file() else op


def _figures() -> str:
    """The contents of docs/results.md: where to find the tables of each op."""
    rows = tuple((op, f"[ops/{op}.md](ops/{op}.md)", f"[{op}](#{op})") for op in registry.op_names())
    headers = ("op", "speed, every recorded size", "registers, shared memory, code size")
    return markdown.table(Table("Where the tables are", headers, rows, headers))


def _pages(folder: Path) -> str:
    """A list of the folder's pages, each by its first line."""
    titles = {page: page.read_text().partition("\n")[0].lstrip("# ") for page in sorted(folder.glob("*.md"))}
    return "\n".join(f"- [{title}]({folder.name}/{page.name})" for page, title in titles.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
