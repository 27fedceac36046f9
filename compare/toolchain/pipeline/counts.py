"""How often each operation stands in a compiler's text."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable

_MLIR = re.compile(r'^\s*(?:%[^=]*= )?"?([a-z_]\w*\.[\w.]+)"?')
_LLVM = re.compile(r"^  (?:%\S+ = )?(?:(?:tail|musttail|notail) )?([a-z]\w*)")
_PTX = re.compile(r"^\s*(?:\{\s*)?(?:@!?%\w+\s+)?([a-z][\w]*(?:[.:]+\w+)*)(?=[\s;]).*;")


def mlir(text: str) -> dict[str, int]:
    """
    >>> mlir('  %x = tt.load %p : f32 loc(#loc1)\\n  tt.store %q, %x : f32\\n#loc1 = loc("a.py":3:4)')
    {'tt.load': 1, 'tt.store': 1}
    """
    return _counted(_MLIR, text)


def llvm(text: str) -> dict[str, int]:
    """
    >>> llvm("define void @f() {\\n  %1 = tail call i32 @llvm.x(), !dbg !5\\n  ret void\\n}\\n")
    {'call': 1, 'ret': 1}
    """
    return _counted(_LLVM, text)


def ptx(text: str) -> dict[str, int]:
    """
    >>> ptx("\\t.reg .b32 %r<3>;\\n\\t@%p1 ld.global.v4.b32 { %r1 }, [ %rd1 + 0 ];\\n\\tret;\\n")
    {'ld.global.v4.b32': 1, 'ret': 1}
    """
    return _counted(_PTX, text)


def python(tree: ast.AST) -> dict[str, int]:
    """The nodes of a syntax tree, by class."""
    return dict(Counter(type(node).__name__ for node in ast.walk(tree)).most_common())


_OF_STAGE: dict[str, Callable[[str], dict[str, int]]] = {
    "frontend": mlir,
    "ttir": mlir,
    "ttgir": mlir,
    "llir": llvm,
    "ptx": ptx,
}


def of(stage: str, text: str) -> dict[str, int]:
    """Of a stage's text, the most frequent first; empty where nothing is counted."""
    return _OF_STAGE[stage](text) if stage in _OF_STAGE else {}


def _counted(pattern: re.Pattern[str], text: str) -> dict[str, int]:
    found = Counter(match[1] for line in text.splitlines() if (match := pattern.match(line)))
    return dict(found.most_common())
