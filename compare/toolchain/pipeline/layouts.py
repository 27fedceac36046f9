"""The layouts of a TTGIR: which element of a tensor lies in which register of which lane of which warp.

Every layout is a linear map over bits (Zhou et al., "Linear Layouts", 2025); `triton_bases` gets its bases
from Triton.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from compare.toolchain.pipeline.records import Opened
from compare.toolchain.pipeline.triton_bases import Bases, bases

_DEFINITION = re.compile(r"^(#(?!loc)\w+) = (#\w+\.(\w+)<\{(.*)\}>)$", re.MULTILINE)
_TENSOR = re.compile(r"tensor<((?:\d+x)+)([^,<>]+(?:<[^<>]*>)?), (#.*)>$")
_MEMORY = re.compile(r"!ttg\.memdesc<((?:\d+x)+)(\w+), (#\w+), #\w+(?:, mutable)?(?:, [\dx]+)?>")


@dataclass(frozen=True)
class Layout:
    """A layout as one tensor of the kernel has it."""

    name: str
    """``#blocked1``; what has no name of its own is written out: ``#ttg.slice<{dim = 1, parent = #mma}>``."""
    kind: str
    """``blocked``, ``nvidia_mma``, ``slice``, ``dot_op``, ``linear``, ``swizzled_shared`` ..."""
    definition: str
    parameters: Mapping[str, str]
    """As the definition has them; those of its parent under ``parent.``."""
    shape: tuple[int, ...]
    """Of the tensor: the one that has this layout most often; one of numbers, if there is one."""
    dtype: str
    shared: bool
    """Whether it lies in shared memory, not in registers."""
    bases: Bases
    """Where the bits of ``register``, ``lane``, ``warp`` and ``block`` - in shared memory of ``offset`` and
    ``block`` - lead: the element's indices are the exclusive or of the bases of all bits that are set."""
    unknown: str = ""
    """Why there are no bases; empty if there are."""

    @property
    def tensor(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype])

    def at(self, **position: int) -> tuple[int, ...]:
        """The indices of the element at ``register=..., lane=..., warp=...`` or ``offset=...``."""
        found = [0] * len(self.shape)
        for name, value in position.items():
            for bit, base in enumerate(self.bases.get(name, ())):
                if value >> bit & 1:
                    found = [old ^ new for old, new in zip(found, base, strict=True)]
        return tuple(found)

    def count(self, name: str) -> int:
        """How many registers, lanes, warps or offsets there are."""
        return int(2 ** len(self.bases.get(name, ())))

    def holders(self) -> dict[tuple[int, ...], set[tuple[int, int]]]:
        """Of each element of the first block, the warps and lanes that hold it."""
        found: dict[tuple[int, ...], set[tuple[int, int]]] = {}
        for warp, lane, register in product(*map(range, map(self.count, ("warp", "lane", "register")))):
            found.setdefault(self.at(warp=warp, lane=lane, register=register), set()).add((warp, lane))
        return found


def layouts(opened: Opened) -> list[Layout]:
    """All layouts of a kernel's TTGIR, those with names first; empty where there is no TTGIR."""
    stage = opened.stage("ttgir")
    if stage is None:
        return []
    text = re.sub(r" loc\(.*\)$", "", stage.text, flags=re.MULTILINE)
    defined = {match[1]: match.group(2, 3, 4) for match in _DEFINITION.finditer(text)}
    head = re.search(r"^module attributes \{.*\} \{$", text, re.MULTILINE)
    definitions = "\n".join(match[0] for match in _DEFINITION.finditer(text))
    definitions += "\n#smem = #ttg.shared_memory"
    asked = [(name, *one) for name, one in _used(text).items()]
    answers = bases(definitions, head[0] if head else "module {", asked)
    found = []
    for (name, shape, dtype, shared), answer in zip(asked, answers, strict=True):
        definition, kind, parameters = defined.get(name) or _written_out(name)
        known = dict(_parameters(parameters))
        if (parent := known.get("parent", "")) in defined:
            known |= {f"parent.{key}": value for key, value in _parameters(defined[parent][2])}
            known["parent.kind"] = defined[parent][1]
        of, unknown = ({}, answer) if isinstance(answer, str) else (answer, "")
        found.append(Layout(name, kind, definition, known, shape, dtype, shared, of, unknown))
    return sorted(found, key=lambda layout: (not re.fullmatch(r"#\w+", layout.name), layout.name))


def _used(text: str) -> dict[str, tuple[tuple[int, ...], str, bool]]:
    """Of each layout, the shape and element that it has most often, and whether it is of shared memory."""
    seen: dict[str, Counter[tuple[tuple[int, ...], str, bool]]] = {}
    for kind in _types(text):
        if match := _TENSOR.match(kind):
            seen.setdefault(match[3], Counter())[_shape(match[1]), match[2], False] += 1
    for match in _MEMORY.finditer(text):
        # Multi-buffering adds a dimension; all buffers have one layout.
        shape = _shape(match[1])[-2:]
        seen.setdefault(match[3], Counter())[shape, match[2], True] += 1
    return {
        name: max(shapes, key=lambda one: (_is_number(one[1]), shapes[one])) for name, shapes in seen.items()
    }


def _is_number(dtype: str) -> bool:
    """Not a mask, an index or a pointer."""
    return re.fullmatch(r"(b?f|tf)\d\w*", dtype) is not None


def _types(text: str) -> Iterator[str]:
    """``tensor<...>`` with whatever brackets are in it."""
    for match in re.finditer(r"tensor<", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"<": 1, ">": -1}.get(text[end], 0) if text[end - 1 : end + 1] != "->" else 0
            end += 1
        yield text[match.start() : end]


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.rstrip("x").split("x")))


def _written_out(name: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"#\w+\.(\w+)<\{(.*)\}>", name)
    return (name, match[1], match[2]) if match else (name, name.lstrip("#"), "")


def _parameters(text: str) -> Sequence[tuple[str, str]]:
    """
    >>> _parameters("sizePerThread = [1, 8], order = [1, 0], parent = #mma")
    [('sizePerThread', '[1, 8]'), ('order', '[1, 0]'), ('parent', '#mma')]
    """
    return re.findall(r"(\w+) = (\[(?:[^\[\]]|\[[^\]]*\])*\]|#\w+\.\w+<\{.*?\}>|[^,]+)", text)
