"""Honest mistakes: each puts one into a right kernel, and the default command must say that it is wrong.

``softmax.diff`` holds what is changed in ``kernels/softmax_triton.py`` and ``kernels/softmax_cuda.py``::

    @@ triton                          the kernel, for all below
    no row maximum = row maximum       the mistake, and a regular expression that the message must match
    - tl.exp(x - row_max)              the kernel's words, which stand in it once
    + tl.exp(x)                        what takes their place; there may be several such pairs
    right: exp2

What is named ``right`` is no mistake and must not be called wrong.

``python -m tests.mistakes [OP ...] [--device cuda]`` prints a table of what was said of each.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from compare.model.op import Case
from compare.model.result import Row
from compare.records import archive
from compare.registry import ROOT, get_op

FOLDER = Path(__file__).parent
OPS = tuple(sorted(file.stem for file in FOLDER.glob("*.diff")))


@dataclass(eq=False)
class Variant:
    """A kernel with one change: a mistake, or another right form."""

    op: str
    route: str
    """``triton`` or ``cuda``."""
    name: str
    hint: str = ""
    """What its message must match; empty: it is right."""
    changes: list[tuple[list[str], list[str]]] = field(default_factory=list)
    """Lines, and what takes their place."""

    @property
    def label(self) -> str:
        words = re.sub(r"\W+", "_", self.name).strip("_").lower()
        return f"{'triton' if self.route == 'triton' else 'cupy'}.{words}"

    @property
    def needs_sanitizer(self) -> bool:
        """Whether a GPU shows it by chance only: a race, or a value that is unwritten or of no use."""
        return bool(re.search("barrier|atomic|uninitialised|not zeroed|without a mask", self.name))

    def text(self) -> str:
        """The kernel's file with the change."""
        text = (FOLDER / "kernels" / f"{self.op}_{self.route}.py").read_text()
        for old, new in self.changes:
            if text.count("\n".join(old)) != 1:
                raise ValueError(f"{self.op} {self.route}, {self.name}: {old} must stand in it once")
            text = text.replace("\n".join(old), "\n".join(new))
        return re.sub(r'"(triton|cupy)\.mine"', f'"{self.label}"', text)


def variants_of(op: str) -> Iterator[Variant]:
    """The unchanged kernels and all changes of an op."""
    found: list[Variant] = []
    for line in (FOLDER / f"{op}.diff").read_text().splitlines():
        mark, rest = line[:2], line[2:]
        if mark == "@@":
            route = rest.strip()
            found.append(Variant(op, route, "right: unchanged"))
        elif mark == "- ":
            changes = found[-1].changes
            if not changes or changes[-1][1]:
                changes.append(([], []))
            changes[-1][0].append(rest)
        elif mark == "+ ":
            found[-1].changes[-1][1].append(rest)
        else:
            name, _, hint = line.partition(" = ")
            found.append(Variant(op, route, name, hint))
    return iter(found)


def case_of(op: str) -> Case:
    """Round sizes of fp32, on which most mistakes do not show."""
    return Case.parse(_CASES[op], get_op(op))


_CASES = {
    "attention": "B=1,Sq=32,Skv=64,Hq=2,Hk=2,D=64,causal=0,fp32",
    "cross_entropy": "M=8,V=512,fp32",
    "histogram": "N=4096,SKEW=0,uint8",
    "layer_norm": "M=8,N=512,fp32",
    "matmul": "M=64,N=64,K=64,fp32",
    "reduce_sum": "N=4096,fp32",
    "rms_norm": "M=8,N=1024,fp32",
    "softmax": "M=8,N=512,fp32",
    "transpose": "M=64,N=64,fp32",
    "vector_add": "N=4096,fp32",
}


def rows_of(op: str, device: str = "cpu") -> dict[str, Row]:
    """The row of each variant by its label, from one run of the command."""
    with TemporaryDirectory(prefix="mistakes-") as folder:
        out, command = Path(folder) / "out.json", [sys.executable, "-m", "compare", op]
        for number, variant in enumerate(variants_of(op)):
            file = Path(folder) / f"mistake_{number}.py"
            file.write_text(variant.text())
            command += ["--load", str(file), "--only", variant.label]
        command += ["--device", device, "--case", str(case_of(op)), "--arch", "sm_90", "--budget", "0.1"]
        done = subprocess.run(
            [*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not out.is_file():
            raise RuntimeError(f"{op}: {done.stdout}{done.stderr}")
        return {row.label: row for row in archive.read(out)[0].cases[-1].rows}


def said_of(row: Row) -> str:
    """The message of a row, with the pattern of its first mismatch."""
    pattern = row.agreement.mismatch.pattern if row.agreement and row.agreement.mismatch else ""
    return f"{row.reason} | {pattern}" if pattern else row.reason


def is_wrong(row: Row) -> bool:
    return row.status in ("disagrees", "failed", "ordinary")


def judge(variant: Variant, row: Row, device: str) -> str:
    """``right``, ``caught`` or ``no hint``; in capitals what must not be; or what only a sanitizer shows."""
    if not variant.hint:
        return "CALLED WRONG" if is_wrong(row) else "right"
    if not is_wrong(row):
        return "needs sanitize" if device == "cuda" and variant.needs_sanitizer else "MISSED"
    return "caught" if re.search(variant.hint, said_of(row)) else "no hint"


def caught_on(row: Row) -> str:
    """The case or the finding that shows the mistake."""
    name, _, detail = row.reason.partition(": ")
    if name not in ("hard inputs", "other sizes"):
        return name if row.agreement else row.status
    return detail.partition(": ")[0]


def hint_of(row: Row) -> str:
    """What the message suggests."""
    _, found, trait = row.reason.rpartition(" hard inputs, ")
    pattern = said_of(row)[len(row.reason) :].removeprefix(" | ")
    question = re.search(r"[^:;]*\?", row.reason)
    return "; ".join(filter(None, (trait if found else question and question[0].strip(), pattern)))
