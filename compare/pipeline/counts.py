"""How often each operation stands in a compiler's text."""

from __future__ import annotations

import ast
import re
from collections import Counter

_OPERATIONS = {
    **dict.fromkeys(("frontend", "ttir", "ttgir"), re.compile(r'^\s*(?:%[^=]*= )?"?([a-z_]\w*\.[\w.]+)"?')),
    "llir": re.compile(r"^  (?:%\S+ = )?(?:(?:tail|musttail|notail) )?([a-z]\w*)"),
    "ptx": re.compile(r"^\s*(?:\{\s*)?(?:@!?%\w+\s+)?([a-z][\w]*(?:[.:]+\w+)*)(?=[\s;]).*;"),
}
"""What names the operation in a line, by stage."""


def of(stage: str, text: str) -> dict[str, int]:
    """Of a stage's text, the most frequent first; empty where nothing is counted.

    >>> of("ttir", '  %x = tt.load %p : f32 loc(#loc1)\\n  tt.store %q, %x : f32\\n#loc1 = loc("a.py":3:4)')
    {'tt.load': 1, 'tt.store': 1}
    >>> of("llir", "define void @f() {\\n  %1 = tail call i32 @llvm.x(), !dbg !5\\n  ret void\\n}\\n")
    {'call': 1, 'ret': 1}
    >>> of("ptx", "\\t.reg .b32 %r<3>;\\n\\t@%p1 ld.global.v4.b32 { %r1 }, [ %rd1 + 0 ];\\n\\tret;\\n")
    {'ld.global.v4.b32': 1, 'ret': 1}
    """
    pattern = _OPERATIONS.get(stage)
    matches = map(pattern.match, text.splitlines()) if pattern else ()
    return dict(Counter(match[1] for match in matches if match).most_common())


def python(tree: ast.AST) -> dict[str, int]:
    """The nodes of a syntax tree, by class."""
    return dict(Counter(type(node).__name__ for node in ast.walk(tree)).most_common())
