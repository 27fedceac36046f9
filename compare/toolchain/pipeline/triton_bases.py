"""The bases of linear layouts, as Triton computes them, in a process of its own.

In a process of its own: an assertion of Triton's ends it for some layouts, and Triton 3.9 prints warnings of
objects that are not freed at exit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import triton
from triton._C.libtriton import gluon_ir, ir, nvidia

from compare.registry import ROOT

Bases = dict[str, tuple[tuple[int, ...], ...]]
Asked = tuple[str, tuple[int, ...], str, bool]


def bases(definitions: str, module: str, asked: Sequence[Asked]) -> list[Bases | str]:
    """For each layout asked about, its bases by the name of what they are of; or why Triton does not say.

    Args:
        definitions: lines such as ``#blocked = #ttg.blocked<{...}>``.
        module: the line that begins the module they are of, whose attributes they have to fit.
        asked: layout, shape, dtype, and whether it is one of shared memory.
    """
    # Triton 3.6 ends the process when it is asked about shared memory.
    shared_too = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 7)
    askable = [one for one in asked if shared_too or not one[-1]]
    answers = iter(_answers(definitions, module, askable))
    unknown = "this Triton does not say how shared memory is laid out; 3.7 and later do"
    return [next(answers) if shared_too or not shared else unknown for *_, shared in asked]


def _answers(definitions: str, module: str, asked: Sequence[Asked]) -> list[Bases | str]:
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps([definitions, module, asked]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        return [f"Triton does not say: {said[-1]}"] * len(asked)
    return [
        answer if isinstance(answer, str) else {of: tuple(map(tuple, found)) for of, found in answer.items()}
        for answer in json.loads(done.stdout)
    ]


def main() -> None:
    """Answer what is asked on stdin."""
    definitions, module, asked = json.load(sys.stdin)
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    found: list[Any] = []
    for name, shape, dtype, shared in asked:
        kind = "x".join([*map(str, shape), dtype])
        tensor = f"!ttg.memdesc<{kind}, {name}, #smem>" if shared else f"tensor<{kind}, {name}>"
        with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
            file.write(
                f"{definitions}\n{module}\n  tt.func public @f(%x: {tensor}) {{\n    tt.return\n  }}\n}}\n"
            )
            file.flush()
            try:
                value = ir.parse_mlir_module(file.name, context).get_function("f").args(0)
                layout_of = (
                    builder.get_gluon_layout_from_memdesc if shared else builder.get_gluon_layout_from_tensor
                )
                layout = layout_of(value)
                linear = builder.to_linear_layout(layout._to_ir(builder), shape)
            except Exception as error:
                found.append(f"Triton does not say: {error}")
                continue
        if shared:
            found.append({"offset": linear.offset_bases, "block": linear.block_bases})
        else:
            of = {"register": "reg", "lane": "lane", "warp": "warp", "block": "block"}
            found.append({name: getattr(linear, f"{short}_bases") for name, short in of.items()})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
