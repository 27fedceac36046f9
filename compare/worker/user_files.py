"""The user's files (``--load``): their rows, read from the text.

Running a file could replace the very functions that judge it.  So the judge reads the literals of its
decorators, and only workers run it.  What it raises then is an error of its rows.
"""

from __future__ import annotations

import ast
import inspect
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path
from typing import Any, NoReturn

import torch

from compare import registry
from compare.code_size.hashes import source_hash
from compare.code_size.sources import USER_FILE_BYTES
from compare.model.op import Implementation, UsageError
from compare.records.reading import read_bytes
from compare.sandbox.words import printable
from compare.worker import cuda_file, own_code
from compare.worker.cuda_file import LaunchLine

_MOST_LINES = 10_000
"""The lexer of ``--html`` takes a time that grows faster than a file."""
_MOST_ROWS = 64
_LITERALS = (
    "A file is read to list what it has, and not run: write @implementation(...) above a def, with literals"
)


def load(
    paths: Sequence[str], compared: str | None = None, *, trusted: bool = True, others: Path | None = None
) -> dict[str, str]:
    """Register what users' files hold.

    A file that defines the op to compare says what is right: that one is trusted, and run here as well.

    Args:
        paths: the files.
        compared: the op to compare; None: all of them, those of the files too.
        trusted: False: nothing will be compared, so no file is run here.
        others: the files are hand-ins of a lab, with others' in this folder: they use and see neither
            these nor the project's kernels.

    Returns:
        The file of each op that was run here, or would be if it were trusted.

    Raises:
        UsageError: a file is none, cannot be read, or registers nothing new, nothing of the op to compare,
            what no op is for, another's op, or names code that is not the student's.
    """
    files = [_read(path, compared or "", handed_in=others is not None) for path in paths]
    defined: dict[str, str] = {}
    for file in files:
        for op in file.ops:
            if op in registry.op_names() or op in defined:
                where = defined.get(op, "the project")
                raise UsageError(
                    f"--load {file.path}: {where} has an op {op} already: give yours another name"
                )
            defined[op] = file.path
    known = sorted({*registry.op_names(), *defined})
    for file in files:
        for row in file.rows:
            if row.declared.op not in known:
                unknown = registry.unknown("op", row.declared.op, known)
                raise UsageError(f"--load {file.path}: {row.declared.label}: {unknown}")
        # A file is needed too if it defines an op that another has rows of beside those to compare.
        needed = {op for other in files if other is not file for op in other.has}
        if compared in known and compared not in file.has and needed.isdisjoint(file.ops):
            raise UsageError(registry.nothing_of(compared, file.path, file.has))
    defining = [file for file in files if compared in file.ops or (compared is None and file.ops)]
    registered: list[tuple[str, Implementation]] = []
    for file in files:
        if trusted and file in defining:
            registry.load(file.path)
        else:
            registered += ((file.path, impl) for impl in _register(file, compared, others))
    for path, impl in registered if trusted else ():
        with _as_usage_error(path):  # what it imports from files beside it is read as well
            source_hash(impl)
    return {op: file.path for file in defining for op in file.ops}


def declared(path: str, op: str) -> list[registry.implementation]:
    """The decorators of the rows that a user's file has of an op, by its text.

    Raises:
        UsageError: as `load`.
    """
    file = _read(path, op)
    if op not in file.has:
        raise UsageError(registry.nothing_of(op, path, file.has))
    return [row.declared for row in file.rows if row.declared.op == op]


def to_load(impl: Implementation) -> list[str]:
    """The files that a worker has to load for an implementation."""
    return [*registry.op_files(), *([str(impl.user_file)] if impl.user_file else [])]


def launches_by_loader(impl: Implementation) -> bool:
    """Whether a user's CUDA kernels may be launched by `cuda_impl.loader`, which notes them."""
    file = impl.user_file
    return file is None or file.suffix != ".py" or b"cuda_impl" in read_bytes(file)


@dataclass(frozen=True)
class _Decorated:
    """A function of a file, and its decorator; of a CUDA file a kernel, and the line that launches it."""

    declared: registry.implementation
    run: registry.RunFunction
    line: int
    launch: LaunchLine | None = None


@dataclass(frozen=True)
class _UserFile:
    """What a file registers, by its text."""

    path: str
    ops: tuple[str, ...]
    rows: tuple[_Decorated, ...]

    @property
    def has(self) -> set[str]:
        """What it has something of."""
        return {*self.ops, *(row.declared.op for row in self.rows)}


def _register(file: _UserFile, compared: str | None, others: Path | None) -> Iterator[Implementation]:
    """Add the implementations of an op, or of all, and yield them."""
    where = Path(file.path).resolve()
    hidden = own_code.hidden(where, others) if others else ()
    registry.forget(where)
    for row in file.rows:
        if compared in (None, row.declared.op):
            registry.implementations(row.declared.op)  # the project's own come first
            with _as_usage_error(file.path, row.line):
                if row.launch is not None:
                    row.launch.check(registry.get_op(row.launch.op))
                impl = row.declared.register(row.run, where, hidden=hidden)
            yield impl


def _read(path: str, compared: str, *, handed_in: bool = False) -> _UserFile:
    """Find what a file registers, without running it."""
    with _as_usage_error(path):
        text = read_bytes(Path(path), USER_FILE_BYTES)
    file = Path(path).resolve()
    if file.suffix not in (".py", ".cu"):
        raise UsageError(f"--load {path}: {registry.NO_KNOWN_FILE}")
    if (lines := len(text.splitlines())) > _MOST_LINES:
        raise UsageError(f"--load {path}: {lines} lines, and the most is {_MOST_LINES}")
    ops: tuple[str, ...] = ()
    if file.suffix == ".cu":
        rows = tuple(_launches(path, file, text.decode("utf-8-sig", "replace"), compared))
    else:
        with _as_usage_error(path), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # running the file shows them
            nodes = [*ast.walk(ast.parse(decode_source(text)))]
        ops, rows = tuple(_ops(path, nodes)), tuple(_rows(path, file, nodes))
        if handed_in:
            with _as_usage_error(path):
                own_code.check(nodes)
    if not ops and not rows:
        raise UsageError(registry.nothing_new(path))
    if len(rows) > _MOST_ROWS:
        raise UsageError(f"--load {path}: {len(rows)} implementations, and the most is {_MOST_ROWS}")
    return _UserFile(path, ops, rows)


@contextmanager
def _as_usage_error(path: str, line: int | None = None) -> Iterator[None]:
    """Turns what reading a file raises into a `UsageError` of one sentence."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"--load {path}{f', line {line}' if line else ''}: {error}") from None
    except (
        *(OSError, SyntaxError, RecursionError, MemoryError),
        *(AttributeError, TypeError, ValueError),  # of arguments of another type
    ) as error:
        line = error.lineno if isinstance(error, SyntaxError) else line
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        what = f"{type(error).__name__}{f' at line {line}' if line else ''}"
        raise UsageError(f"--load {path}: {what}: {text or 'too much to parse'}. Fix the file") from None


def _ops(path: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names of the ops that a file registers: ``register_op(Op(name="...", ...))``."""
    for call in _calls(nodes, "register_op"):
        op = call.args[0] if call.args else None
        names = [each.value for each in op.keywords if each.arg == "name"] if isinstance(op, ast.Call) else []
        with _as_usage_error(path, call.lineno):
            name = _literal(names[0]) if names else None
            if not isinstance(name, str):
                raise UsageError(f"register_op(Op(name='...', ...)) has no name. {_LITERALS}")
            registry.check_op_name(name)
        yield name


def _rows(path: str, file: Path, nodes: Sequence[ast.AST]) -> Iterator[_Decorated]:
    """The decorated functions of a file: ``@implementation(op, label, level=...)`` with literals."""
    decorated = {
        id(decorator): node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    }
    for call in _calls(nodes, "implementation"):
        with _as_usage_error(path, call.lineno):
            function = decorated.get(id(call))
            if function is None:
                raise UsageError(f"implementation(...) decorates no def. {_LITERALS}")
            arguments = [_literal(each) for each in call.args]
            keywords = {each.arg or "": each.value for each in call.keywords}
            prepares = keywords.pop("prepare", None) is not None
            values = {name: _literal(value) for name, value in keywords.items()}
            declared = registry.implementation(*arguments, **values)
            if refusal := registry.refused(declared.label, prepares=prepares):
                raise UsageError(refusal)
            defaults = {
                parameter.arg: _literal(default)
                for parameter, default in zip(
                    function.args.kwonlyargs, function.args.kw_defaults, strict=True
                )
                if default is not None and parameter.arg in declared.tunable
            }
        line = min(decorator.lineno for decorator in function.decorator_list)
        yield _Decorated(declared, _stand_in(file, line, declared.label, defaults), call.lineno)


def _launches(path: str, file: Path, text: str, compared: str) -> Iterator[_Decorated]:
    """The kernels of a CUDA file that a line ``// compare: ...`` launches."""
    with _as_usage_error(path):
        for launch in cuda_file.launches(file, text, compared):
            run = _stand_in(file, launch.line, launch.declared.label, {})
            yield _Decorated(launch.declared, run, launch.line, launch)


def _calls(nodes: Iterable[ast.AST], name: str) -> list[ast.Call]:
    """Calls of a function of `compare.registry`, as they lie in the file."""
    nodes = [*nodes]
    names = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "compare.registry"
        for alias in node.names
        if alias.name == name
    }
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found = [
        call
        for call in calls
        if (isinstance(call.func, ast.Name) and call.func.id in names)
        or (isinstance(call.func, ast.Attribute) and call.func.attr == name)
    ]
    return sorted(found, key=lambda call: call.lineno)


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise UsageError(f"{ast.unparse(node)[:60]} is no literal. {_LITERALS}") from None
    return printable(value) if isinstance(value, str) else value


def _stand_in(file: Path, line: int, name: str, defaults: Mapping[str, int]) -> Any:
    """A function that says that it was written at that line, with these keyword-only parameters."""
    code = _only_a_worker_runs_it.__code__.replace(co_filename=str(file), co_firstlineno=line)
    run = types.FunctionType(code, globals(), name)
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=default)
            for parameter, default in defaults.items()
        ]
    )
    return run


def _only_a_worker_runs_it(*_: torch.Tensor) -> NoReturn:
    raise RuntimeError("a user's implementation is run by a worker only")
