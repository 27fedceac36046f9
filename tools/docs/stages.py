"""Lines of every compiler stage for documents: ``python -m compare pipeline`` opens a kernel up, and from its
stages come excerpts, a table of what each source line became, and what a pass changed.

Compilers' texts change from version to version: blocks are written anew with the versions that
constraints.txt names, and left as they are with others.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from compare import registry
from compare.code_size.hashes import rests_on
from compare.model.op import UsageError
from compare.pipeline import reading
from compare.pipeline.opening import open_op
from compare.pipeline.records import OPERATIONS, CompilerStage, Opened, OpenRequest
from compare.records import result_cache
from compare.report import markdown
from compare.report.tables import NOTHING, Table
from tools.docs.child import output_of

PACKAGES = ("triton", "cuda-toolkit")
"""What compiles."""
WIDEST = 108
"""Characters of a line; the rest is cut."""
NAMES = {
    "source": "source",
    "ttir": "TTIR",
    "ttgir": "TTGIR",
    "llir": "LLVM IR",
    "ptx": "PTX",
    "sass": "SASS",
}
_LANGUAGES = {"ttir": "mlir", "ttgir": "mlir", "llir": "llvm", "ptx": "ptx", "sass": "text"}
_REMARKS = {"mlir": "//", "llvm": ";", "ptx": "//", "text": "//", "python": "#", "cuda": "//"}
_RESTS_ON = (
    *("tools/docs/stages.py", "compare/pipeline/*.py", "compare/capture.py", "compare/resources/**/*.py"),
    *(
        "triton_impl/**/*.py",
        "cuda_impl/*.py",
        "cuda_impl/launches/*.py",
        "cuda_impl/kernels/**/*.cuh",
        "ops/*.py",
    ),
)

Row = tuple[str, int]
"""A line of a stage, and the line of the kernel's source that it comes from; 0: of none."""


@dataclass(frozen=True)
class Kernel:
    """What a block is about."""

    op: str
    label: str
    arch: str
    case: str


@dataclass(frozen=True)
class Stages:
    """One kernel, opened up."""

    kernel: str
    rows: dict[str, list[Row]]
    """By stage."""
    tools: dict[str, str]
    """What made a stage."""
    changes: dict[str, list[str]]
    """By pass the lines that it took out and put in, as a diff."""


# --------------------------------------------------------------------------- blocks


def pinned(*packages: str) -> bool:
    """Whether the versions that constraints.txt names are installed."""
    text = (registry.ROOT / "constraints.txt").read_text()
    wanted = dict(re.findall(r"(?m)^([\w-]+)==([\w.]+)$", text))
    return all(_installed(package) == wanted[package] for package in packages)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def block(kind: str, words: str, was: str) -> str:
    """A block ``stage``, ``became`` or ``pass``; ``was`` where other versions are installed.

    Raises:
        UsageError: the words are of another form, or something they name is not there.
    """
    kinds: dict[str, Callable[..., str]] = {"stage": excerpt, "became": became, "pass": changed}
    made = kinds[kind]
    op, label, archs, case, *others = [*shlex.split(words), *[""] * 4]
    others = [word for word in others if word]
    if not case or not others:
        raise UsageError(f"<!-- generated: {kind} {words} -->: write OP LABEL ARCH CASE and what to show")
    if not pinned(*PACKAGES):
        return was
    try:
        each = {arch: made(opened(Kernel(op, label, arch, case)), *others) for arch in archs.split(",")}
    except LookupError as error:
        raise UsageError(f"<!-- generated: {kind} {words} -->: {error.args[0]}") from None
    except TypeError:  # too many or too few of them
        raise UsageError(f"<!-- generated: {kind} {words} -->: {made.__doc__}") from None
    if kind == "pass":
        return _by_arch(each)
    return "\n\n".join(each.values())


def _by_arch(each: dict[str, str]) -> str:
    """One diff; what was taken out for one architecture before is not repeated."""
    lines: list[str] = []
    for arch, text in each.items():
        taken = {line for line in lines if line.startswith("-")}
        lines += [f"@@ {arch} @@", *(line for line in text.splitlines() if line not in taken)]
    code = "\n".join(lines)
    return f"```diff\n{code}\n```"


def excerpt(stages: Stages, *words: str) -> str:
    """``STAGE PART...``, one or several times: lines of stages, each behind the number of its source line.

    A part is ``TEXT... +LINES``, from the line of the last text on, or ``@TEXT``: every line that comes from
    the first source line with that text.
    """
    shown: list[str] = []
    language = ""
    for name, parts in _by_stage(words):
        if name not in stages.rows:
            raise LookupError(f"there is no stage {name}; there are {', '.join(stages.rows)}")
        if name == "source":
            language = language or ("python" if stages.tools[name] == "Python" else "cuda")
        else:
            language = language or _LANGUAGES[name]
            shown.append(f"{_REMARKS[language]} {NAMES[name]}, made by {stages.tools[name]}")
        shown += _lines(stages, name, parts)
    code = "\n".join(shown)
    return f"```{language}\n{code}\n```"


def _by_stage(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word in NAMES:
            groups.append((word, []))
        elif groups:
            groups[-1][1].append(word)
    if not groups or not all(parts for _, parts in groups):
        raise LookupError(f"write a stage ({', '.join(NAMES)}) and which of its lines to show")
    return groups


def _lines(stages: Stages, name: str, words: Sequence[str]) -> list[str]:
    shown: list[str] = []
    rows = [(readable(text, name), line) for text, line in stages.rows[name]]
    last = None
    for indices in _parts(stages, rows, words):
        margin = min(len(rows[i][0]) - len(rows[i][0].lstrip()) for i in indices)
        if last is not None and indices[0] != last + 1:
            shown.append("     ...")
        shown += [f"{rows[i][1] or '':>4} {_cut(rows[i][0][margin:])}".rstrip() for i in indices]
        last = indices[-1]
    return shown


def readable(line: str, stage: str) -> str:
    """A line without addresses, remarks, inner gaps and, in LLVM IR, repetitions."""
    if stage == "source":
        return line
    line = re.sub(r"\s*/\*\w{4,}\*/ ?|\s+//.*", "", line.rstrip())
    line = re.sub(r"(?<=\S)\s+", " ", line.expandtabs(4)).removesuffix(";").rstrip()
    line = re.sub(r'"(?:mov\.u32 [^;"]*;\\0A\\09)+', '"... ', line)
    return re.sub(r"\{ (?:i32(?:, )?)+ \}", "{ i32 x 4 }", line)


def _parts(stages: Stages, rows: Sequence[Row], words: Sequence[str]) -> list[list[int]]:
    found: list[list[int]] = []
    at = -1
    for word in words:
        if word.startswith("@"):
            line = _line_of(stages, word[1:])
            indices = [
                i for i, row in enumerate(rows) if row[1] == line and not re.fullmatch(r"[\s})]*", row[0])
            ]
            if not indices:
                raise LookupError(f"nothing comes from line {line}, {word[1:]!r}")
            found.append(indices)
            at = -1
        elif match := re.fullmatch(r"\+(\d+)", word):
            end = at + int(match[1])
            if at < 0 or end > len(rows):
                raise LookupError(f"{word}: write a text before it, and no more lines than there are")
            found.append(list(range(at, end)))
            at = end - 1
        else:
            at = next((i for i in range(at + 1, len(rows)) if word in rows[i][0]), -1)
            if at < 0:
                raise LookupError(f"{word!r} is not there, or not after the texts before it")
    if not found:
        raise LookupError("write +LINES or @TEXT after the stage")
    return found


def _line_of(stages: Stages, text: str) -> int:
    line = next((line for row, line in stages.rows["source"] if text in row), 0)
    if not line:
        raise LookupError(f"{text!r} is not in the source")
    return line


_STAGES = ("ttir", "ttgir", "llir", "ptx", "sass")


def became(stages: Stages, first: str, last: str) -> str:
    """``FIRST LAST``: of the source lines from one text to the other, how many operations each became."""
    begin, end = _line_of(stages, first), _line_of(stages, last)
    counts = {name: _counted(stages.rows[name], name) for name in _STAGES if name in stages.rows}
    rows = [
        (str(line), f"`{text.strip()}`", *(str(each[line] or NOTHING) for each in counts.values()))
        for text, line in stages.rows["source"]
        if begin <= line <= end
    ]
    whole = ("", "all of the kernel", *(str(sum(each.values())) for each in counts.values()))
    headers = ("line", "source", *(NAMES[name] for name in counts))
    return untitled(Table("", headers, (*rows, whole), text_columns=("source",)))


def _counted(rows: Sequence[Row], stage: str) -> Counter[int]:
    named = [(re.match(OPERATIONS[stage], text), line) for text, line in rows]
    return Counter(line for match, line in named if match and match[1] not in ("NOP", "module", "tt.func"))


def changed(stages: Stages, name: str, pattern: str) -> str:
    """``PASS PATTERN``: of what the pass took out and put in the lines that match."""
    if name not in stages.changes:
        raise LookupError(f"no pass {name} changed anything; these did: {', '.join(stages.changes)}")
    lines = [line for line in stages.changes[name] if re.search(pattern, line)]
    if not lines:
        raise LookupError(f"the pass changed no line that matches {pattern!r}")
    return "\n".join(_cut(f"{line[0]} {line[1:].strip()}") for line in lines)


def untitled(table: Table) -> str:
    """As Markdown, without its title: the text before it says what it shows."""
    return markdown.table(table).partition("\n\n")[2]


def _cut(line: str) -> str:
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 4].rstrip()} ..."


# --------------------------------------------------------------------------- compiling


def opened(kernel: Kernel) -> Stages:
    """A kernel's stages, by a process of its own: here Triton's kernels may be the interpreter's.

    Raises:
        LookupError: there is no such kernel, or a compiler does not take it.
    """
    parts = (kernel.op, kernel.label, kernel.arch, kernel.case)
    own = (
        f"triton_impl/{kernel.op}.py",
        f"cuda_impl/kernels/{kernel.op}.cuh",
        f"cuda_impl/kernels/{kernel.op}/*",
    )
    key = result_cache.key(
        *parts,
        *map(rests_on, registry.implementations(kernel.op, [kernel.label])),
        result_cache.versions(*PACKAGES),
        result_cache.code(*_RESTS_ON, *own),
    )
    kept = result_cache.read("stages", key)
    if kept is None:
        try:
            kept = output_of("tools.docs.stages", *parts, without="TRITON_|MLIR_|LLVM_|NVPTX_")
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip()[-1000:]
            raise LookupError(f"{kernel.label} was not compiled: {reason}") from error
        result_cache.write("stages", key, kept)
    rows = {name: [(text, line) for text, line in each] for name, each in kept.pop("rows").items()}
    return Stages(rows=rows, **kept)


def main(op: str, label: str, arch: str, case: str) -> None:
    """Print the stages of the first kernel that an implementation launches, as JSON."""
    kernels = open_op(OpenRequest(op, (), (label,), case, (arch,), dump=label.startswith("triton."))).opened
    if not kernels or kernels[0].failure or kernels[0].unavailable:
        raise SystemExit(str(kernels and (kernels[0].failure or kernels[0].unavailable)))
    one = kernels[0]
    shown = [stage for stage in one.stages if stage.name in NAMES]
    changes = {each.name: _differences(each.before, each.after or "") for each in one.passes if each.changed}
    found = {
        "kernel": one.kernel.partition("<")[0],
        "rows": {stage.name: _rows(one, stage) for stage in shown},
        "tools": {stage.name: stage.made_by for stage in shown} | {"sass": "ptxas, shown by nvdisasm"},
        "changes": changes,
    }
    print(json.dumps(found))


def _differences(before: str, after: str) -> list[str]:
    """The lines of a diff in which more than numbers of values changed."""
    plain = [{re.sub(r"%[\w#]+", "%", line) for line in text.splitlines()} for text in (before, after)]
    signs = (("-", before, plain[1]), ("+", after, plain[0]))
    return [
        sign + line
        for sign, text, others in signs
        for line in text.splitlines()
        if re.sub(r"%[\w#]+", "%", line) not in others
    ]


def _rows(one: Opened, stage: CompilerStage) -> list[Row]:
    if stage.name == "llir":
        return _llvm_rows(stage.text)
    if stage.name == "source":
        return [(each.text, each.lines[0]) for each in reading.traced(one, stage)]
    found = [(each.text, each.lines[-1] if each.lines else 0) for each in reading.traced(one, stage)]
    return [
        (text, line)
        for text, line in found
        if text.strip() and (stage.name != "ptx" or re.match(OPERATIONS["ptx"], text))
    ]


_INLINED = re.compile(r"^!(\d+) = !DILocation\(line: (\d+).*?(?:inlinedAt: !(\d+))?\)$", re.MULTILINE)


def _llvm_rows(text: str) -> list[Row]:
    """Of LLVM IR: a place is followed to where it was inlined, which is in the kernel."""
    places = {number: (int(line), into) for number, line, into in _INLINED.findall(text)}

    def outermost(number: str) -> int:
        while number in places and places[number][1]:
            number = places[number][1]
        return places[number][0] if number in places else 0

    rows = []
    for row in text.splitlines():
        if not row.strip() or re.match(r"!|\s*#dbg_|\s*;", row):
            continue
        place = re.search(r", !dbg !(\d+)", row)
        bare = re.sub(r",? !dbg !\d+| #\d+(?=,? !dbg|$)", "", row).rstrip()
        rows.append((bare, outermost(place[1]) if place else 0))
    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
