"""Discovery: which ops and implementations there are.

An op is a module ``ops/<op>.py`` with an ``OP``; its implementations register themselves when
``torch_impl/<op>.py``, ``triton_impl/<op>.py``, ``triton_impl/gluon_cluster/<op>.py`` and
``cuda_impl/launches/<op>.py`` are imported, which happens when somebody asks for them and not before.  A
user's file (``--load``) may add either.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from compare.model.op import (
    ARCHITECTURE,
    LEVELS,
    LIBRARY,
    ROUNDOFF,
    ROUTES,
    Cost,
    Implementation,
    Op,
    Tolerance,
    UsageError,
)
from compare.places import ROOT as ROOT

if TYPE_CHECKING:
    import torch

IMPLEMENTATION_PACKAGES = ["torch_impl", "triton_impl", "triton_impl.gluon_cluster", "cuda_impl.launches"]
"""None of them in a worker of a lab's hand-in."""

CUDA_FILES = "compare.worker.cuda_file"
"""The module that reads a user's CUDA file; imported for one only, as it needs PyTorch."""
NO_KNOWN_FILE = "neither a Python nor a CUDA file (its name must end in .py or .cu)"

_SHAPE = r"\w+\[[^\[\]]*\]"
_OF_USERS = ("torch", "triton", "cupy")
"""Routes that a user's file may take; C++ host code and what calls a library are files of the project's."""

RunFunction = Callable[..., "torch.Tensor"]

_ops: dict[str, Op] = {}
_files_of_ops: dict[str, str] = {}
_implementations: dict[str, dict[str, Implementation]] = {}


@dataclass(frozen=True)
class implementation:
    """Register a function as an implementation of ``op``.

    The function takes torch tensors, returns a fresh tensor, works on torch's current stream and raises
    ``ValueError`` or ``TypeError`` for inputs it does not take.

    Args:
        op: the op's name, ``softmax``.
        label: ``torch``, ``triton`` or ``cupy``, a dot, and a name of letters, digits and ``_``, which an
            algorithm has in both Triton and CUDA: ``triton.online``, ``cupy.online``.
        level: the optimisation level, one of ``naive tiled tensor_core hopper vendor``.
        requires: the least compute capability, ``sm_90``.
        triton: the least Triton that compiles it, ``3.8``; empty: any that the project serves.
        accumulator: the precision it computes in: ``fp32``, or another one of `compare.model.op.ROUNDOFF`.
        deterministic: whether it gives equal bits for equal inputs, every time, through cupy and pybind11.
        without_gpu: whether a CPU runs it too; Triton's interpreter, for one, does not know Gluon.
        emulated: whether the CPU build of kernels emulates the units of the architecture it requires.
        algorithm: its algorithm, in the same words as in the implementations that share it.  Reports say "the
            same algorithm" of two that declare the same.
        tunable: what of it can be chosen, with the values that it takes: ``{"BLOCK_N": (128, 256)}``.  The
            function has a keyword-only parameter of that name, with what it runs with otherwise as its
            default; it may do without for what has one value only.
        untuned: of an implementation that tunes itself, the label of the same with the default configuration.
        matches: the label of the implementation whose configuration ``--matched`` runs it with.
        prepare: rearranges the op's weights outside of timed calls; see `compare.model.op.Implementation`.

    Raises:
        UsageError: one of these is not of that form, a tunable is none, or the label is taken.
    """

    op: str
    label: str
    _: KW_ONLY
    level: str
    requires: str | None = None
    triton: str = ""
    accumulator: str = "fp32"
    deterministic: bool = True
    without_gpu: bool = True
    emulated: bool = False
    algorithm: str = ""
    tunable: Mapping[str, Sequence[int]] = field(default_factory=dict)
    untuned: str = ""
    matches: str = ""
    prepare: Callable[..., tuple[torch.Tensor, ...]] | None = None

    def __post_init__(self) -> None:
        label, routes = self.label, ("torch", "triton", *ROUTES, LIBRARY)
        route, _, variant = label.partition(".")
        # A colon and what follows it tell rows of one implementation apart, and --only takes patterns.
        if route not in routes or not re.fullmatch("[A-Za-z0-9_]+", variant):
            raise UsageError(
                f"label {label!r}: begin it with one of {', '.join(routes)}, and write letters, "
                "digits and _ behind the dot"
            )
        if self.level not in LEVELS:
            raise UsageError(f"{label}: level {self.level!r} is none of {', '.join(LEVELS)}")
        if self.requires is not None and not ARCHITECTURE.fullmatch(str(self.requires)):
            raise UsageError(f"{label}: requires={self.requires!r} is no architecture; write it as 'sm_90'")
        if self.accumulator not in ROUNDOFF:
            raise UsageError(f"{label}: accumulator {self.accumulator!r} is none of {', '.join(ROUNDOFF)}")
        if self.triton and not re.fullmatch(r"\d+\.\d+", str(self.triton)):
            raise UsageError(f"{label}: triton={self.triton!r} is no version; write it as '3.8'")
        for name in ("op", "algorithm", "untuned", "matches"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{label}: {name}={getattr(self, name)!r} is no text")
        self._choices()

    def __call__(self, run: RunFunction) -> RunFunction:
        if self.label.startswith("triton."):
            run = on_its_device(run)
        self.register(run)
        return run

    def register(self, run: RunFunction, user_file: Path | None = None, **more: Any) -> Implementation:
        """Add the implementation, and return it.

        Args:
            run: its function.
            user_file: as of `compare.model.op.Implementation`.
            more: its further fields.

        Raises:
            UsageError: a tunable is no parameter of the function, or the label is taken.
        """
        op, label, choices, taking = self.op, self.label, self._choices(), keywords(run)
        for name, values in choices:
            if len(values) > 1 and name not in taking:
                raise UsageError(f"{label}: {name} is tunable, but no keyword-only parameter with a default")
            if name in taking and not _is_whole(taking[name]):
                raise UsageError(
                    f"{label}: {name}={taking[name]!r} is no default of a tunable: give the whole number "
                    "that it runs with where nobody chooses"
                )
        origin, _ = _place(run) or ("", 0)
        taken = _implementations.get(op, {}).get(label)
        if taken is not None and not _is_imported_anew(taken.run, run):
            where = "one of them" if taken.origin == origin else "yours"
            raise UsageError(f"{op} has a {label} already, in {taken.origin}: give {where} another name")
        declared = (
            vars(self) | {"run": run, "origin": origin, "user_file": user_file, "tunable": choices} | more
        )
        impl = _implementations.setdefault(op, {})[label] = Implementation(**declared)
        return impl

    def _choices(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((name, _choice(self.label, name, values)) for name, values in self.tunable.items())


def on_its_device(run: RunFunction) -> RunFunction:
    """``run`` with its first tensor's GPU as the current device, on which Triton launches."""
    torch = importlib.import_module("torch")  # whoever has a Triton kernel has imported it

    @functools.wraps(run)
    def on_device(*args: Any, **options: Any) -> Any:
        x = args[0] if args else next(iter(options.values()), None)
        device = x.get_device() if isinstance(x, torch.Tensor) and x.is_cuda else -1
        if device < 0 or device == torch._C._cuda_getDevice():  # a launch takes few microseconds
            return run(*args, **options)
        with torch.cuda.device(device):
            return run(*args, **options)

    return on_device


implementation.__init__.__qualname__ = "implementation"  # a TypeError of a wrong keyword says it


def _is_imported_anew(known: RunFunction, run: RunFunction) -> bool:
    """Whether a function is another's own successor, from a second import of its module."""
    if _place(known) is None or _place(known) != _place(run):
        return False
    return inspect.unwrap(known).__globals__ is not inspect.unwrap(run).__globals__


def _place(run: RunFunction) -> tuple[str, int] | None:
    """Where a function is written; None: not in Python."""
    code = getattr(inspect.unwrap(run), "__code__", None)
    return code and (code.co_filename, code.co_firstlineno)


def _choice(label: str, name: str, values: Sequence[int]) -> tuple[int, ...]:
    """The values of a tunable; a `UsageError` if they are not whole numbers, each once."""
    found = tuple(values) if isinstance(values, (tuple, list, range)) else ()
    if not found or not all(map(_is_whole, found)) or len(set(found)) < len(found):
        raise UsageError(f"{label}: {name}={values!r}: write a tunable's values as (64, 128), each once")
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def keywords(run: RunFunction) -> dict[str, int]:
    """The keyword-only parameters of an implementation's function, with their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(run).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    }


def with_parameters(impl: Implementation, label: str, values: Mapping[str, int]) -> Implementation:
    """``impl`` under another label, run with these values of its tunables in place of its defaults."""
    passed = {name: values[name] for name in keywords(impl.run) if name in values}
    return replace(
        impl,
        label=label,
        run=functools.partial(impl.run, **passed),
        base=impl.base or impl.label,
        parameters=tuple(passed.items()),
    )


def register_op(op: Op) -> Op:
    """Add an op; for files given to ``--load``.

    Raises:
        UsageError: there is one of that name, or it does not fit together.
    """
    if op.name in op_names():
        raise UsageError(f"there is an op {op.name} already: give yours another name")
    check_op_name(op.name)
    if not (isinstance(op.signature, str) and re.fullmatch(f"{_SHAPE}.* -> {_SHAPE}.*", op.signature)):
        raise UsageError(f"{op.name}: signature {op.signature!r}: write one as 'x[M,N], w[N] -> y[M,N]'")
    outputs = re.findall(_SHAPE, op.signature.rpartition("->")[2])
    if len(outputs) != 1 + len(op.further):
        raise UsageError(
            f"{op.name}: signature {op.signature!r} has {len(outputs)} outputs, and the op describes "
            f"{1 + len(op.further)}: its own and those in further"
        )
    for case in (op.cases.default, *op.cases.smoke, *op.cases.edge, *op.cases.sweep):
        if tuple(name for name, _ in case.dims) != op.dims or case.dtype not in op.dtypes:
            raise UsageError(
                f"{op.name}: case {case} is not of its dims, {', '.join(op.dims)}, and dtypes, "
                f"{', '.join(op.dtypes)}"
            )
    for what, kind in (("cost", Cost), ("tolerance", Tolerance)):
        given = getattr(op, what)(op.cases.default)
        if not isinstance(given, kind):
            raise UsageError(f"{op.name}: {what} gives no {kind.__name__}, but {given!r}")
    _ops[op.name] = op
    return op


def forget(user_file: Path) -> None:
    """Remove the implementations of a file that is read again: a notebook loads it once a cell."""
    for labels in _implementations.values():
        for label in [label for label, impl in labels.items() if impl.user_file == user_file]:
            del labels[label]


def check_op_name(name: str) -> None:
    """A `UsageError` if an op cannot have this name."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise UsageError(f"op {name!r}: write its name with letters, digits and _")


def op_names() -> list[str]:
    """Names of all ops of one GPU, without importing any of them."""
    return sorted({*_modules(ROOT / "ops"), *_ops.keys() - collective_names()})


def collective_names() -> list[str]:
    """Names of all ops of several GPUs."""
    return _modules(ROOT / "ops" / "collectives")


def _modules(package: Path) -> list[str]:
    return [module.name for module in pkgutil.iter_modules([str(package)]) if not module.ispkg]


def get_op(name: str) -> Op:
    """The op of that name; a `UsageError` offers the nearest names."""
    if name not in _ops:
        collectives = collective_names()
        if name not in (names := [*op_names(), *collectives]):
            raise UsageError(unknown("op", name, names))
        package = "ops.collectives" if name in collectives else "ops"
        _ops[name] = importlib.import_module(f"{package}.{name}").OP
    return _ops[name]


def implementations(op: str, only: Sequence[str] = ()) -> list[Implementation]:
    """All implementations of ``op``: torch, Triton, cupy, pybind, a library's; slow to fast as they lie.

    Args:
        op: the op's name.
        only: glob patterns over labels, any of which lets an implementation pass.

    Raises:
        UsageError: no pattern matches anything.
    """
    _import_implementations(op)
    order = ("torch", "triton", *ROUTES, LIBRARY)
    found = sorted(_implementations.get(op, {}).values(), key=lambda impl: order.index(impl.route))
    among = [impl for impl in found if is_among(impl.label, only)]
    if only and not among:
        raise UsageError(unknown(f"implementation of {op}", only[0], [impl.label for impl in found]))
    return among


@functools.cache
def _import_implementations(op: str) -> None:
    """Have the project's own implementations of ``op`` register themselves, once in a process."""
    for package in IMPLEMENTATION_PACKAGES:
        if importlib.util.find_spec(f"{package}.{op}") is not None:
            importlib.import_module(f"{package}.{op}")
    if IMPLEMENTATION_PACKAGES and _implementations.get(op):
        pybind = importlib.import_module("cuda_impl.pybind")
        pybind.register(op, _implementations[op].values())


def is_among(label: str, only: Sequence[str]) -> bool:
    """Whether a label is one of those that these glob patterns name; none names all.

    ``cuda``, as screens have it, names both ways to launch a kernel.
    """
    labels = (label, re.sub(r"^(cupy|pybind)\b", "cuda", label))
    return not only or any(fnmatch.fnmatchcase(each, pattern) for each in labels for pattern in only)


def through_cupy(impl: Implementation, among: Iterable[Implementation]) -> Implementation | None:
    """Of one through pybind11 its sibling, which launches the same kernels from Python; None: it has none."""
    label = f"cupy.{impl.variant}"
    return next((other for other in among if other.label == label), None)


def op_files() -> list[str]:
    """The user's files that define an op.  They say what is right, so they are trusted with it, and loaded
    wherever the op is needed."""
    return list(dict.fromkeys(file for name, file in _files_of_ops.items() if name in _ops))


@dataclass(frozen=True)
class Loaded:
    """What a user's file has registered."""

    ops: tuple[str, ...]
    implementations: tuple[Implementation, ...]

    def check_has(self, op: str, path: str) -> None:
        """A `UsageError` if it has nothing of an op."""
        has = {*self.ops, *(impl.op for impl in self.implementations)}
        if op not in has:
            raise UsageError(nothing_of(op, path, has))


def nothing_of(op: str, path: str, has: Iterable[str]) -> str:
    """What is said of a user's file that is given for ``op`` and has something of others."""
    return f"--load {path}: it has nothing of {op}, but of {', '.join(sorted(has))}"


def nothing_new(path: str) -> str:
    """The error for a user's file without an op or an implementation."""
    return (
        f"--load {path}: it registers nothing new. Decorate a function with "
        "@implementation(op, label, level=...) from compare.registry; examples/my_softmax.py shows how"
    )


def refused(label: str, *, prepares: bool) -> str:
    """Why a user's file may not have an implementation; empty: it may."""
    route = label.partition(".")[0]
    if route not in _OF_USERS:
        return (
            f"{label}: {route} is for what the project builds itself; begin the label with one of "
            f"{', '.join(_OF_USERS)}"
        )
    if prepares:
        advice = "prepare within the call, where it is timed"
        return f"{label}: prepare is for what the project builds itself; {advice}"
    return ""


class _TextOnly(SourceFileLoader):
    """Imports a file's text, not the bytecode beside it: the judge reads the text only."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError(f"{path}: its bytecode is neither read nor written")


def load(path: str, op: str = "") -> Loaded:
    """Import a user's file, which registers ops or implementations of its own.

    Args:
        path: a Python file, or a CUDA file with lines of the form ``// compare: ...``.
        op: the one that is compared, for a CUDA file that names none.

    Raises:
        UsageError: there is none, it raises, or it registers nothing.
    """
    file = Path(path).absolute()
    if not file.is_file():
        raise UsageError(f"--load {path}: there is no such file")
    name = f"_loaded_{file.stem}_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]}"
    loader = _TextOnly(name, str(file)) if file.suffix == ".py" else None
    if file.suffix == ".cu":
        loader = importlib.import_module(CUDA_FILES).CudaFile(op)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None or spec.loader is None:
        raise UsageError(f"--load {path}: {NO_KNOWN_FILE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # triton.jit and inspect look a function's module up by name
    known = {op: dict(labels) for op, labels in _implementations.items()}
    known_ops = set(_ops)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--load {path}{_problem(error, path, file)}") from error
    # One that the file has only looked up is none of its own.
    ops = tuple(name for name, op in _ops.items() if name not in known_ops and not _is_built_in(op))
    new = tuple(
        impl
        for op, labels in _implementations.items()
        for label, impl in labels.items()
        if label not in known.get(op, {}) and not _of_the_project(impl)
    )
    for impl in new:
        if refusal := refused(impl.label, prepares=impl.prepare is not None):
            raise UsageError(f"--load {path}: {refusal}")
    if not ops and not new:
        raise UsageError(nothing_new(path))
    _files_of_ops.update(dict.fromkeys(ops, str(file.resolve())))
    return Loaded(ops, new)


def _problem(error: BaseException, path: str, file: Path) -> str:
    """What a user's file raised, where, and what to do."""
    line = line_in(error, file) or "?"
    if isinstance(error, UsageError):  # which says all that there is to say
        return f", line {line}: {error}"
    said = f": {error}" if str(error) else ""
    running = f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.join((sys.executable, path))}"
    advice = f"Fix the file ({running} shows the whole traceback)"
    if isinstance(error, SystemExit):
        advice = "Take out what ends Python when the file is loaded"
    if isinstance(error, ModuleNotFoundError):
        top = f"{error.name}".partition(".")[0]
        for beside in (name for name in (f"{top}.py", top) if (file.parent / name).exists()):
            advice = f"A file is loaded by itself: put what it needs of {beside} into it"
    return f": {type(error).__name__} at line {line}{said}. {advice}"


def _is_built_in(op: Op) -> bool:
    """Whether an op is the project's own."""
    module = sys.modules.get(f"ops.{op.name}")
    return getattr(module, "OP", None) is op


def _of_the_project(impl: Implementation) -> bool:
    """Whether it is one of the project's own, which a user's file may import."""
    folders = {package.partition(".")[0] for package in IMPLEMENTATION_PACKAGES}
    return any(Path(impl.origin).is_relative_to(ROOT / folder) for folder in folders)


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """A message for a name that does not exist, with the nearest that do."""
    names = list(names)
    by_lower = {each.lower(): each for each in names}
    if name in collective_names():
        return f"{name} is an op of several GPUs; of all commands only 'python -m compare {name}' takes it"
    closest = (
        difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=cutoff) for cutoff in (0.75, 0.4)
    )
    near = [by_lower[each] for each in next(filter(None, closest), [])]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"
    return f"no {kind} {name!r}: {hint}"


def line_in(error: BaseException, file: Path) -> int | None:
    """The last line of ``file`` in an error's traceback; None: it has none there."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return error.lineno
    line = None
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
