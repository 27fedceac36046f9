"""What the installed Triton and Gluon can express: ``python tools/docs/triton_probes.py`` prints it as JSON.

Sentences of documents and comments say that Triton or Gluon lacks something up to a version.  Here is a probe
for each such thing; tests/tools/test_triton_limits.py compares the answers with `SINCE`, and fails when a
Triton has what none had.  This file imports nothing of the project, so that any Triton can run it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import tma

NEWEST = "3.9"
"""The newest version that these answers were checked with."""

SINCE: dict[str, str | None] = {
    "gluon layouts": "3.4",
    "gluon shared memory": "3.4",
    "gluon warp specialization": "3.4",
    "gluon cluster layout": "3.6",
    "gluon cluster barrier": "3.7",
    "gluon multicast": "3.7",
    "gluon exchange in a cluster": "3.8",
    "gluon atomics in shared memory": "3.8",
    "gluon ballot or shuffle": None,
    "gluon interpreter": None,
    "gluon size that is no power of two": None,
    "layouts, lanes, warps, shared memory": None,
    "ballot or shuffle": None,
    "clusters of a program's own": None,
    "access width": None,
    "prefetch": None,
    "loads that allocate no L1 line": None,
    "size that is no power of two": None,
    "starred tuple": None,
    "enumerate": None,
    "index into a tuple in a loop": None,
    "wgmma of int8 with 256 columns": None,
    "tensor cores of sm_75": None,
}
"""The first version that has it; None: no version up to `NEWEST`."""

_WARP_WORDS = re.compile(r"ballot|vote|shuffle|shfl", re.IGNORECASE)
_PLACE_WORDS = re.compile(r"layout|lane|warp|thread|shared|smem", re.IGNORECASE)
_LOAD_PARAMETERS = {
    *("pointer", "mask", "other", "boundary_check", "padding_option", "cache_modifier", "eviction_policy"),
    *("volatile", "_semantic"),
}


def _names(module: Any, words: str | re.Pattern[str]) -> list[str]:
    return [name for name in dir(module) if re.search(words, name) and not name.startswith("_")]


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def _compiles(body: str, *, dialect: str = "triton", signature: str = "*fp32", **options: Any) -> bool:
    return _compiled(body, dialect=dialect, signature=signature, **options) is not None


def _compiled(
    body: str, *, dialect: str = "triton", signature: str = "*fp32", arch: int = 90, **options: Any
) -> Any:
    """A kernel of one pointer ``p`` with this body, compiled; None: the compiler refuses it."""
    text = f"@jit\ndef kernel(p):\n    {body}\n"
    names = {"tl": tl, "gl": gl, "jit": gluon.jit if dialect == "gluon" else triton.jit}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.py")
        file.write_text(text)
        exec(compile(text, str(file), "exec"), names)
        source: Any = ASTSource
        if dialect == "gluon":
            source = GluonASTSource
        try:
            made = source(names["kernel"], {"p": signature}, {})
            return triton.compile(made, GPUTarget("cuda", arch, 32), {"num_warps": 4, **options}).asm
        except Exception:  # each stage has its own
            return None


_INT8 = (
    "m = tl.arange(0, 64)[:, None]; n = tl.arange(0, 256)[None, :]; k = tl.arange(0, 64); "
    "a = tl.load(p + m * 64 + k[None, :]); b = tl.load(p + 4096 + k[:, None] + n * 64); "
    "tl.store((p + 65536).to(tl.pointer_type(tl.int32)) + m * 256 + n, tl.dot(a, b))"
)


_FP16 = (
    "m = tl.arange(0, 32); a = tl.load(p + m[:, None] * 32 + m[None, :]); "
    "tl.store(p + m[:, None] * 32 + m[None, :], tl.dot(a, a).to(tl.float16))"
)


_EXCHANGE = (
    "every: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0], [[0]]); "
    "own: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0], [[1]]); "
    "gl.store(p + gl.arange(0, 2, every), gl.convert_layout(gl.load(p + gl.arange(0, 2, own)), every))"
)
"""Each of two blocks gets the other's element."""


def _int8_columns() -> bool:
    """Whether a product of 8-bit tiles of 256 columns is one wgmma of 256 columns."""
    made = _compiled(_INT8, signature="*i8")
    return made is not None and "m64n256k32.s32.s8.s8" in made["ptx"]


PROBES: dict[str, Callable[[], bool]] = {
    "gluon layouts": lambda: hasattr(gl, "BlockedLayout"),
    "gluon shared memory": lambda: hasattr(gl, "allocate_shared_memory"),
    "gluon warp specialization": lambda: hasattr(gl, "warp_specialize"),
    "gluon cluster layout": lambda: "cga_layout" in gl.BlockedLayout.__dataclass_fields__,
    "gluon cluster barrier": lambda: hasattr(hopper, "cluster"),
    "gluon multicast": lambda: any("multicast" in _parameters(getattr(tma, name)) for name in tma.__all__),
    "gluon exchange in a cluster": lambda: _compiles(_EXCHANGE, dialect="gluon", num_ctas=2),
    "gluon atomics in shared memory": lambda: bool(_names(gl.shared_memory_descriptor, "atomic")),
    "gluon ballot or shuffle": lambda: bool(_names(gl, _WARP_WORDS) + _names(hopper, _WARP_WORDS)),
    "gluon interpreter": lambda: "interpret" in inspect.getsource(inspect.getmodule(gluon.jit)),  # type: ignore[arg-type]
    "gluon size that is no power of two": lambda: _compiles(
        "gl.store(p + gl.arange(0, 96, gl.BlockedLayout([1], [32], [4], [0])), 0.0)", dialect="gluon"
    ),
    "layouts, lanes, warps, shared memory": lambda: bool(_names(tl, _PLACE_WORDS)),
    "ballot or shuffle": lambda: bool(_names(tl, _WARP_WORDS) + _names(tl.extra.cuda, _WARP_WORDS)),
    "clusters of a program's own": lambda: bool(_names(tl, "cluster|multicast|cga|cta")),
    "access width": lambda: not _parameters(tl.load) <= _LOAD_PARAMETERS,
    "prefetch": lambda: bool(_names(tl, "prefetch")),
    "loads that allocate no L1 line": lambda: any(
        _compiles(f"tl.store(p, tl.load(p, {hint}))")
        for hint in ("cache_modifier='.no_allocate'", "eviction_policy='no_allocate'")
    ),
    "size that is no power of two": lambda: _compiles("tl.store(p + tl.arange(0, 96), 0.0)"),
    "starred tuple": lambda: _compiles("a = (0.0, 1.0); b = (*a, 2.0); tl.store(p, b[2])"),
    "enumerate": lambda: _compiles("for i, x in enumerate((0.0, 1.0)): tl.store(p + i, x)"),
    "index into a tuple in a loop": lambda: _compiles(
        "for i in range(tl.load(p).to(tl.int32)): tl.store(p, (tl.load(p), tl.load(p + 1))[i])"
    ),
    "wgmma of int8 with 256 columns": _int8_columns,
    "tensor cores of sm_75": lambda: "mma.sync" in _compiled(_FP16, signature="*fp16", arch=75)["ptx"],
}
"""Whether the installed Triton has it."""


CONTROLS: dict[str, Callable[[], bool]] = {
    "gluon": lambda: _compiles(
        "gl.store(p + gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0])), 0.0)", dialect="gluon"
    ),
    "cluster": lambda: _compiles(_EXCHANGE.replace("[[0]]", "[[1]]"), dialect="gluon", num_ctas=2),
    "size": lambda: _compiles("tl.store(p + tl.arange(0, 128), 0.0)"),
    "load": lambda: _compiles("tl.store(p, tl.load(p, cache_modifier='.cg'))"),
    "eviction": lambda: _compiles("tl.store(p, tl.load(p, eviction_policy='evict_first'))"),
    "tuple": lambda: _compiles("a = (0.0, 1.0); b = a + (2.0,); tl.store(p, b[2])"),
    "loop": lambda: _compiles(
        "for i in tl.static_range(2): tl.store(p + i, (tl.load(p), tl.load(p + 1))[i])"
    ),
    "fp16": lambda: "mma.sync" in _compiled(_FP16, signature="*fp16", arch=80)["ptx"],
    "int8": lambda: ".s32.s8.s8" in (_compiled(_INT8, signature="*i8") or {"ptx": ""})["ptx"],
}
"""What every Triton takes, so that a probe's no is an answer."""


def expected(version: str) -> dict[str, bool]:
    """What a version has, by `SINCE`."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", text)[:2]))

    return {name: since is not None and numbers(version) >= numbers(since) for name, since in SINCE.items()}


if __name__ == "__main__":
    with contextlib.redirect_stdout(io.StringIO()):  # Triton prints what it refuses
        found = {
            kind: {name: ask() for name, ask in each.items()}
            for kind, each in (("answers", PROBES), ("controls", CONTROLS))
        }
    print(json.dumps({"version": triton.__version__} | found))
