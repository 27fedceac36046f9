"""A CUDA file given to ``--load``: a comment says how a kernel is launched, and makes a row of it.

    // compare: my_kernel(x, y, M, N) grid M block 256

``// compare softmax: ...`` names the op, else it is the one on the command line.  Arguments are the op's
tensors by name, and integer expressions of its sizes, its options and strides such as ``x.stride0``, with
``+ - * / %`` as in C.  ``grid`` and ``block`` are one to three expressions.  What may follow them: ``shared
BYTES`` of dynamic shared memory, ``zero y`` to clear outputs before the launch, ``level tiled``, and ``as
NAME``, where the row shall not have the kernel's name.  A template has its arguments with it, ``f<float,
256>``; there ``dtype`` stands for the C++ type of the op's first tensor.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.abc import Loader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from compare import registry
from compare.inputs import TORCH_DTYPES
from compare.model.op import Op, UsageError
from cuda_impl.loader import kernel as compiled
from cuda_impl.source import code_only, parameters_of, split

_LINE = re.compile(r"(?m)^[ \t]*//[ \t]*compare(?:[ \t]+(\w+))?[ \t]*:[ \t]*(.*?)[ \t]*$")
_WORDS = re.compile(r"\b(grid|block|shared|zero|level|as)\b")
_CALL = re.compile(r"(?P<name>[\w:]+)\s*(?:<(?P<template>.*)>)?\s*\((?P<arguments>.*)\)\s*")
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*\)")
_KERNEL = re.compile(r"__global__[^;{}()]*?\b(\w+)\s*\(")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)?")
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__restrict)\b|[*&]")
_FLOAT = re.compile(r"\b(\d+\.?\d*(?:e-?\d+)?)f\b")
"""A number as C++ writes one of type float."""
_STRIDE = re.compile(r"stride(\d)")
_CPP_TYPES = {
    torch.float32: ("float",),
    torch.float16: ("__half", "half"),
    torch.bfloat16: ("__nv_bfloat16", "nv_bfloat16"),
    torch.float8_e4m3fn: ("__nv_fp8_e4m3",),
    torch.float64: ("double",),
    torch.int8: ("signed char", "int8_t", "char"),
    torch.uint8: ("unsigned char", "uint8_t"),
    torch.int32: ("int", "int32_t"),
    torch.int64: ("long long", "long", "int64_t"),
}
"""What a pointer to elements of a dtype points to in C++; the first is what ``dtype`` stands for."""
_HEADERS = {
    torch.float16: "cuda_fp16.h",
    torch.bfloat16: "cuda_bf16.h",
    torch.float8_e4m3fn: "cuda_fp8.h",
}
_DTYPES = {name: dtype for dtype, names in _CPP_TYPES.items() for name in names}
_ARITHMETIC = (
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.UnaryOp, ast.USub),
    *(ast.Name, ast.Load),
)


@dataclass(frozen=True)
class LaunchLine:
    """A kernel of a CUDA file, and how its ``// compare:`` line launches it."""

    file: Path
    text: str
    """Of the whole file."""
    line: int
    op: str
    """As the line or the command names it; empty if neither does."""
    kernel: str
    template: tuple[str, ...]
    arguments: tuple[str, ...]
    sizes: Mapping[str, tuple[str, ...]]
    """Expressions of ``grid``, ``block`` and ``shared``, names of ``zero``."""
    declared: registry.implementation

    @property
    def where(self) -> str:
        return f"{self.file.name}:{self.line}"

    @cached_property
    def parameters(self) -> list[tuple[str, str]]:
        """Type and name of each parameter of the kernel."""
        return parameters_of(self.text, self.kernel)

    def check(self, op: Op) -> None:
        """A `UsageError` if the line does not fit to the kernel or to the op's tensors and sizes."""
        shapes, sizes = dict(_shapes(op.signature)), _sizes(op)
        if len(self.arguments) != len(self.parameters):
            takes = ", ".join(name for _, name in self.parameters)
            raise UsageError(
                f"{self.kernel} takes {len(self.parameters)} arguments ({takes}), and the line has "
                f"{len(self.arguments)}"
            )
        for argument, (kind, name) in zip(self.arguments, self.parameters, strict=True):
            if ("*" in kind) != (argument in shapes):
                what = "a tensor of the op" if "*" in kind else "a number"
                raise UsageError(
                    f"{self.kernel}'s parameter {kind} {name} takes {what}, and the line passes {argument}; "
                    f"tensors of {op.name}: {', '.join(shapes)}"
                )
        strides = [f"{name}.stride{dim}" for name, each in shapes.items() for dim in range(len(each))]
        numbers = [argument for argument in self.arguments if argument not in shapes]
        for expression in (numbers, *(self.sizes[word] for word in ("grid", "block", "shared"))):
            for name in _NAME.findall(" ".join(expression)):
                if name not in (*sizes, *strides):
                    raise UsageError(registry.unknown(f"size of {op.name}", name, [*sizes, *strides]))
        outputs = [name for name, _ in _shapes(op.signature.rpartition("->")[2])]
        if wrong := [name for name in self.sizes["zero"] if name not in outputs]:
            raise UsageError(f"zero {', '.join(wrong)}: outputs of {op.name} are {', '.join(outputs)}")

    def run(self, op: Op, *inputs: torch.Tensor, **options: Any) -> Any:
        """Launch it; inputs of which the line names no stride are made contiguous.

        Raises:
            NotImplementedError: the kernel's pointers are not to the tensors' dtypes.
        """
        shapes, _, outputs = op.signature.rpartition("->")
        tensors, values = {}, dict(options)
        strided = {node.value.id for node in self._attributes()}
        for (name, sizes), x in zip(_shapes(shapes), inputs, strict=True):
            tensors[name] = x if name in strided else x.contiguous()
            values |= dict(zip(sizes, x.shape, strict=True))
        dtypes = [op.output_dtype, *(output.dtype for output in op.further)]
        results = []
        for (name, sizes), dtype in zip(_shapes(outputs), dtypes, strict=True):
            new = torch.zeros if name in self.sizes["zero"] else torch.empty
            shape = [self._value(size, values, tensors) for size in sizes]
            kind = TORCH_DTYPES[dtype] if dtype else inputs[0].dtype
            results.append(new(shape, dtype=kind, device=inputs[0].device))
            tensors[name] = results[-1]
        self._launch(inputs[0], tensors, values)
        return results[0] if len(results) == 1 else tuple(results)

    def _launch(
        self, first: torch.Tensor, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]
    ) -> None:
        header = _HEADERS.get(first.dtype, "")
        if "dtype" in self.template and header not in self.text:
            raise NotImplementedError(f"{self.where}: of {first.dtype} it needs #include <{header}>")
        template = [_CPP_TYPES[first.dtype][0] if word == "dtype" else word for word in self.template]
        grid, block, shared = (
            tuple(int(self._value(size, values, tensors)) for size in self.sizes[word])
            for word in ("grid", "block", "shared")
        )
        arguments = [
            self._argument(argument, kind, template, values, tensors)
            for argument, (kind, _) in zip(self.arguments, self.parameters, strict=True)
        ]
        if all(grid):
            name = f"{self.kernel}<{', '.join(template)}>" if template else self.kernel
            compiled(self.text, name, first.device)(grid, block, arguments, *shared)

    def _argument(
        self,
        argument: str,
        kind: str,
        template: Sequence[str],
        values: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
    ) -> int | float:
        """An address, or a number of the parameter's kind."""
        if argument not in tensors:
            value = self._value(argument, values, tensors)
            return float(value) if re.search(r"\b(?:float|double)\b", kind) else value
        pointee = " ".join(_QUALIFIER.sub(" ", kind).split())
        pointee = dict(zip(self._template_names, template, strict=False)).get(pointee, pointee)
        dtype = _DTYPES.get(pointee)
        if dtype is not None and dtype != tensors[argument].dtype:
            got = str(tensors[argument].dtype).removeprefix("torch.")
            raise NotImplementedError(f"{self.where}: {self.kernel} takes {argument} as {pointee}, not {got}")
        return tensors[argument].data_ptr()

    @cached_property
    def _template_names(self) -> list[str]:
        head = re.search(rf"template\s*<([^{{}};]*?)>\s*__global__[^;{{}}]*?\b{self.kernel}\s*\(", self.text)
        return [word.partition("=")[0].split()[-1] for word in split(head[1])] if head else []

    def _attributes(self) -> list[Any]:
        words = (*self.arguments, *self.sizes["grid"], *self.sizes["block"])
        return [node for word in words for node in ast.walk(_parsed(word)) if isinstance(node, ast.Attribute)]

    def _value(self, expression: str, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
        try:
            return _evaluated(_parsed(expression), values, tensors)
        except ZeroDivisionError:
            raise NotImplementedError(f"{self.where}: {expression} divides by 0 here") from None


def launches(file: Path, text: str, op: str) -> list[LaunchLine]:
    """The rows of a CUDA file, in its order.

    Args:
        op: the one that is compared; empty: the lines have to name theirs.

    Raises:
        UsageError: there is no line, or one is not of that form; the text begins with its place.
    """
    found = []
    for match in _LINE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        try:
            found.append(_launch_of(file, text, line, match[1] or op, match[2]))
        except UsageError as error:
            raise UsageError(f"line {line}: {error}") from None
    if not found:
        raise UsageError(_advice(text, op))
    return found


def _launch_of(file: Path, text: str, line: int, op: str, words: str) -> LaunchLine:
    head, *rest = _WORDS.split(words)
    call = _CALL.fullmatch(head)
    clauses = {word: split(value) for word, value in zip(rest[::2], rest[1::2], strict=True)}
    if call is None or not clauses.get("grid") or not clauses.get("block"):
        raise UsageError(f"{words!r} does not read like my_kernel(x, y, M, N) grid M block 256")
    kernels, kernel = _kernels(text), call["name"]
    if kernel not in kernels and len(kernels) == 1 and kernel in (op, *registry.op_names()):
        op, kernel = op or kernel, kernels[0]  # the op's name stands for its only kernel
    if kernel.rpartition("::")[2] not in kernels:
        raise UsageError(registry.unknown("__global__ function", kernel, kernels))
    op = op or kernel
    if op not in registry.op_names():
        known = registry.unknown("op", op, registry.op_names())
        raise UsageError(f"name the op, // compare OP: {words}; {known}")
    for word, most in (("grid", 3), ("block", 3), ("shared", 1), ("level", 1), ("as", 1)):
        if len(clauses.setdefault(word, [])) > most:
            raise UsageError(f"{word} {', '.join(clauses[word])}: give {most} at most")
    name = (clauses.pop("as") or [kernel.rpartition("::")[2]])[0]
    level = (clauses.pop("level") or ["naive"])[0]
    sizes = {word: tuple(clauses.get(word, ())) for word in ("grid", "block", "shared", "zero")}
    arguments, template = tuple(split(call["arguments"])), tuple(split(call["template"] or ""))
    for each in (*arguments, *(one for word in sizes.values() for one in word)):
        _parsed(each)
    declared = registry.implementation(op, f"cupy.{name}", level=level)
    return LaunchLine(file, text, line, op, kernel, template, arguments, sizes, declared)


def _kernels(text: str) -> list[str]:
    """The names of the ``__global__`` functions of a text."""
    return list(dict.fromkeys(_KERNEL.findall(_BOUNDS.sub("", code_only(text)))))


def _advice(text: str, op: str) -> str:
    """That there is no line, with the one to write: the kernel's name, and the op's tensors and sizes."""
    kernels = _kernels(text)
    if not kernels:
        return "it has no __global__ function, so there is no kernel to compare"
    known = registry.get_op(op) if op in registry.op_names() else None
    inputs, _, outputs = known.signature.rpartition("->") if known else ("x[M,N]", "", "y[M,N]")
    read, written = ([name for name, _ in _shapes(part)] for part in (inputs, outputs))
    sizes = _sizes(known) if known else ["M", "N"]
    arguments = []
    for kind, name in parameters_of(text, kernels[0]):
        names = sizes if "*" not in kind else read if "const" in kind or not written else written
        fitting = [one for one in names if one.lower() == name.lower()] or names
        arguments.append(fitting[0] if fitting else name)
        if fitting:
            names.remove(fitting[0])
    grid = _sizes(known)[0] if known else "M"
    return (
        "no line says how to launch it: write one such as "
        f"// compare{'' if known else ' OP'}: {kernels[0]}({', '.join(arguments)}) grid {grid} block 256"
    )


class CudaFile(Loader):
    """Registers a CUDA file's rows where it is loaded to be run.

    Args:
        op: the one that is compared.
    """

    def __init__(self, op: str) -> None:
        self._op = op

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        file = Path(str(module.__file__))
        for launch in launches(file, file.read_text("utf-8-sig", "replace"), self._op):
            op = registry.get_op(launch.op)
            launch.check(op)
            launch.declared.register(partial(launch.run, op))


# --------------------------------------------------------------------------- names and expressions


def _shapes(signature: str) -> list[tuple[str, list[str]]]:
    """Name and sizes of each tensor in ``x[M,N], y[] -> z[N,M]``."""
    return [(name, split(sizes)) for name, sizes in re.findall(r"(\w+)\[([^\]]*)\]", signature)]


def _sizes(op: Op) -> list[str]:
    """The names that have a value in a line: sizes of inputs, and the op's options."""
    sizes = [size for _, each in _shapes(op.signature.rpartition("->")[0]) for size in each]
    return [*(dim for dim in op.dims if dim in sizes), *op.options(op.cases.default)]


def _parsed(expression: str) -> ast.expr:
    """An expression, checked to be arithmetic.

    Raises:
        UsageError: it is none.
    """
    try:
        tree = ast.parse(_FLOAT.sub(r"\1", expression.strip()), mode="eval").body
    except SyntaxError:
        tree = None
    if tree is None or not all(map(_is_arithmetic, ast.walk(tree))):
        raise UsageError(
            f"{expression!r} is no expression of sizes with + - * / % and parentheses; write such as "
            "(N + 255) / 256, or x.stride0"
        )
    return tree


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and bool(_STRIDE.fullmatch(node.attr))
    return isinstance(node, _ARITHMETIC)


def _evaluated(node: ast.expr, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value of an expression; whole numbers divide as in C."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return int(values[node.id])
    if isinstance(node, ast.Attribute):
        assert isinstance(node.value, ast.Name)
        return tensors[node.value.id].stride(int(node.attr[-1]))
    if isinstance(node, ast.UnaryOp):
        return -_evaluated(node.operand, values, tensors)
    assert isinstance(node, ast.BinOp)
    left, right = (_evaluated(each, values, tensors) for each in (node.left, node.right))
    return _OPERATORS[type(node.op)](left, right)


def _divided(left: Any, right: Any) -> Any:
    """A quotient; of whole numbers it is rounded towards 0."""
    if isinstance(left, float) or isinstance(right, float):
        return left / right
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.Mod: lambda left, right: left - _divided(left, right) * right,
}
