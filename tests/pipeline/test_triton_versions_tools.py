"""What the project knows of Triton's launches, cache and variables, with the Triton at hand.

`make test-triton` runs this file with an older and the newest Triton put before the environment's own.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import case_sets
from compare import registry
from processes import NO_PROGRAM, python
from tools.docs.toolchain_variables.examples import EXAMPLES, examples

pytestmark = pytest.mark.thorough

BESIDE = "TRITON_LEG" in os.environ
"""Whether this run is about another Triton than the environment's own."""

SCRIPT = """
import json, os, re, sys
from pathlib import Path
from compare import registry
from compare.aot import building
from compare.aot.plan import candidates, plan
from compare.pipeline.triton_adapter import cache_entry
from compare.resources.compiler import compile_triton

op = registry.get_op(sys.argv[1])
for arch in sys.argv[3:4]:
    for impl in candidates(op, sys.argv[4:]):
        said = {"label": impl.label, "arch": arch}
        try:
            planned = plan(op, impl, op.cases.smoke[0], arch)
            made, _ = compile_triton(planned.launch, arch)
            said["key"] = cache_entry(made).key
            program = building.make(planned, Path(sys.argv[2], impl.label, arch))
            text = (program.folder / f"{program.kernel}.c").read_text()
            numbers = re.search(r"code\\[\\d+\\][^=]*= \\{(.*?)\\}", text, re.DOTALL)[1]
            carried = bytes(int(number, 16) for number in numbers.split(","))
            said |= {"same": carried == made.asm["cubin"], "program_bytes": program.program_bytes}
        except NotImplementedError as error:
            said["cannot"] = str(error)
        print(json.dumps(said))
"""


@pytest.mark.parametrize("op", case_sets.last() if BESIDE else case_sets.every(3))
def test_programs_carry_what_would_be_compiled_at_run_time(op: str, tmp_path: Path) -> None:
    """The program's cubin is the compiler's, bit for bit, and its key in Triton's cache is right."""
    labels = [label for label in case_sets.watched(op, ("triton",)) if label.startswith("triton.")]
    words = ("-c", SCRIPT, op, tmp_path, "sm_90", *labels)
    done = python(*words, ready="triton", TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if not any("same" in row for row in rows):  # each needs what a program of one kernel does not have
        assert all(re.search(NO_PROGRAM, row["cannot"]) for row in rows)
    for row in rows:
        assert row.get("same", True), row
        assert "program_bytes" in row or row["cannot"], row
        if "key" in row:
            assert (tmp_path / "cache" / row["key"]).is_dir()


SAID = {
    "TRITON_CACHE_DIR": (r": compiled .*cubin", r"\$ again\n.*: found in the cache", r"DIR/KEY/\w+\.cubin"),
    "TRITON_ALWAYS_COMPILE": (r": compiled .*\n\$ again\n.*: compiled ",),
    "TRITON_KERNEL_DUMP": tuple(
        rf"DIR/KEY/\w+\.{stage}\b" for stage in ("ttir", "ttgir", "llir", "ptx", "sass")
    ),
    "TRITON_KERNEL_OVERRIDE": (r"Overriding kernel with file DIR/KEY/\w+\.ptx",),
    "MLIR_ENABLE_DUMP": (r"IR Dump Before \w*Inliner", r"\.\.\. \d+ more"),
    "LLVM_IR_ENABLE_DUMP": (r"\*\*\* IR Dump After \w+ on ", r"\.\.\. \d+ more"),
    "NVPTX_ENABLE_DUMP": (r"NVPTX Dump", r"\.target sm_90"),
    "TRITON_DUMP_PTXAS_LOG": (r"Used \d+ registers", "spill stores"),
    "TRITON_INTERPRET": ("of type InterpretedFunction", r"largest error \d\.\de-0[678]"),
    "TRITON_PRINT_AUTOTUNING": (r"best config selected: .*num_warps: 8", "finished after TIME s"),
    "CUPY_CACHE_DIR": (r"DIR/0+\.cubin\n", r"DIR/0+\.cubin\.cu"),
    "CUPY_DUMP_CUDA_SOURCE_ON_ERROR": (r'identifier "no" is undefined', r"2 no such thing;"),
    "CUDA_CACHE_PATH": (r"ELF file +1: .*sm_90a?\.cubin", "No PTX file found"),
}
"""What docs/toolchain-environment.md says of each variable, as it must show with every Triton."""


def test_variables_do_what_the_document_says() -> None:
    shown = examples("vector_add", "sm_90")
    assert list(shown) == list(SAID) == list(EXAMPLES)
    for variable, wanted in SAID.items():
        text = shown[variable]
        given = EXAMPLES[variable].variables
        assert text.startswith(f"$ {given} python -m tools.docs.toolchain_variables vector_add")
        for pattern in wanted:
            assert re.search(pattern, text), f"{variable}: no {pattern} in\n{text}"
        assert max(map(len, text.splitlines())) <= 140
        assert str(registry.ROOT) not in text
        assert not re.search(r"/tmp/|site-packages|\b[A-Z2-7]{52}\b", text)
