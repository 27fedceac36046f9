"""An op's kernels, opened up, as text for the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import itemgetter

from compare.pipeline import highlight, passes
from compare.pipeline.caches import caches
from compare.pipeline.differences import differences
from compare.pipeline.highlight import CodeText
from compare.pipeline.records import CacheEntry, CompilerStage, Opened
from compare.pipeline.tracing import SourceLine, source_map
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
        shown: ``overview``, ``stage``, ``passes``, ``pass_name``, ``source_map`` or ``caches``.
        name: of the stage or of the pass.
    """
    texts = {
        "stage": lambda: [stage_text(one, stage) for one in opened if (stage := one.stage(name))],
        "pass_name": lambda: [text for one in opened for text in pass_diffs(one, name)],
        "source_map": lambda: [mapped(one) for one in opened if one.instructions],
    }
    if shown == "overview":
        terminal.put(lambda width: render(opened, signature, width))
        return
    if shown == "caches":
        terminal.put(lambda width: on_disk(opened, width))
    elif shown == "passes":
        terminal.put(lambda width: "\n\n".join(pass_table(one, width) for one in opened if one.passes))
    else:
        highlight.put(texts[shown]())
    failed = [one for one in opened if one.failure]
    if failed:
        terminal.put(lambda width: "\n".join(["", *(failure(one, width) for one in failed)]))


def render(opened: Sequence[Opened], signature: str, width: int) -> str:
    """Stages of every kernel, the instruction mix, and what differs; no line wider than ``width``."""
    prose = min(width, PROSE_WIDTH)
    archs = list(dict.fromkeys(one.arch for one in opened))
    mixes = [_mix(arch, [one for one in opened if one.arch == arch]) for arch in archs]
    tables = [*map(_stages, _by_kernel(opened)), *filter(None, mixes)]
    blocks = [f"{opened[0].op}  {signature}\n{opened[0].case}, compiled for {', '.join(archs)}"]
    blocks += [laid_out(table, width) for table in tables]
    failed = [failure(one, prose) for one in opened if one.failure]
    if failed:
        blocks.append("\n".join(["Failed", *failed]))
    why_not = [paragraph(f"{who}: {why}", prose, "  ") for why, who in reasons(opened).items()]
    if why_not:
        blocks.append("\n".join(["Not compiled", *why_not]))
    legend = " ".join(dict.fromkeys(line for table in tables for line in table.legend))
    blocks += [paragraph(legend, prose)] if legend else []
    for arch in archs:
        lines = [f"What differs on {arch}"]
        for difference in differences(opened):
            if difference.arch == arch:
                lines.append(f"  {difference.what}")
                lines += [paragraph(line, prose, "    ") for line in difference.evidence]
        if len(lines) > 1:
            blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, *_on_disk(opened, prose)])


def _on_disk(opened: Sequence[Opened], width: int) -> list[str]:
    """Where each compiler keeps what it made of these kernels, a line each; nothing where none could."""
    lines = ["On disk (--caches shows keys and files)"]
    for name, cache in caches().items():
        kept = [one for one in opened if any(entry.cache == name and entry.files for entry in one.cached)]
        if any(entry.cache == name for one in opened for entry in one.cached):
            where = f"{cache.folder} ({cache.variable})"
            lines.append(paragraph(f"{name}: {len(kept)} of these kernels, in {where}", width, "  "))
    return ["\n".join(lines)] if len(lines) > 1 else []


def on_disk(opened: Sequence[Opened], width: int) -> str:
    """Every cache, then for each kernel what is kept of it, under which key, and what made the key."""
    prose = min(width, PROSE_WIDTH)
    rows = []
    for name, cache in caches().items():
        count, total = cache.size()
        rows.append((name, str(cache.folder), cache.variable, str(count), _bytes(total)))
    headers = ("whose", "folder", "set by", "files", "size")
    table = Table("What compilers keep on disk", headers, tuple(rows), ("folder", "set by"))
    blocks = [laid_out(table, width)]
    keys = [paragraph(f"{name}: {c.made_of}", prose, "  ") for name, c in caches().items() if c.made_of]
    blocks.append("\n".join(["Keys are hashes of", *keys]))
    for one in opened:
        lines = [cached(entry, prose) for entry in one.cached]
        if one.unavailable or lines:
            whose = f"{one.label} for {one.arch}: {one.unavailable or one.kernel}"
            blocks.append("\n".join([paragraph(whose, prose, hanging="  "), *lines]))
    return "\n\n".join(blocks)


def cached(entry: CacheEntry, width: int) -> str:
    """What is kept under one key, and what the key is made of."""
    lines = [paragraph(f"{entry.cache}: {entry.what}", width, "  "), f"    key  {entry.key}"]
    where = "in  " if entry.files else "not kept here; it would be"
    lines.append(f"    {where} {entry.place}")
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


def failure(one: Opened, width: int) -> str:
    """The stage at which a kernel's compiler stopped, and its message."""
    assert one.failure is not None
    where = f", at {one.failure.line}" if one.failure.line else ""
    head = paragraph(f"{one.label} for {one.arch} stopped at {one.failure.stage}{where}:", width, "  ")
    return head + "\n" + "\n".join(f"    {line}" for line in one.failure.message.splitlines())


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
    found = []
    for count, ran in enumerate(one.passes, 1):
        if ran.name == name:
            whose = f"{one.label}  {one.kernel}  {one.arch}"
            head = f"// {whose}  pass {count}, in {ran.stage}: {name} ({ran.title})"
            unknown = "// this Triton does not show what it changed" if ran.after is None else ""
            found.append(CodeText(head, unknown or passes.diff(ran) or "// it changed nothing", "diff"))
    return found


def mapped(one: Opened) -> CodeText:
    """Each source line with the PTX and the machine code that it became."""
    blocks = [_mapped_line(line) for line in source_map(one)]
    return CodeText(f"// {one.label}  {one.kernel}  {one.arch}", "\n" + "\n\n".join(blocks))


def _mapped_line(line: SourceLine) -> str:
    place = f"{shortened(line.file)}:{line.line}" if line.line else "no source line named by the compiler"
    became = [*(f"    ptx   {text}" for text in line.ptx), *(f"    sass  {text}" for text in line.sass)]
    return "\n".join([f"{place}  {line.text}".rstrip(), *became])


def shortened(file: str) -> str:
    """A path from the project's folder on, if it lies there; a line number after it stays."""
    path = os.path.normpath(file)
    return os.path.relpath(path, ROOT) if path.startswith(f"{ROOT}{os.sep}") else path


# --------------------------------------------------------------------------- tables


def _by_kernel(opened: Sequence[Opened]) -> list[list[Opened]]:
    """Each kernel for all its architectures."""
    labels = list(dict.fromkeys(one.label for one in opened))
    groups: dict[tuple[int, str], list[Opened]] = {}
    for one in opened:
        if one.stages:
            groups.setdefault((labels.index(one.label), one.kernel), []).append(one)
    return [groups[key] for key in sorted(groups, key=itemgetter(0))]


def _stages(of_kernel: Sequence[Opened]) -> Table:
    names = list(dict.fromkeys(stage.name for one in of_kernel for stage in one.stages))
    rows = []
    for name in names:
        found = [stage for one in of_kernel if (stage := one.stage(name))]
        ops = list(found[-1].ops.items())[:_MOST_OPS]
        ms = _each(number(stage.took_ms, 2) for stage in found)
        sizes = _each(str(len(stage.content)) for stage in found)
        lines = _each(NOTHING if stage.lines is None else str(stage.lines) for stage in found)
        frequent = ", ".join(f"{count} {op}" for op, count in ops)
        rows.append((name, found[-1].made_by, ms, sizes, lines, frequent))
    archs = ", ".join(dict.fromkeys(one.arch for one in of_kernel))
    title = f"{of_kernel[0].label}: {of_kernel[0].kernel} for {archs}"
    headers = ("stage", "made by", "ms", "bytes", "lines", "most frequent")
    return Table(title, headers, tuple(rows), ("made by", "most frequent"), (_STAGES_LEGEND,))


def _each(values: Iterable[str]) -> str:
    found = list(values)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _mix(arch: str, opened: Sequence[Opened]) -> Table | None:
    """Kinds of instructions down, kernels across."""
    columns = [one for one in opened if one.instructions]
    if not columns:
        return None
    mixes = [kinds(one.instructions) for one in columns]
    order = in_order(name for found in mixes for name in found)
    rows = [(name, *(str(found.get(name, NOTHING)) for found in mixes)) for name in order]
    rows.append(("all", *(str(len(one.instructions)) for one in columns)))
    several = len({one.label for one in columns}) < len(columns)
    headers = [f"{one.label}\n{one.kernel}" if several else one.label.replace(".", "\n.") for one in columns]
    title = f"Instructions on {arch}"
    return Table(title, ("instructions", *headers), tuple(rows), legend=(_MIX_LEGEND,))


def reasons(opened: Sequence[Opened]) -> dict[str, str]:
    """By reason, the rows without a stage."""
    found: dict[str, list[str]] = {}
    for one in opened:
        if one.unavailable:
            found.setdefault(one.unavailable, []).append(one.label)
    return {why: ", ".join(dict.fromkeys(labels)) for why, labels in found.items()}
