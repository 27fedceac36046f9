"""One's own code: a hand-in of a lab may not use the project's kernels, nor other students' files.

The judge refuses imports and headers that a file's text names; a worker refuses those that it makes when it
runs, and the folders are hidden from it (`compare.sandbox.isolation`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import NoReturn

from compare import registry
from compare.model.op import UsageError
from compare.places import DATA, IS_CHECKOUT, PACKAGES
from compare.registry import ROOT
from compare.sandbox import isolation
from compare.sandbox.isolation import Hidden
from cuda_impl import build
from cuda_impl.flags import KERNELS

OWN_CODE = "hand in your own code"
"""In every refusal."""

MODULES = ("compare.registry", "compare.device", "cuda_impl.loader")
"""Those of the project that a hand-in may import."""
HEADERS = ("common.cuh", "tensor_core.cuh")
"""Those of the project that its CUDA text may include."""
_OF_TRITON = ("__init__", "addresses", "interpreter", "libdevice")
"""Of `triton_impl`, what every worker needs."""
_KERNELS = re.compile(
    rf"(torch_impl|triton_impl\.(?!({'|'.join(_OF_TRITON)})$)|cuda_impl\.(launches|pybind))\b.*"
)
_INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"\n]+)[>"]')


def check(nodes: Iterable[ast.AST]) -> None:
    """Check the text of a hand-in.

    Args:
        nodes: of its syntax tree.

    Raises:
        UsageError: it names what is not the student's.
    """
    for node in nodes:
        for name in _imported(node):
            if name.partition(".")[0] in PACKAGES and name not in MODULES:
                raise UsageError(
                    f"it imports {name} (line {node.lineno}): {OWN_CODE}. "  # type: ignore[attr-defined]
                    f"Of the project it may import {', '.join(MODULES)}"
                )
        for name in _headers(node):
            if (KERNELS / name).is_file() and name not in HEADERS:
                raise UsageError(f"it uses the project's {name}: {OWN_CODE}")


def _imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        whole = node.module in MODULES
        return [node.module if whole else f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _headers(node: ast.AST) -> list[str]:
    """The headers that a text includes; of ``kernel("softmax", ...)`` the op's."""
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("kernel"):
        source = node.args[0]
        name = source.value if isinstance(source, ast.Constant) else None
        return [f"{name}.cuh"] if isinstance(name, str) else []
    text = node.value if isinstance(node, ast.Constant) else None
    return _INCLUDE.findall(text) if isinstance(text, str) else []


def hidden(file: Path, others: Path) -> Hidden:
    """What a worker that runs a hand-in does not see: folders, each with the paths in it that it does see.

    Args:
        file: of the student's.
        others: a folder with others' hand-ins.
    """
    own, cache = file.resolve().parent, build.cache_dir().resolve()
    needed = [own, *map(Path, (sys.prefix, sys.base_prefix, *filter(None, sys.path))), cache]
    triton = ROOT / "triton_impl"
    kept = [ROOT / name for name in ("compare", "cuda_impl", "ops", "triton_impl")]
    # An installed copy has all libraries beside it, and labs with their solutions within `compare`.
    project = {ROOT: kept} if IS_CHECKOUT else {ROOT / "torch_impl": [], DATA: []}
    seen: dict[Path, list[Path]] = {
        **project,
        triton: [triton / f"{name}.py" for name in _OF_TRITON],
        KERNELS: [KERNELS / name for name in HEADERS],
        KERNELS.parent / "launches": [],
        KERNELS.parent / "pybind": [],
        others.resolve(): [],
        cache: _shared_builds(),
    }
    return tuple(
        (str(folder), tuple(map(str, [*kept, *(path for path in needed if folder in path.parents)])))
        for folder, kept in seen.items()
        if not folder.is_relative_to(own)
    )


def _shared_builds() -> list[Path]:
    """What host builds of all kernels share; the other builds are of the project's kernels."""
    if isolation.has_gpu():
        return []
    try:
        return build.shared_host_builds()
    except build.BuildError:  # a worker meets it too, and reports it
        return []


def enter() -> None:
    """Refuse the project's kernels in this process, which has imported none of them."""
    registry.IMPLEMENTATION_PACKAGES.clear()
    sys.meta_path.insert(0, _OwnCodeOnly())


class _OwnCodeOnly(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if _KERNELS.fullmatch(name):
            _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise ImportError(f"it imports {name}: {OWN_CODE}")
