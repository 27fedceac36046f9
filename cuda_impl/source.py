"""CUDA text from a user's file: rewritten for g++, and compilers' messages with the user's line numbers."""

from __future__ import annotations

import itertools
import re
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from textwrap import shorten

from cuda_impl.flags import KERNELS

_ERRORS = 5
"""Of a compiler's errors in the first line of a message; all of them are in its log."""
_ERROR_LENGTH = 160
_LINE_LENGTH = 60
_NOT_USERS = (Path(sysconfig.get_path("stdlib")), KERNELS.parent.parent)
"""Folders with modules of Python and of this project."""

# --------------------------------------------------------------------------- for g++

_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|(?m:^)[ \t]*#(?:\\\n|[^\n])*', re.DOTALL
)
"""Comments, strings, and lines of the preprocessor."""

_IN_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_ALIGNED = rf"(?:alignas|__align__|__attribute__)\s*{_IN_PARENTHESES}\s*"
_BUFFER = r"(\w+)\s*(\[\s*\](?:\s*\[[^\]]*\])*)"
_DYNAMIC = re.compile(
    rf"(?:\bvolatile\s+|{_ALIGNED})*"
    rf"\b(?:extern\s+(?:volatile\s+|{_ALIGNED})*__shared__|__shared__\s+extern)\b"
    rf"(?P<type>[^;{{}}=\[\]]*?)(?P<buffers>\b{_BUFFER}(?:\s*,\s*{_BUFFER})*)\s*;"
)
_STATIC = re.compile(rf"\b(?:static\s+)?(__shared__)\s+(alignas\s*{_IN_PARENTHESES})|\bstatic\s+(__shared__)")
_FUNCTION_BEGINS = re.compile(r"\)\s*(?:const|noexcept|\s)*$")


def for_host(text: str) -> str:
    """``text`` as g++ takes it with ``host/device.h``, every line where it was.

    ``extern __shared__ T buffer[];`` becomes a reference to the block's dynamic shared memory: in place
    within a function, else at the start of each later function that names the buffer.  g++ takes
    ``alignas`` only before other specifiers.
    """
    code = code_only(text)
    functions = list(_functions(code))
    edits: list[tuple[int, int, str]] = []
    for found in _DYNAMIC.finditer(code):
        begin, end = found.span()
        lines = "\n" * code.count("\n", begin, end)
        references = _references(found)
        inside = any(body < begin < stop for _, body, stop in functions)
        edits.append((begin, end, ("".join(references.values()) if inside else "") + lines))
        for name, reference in references.items() if not inside else ():
            named = re.compile(rf"\b{name}\b")
            edits += [
                (body, body, reference)
                for head, body, stop in functions
                if body > end and named.search(code, body, stop) and not named.search(code, head, body)
            ]
    for found in _STATIC.finditer(code):
        aligned = f"{found[2]} {found[1]}" if found[1] else found[3]
        edits.append((*found.span(), aligned + "\n" * code.count("\n", *found.span())))
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def code_only(text: str) -> str:
    """``text`` with blanks for all that is no code, so that offsets stay."""
    return _NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _references(found: re.Match[str]) -> dict[str, str]:
    """By buffer of a declaration, the reference that stands for it."""
    kind = " ".join(re.sub(_ALIGNED, "", found["type"]).split())
    if "volatile" in found[0] and "volatile" not in kind:
        kind = f"volatile {kind}"
    shared = f"reinterpret_cast<{kind} (*)%s>(host::dynamic_shared())"
    return {
        name: f" [[maybe_unused]] {kind} (&{name}){sizes} = *{shared % sizes};"
        for name, sizes in re.findall(_BUFFER, found["buffers"])
    }


def _functions(code: str) -> Iterator[tuple[int, int, int]]:
    """Of each function the offsets of its head, its body and its end."""
    depth = 0
    head = body = 0
    for brace in re.finditer(r"[{};]", code):
        at = brace.start()
        if depth == 0:
            if brace[0] == "{" and _FUNCTION_BEGINS.search(code, head, at):
                depth, body = 1, at + 1
            else:
                head = at + 1
        elif brace[0] != ";":
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                yield head, body, at
                head = at + 1


# --------------------------------------------------------------------------- what compilers say

_PLACE = re.compile(r"(?m)^(?P<file>[^\s:(][^:(\n]*)(?:\((?P<nvcc>\d+)\)|:(?P<gxx>\d+)(?::\d+)?): ")
_ERROR = re.compile(
    r"(?m)^(?:(?P<place>\S[^\n]*?): )?(?:fatal |catastrophic )?error(?:\s[^:\n]*)?: *(?P<said>.*)"
)


def by_users_lines(log: str, text: str) -> str:
    """A compiler's ``log`` with the places of the user's file in place of those of the compiled ``text``."""

    def users(found: re.Match[str]) -> str:
        file, line = Path(found["file"]), int(found["nvcc"] or found["gxx"])
        if file.suffix in (".cpp", ".cu") and not file.is_relative_to(KERNELS.parent):
            where = place(text, line)
            return f"{where}: " if where else ""
        return f"{file.name}:{line}: "

    return _PLACE.sub(users, log)


def errors_in(log: str) -> str:
    """All errors of a compiler's ``log`` in one line, within limits; empty if it has none."""
    found = []
    for error in _ERROR.finditer(log):
        place, said = error["place"], shorten(error["said"], _ERROR_LENGTH)
        found.append(f"{place}: {said}" if place else said)
    found = list(dict.fromkeys(found))
    if not found and "No space left on device" in log:  # the assembler's, and the linker's
        return "no space left on device: 'python -m compare doctor' names the cache's folder"
    more = f"; and {len(found) - _ERRORS} more" if len(found) > _ERRORS else ""
    return "; ".join(found[:_ERRORS]) + more


def place(text: str, line: int) -> str:
    """``my_softmax.py:31``: where a user's file has a line of ``text``; empty for a line behind its end."""
    lines = text.split("\n")
    if line > len(lines):
        return ""
    wanted = lines[line - 1].strip()
    held = {file: file.read_text(errors="replace") for file in _users_files()}
    for file, whole in held.items():
        at = whole.find(text.strip())
        if at >= 0:
            blank = text.count("\n", 0, len(text) - len(text.lstrip()))
            return f"{file.name}:{whole.count(chr(10), 0, at) + line - blank}"
    # A text that is put together: the line itself, where it is written once.
    for file, whole in held.items():
        places = [n for n, other in enumerate(whole.split("\n"), 1) if wanted and other.strip() == wanted]
        if len(places) == 1:
            return f"{file.name}:{places[0]}"
    return f"line {line} of the CUDA text, '{shorten(wanted, _LINE_LENGTH)}'"


def _users_files() -> Iterator[Path]:
    """Modules that are neither Python's, a package's nor the project's, and the CUDA files beside them.

    First those that were given to ``--load`` or are run as a program.
    """

    modules = list(sys.modules.items())  # to look at a lazy module imports it
    files = {name: Path(getattr(module, "__file__", None) or "") for name, module in modules}
    given = [file for name, file in files.items() if name == "__main__" or name.startswith("_loaded_")]
    others = [
        file
        for file in files.values()
        if "site-packages" not in file.parts and not any(map(file.is_relative_to, _NOT_USERS))
    ]
    for file in dict.fromkeys((*given, *others)):
        if file.is_file() and file.suffix in (".py", ".cu"):
            yield file
            yield from sorted(file.parent.glob("*.cu*"))


# --------------------------------------------------------------------------- host code in a kernel's text

_LAUNCH = re.compile(
    r"(?P<kernel>\b\w+\s*(?:<[^<>;]*>)?)\s*<<<(?P<sizes>.*?)>>>\s*\((?P<arguments>[^;]*)\)\s*;", re.DOTALL
)
_HOST_API = re.compile(
    r"<<<|\b(?:torch|at|c10|pybind11|py|std|thrust|cub)::|\bcuda[A-Z]\w*\s*\(|\bPYBIND11_MODULE\b|\bTORCH_\w+\s*\("
)
_HOST_HEADER = re.compile(
    r"(?m)^[ \t]*#[ \t]*include[ \t]*[<\"]"
    r"((?:torch|ATen|c10|pybind11|cub|thrust)/[^>\"]*|iostream|vector|Python\.h)[>\"]"
)
_FOR_PYTORCH = re.compile(r"(?ms)^[ \t]*#[ \t]*ifdef[ \t]+TORCH_EXTENSION_NAME\b.*?^[ \t]*#[ \t]*endif\b")
"""Host code that no compiler here sees."""
_LAUNCH_LINE = re.compile(r"(?m)^[ \t]*//[ \t]*compare\b[^:\n]*:")
_LIBRARIES = ("cub/", "thrust/")


def advice(text: str) -> str:
    """What to change where a kernel's ``text`` holds host code, in a sentence; empty where it holds none.

    NVRTC and the CPU build take device code only: they launch kernels from Python.
    """
    text = _FOR_PYTORCH.sub(lambda found: "\n" * found[0].count("\n"), text)
    code = code_only(text)
    headers = [*_HOST_HEADER.finditer(text)]
    lines = {_line_of(text, header.start()) for header in headers}
    for head, body, stop in _functions(code):
        if _HOST_API.search(code, head, stop) and not re.search(r"__global__|__device__", code[head:body]):
            begin = head + len(code[head:body]) - len(code[head:body].lstrip())
            lines |= {*range(_line_of(code, begin), _line_of(code, stop) + 1)}
    if not lines:
        return ""
    where = place(text, min(lines))
    _, _, in_file = where.rpartition(":")
    shift = int(in_file) - min(lines) if in_file.isdigit() else 0
    what = f"{where}: a kernel's text is device code only. Take out {_ranges({n + shift for n in lines})}"
    library = next((header[1] for header in headers if header[1].startswith(_LIBRARIES)), None)
    if library is not None:
        return f"{what}: {library} is not available here; write the reduction or scan out, with shuffles"
    if _LAUNCH_LINE.search(text):
        return f"{what}; the line // compare: ... launches the kernel"
    call = 'kernel(SOURCE, "NAME", x.device)((grid,), (block,), (...))'
    if launch := _LAUNCH.search(code):
        call = _in_python(text, launch)
    return f"{what}, and launch from Python: {call}"


def _line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _ranges(numbers: Collection[int]) -> str:
    """``line 1 and lines 8-11``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    words = [f"line {first}" if first == last else f"lines {first}-{last}" for first, last in spans]
    return " and ".join(words)


def _in_python(text: str, launch: re.Match[str]) -> str:
    """The launch ``add<<<(n + 255) / 256, 256>>>(a, b, c, n)`` as a call in Python."""
    sizes = split(launch["sizes"])
    grid, block = (_dim(size) for size in (*sizes, "1", "1")[:2])
    kinds = [kind for kind, _ in parameters_of(text, launch["kernel"])]
    words = [
        re.sub(r"\.(?:mutable_|const_)?data_ptr\s*(?:<[^<>]*>)?\s*\(\)", "", word)
        for word in split(launch["arguments"])
    ]
    passed = [
        _passed(word, kind) for word, kind in itertools.zip_longest(words, kinds[: len(words)], fillvalue="")
    ]
    tensor = next((word for word, kind in zip(words, kinds, strict=False) if "*" in kind), "x")
    shared = f", shared_mem={_divided(sizes[2])}" if len(sizes) > 2 and sizes[2] != "0" else ""
    return f'kernel(SOURCE, "{launch["kernel"]}", {tensor}.device)({grid}, {block}, {_tuple(passed)}{shared})'


def _tuple(words: Sequence[str]) -> str:
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


def _passed(argument: str, kind: str) -> str:
    if "*" in kind:
        return f"{argument}.data_ptr()"
    numpy = next((numpy for word, numpy in _NUMPY.items() if re.search(rf"\b{word}\b", kind)), "int32")
    return f"np.{numpy}({argument})"


_NUMPY = {"float": "float32", "double": "float64", "size_t": "uint64", "int64_t": "int64", "long": "int64"}


def _dim(size: str) -> str:
    triple = re.fullmatch(r"dim3\s*\((.*)\)", size, re.DOTALL)
    sizes = split(triple[1]) if triple else [size]
    return _tuple([_divided(size) for size in sizes])


def _divided(size: str) -> str:
    return re.sub(r"(?<!/)/(?!/)", "//", size)


def split(words: str) -> list[str]:
    """``words`` at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in words:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def parameters_of(text: str, kernel: str) -> list[tuple[str, str]]:
    """Type and name of each parameter of a kernel in CUDA text; empty where it is not found there.

    Args:
        text: CUDA text.
        kernel: its name, or the C++ expression of an instance: ``add<float>``.
    """
    name = re.escape(kernel.partition("<")[0].rpartition("::")[2].strip())
    head = re.search(rf"__global__[^;{{}}]*?\b{name}\s*\(([^{{;]*?)\)\s*\{{", code_only(text))
    declared = split(head[1]) if head else []
    pairs = (
        re.fullmatch(r"(.*?)(\w+)\s*(?:\[\s*\])?", each.partition("=")[0].strip(), re.DOTALL)
        for each in declared
    )
    return [(pair[1].strip(), pair[2]) for pair in pairs if pair]


def with_names(problem: str, text: str, kernel: str) -> str:
    """``problem`` with the name of the parameter beside ``argument 3``, where CUDA ``text`` declares it."""
    names = [name for _, name in parameters_of(text, kernel)]

    def named(found: re.Match[str]) -> str:
        index = int(found[1])
        return f"{found[0]} ({names[index]})" if index < len(names) else found[0]

    return re.sub(r"\bargument (\d+)", named, problem)
