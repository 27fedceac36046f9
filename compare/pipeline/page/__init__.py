"""An op's kernels, opened up, as one self-contained HTML page.

The texts are compressed JSON, because ten kernels for three architectures are megabytes; the page's script
unpacks them into columns. Its Content-Security-Policy forbids every request.
"""

from __future__ import annotations

import base64
import difflib
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from compare.model.op import way_of
from compare.pipeline import highlight, reading
from compare.pipeline.differences import differences
from compare.pipeline.reading import Traced, traced
from compare.pipeline.records import CompilerStage, Opened, Pass, StageFailure
from compare.pipeline.screen import cached, reasons, shortened
from compare.report.html import palette
from compare.report.html.sources import coloured
from compare.report.kernel_names import shortened as readable
from compare.report.terminal import PROSE_WIDTH
from compare.resources.sass.instruction_mix import in_order, kinds

_HERE = Path(__file__).parent
_MOST_DIFF_LINES = 400
"""Of one pass; the lowering to LLVM rewrites everything."""
_AROUND = 1000
"""Lines around a change of a source that are shown: its whole kernel."""


def render(opened: Sequence[Opened], signature: str) -> str:
    """The page of one op and one case, with the passes."""
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, keep_trailing_newline=True)
    data = json.dumps(_data(opened), separators=(",", ":"), ensure_ascii=False)
    packed = base64.b64encode(gzip.compress(data.encode(), 9, mtime=0)).decode()
    return environment.get_template("page.html").render(
        op=opened[0].op,
        case=opened[0].case,
        signature=signature,
        archs=list(dict.fromkeys(one.arch for one in opened)),
        reasons=reasons(opened),
        differences=differences(opened),
        caches=[(one, "\n".join(cached(entry, PROSE_WIDTH) for entry in one.cached)) for one in opened],
        css=palette.css() + (_HERE / "page.css").read_text(),
        script=(_HERE / "page.js").read_text(),
        packed=packed,
    )


_Texts = dict[tuple[tuple[Traced, ...], str], int]
"""The number of each text and its language: each once, however many kernels and architectures share it."""


def _data(opened: Sequence[Opened]) -> dict[str, Any]:
    texts: _Texts = {}
    kernels = [_kernel(one, texts) for one in opened if one.stages]
    order = in_order(name for kernel in kernels for name in kernel["mix"])
    data = {"kernels": kernels, "texts": [_text(*key) for key in texts], "kinds": order}
    return data | {"tints": palette.TINTS} | _diffs(one for one in opened if one.stages)


def _diffs(opened: Iterable[Opened]) -> dict[str, dict[str, Any]]:
    """The number of each label's source, equal ones once; and by two of them, ``1 2``, a unified diff.

    Only between kernels of one language; those of Triton are read beside those of CUDA.
    """
    kernels: dict[str, dict[str, str]] = {}
    for one in opened:
        if source := one.stage("source"):
            kernels.setdefault(one.label, {})[one.kernel.partition("<")[0]] = source.text
    texts = {label: "\n\n".join(of.values()) for label, of in kernels.items()}
    ways = {text: way_of(label) for label, text in texts.items()}
    numbers = {text: number for number, text in enumerate(ways)}
    diffs = {
        f"{numbers[text]} {numbers[new]}": "\n".join(
            list(difflib.unified_diff(text.splitlines(), new.splitlines(), n=_AROUND, lineterm=""))[2:]
        )
        for text, new in combinations(ways, 2)
        if ways[text] == ways[new]
    }
    return {"sources": {label: numbers[text] for label, text in texts.items()}, "diffs": diffs}


def _text(lines: Sequence[Traced], language: str) -> dict[str, Any]:
    text = "\n".join(line.text for line in lines)
    return {"text": text, "lines": [line.lines for line in lines], "colours": _colours(text, language)}


def _kernel(one: Opened, texts: _Texts) -> dict[str, Any]:
    source = one.stage("source")
    return {
        "way": way_of(one.label),
        "label": one.label,
        "kernel": one.kernel,
        "arch": one.arch,
        "file": shortened(source.file) if source and source.file else "source",
        "first": _first_line(one, source) if source else 1,
        "failure": _failure(one.failure) if one.failure else None,
        "stages": [_stage(one, stage, texts) for stage in one.stages],
        "mix": kinds(one.instructions),
        "passes": [_pass(ran) for ran in one.passes],
    }


def _failure(failure: StageFailure) -> dict[str, Any]:
    return asdict(failure) | {"message": readable(failure.message)}


def _stage(one: Opened, stage: CompilerStage, texts: _Texts) -> dict[str, Any]:
    lines = tuple(_whole_file(stage) or traced(one, stage))
    key = (lines, highlight.language(one.label, stage.name))
    return {
        "name": stage.name,
        "by": stage.made_by,
        "ms": stage.took_ms,
        "bytes": len(stage.content),
        "text": texts.setdefault(key, len(texts)) if lines else None,
    }


def _first_line(one: Opened, source: CompilerStage) -> int:
    """Of the kernel in its file."""
    name = re.escape(one.kernel.partition("<")[0])
    rows = (i for i, row in enumerate(source.text.splitlines()) if re.search(rf"\b{name}\s*\(", row))
    return source.first_line + next(rows, 0)


def _whole_file(stage: CompilerStage) -> list[Traced]:
    """The whole source file: a kernel's helpers are often in it."""
    text = reading.text_of(stage.file) if stage.name == "source" else ""
    return [Traced(row, (number,)) for number, row in enumerate(text.splitlines(), 1)]


def _pass(ran: Pass) -> dict[str, Any]:
    diff = reading.diff(ran).splitlines()[2:]
    left_out = len(diff) - _MOST_DIFF_LINES
    if left_out > 0:
        diff = [*diff[:_MOST_DIFF_LINES], f"... and {left_out} more lines: --pass {ran.name} shows all"]
    return {"name": ran.name, "stage": ran.stage, "changed": ran.changed, "diff": "\n".join(diff)}


def _colours(text: str, language: str) -> str:
    """Runs of characters of one colour, line by line: ``3k 5 2v``; empty: no colours."""
    if not language:
        return ""
    lines = coloured(text, highlight.lexer(language))
    return "\n".join(" ".join(f"{len(run)}{colour}" for colour, run in line) for line in lines)
