"""CUDA and C++ files split into top-level declarations, and those that a kernel or a function reaches.

Of a kernel the compiler says which functions it reaches: NVRTC's debug information names the lines of every
function in the machine code of one template instance, and every type.  So of several overloads or
specialisations only those that are called count.  What has no machine code, such as macros, types and
constants, is found by name.  Host code is followed by name alone: there all overloads of a name count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pygments.token import String

from compare.code_size.pieces import Piece, is_comment, is_directive, lexed
from compare.code_size.sources import KERNELS, with_includes
from compare.code_size.steps import of_ptx
from cuda_impl import build, flags

_TOOLS = ("tensor.h",)
_ATTRIBUTE = re.compile(r"\b(__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
_TYPE = re.compile(r"\s*(?:struct|class|union|enum(?:\s+class)?)\s+(\w+)")
_SPECIALISATION = re.compile(
    r"\s*template\s*<([^{}()]*?)>\s*(?:struct|class|union)\s+(\w+)\s*<(.*?)>\s*(?::[^:{]*)?\{", re.DOTALL
)
_OTHER_NAMES = (
    re.compile(r"\s*#\s*define\s+(\w+)"),
    re.compile(r"\s*using\s+(\w+)\s*="),
    re.compile(r".*?\b(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=|;|\{|$)", re.DOTALL),
)


@dataclass(frozen=True)
class Instance:
    """What the compiled code of one kernel rests on."""

    lines: dict[str, tuple[int, ...]]
    """Lines of each file with code in it; the file is empty for CUDA text of a Python file."""
    types: tuple[str, ...]
    """Instances of class templates, ``Pack<__half,8>``."""
    steps: tuple[str, ...] = ()
    """As of `compare.code_size.steps`."""


def compiled(source: str, name: str) -> Instance:
    """The lines, types and steps of one template instance; the first two by NVRTC's debug information.

    For that nothing is optimised, so that no call is lost.  It takes half a second.

    Args:
        source: an op's name or CUDA text.
        name: the kernel as a C++ expression, ``softmax_online_kernel<float, 4, 2, 1024>``.

    Raises:
        BuildError: there is no NVRTC, or it refuses the source.
    """
    return _compiled(source, name, build.headers_digest(source))


@functools.cache
def _compiled(source: str, name: str, headers: str) -> Instance:
    options = [
        o for o in flags.nvrtc(_ARCH, build.cuda_include()) if not o.startswith(("-arch", "-lineinfo"))
    ]

    def compiled_with(option: str) -> build.ByNvrtc:
        words = (*options, "-default-device", _PTX_ONLY, option)
        return build.compile_nvrtc(source, (name,), words)

    debug, optimised = compiled_with("-G"), compiled_with("-lineinfo")
    ptx = debug.ptx.decode()
    files = {number: _file(path) for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', ptx)}
    lines: dict[str, set[int]] = {}
    for number, line in re.findall(r"\.loc\s+(\d+)\s+(\d+)", _reached_in(ptx, debug.mangled[name])):
        if (file := files[number]) is not None:
            lines.setdefault(file, set()).add(int(line))
    return Instance(
        {file: tuple(sorted(found)) for file, found in lines.items()},
        tuple(_types(ptx)),
        of_ptx(_reached_in(optimised.ptx.decode(), optimised.mangled[name])),
    )


_ARCH = "sm_90"
_PTX_ONLY = f"-arch={flags.target(_ARCH).replace('sm', 'compute')}"
_PTX_FUNCTION = re.compile(r"^\.(?:\w+ \.)?(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)", re.MULTILINE)


def _reached_in(ptx: str, entry: str) -> str:
    """The text of a kernel and of the functions that it calls: others of the source may be there too."""
    _, *parts = _PTX_FUNCTION.split(ptx)
    bodies: dict[str, str] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):  # of a prototype the body is empty
        bodies[name] = bodies.get(name, "") + body
    found: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in bodies and name not in found:
            found[name] = bodies[name]
            waiting += re.findall(r"[\w$]+", " ".join(re.findall(r"\bcall[^;]*;", bodies[name])))
    return "\n".join(found.values())


def _file(path: str) -> str | None:
    """A kernel file's path, empty for the compiled text itself; None for CUDA's headers."""
    found = Path(path).resolve()
    return str(found) if found.is_relative_to(KERNELS) else "" if found.name == "kernels.cu" else None


def _types(ptx: str) -> list[str]:
    """The names with template arguments in the debug information, which PTX writes byte by byte."""
    _, _, section = ptx.partition(".debug_info")
    numbers = re.findall(r"\d+", " ".join(re.findall(r"\.b8 ([\d, ]+)", section)))
    words = re.findall(rb"[ -~]+", bytes(int(number) & 255 for number in numbers))
    return sorted({word.decode() for word in words if re.fullmatch(rb"\w+<.*>", word)})


@dataclass(frozen=True)
class Unit:
    """Declarations of one or more files."""

    pieces: tuple[Piece, ...]
    named: dict[str, tuple[Piece, ...]]

    def reached(self, names: Iterable[str]) -> list[Piece]:
        """All pieces of these names and every piece they use, directly or not, in breadth-first order."""
        return self._with_used([piece for name in names for piece in self.named.get(name, ())], None)

    def of_instance(self, instance: Instance) -> list[Piece]:
        """The pieces that hold compiled lines, and the macros, types and constants that they use."""
        lines = instance.lines
        called = [
            piece for piece in self.pieces if any(n in piece.lines_of_file for n in lines.get(piece.file, ()))
        ]
        return self._with_used(called, instance.types)

    def _with_used(self, pieces: Iterable[Piece], types: Collection[str] | None) -> list[Piece]:
        """These pieces and all that they use by name; with ``types`` only what has no machine code."""
        found = dict.fromkeys(pieces)
        names = {_name(piece.text) for piece in found}
        waiting = list(found)
        while waiting:
            for word in _words(waiting.pop(0)):
                for used in self.named.get(word, ()):
                    if used not in found and (types is None or _counts(used.text, word in names, types)):
                        found[used] = None
                        waiting.append(used)
        return list(found)


def _counts(text: str, is_called: bool, types: Collection[str]) -> bool:
    """Whether a declaration without compiled lines counts where its name is used."""
    if text.startswith("#") or _TYPE.match(_head(text)):
        return _fits(text, types)
    if _function_name(_head(text)) is None:
        return True  # a constant or an alias
    return is_called if text.endswith(";") else re.search(r"\bconst(?:expr|eval)\b", _head(text)) is not None


def _fits(text: str, types: Collection[str]) -> bool:
    """Whether a type is no specialisation, or one of an instance of its template."""
    found = _SPECIALISATION.match(_ATTRIBUTE.sub("", text))
    if found is None:
        return True
    own = {words[-1] for part in found[1].split(",") if (words := re.findall(r"\w+", part))}
    pattern = "".join(
        r"[^,]+" if word in own else re.escape(word) for word in re.findall(r"\w+|[^\w\s]", found[3])
    )
    return any(re.fullmatch(rf"{found[2]}<{pattern}>", re.sub(r"\s", "", name)) for name in types)


def is_source(text: str) -> bool:
    """Whether a launch's source is CUDA text, not the name of a kernel file."""
    return "__global__" in text


def unit_of(source: str) -> Unit:
    """An op's kernel file or CUDA text, with the kernel files that it includes."""
    if not is_source(source):
        return file_unit(KERNELS / f"{source}.cuh")
    includes = build.included(source)
    return _united([text_unit(source), *(text_unit(text, str(path)) for path, text in includes.items())])


def file_unit(path: Path) -> Unit:
    """A file with its includes from its folder and below, without those that serve every op."""
    files = sorted(
        file for file in with_includes(path) if file.is_relative_to(path.parent) and file.name not in _TOOLS
    )
    return _united(text_unit(file.read_text(encoding="utf-8"), str(file)) for file in files)


@functools.cache
def text_unit(text: str, file: str = "") -> Unit:
    """The declarations of source text, without its includes."""
    return _unit(Piece(part, "cuda", file, line) for line, part in _declarations(text))


def _united(units: Iterable[Unit]) -> Unit:
    return _unit(piece for unit in units for piece in unit.pieces)


def _unit(pieces: Iterable[Piece]) -> Unit:
    found = tuple(dict.fromkeys(pieces))
    named: dict[str, tuple[Piece, ...]] = {}
    for piece in found:
        name = _name(piece.text)
        named[name] = (*named.get(name, ()), piece)
    return Unit(found, named)


@dataclass(frozen=True)
class HostCode:
    """The code of a variant in ``pybind/<op>.cu``."""

    binding: Piece
    """Its own statement in the module."""
    module: Piece
    """The module without the statements of variants."""
    launch: list[Piece]
    """What the binding names: the exported function,"""
    others: list[Piece]
    """and all that it uses."""


def host_code(path: Path, variant: str) -> HostCode:
    """The module of a ``pybind/<op>.cu`` with this variant's statement, and the code that it exports."""
    unit = file_unit(path)
    (module,) = unit.named["PYBIND11_MODULE"]
    head, _, body = module.text.partition("{")
    own = re.compile(rf'm\s*\.\s*def\s*\(\s*"{re.escape(variant)}"')
    statements = [statement for _, statement in _declarations(body.rpartition("}")[0])]
    binding = Piece("\n".join(filter(own.match, statements)), "cuda", module.file)
    rest = [statement for statement in statements if not re.match(r"m\s*\.\s*def\b", statement)]
    names = [name for name in _words(binding) if name in unit.named]
    return HostCode(
        binding,
        Piece("\n".join([f"{head.strip()} {{", *rest, "}"]), "cuda", module.file),
        [piece for name in names for piece in unit.named[name]],
        [
            piece
            for piece in unit.reached([*names, *_words(Piece("\n".join(rest), "cuda"))])
            if _name(piece.text) not in names
        ],
    )


def _words(piece: Piece) -> list[str]:
    """The identifiers in a piece's code, each once."""
    code = "".join(value for token, value in lexed(piece) if token not in String)
    return list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", code)))


def _declarations(text: str) -> Iterator[tuple[int, str]]:
    """Top-level declarations and macros without comments, each with its first line.

    Namespaces are opened, other directives dropped.
    """
    part, directive, depth, line, first = "", "", 0, 1, 1
    for token, value in lexed(Piece(text, "cuda")):
        ends_directive = bool(directive) and is_comment(token) and value.endswith("\n")
        if is_comment(token) and not ends_directive:
            part += value
        elif ends_directive or (is_directive(token) and depth == 0):
            first = first if directive else line
            directive += value
            if value.endswith("\n") and not directive.rstrip("\n").endswith("\\"):
                if re.match(r"#\s*define\b", directive):
                    yield first, directive.strip()
                directive = ""
        elif directive:  # space within a directive
            directive += value
        else:
            at = line
            for char in [value] if token in String or is_directive(token) else value:
                first = first if part.strip() else at
                at += char.count("\n")
                if char == "{" and depth == 0 and re.match(r"\s*namespace\b[\w\s:]*$", part):
                    part = ""
                elif char == "}" and depth == 0:
                    part = ""  # of a namespace
                else:
                    part += char
                    depth += (char in "({[") - (char in ")}]") if len(char) == 1 else 0
                    if depth == 0 and (char == ";" or (char == "}" and not _goes_on(part))):
                        yield first, part.strip()
                        part = ""
        line += value.count("\n")


def _goes_on(part: str) -> bool:
    """Whether a declaration needs a semicolon after its closing brace: types and variables do."""
    return _TYPE.match(_head(part)) is not None or _function_name(_head(part)) is None


def _name(part: str) -> str:
    head = _head(part)
    found = _TYPE.match(head)
    if found is None and not part.lstrip().startswith("#"):
        function = _function_name(head)
        if function is not None:
            return function
    names = (found, *(pattern.match(head) for pattern in _OTHER_NAMES))
    return next((match[1] for match in names if match), "")


def _head(part: str) -> str:
    """A declaration up to its body, without template parameters and alignment attributes."""
    head = re.sub(r"^\s*template\s*<[^{}()]*?>", "", part)
    return _ATTRIBUTE.sub("", head).partition("{")[0]


def _function_name(head: str) -> str | None:
    """The name before the last parentheses, if only words follow them and no value is assigned."""
    head = re.sub(r"\boperator\s*[^\w\s(]+", "operator_", head)
    while head != (head := re.sub(r"\([^()]*\)", "@", head)):
        pass  # replaces each pair of parentheses by a mark, from the inside out
    found = re.search(r"(\w+)\s*(?:<[^@]*>)?\s*@[\s\w;]*$", head)
    return found[1] if found and not re.search(r"(?<![=!<>])=(?!=)", head) else None
