"""An op's kernels, opened up, as text for the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from compare.pipeline import highlight, reading
from compare.pipeline.caches import caches
from compare.pipeline.differences import differences
from compare.pipeline.highlight import CodeText
from compare.pipeline.records import CacheEntry, CompilerStage, Opened
from compare.pipeline.summary import cache_summary, summary
from compare.registry import ROOT
from compare.report import terminal
from compare.report.tables import NOTHING, Table, number
from compare.report.terminal import PROSE_WIDTH, laid_out, paragraph
from compare.resources.sass.instruction_mix import in_order, kinds

_MOST_OPS = 3
_STAGES_LEGEND = (
    "ms: wall time of the step in this run, while other kernels were compiled; - where it is part of another "
    "step. lines: - for a binary. most frequent: operations or instructions, for the last architecture. "
    "a / b / c: one figure for each architecture, or one where they are equal."
)
_MIX_LEGEND = (
    "instructions in the machine code, each counted once however often it runs. loads and stores: bits per "
    "thread, or TMA; local memory holds spills."
)


def put(opened: Sequence[Opened], signature: str, shown: str, name: str) -> None:
    """Print what the command was asked for.

    Args:
        opened: the kernels.
        signature: of the op.
        shown: ``summary``, ``overview``, ``every_cache``, ``stage``, ``passes``, ``pass_name``,
            ``source_map`` or ``caches``.
        name: of the stage or of the pass.
    """
    if shown in ("summary", "overview"):
        make = summary if shown == "summary" else overview
        terminal.put(lambda width: make(opened, signature, width))
        return
    if shown in ("caches", "every_cache"):
        terminal.put(lambda width: on_disk(opened, width, whole=shown == "every_cache"))
    elif shown == "passes":
        terminal.put(lambda width: "\n\n".join(pass_table(one, width) for one in opened if one.passes))
    elif shown == "stage":
        highlight.put([stage_text(one, stage) for one in opened if (stage := one.stage(name))])
    elif shown == "pass_name":
        highlight.put([text for one in opened for text in pass_diffs(one, name)])
    else:
        highlight.put([mapped(one) for one in opened if one.instructions])
    if any(one.failure for one in opened):
        terminal.put(lambda width: "\n".join(["", *failures(opened, width)]))


def overview(opened: Sequence[Opened], signature: str, width: int) -> str:
    """Stages of every kernel, the instruction mix, and what differs; no line wider than ``width``."""
    prose = min(width, PROSE_WIDTH)
    archs = list(dict.fromkeys(one.arch for one in opened))
    tables = [*_stages(opened), *_mixes(opened, archs)]
    blocks = [f"{opened[0].op}  {signature}\n{opened[0].case}, compiled for {', '.join(archs)}"]
    blocks += [laid_out(table, width) for table in tables]
    legend = " ".join(dict.fromkeys(line for table in tables for line in table.legend))
    sections = {
        "Failed": failures(opened, prose),
        "Not compiled": [paragraph(f"{who}: {why}", prose, "  ") for why, who in reasons(opened).items()],
        "": [paragraph(legend, prose)] if legend else [],
    }
    for difference in differences(opened):
        lines = sections.setdefault(f"What differs on {difference.arch}", [])
        lines += [f"  {difference.what}", *(paragraph(each, prose, "    ") for each in difference.evidence)]
    on_this_disk = sections.setdefault("On disk (--caches shows keys and files)", [])
    for name, cache in caches().items():
        if entries := [(one, entry) for one in opened for entry in one.cached if entry.cache == name]:
            kept = len({id(one) for one, entry in entries if entry.files})
            where = f"{cache.folder} ({cache.variable})"
            on_this_disk.append(paragraph(f"{name}: {kept} of these kernels, in {where}", prose, "  "))
    blocks += ["\n".join(filter(None, [title, *lines])) for title, lines in sections.items() if lines]
    return "\n\n".join(blocks)


def on_disk(opened: Sequence[Opened], width: int, *, whole: bool = True) -> str:
    """Every cache, then how much is kept of each implementation; or, on the ``whole`` screen, what is kept of
    each kernel, under which key, and what made the key."""
    prose = min(width, PROSE_WIDTH)
    rows = []
    for name, cache in caches().items():
        count, total = cache.size()
        rows.append((name, cache.shown_folder, cache.variable, str(count), _bytes(total)))
    headers = ("whose", "folder", "set by", "files", "size")
    table = Table("What compilers keep on disk", headers, tuple(rows), ("folder", "set by"))
    if not whole:
        return cache_summary(opened, headers, rows, width)
    keys = [paragraph(f"{name}: {c.made_of}", prose, "  ") for name, c in caches().items() if c.made_of]
    blocks = [laid_out(table, width), "\n".join(["Keys are hashes of", *keys])]
    for one in opened:
        if one.unavailable or one.cached:
            whose = f"{one.label} for {one.arch}: {one.unavailable or one.kernel}"
            lines = [cached(entry, prose) for entry in one.cached]
            blocks.append("\n".join([paragraph(whose, prose, hanging="  "), *lines]))
    return "\n\n".join(blocks)


def cached(entry: CacheEntry, width: int) -> str:
    """What is kept under one key, and what the key is made of."""
    where = "in  " if entry.files else "not kept here; it would be"
    lines = [paragraph(f"{entry.cache}: {entry.what}", width, "  "), f"    key  {entry.key}"]
    lines += [f"    {where} {entry.place}"]
    lines += [f"      {_bytes(count):>9}  {name}" for name, count in entry.files.items()]
    names = max(map(len, entry.made_of), default=0)
    for name, value in entry.made_of.items():
        lines.append(paragraph(f"{name:<{names}}  {value}", width, "    ", " " * (names + 6)))
    return "\n".join(lines)


def _bytes(count: int) -> str:
    """``512 B``, ``34.5 KB``, ``1.2 MB``."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} KB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def failures(opened: Sequence[Opened], width: int) -> list[str]:
    """The stage at which each compiler stopped, and its message."""
    lines = []
    for one in opened:
        if one.failure:
            where = f", at {one.failure.line}" if one.failure.line else ""
            head = f"{one.label} for {one.arch} stopped at {one.failure.stage}{where}:"
            lines.append(paragraph(head, width, "  "))
            lines += [paragraph(line, width, "    ") for line in one.failure.message.splitlines()]
    return lines


def stage_text(one: Opened, stage: CompilerStage) -> CodeText:
    """The text of a stage under a heading."""
    head = f"// {one.label}  {one.kernel}  {one.arch}  {stage.name}, made by {stage.made_by}"
    if stage.command:
        head += f"\n// {stage.command}"
    if stage.binary:
        return CodeText(f"{head}\n// {len(stage.content)} bytes, a binary; --out DIR writes it to a file")
    return CodeText(head, stage.text.rstrip(), highlight.language(one.label, stage.name))


def pass_table(one: Opened, width: int) -> str:
    """Every MLIR pass in order, those that changed the module marked."""
    rows = []
    for count, ran in enumerate(one.passes, 1):
        changed, lines = "?" if ran.after is None else "", ""
        if ran.after is not None and ran.changed:
            changed, lines = "yes", f"{len(ran.before.splitlines())} -> {len(ran.after.splitlines())}"
        rows.append((str(count), ran.stage, ran.name, changed, lines))
    share = f"{sum(ran.changed for ran in one.passes)} of {len(rows)} changed the module"
    title = f"Passes of {one.label} ({one.kernel}) for {one.arch}: {share}"
    headers = ("", "stage", "pass", "changed", "lines")
    return laid_out(Table(title, headers, tuple(rows), ("stage", "pass", "changed")), width)


def pass_diffs(one: Opened, name: str) -> list[CodeText]:
    """What each run of a pass changed."""
    texts = []
    for count, ran in enumerate(one.passes, 1):
        if ran.name == name:
            whose = f"{one.label}  {one.kernel}  {one.arch}"
            head = f"// {whose}\n// pass {count}, in {ran.stage}: {name} ({ran.title})"
            unknown = "// this Triton does not show what it changed" if ran.after is None else ""
            texts.append(CodeText(head, unknown or reading.diff(ran) or "// it changed nothing", "diff"))
    return texts


def mapped(one: Opened) -> CodeText:
    """Each source line with the PTX and the machine code that it became."""
    blocks = []
    for line in reading.source_map(one):
        place = f"{shortened(line.file)}:{line.line}" if line.line else "no source line named by the compiler"
        became = [*(f"    ptx   {text}" for text in line.ptx), *(f"    sass  {text}" for text in line.sass)]
        blocks.append("\n".join(["", f"{place}  {line.text}".rstrip(), *became]))
    return CodeText(f"// {one.label}  {one.kernel}  {one.arch}", "\n".join(blocks))


def shortened(file: str) -> str:
    """A path from the project's folder on, if it lies there; a line number after it stays."""
    path = os.path.normpath(file)
    return os.path.relpath(path, ROOT) if path.startswith(f"{ROOT}{os.sep}") else path


# --------------------------------------------------------------------------- tables


def _stages(opened: Sequence[Opened]) -> Iterable[Table]:
    """Of each kernel, for all its architectures."""
    labels = list(dict.fromkeys(one.label for one in opened))
    groups: dict[tuple[str, str], list[Opened]] = {}
    for one in sorted(opened, key=lambda one: labels.index(one.label)):
        if one.stages:
            groups.setdefault((one.label, one.kernel), []).append(one)
    for (label, kernel), of_kernel in groups.items():
        rows = []
        for name in dict.fromkeys(stage.name for one in of_kernel for stage in one.stages):
            stages = [stage for one in of_kernel if (stage := one.stage(name))]
            ms = _each(number(stage.took_ms, 2) for stage in stages)
            sizes = _each(str(len(stage.content)) for stage in stages)
            lines = _each(NOTHING if stage.lines is None else str(stage.lines) for stage in stages)
            frequent = ", ".join(f"{count} {op}" for op, count in list(stages[-1].ops.items())[:_MOST_OPS])
            rows.append((name, stages[-1].made_by, ms, sizes, lines, frequent))
        title = f"{label}: {kernel} for {', '.join(dict.fromkeys(one.arch for one in of_kernel))}"
        headers = ("stage", "made by", "ms", "bytes", "lines", "most frequent")
        yield Table(title, headers, tuple(rows), ("made by", "most frequent"), (_STAGES_LEGEND,))


def _each(values: Iterable[str]) -> str:
    given = list(values)
    return given[0] if len(set(given)) == 1 else " / ".join(given)


def _mixes(opened: Sequence[Opened], archs: Sequence[str]) -> Iterable[Table]:
    """Kinds of instructions down, kernels across; a table for each architecture."""
    for arch in archs:
        columns = [one for one in opened if one.arch == arch and one.instructions]
        mixes = [kinds(one.instructions) for one in columns]
        order = in_order(name for each in mixes for name in each)
        rows = [(name, *(str(each.get(name, NOTHING)) for each in mixes)) for name in order]
        rows.append(("all", *(str(len(one.instructions)) for one in columns)))
        headers = [one.label.replace(".", "\n.") for one in columns]
        if len({*headers}) < len(headers):
            headers = [f"{one.label}\n{one.kernel}" for one in columns]
        if columns:
            title = f"Instructions on {arch}"
            yield Table(title, ("instructions", *headers), tuple(rows), legend=(_MIX_LEGEND,))


def reasons(opened: Sequence[Opened]) -> dict[str, str]:
    """By reason, the rows without a stage."""
    whose: dict[str, dict[str, None]] = {}
    for one in opened:
        if one.unavailable:
            whose.setdefault(one.unavailable, {})[one.label] = None
    return {why: ", ".join(labels) for why, labels in whose.items()}
