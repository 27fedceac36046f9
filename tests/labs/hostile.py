'''Hand-ins that try to fool, to fill or to leave the grader: what each is, and what must come of it.

Kinds, as of issue 46.  A: marks follow from the student's words, names and files.  B: the judge reads data of
others.  C: isolation, stopping, memory, processes and what is left behind.
'''

from __future__ import annotations

import io
import os
import py_compile
import socket
import struct
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from right_files import ALL, changed

RIGHT = {right.file: right.text for right in ALL if right.lab == "01"}
TRITON, CUDA = "triton_add.py", "cuda_add.py"
FULL = 5
"""Points of a file that is right: for its values, and for its registers."""
RUBRIC = """
title = "Hostile"
op = "vector_add"
hours = 1
hint = []
prediction = []

[tiers]
cpu = "All."
t4 = "All."
ampere = "All."
hopper = "All."

[[task]]
title = "Triton"
file = "triton_add.py"
label = "triton.mine"
reference = "triton.blocked"
group = [
    { name = "short", points = 2, cases = ["N=1000,fp32"] },
    { name = "long", points = 2, cases = ["N=2049,fp16"] },
]
limit = [{ figure = "registers", at_most = 128, points = 1 }]

[[task]]
title = "CUDA"
file = "cuda_add.py"
label = "cupy.mine"
reference = "cupy.scalar"
group = [
    { name = "short", points = 2, cases = ["N=1000,fp32"] },
    { name = "long", points = 2, cases = ["N=2049,fp16"] },
]
limit = [{ figure = "registers", at_most = 128, points = 1 }]

[[question]]
name = "why"
text = "Why?"
points = 1
"""
ANSWERS = 'lab = "01"\n[predictions]\n[answers]\nwhy = ""\n'


@dataclass(frozen=True)
class HandIn:
    """One hostile hand-in.

    Args:
        kind: A, B or C.
        build: fills the student's folder, which is there.
        points: it gets, of its one file; ``FULL``: the attempt changes nothing.
        says: a pattern in the reason of a part; empty: none is needed.
        name: of its folder.
    """

    kind: str
    build: Callable[[Path], object]
    points: float
    says: str = ""
    name: str = ""


def put(folder: Path, name: str, content: str | bytes, answers: str = ANSWERS) -> None:
    (folder / "answers.toml").write_text(answers)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def file(name: str, content: str | bytes, **more: str | bytes) -> Callable[[Path], None]:
    """A hand-in of one file, and others beside it: ``_`` stands for a dot in their names."""

    def build(folder: Path) -> None:
        put(folder, name, content)
        for other, text in more.items():
            put(folder, other.replace("_dot_", "."), text)

    return build


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip("\n").split("\n"))


FIRST_LINE = "    x, y = x.contiguous(), y.contiguous()\n"


def top(code: str, name: str = TRITON) -> str:
    """A right file that does more when it is loaded."""
    return RIGHT[name] + "\n\n" + code


def inside(code: str, name: str = TRITON, before: str = "") -> str:
    """A right file that does more when it is called."""
    return changed(RIGHT[name], (FIRST_LINE, indented(code) + FIRST_LINE)) + "\n\n" + before


def instead(code: str, name: str = TRITON, before: str = "") -> str:
    """A file whose function does something else."""
    text = RIGHT[name]
    return text[: text.index(FIRST_LINE)] + indented(code) + "\n\n" + before


def cuda(*changes: tuple[str, str]) -> Callable[[Path], None]:
    return file(CUDA, changed(RIGHT[CUDA], *changes))


KERNEL = "// Thread n adds element n.\n"


def source(text: str) -> Callable[[Path], None]:
    """A right CUDA file with more text before its kernel."""
    return cuda((KERNEL, text + "\n" + KERNEL))


def answers(text: str | bytes) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        put(folder, TRITON, RIGHT[TRITON])
        (folder / "answers.toml").write_bytes(text if isinstance(text, bytes) else text.encode())

    return build


LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def refused_call(number: int, *arguments: object) -> Callable[[Path], None]:
    """A system call that has to fail; the rest is right."""
    words = ", ".join(map(str, (number, *arguments)))
    code = f"assert libc.syscall({words}) < 0, 'reached'"
    return file(TRITON, inside(code, before=LIBC))


def loaded(code: str, name: str = TRITON) -> Callable[[Path], None]:
    return file(name, top(code, name))


def called(code: str, name: str = TRITON, before: str = "") -> Callable[[Path], None]:
    return file(name, inside(code, name, before))


def replaced(code: str, name: str = TRITON, before: str = "") -> Callable[[Path], None]:
    return file(name, instead(code, name, before))


# --------------------------------------------------------------------------- A: marks

RAISES = "exec({!r})"
NO_SANITIZER = "type('compute-sanitizer does not start here', (Exception,), {})('no device')"

A: dict[str, tuple[Callable[[Path], object], float, str]] = {
    # Work that is not a kernel of its own.
    "numpy_adds": (replaced("return torch.from_numpy(x.numpy() + y.numpy())"), 0, "kernel"),
    "torch_by_c": (replaced("return torch._C._VariableFunctions.add(x, y)"), 0, "own work"),
    "torch_scripted": (
        replaced("return adds(x, y)", before="adds = torch.jit.trace(lambda x, y: x + y, (torch.ones(2), torch.ones(2)))"),
        0,
        "",
    ),
    "torch_by_einsum": (replaced("return torch.einsum('in->n', torch.stack([x, y]))"), 0, "own work"),
    "torch_by_subclass": (
        replaced(
            "return torch.Tensor.__add__(x.as_subclass(Mine), y).as_subclass(torch.Tensor)",
            before="class Mine(torch.Tensor): pass",
        ),
        0,
        "own work",
    ),
    "torch_by_other_dispatch": (
        replaced("with torch._C._DisableTorchDispatch():\n    return x + y"), 0, "",
    ),
    "torch_in_another_thread": (
        replaced("with ThreadPoolExecutor(1) as pool:\n    return pool.submit(torch.add, x, y).result()",
                 before="from concurrent.futures import ThreadPoolExecutor"),
        0, "",
    ),
    "python_adds_by_pointer": (
        replaced(
            "z = torch.empty_like(x)\nkind = ctypes.c_float if x.dtype == torch.float32 else ctypes.c_uint16\n"
            "a, b, c = (ctypes.cast(t.data_ptr(), ctypes.POINTER(kind)) for t in (x, y, z))\n"
            "for i in range(x.numel()): c[i] = a[i] + b[i]\nreturn z",
            before="import ctypes",
        ), 0, "kernel",
    ),
    "pythons_inside_a_kernel": (
        file(TRITON, changed(RIGHT[TRITON], ("    inside = n < N\n", "    import numpy as np\n    inside = np.less(n.handle.data, N.handle.data)\n"))),
        0, "",
    ),
    "reference_by_the_registry": (
        replaced("return registry._implementations['vector_add']['triton.blocked'].call(x, y)", before="from compare import registry"),
        0, "KeyError|own code",
    ),
    "reference_by_import_module": (
        replaced("return importlib.import_module('triton_impl.vector_add').blocked(x, y)", before="import importlib"),
        0, "own code|No module",
    ),
    "reference_without_import_hooks": (
        replaced("sys.meta_path[:] = [m for m in sys.meta_path if 'Own' not in type(m).__name__]\n"
                 "return importlib.import_module('triton_impl.vector_add').blocked(x, y)", before="import importlib, sys"),
        0, "No module",
    ),
    "reference_by_runpy": (
        replaced("return runpy.run_path(registry.ROOT / 'triton_impl/vector_add.py')['blocked'](x, y)",
                 before="import compare.registry as registry, runpy"), 0, "",
    ),
    "reference_of_the_baseline": (
        replaced("return sys.modules['compare.registry'].implementations('vector_add')[0].call(x, y)", before="import sys"), 0, "",
    ),
    "header_by_a_macro": (source('#define H "vector_add.cuh"\n#include H'), 0, "own code|vector_add.cuh"),
    "header_by_a_path": (source('#include "../kernels/vector_add.cuh"'), 0, "own code|vector_add.cuh"),
    "header_by_two_strings": (
        cuda(('SOURCE = r"""', 'SOURCE = "#include " + \'"vector_\' + \'add.cuh"\' + r"""')), 0, "own code|vector_add.cuh",
    ),
    "kernel_by_name_of_the_op": (
        cuda(("kernel(SOURCE,", "kernel(''.join(['vector', '_add']),")), 0, "",
    ),
    "classmates_text": (source('#include "../witness/cuda_add.py"'), 0, "witness"),
    "host_build_of_the_reference": (
        called(
            "for so in glob.glob(os.environ['COMPARE_CACHE_SHARED'] + '/**', recursive=True):\n"
            "    assert not os.path.isfile(so) or b'add_scalar_kernel' not in open(so, 'rb').read(), 'reached'",
            before="import glob, os",
        ), FULL, "",
    ),
    # Words, names and declarations.
    "says_no_sanitizer": (called(RAISES.format(f"raise {NO_SANITIZER}")), 0, "compute-sanitizer"),
    "says_the_judge_failed": (called("raise RuntimeError('the judge failed in starting. Run it again')"), 0, "judge failed"),
    "says_it_is_left_out": (called("raise type('Ended', (Exception,), {'by_judge': True, 'retry': True})('machine')"), 0, ""),
    "says_out_of_memory": (called("raise torch.OutOfMemoryError('CUDA out of memory')"), 0, "refuses|memory"),
    "says_build_error": (called("raise type('BuildError', (Exception,), {})('static assertion failed: needs more')"), 0, ""),
    "refuses_by_a_usage_error": (called("raise UsageError('not here')", before="from compare.registry import UsageError"), 0, "refuses"),
    "refuses_the_second_case": (called("if x.numel() != 1000: raise NotImplementedError('whole blocks only')"), 2, "refuses"),
    "registers_the_reference": (
        file(TRITON, RIGHT[TRITON].replace('"triton.mine"', '"triton.blocked"')), 0, "triton.blocked|triton.mine",
    ),
    "registers_the_baseline": (
        loaded("@implementation('vector_add', 'torch.eager', level='naive')\ndef other(x, y):\n    return x * 0"), 0, "torch.eager",
    ),
    "registers_twice": (
        loaded("@implementation('vector_add', 'triton.mine', level='naive')\ndef other(x, y):\n    return x"), 0, "triton.mine",
    ),
    "registers_the_op": (
        loaded("from compare.registry import register_op\nfrom compare.model.op import Op\nregister_op(Op(name='vector_add'))"), 0, "",
    ),
    "registers_by_its_own_name": (
        file(TRITON, RIGHT[TRITON].replace("@implementation(", "@(lambda *a, **k: implementation(*a, **k))(")), 0, "",
    ),
    "swaps_its_row_when_run": (
        loaded("from compare import registry\nfor labels in registry._implementations.values():\n"
               "    labels['triton.mine'] = labels.get('torch.eager', labels.get('triton.mine'))"), FULL, "",
    ),
    "declares_a_low_precision": (
        file(TRITON, changed(RIGHT[TRITON], ('level="tiled"', 'level="tiled", accumulator="bf16"'),
             ("tl.load(x_ptr + n, mask=inside) +", "1.004 * tl.load(x_ptr + n, mask=inside) +"))),
        0, "",
    ),
    "declares_a_match": (
        file(TRITON, changed(instead("return x"), ('level="tiled"', 'level="tiled", matches="triton.blocked"'))), 0, "",
    ),
    "declares_itself_untuned": (
        file(TRITON, changed(instead("return x"), ('level="tiled"', 'level="tiled", untuned="triton.blocked"'))), 0, "",
    ),
    "bytecode_of_another_file": (
        lambda folder: _stale_bytecode(folder), 0, "",
    ),
    "annotated_literal_of_an_object": (
        file(TRITON, changed(RIGHT[TRITON], ('level="tiled"', "level=''.join(['tiled'])"))), 0, "literal",
    ),
    # Values.
    "negative_bit": (replaced("return torch._neg_view(-x - y)"), 0, ""),
    "returns_an_expanded_zero": (called("return torch.zeros(1, dtype=x.dtype).expand(x.numel())"), 0, ""),
    "returns_a_meta_tensor": (called("return torch.empty_like(x, device='meta')"), 0, ""),
    "returns_a_subclass": (
        called("return torch.empty_like(x).as_subclass(Equal)",
               before="class Equal(torch.Tensor):\n    def __eq__(self, other): return torch.ones(1, dtype=bool)\n    def __sub__(self, other): return other * 0"), 0, "",
    ),
    "returns_a_generator": (called("return (value for value in [x + y])"), 0, ""),
    "returns_a_sparse_tensor": (called("return torch.zeros_like(x).to_sparse()"), 0, ""),
    "returns_another_shape": (called("return torch.zeros(x.numel(), 1, dtype=x.dtype)"), 0, ""),
    "returns_an_emptied_storage": (called("z = torch.empty_like(x); z.untyped_storage().resize_(0); return z"), 0, ""),
    "returns_a_truncated_file": (
        called("import os, tempfile\nf = tempfile.NamedTemporaryFile(delete=False)\nos.truncate(f.name, 1 << 16)\n"
               "z = torch.from_file(f.name, shared=True, size=x.numel(), dtype=x.dtype)\nos.truncate(f.name, 0)\nreturn z"), 0, "SIGBUS",
    ),
    "right_for_seed_zero": (
        replaced("g = torch.Generator().manual_seed(0)\nreturn torch.randn(x.shape, generator=g).to(x.dtype)"), 0, "",
    ),
    "changes_after_its_return": (
        called(
            "z = torch.empty_like(x)\nthreading.Timer(0.001, lambda: [z.fill_(0) for _ in range(10_000)]).start()\nreturn z",
            before="import threading",
        ), 0, "",
    ),
    "wrong_every_second_time": (
        called("calls.append(1)\nif len(calls) % 2 == 0: return torch.zeros_like(x)", before="calls = []"), 0, "",
    ),
    "right_only_when_alone": (
        called("if open('/proc/loadavg').read(): return torch.zeros_like(x)"), 0, "",
    ),
    # What it patches stays in its own process.
    "patches_the_comparison": (
        loaded("torch.allclose = torch.equal = lambda *a, **k: True\ntorch.Tensor.__sub__ = lambda a, b: a * 0\n"
               "add_kernel.run = lambda *a, **k: None\nadd_kernel.__class__.__getitem__ = lambda *a: (lambda *b, **c: None)"), 0, "",
    ),
    "patches_builtins": (
        loaded("import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda a: 1000"), 0, "",
    ),
    "patches_time": (called("pass", before="import time\ntime.monotonic = time.perf_counter = lambda: 0.0\ntime.sleep = lambda s: None"), FULL, ""),
    "patches_the_judges_modules": (
        replaced("return torch.zeros_like(x)", before="import sys\nfor name in ('compare.checking.check', 'compare.checking.tolerance', 'compare.run.verdict'):\n"
               "    m = sys.modules.get(name)\n    for key in dir(m) if m else ():\n        if callable(getattr(m, key)): setattr(m, key, lambda *a, **k: True)"), 0, "",
    ),
    "replaces_modules": (
        loaded("import sys, types\nfor name in ('json', 'msgspec', 'compare.worker.messages', 'compare.labs.marking'): sys.modules[name] = types.ModuleType(name)"), FULL, "",
    ),
    "a_module_beside_it": (file(TRITON, RIGHT[TRITON], torch_dot_py="1/0", triton_dot_py="1/0", numpy_dot_py="1/0", ast_dot_py="1/0", json_dot_py="1/0"), FULL, ""),
    "start_files_beside_it": (
        file(TRITON, RIGHT[TRITON], sitecustomize_dot_py="1/0", usercustomize_dot_py="1/0", conftest_dot_py="1/0", mine_dot_pth="import os; os._exit(0)\n",
             pytest_dot_ini="[pytest]\naddopts=--x\n", pyproject_dot_toml="[tool.pytest]\n", setup_dot_cfg="x"), FULL, "",
    ),
    "a_lab_of_its_own": (file(TRITON, instead("return x"), lab_dot_toml=RUBRIC.replace("points = 2", "points = 200"), rubric_dot_toml="why='x'"), 0, ""),
    "marks_of_its_own": (
        lambda folder: [put(folder, TRITON, instead("return x")), (folder / "_marks").mkdir(),
                        (folder / "_marks" / "marks_of_its_own.json").write_text('{"student": "marks_of_its_own", "points": 99}')], 0, "",
    ),
}


def _stale_bytecode(folder: Path) -> None:
    """Its text does nothing, and bytecode that Python takes unchecked is right."""
    put(folder, TRITON, RIGHT[TRITON])
    text = folder / TRITON
    compiled = cache_from_source(str(text))
    py_compile.compile(str(text), compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    text.write_text(instead("return x"))


# --------------------------------------------------------------------------- B: data that the judge reads


def zipped(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as packed:
        for name, content in entries:
            packed.writestr(name, content)
    return stream.getvalue()


def archive(content: Callable[[], bytes]) -> Callable[[Path], None]:
    """A zip in place of the folder."""

    def build(folder: Path) -> None:
        folder.rmdir()
        folder.with_name(f"{folder.name}.zip").write_bytes(content())

    return build


def deep(folder: Path) -> None:
    """Folders within folders, deeper than a path may be long."""
    put(folder, TRITON, RIGHT[TRITON])
    here = os.open(folder, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def many(folder: Path) -> None:
    put(folder, TRITON, RIGHT[TRITON])
    for number in range(5000):
        (folder / f"{number}.txt").touch()


def socket_in_place(folder: Path) -> None:
    put(folder, "other.py", "")
    here = Path.cwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(TRITON)
    finally:
        os.chdir(here)


def overlapping() -> bytes:
    """A zip of 400 entries that share one compressed body of 16 MB: 6 GB when it is unpacked."""
    one = zipped(("a", bytes(16 << 20)))
    end = one.rindex(b"PK\5\6")
    directory = one[one.rindex(b"PK\1\2") : end]
    start = len(one[: one.rindex(b"PK\1\2")])
    entries = directory * 400
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 400, 400, len(entries), start, 0)
    return one[:start] + entries + tail


def lying_zip() -> bytes:
    """A zip whose directory says that each of its files has no bytes."""
    content = bytearray(zipped((TRITON, RIGHT[TRITON].encode()), ("answers.toml", ANSWERS.encode())))
    at = content.index(b"PK\1\2")
    content[at + 24 : at + 28] = bytes(4)
    return bytes(content)


NOT_READ = "cannot be unpacked|cannot be read|unpacks to more|is no file|lies outside|no regular file|holds \\d+ files"
PARSED = "Error|too much to parse|null bytes|no known|encoding|codec"

B: dict[str, tuple[Callable[[Path], object], float, str]] = {
    # A task's file.
    "parentheses": (file(TRITON, "(" * 100_000), 0, PARSED),
    "parentheses_that_close": (loaded("a = " + "(" * 150 + ")" * 150), FULL, ""),
    "minus_signs": (loaded("a = " + "-" * 100_000 + "1"), 0, PARSED),
    "calls_in_a_row": (loaded("a = lambda: a\na" + "()" * 5_000), 0, PARSED),
    "many_chains_of_calls": (loaded(("a" + "(0)" * 90 + "\n") * 900), 0, "Error"),
    "attributes_in_a_row": (loaded("a" + ".a" * 50_000), 0, PARSED),
    "a_long_sum": (loaded("a = " + "+".join(["1"] * 60_000)), 0, PARSED),
    "many_ifs": (loaded("if 0: pass\n" + "elif 0: pass\n" * 9_000), 0, PARSED),
    "strings_in_strings": (loaded("a = " + "f'{" * 80 + "1" + "}'" * 80), 0, "Error"),
    "a_power_as_a_literal": (file(TRITON, changed(RIGHT[TRITON], ('level="tiled"', 'level="tiled", tunable={"A": (9**9**9,)}'))), 0, "literal|Error"),
    "a_number_of_many_digits": (loaded("a = " + "9" * 200_000), 0, PARSED),
    "digits_in_base_sixteen": (file(TRITON, changed(RIGHT[TRITON], ('level="tiled"', 'level="tiled", tunable={"A": (0x' + "f" * 100_000 + ",)}"))), FULL, ""),
    "no_text": (file(TRITON, bytes(range(256)) * 100), 0, PARSED),
    "nul_in_text": (file(TRITON, RIGHT[TRITON] + "\0"), 0, PARSED),
    "utf_16": (file(TRITON, RIGHT[TRITON].encode("utf-16")), 0, PARSED),
    "utf_7": (file(TRITON, "# -*- coding: utf-7 -*-\n" + RIGHT[TRITON]), 0, ""),
    "rot_13": (file(TRITON, "# -*- coding: rot13 -*-\n" + RIGHT[TRITON]), 0, PARSED),
    "an_encoding_that_is_none": (file(TRITON, "# -*- coding: ../../x -*-\n" + RIGHT[TRITON]), 0, PARSED),
    "only_comments": (file(TRITON, "#\n" * 9_999), 0, "registers"),
    "too_many_lines": (file(TRITON, RIGHT[TRITON] + "#\n" * 10_000), 0, "lines"),
    "one_line_too_long": (file(TRITON, RIGHT[TRITON] + "#" * 300_000), 0, "KB|bytes|MB"),
    "many_rows": (loaded("\n".join(f"@implementation('vector_add', 'triton.r{i}', level='naive')\ndef r{i}(x, y):\n    return x" for i in range(65))), 0, "most is 64"),
    "quotes_for_the_lexer": (file(CUDA, changed(RIGHT[CUDA], (KERNEL, '"\\\\' * 20_000 + "\n" + KERNEL))), 0, ""),
    "slashes_for_the_lexer": (source("/* " * 30_000 + "*/"), FULL, ""),
    "spaces_for_the_pattern": (source("#" + " " * 100_000 + "x\n#define A 1"), 0, ""),
    "a_folder_in_place": (lambda folder: [put(folder, "other.py", ""), (folder / TRITON).mkdir()], 0, "cannot be read"),
    "a_socket_in_place": (socket_in_place, 0, "cannot be read"),
    "a_link_in_a_circle": (lambda folder: [put(folder, "other.py", ""), (folder / TRITON).symlink_to(TRITON)], 0, "cannot be read|no triton"),
    "a_link_to_a_shadow": (lambda folder: [put(folder, "other.py", ""), (folder / TRITON).symlink_to("/proc/self/environ")], 0, "cannot be read"),
    "a_link_to_a_folders_link": (
        lambda folder: [put(folder, "other.py", ""), (folder / "d").symlink_to("../witness"), (folder / TRITON).symlink_to("d/" + TRITON)], 0, "link that leads out",
    ),
    "a_deep_folder": (deep, FULL, ""),
    "many_files": (many, FULL, ""),
    # Answers.
    "answers_not_utf_8": (answers(b"\xff\xfe" * 100), FULL, ""),
    "answers_deep": (answers("a = " + "[" * 5_000), FULL, ""),
    "answers_of_many_tables": (answers("[[a]]\n" * 40_000), FULL, ""),
    "answers_of_many_dots": (answers("\n".join("a." * 31 + f"b{i} = 1" for i in range(3_000))), FULL, ""),
    "answers_that_are_no_tables": (answers('lab = ["01"]\npredictions = 3\nanswers = "x"\n'), FULL, ""),
    "answers_of_escapes": (answers('lab = "\\u001b[2J\\u202e"\n[answers]\nwhy = "\\u001b[31mfull marks\\u202e\\u0000 <script>alert(1)</script>"\n'), FULL, ""),
    "answers_of_dates": (answers("[answers]\nwhy = 1979-05-27T07:32:00Z\n[predictions]\nx = nan\n"), FULL, ""),
    "answers_of_a_megabyte": (answers('[answers]\nwhy = "' + "x" * (1 << 20) + '"\n'), FULL, ""),
    "answers_of_bytes_past_the_text": (answers(ANSWERS + '\nx = """' + "\\\n" * 60_000 + '"""\n'), FULL, ""),
    # Archives.
    "zip_in_a_zip": (archive(lambda: zipped(("a.zip", zipped((TRITON, b"1"))))), 0, "there is no|names no lab|cannot"),
    "zip_bomb": (archive(lambda: zipped((TRITON, bytes(300 << 20)))), 0, NOT_READ),
    "zip_bomb_by_lzma": (archive(lambda: zipped((TRITON, bytes(300 << 20)), method=zipfile.ZIP_LZMA)), 0, NOT_READ),
    "zip_of_overlaps": (archive(overlapping), 0, NOT_READ),
    "zip_that_lies": (archive(lying_zip), 0, ""),
    "zip_of_many": (archive(lambda: zipped(*((f"{i}.py", b"") for i in range(600)))), 0, NOT_READ),
    "zip_that_climbs": (archive(lambda: zipped(("a/../../witness/" + TRITON, b"1"))), 0, NOT_READ),
    "zip_of_a_root": (archive(lambda: zipped(("/tmp/hostile", b"1"))), 0, NOT_READ),
    "zip_of_backslashes": (archive(lambda: zipped(("..\\..\\witness\\" + TRITON, b"1"))), 0, NOT_READ),
    "zip_of_a_file_and_a_folder": (archive(lambda: zipped(("a", b"1"), ("a/b", b"2"))), 0, NOT_READ),
    "zip_of_long_names": (archive(lambda: zipped(("n" * 5_000, b"1"))), 0, NOT_READ),
    "zip_of_half": (archive(lambda: zipped((TRITON, os.urandom(9_000)))[:5_000]), 0, NOT_READ),
    "zip_of_other_letters": (archive(lambda: zipped(("triton_a\u0064\u0323d.py", b"1"), ("answers.toml\0.py", b"2"), ("CON", b"3"), ("aux.py", b"4"))), 0, ""),
    "zip_of_a_right_file": (archive(lambda: b"#!/bin/sh\n" + zipped((f"a/b/{TRITON}", RIGHT[TRITON].encode()), ("a/b/answers.toml", ANSWERS.encode()))), FULL, ""),
    # What its process sends.
    "an_endless_text": (called("raise type('E', (Exception,), {'__str__': lambda s: 'x' * (1 << 28)})()"), 0, "E: x"),
    "a_text_that_never_ends": (called("raise type('E', (Exception,), {'__str__': lambda s: time.sleep(1000)})()", before="import time"), 0, "longer than"),
    "a_text_that_paints": (called("raise ValueError('\\x1b[2J\\x1b[1;1Hfull marks \\u202e<b>x</b>|||`')"), 0, "ValueError"),
    "a_name_that_paints": (called(RAISES.format("raise type('\\x1b[2Jpassed' * 1000, (Exception,), {})()")), 0, ""),
    "a_text_of_surrogates": (called("raise ValueError('\\ud800' * 10)"), 0, "ValueError"),
    "a_trace_of_megabytes": (called("deep(3000)", before="import sys\nsys.setrecursionlimit(9_000)\ndef deep(n):\n    return deep(n - 1) if n else 1 / 0"), 0, "ZeroDivisionError|SIGSEGV|Recursion"),
    "causes_in_a_circle": (called("e, f = ValueError('e'), ValueError('f')\ne.__cause__, f.__cause__ = f, e\nraise e"), 0, "ValueError"),
    "a_group_of_errors": (called("def g(n): return ExceptionGroup('g', [g(n - 1), g(n - 1)]) if n else ValueError('x')\nraise g(12)"), 0, "Group"),
    "words_of_another_message": (
        called("for end in range(3, 64):\n    try: socket.socket(fileno=os.dup(end)).sendall(struct.pack('!i', 2) + b'{}')\n    except OSError: pass", before="import os, socket, struct"), 0, "wrote into the pipe",
    ),
    "a_message_of_two_gigabytes": (
        called("for end in range(3, 64):\n    try: os.write(end, b'\\x7f\\xff\\xff\\xff' + b'[' * 4096)\n    except OSError: pass", before="import os"), 0, "wrote into the pipe",
    ),
    "half_a_message": (
        called("for end in range(3, 64):\n    try: os.write(end, b'\\0\\0\\1\\0{')\n    except OSError: pass\ntime.sleep(1000)", before="import os, time"), 0, "longer than|pipe",
    ),
    "half_closes_the_pipe": (
        called("for end in range(3, 64):\n    try: os.close(end)\n    except OSError: pass", before="import os"), 0, "clos|exit|pipe|ended",
    ),
    "notes_without_end": (
        loaded("import triton_impl.notes as notes\nnotes.taken = lambda: tuple('\\x1b[2Jnote' * 100 for _ in range(5_000))"), 0, "",
    ),
    "kernels_without_end": (
        loaded("import sys\nm = sys.modules['compare.checking.stage']\nold = m.LocalStage.call\n"
               "def call(self, *a, **k):\n    import dataclasses\n    return dataclasses.replace(old(self, *a, **k), borrowed={f'aten::{i}': 1 for i in range(70_000)})\nm.LocalStage.call = call"), 0, "pipe|more than",
    ),
    "figures_that_are_none": (
        loaded("import sys\nm = sys.modules['compare.checking.stage']\nold = m.LocalStage.call\n"
               "def call(self, *a, **k):\n    import dataclasses\n    return dataclasses.replace(old(self, *a, **k), launched=float('nan'))\nm.LocalStage.call = call"), 0, "pipe",
    ),
}

# --------------------------------------------------------------------------- C: isolation

SOME_SECONDS = "import time\n"
ASM = 'asm volatile("syscall" : : "a"({}), "D"({}), "S"({}) : "rcx", "r11", "memory");'
AT_START = '__attribute__((constructor)) static void at_start() {{ {} }}'
SYSTEM = 'extern "C" int system(const char*); extern "C" unsigned sleep(unsigned); extern "C" int fork(); '

C: dict[str, tuple[Callable[[Path], object], float, str]] = {
    "memory_of_the_parent": (called("try: open(f'/proc/{os.getppid()}/mem', 'rb')\nexcept OSError: pass\nelse: assert 0, 'reached'", before="import os"), FULL, ""),
    "memory_of_anyone": (
        called("for pid in filter(str.isdigit, os.listdir('/proc')):\n    if int(pid) == os.getpid(): continue\n"
               "    for name in ('mem', 'environ', 'fd/1', 'maps', 'cwd/x'):\n        try: open(f'/proc/{pid}/{name}', 'rb').read(1)\n        except OSError: continue\n"
               "        assert int(pid) in (1, os.getppid()), 'reached'", before="import os"), FULL, "",
    ),
    "process_vm_readv": (refused_call(310, "os.getppid()", 0, 0, 0, 0, 1), FULL, ""),
    "ptrace_of_the_parent": (refused_call(101, 16, "os.getppid()", 0, 0), FULL, ""),
    "pidfd_of_the_judge": (called("fd = libc.syscall(434, os.getppid(), 0)\nassert fd < 0 or libc.syscall(438, fd, 1, 0) < 0, 'reached'", before=LIBC), FULL, ""),
    "userfaultfd": (called("libc.syscall(323, 1)", before=LIBC), FULL, ""),
    "memfd": (refused_call(319, "b'x'", 0), FULL, ""),
    "memfd_secret": (refused_call(447, 0), FULL, ""),
    "bpf": (refused_call(321, 0, 0, 0), FULL, ""),
    "perf_events": (refused_call(298, 0, 1, 0, -1, 0), FULL, ""),
    "open_by_handle": (refused_call(304, -100, 0, 0), FULL, ""),
    "mounts": (refused_call(165, "b'none'", "b'/tmp'", "b'tmpfs'", 0, 0), FULL, ""),
    "a_new_root": (refused_call(161, "b'/tmp'"), FULL, ""),
    "another_namespace": (called("fd = os.open('/proc/1/ns/mnt', 0)\nassert libc.setns(fd, 0) < 0, 'reached'" if False else
        "try: fd = os.open('/proc/1/ns/mnt', 0)\nexcept OSError: fd = -1\nassert libc.setns(fd, 0) < 0, 'reached'", before=LIBC), FULL, ""),
    "a_user_of_root": (called("assert libc.setuid(0) < 0 or os.getuid() == 0", before=LIBC), FULL, ""),
    "swap_and_reboot": (called("assert libc.syscall(169, 0xfee1dead, 672274793, 0, 0) < 0 and libc.syscall(167, b'/x', 0) < 0", before=LIBC), FULL, ""),
    "the_clock": (refused_call(164, "b'\\0' * 16", 0), FULL, ""),
    "the_host_name": (refused_call(170, "b'x'", 1), FULL, ""),
    "everyone_killed": (called("os.kill(-1, signal.SIGKILL)", before="import os, signal"), 0, "SIGKILL|killed"),
    "everyone_stopped": (called("for pid in range(2, 400):\n    try: os.kill(pid, signal.SIGSTOP) if pid != os.getpid() else None\n    except OSError: pass", before="import os, signal"), FULL, ""),
    "signals_ignored": (loaded("import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass"), FULL, ""),
    "an_alarm": (loaded("import signal\nsignal.signal(signal.SIGALRM, lambda *a: 1 / 0)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)"), 0, ""),
    "at_exit": (loaded("import atexit, time\natexit.register(time.sleep, 1000)\nclass D:\n    def __del__(self): time.sleep(1000)\nd = D()"), FULL, ""),
    "threads_that_outlive": (loaded("import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()"), FULL, ""),
    "threads_without_end": (called("while True: threading.Thread(target=time.sleep, args=(1000,)).start()", before="import threading, time"), 0, ""),
    "threads_that_spin": (loaded("import threading\ndef spin():\n    while True: pass\nfor _ in range(4): threading.Thread(target=spin, daemon=True).start()"), FULL, ""),
    "processes_without_end": (
        called("while True:\n    try: subprocess.Popen(['sleep', '1000'])\n    except OSError: pass", before="import subprocess"), 0, "",
    ),
    "a_shells_fork_bomb": (called("subprocess.run(['bash', '-c', 'f() { f | f & }; f; sleep 1000'])", before="import subprocess"), 0, ""),
    "a_child_that_stays": (
        called("subprocess.Popen(['bash', '-c', 'trap \"\" HUP TERM INT; setsid nohup sleep 987 & disown; sleep 987'])", before="import subprocess"), FULL, "",
    ),
    "a_daemon_by_vfork": (called("os.posix_spawn('/bin/sleep', ['sleep', '987'], {}, setsid=False)", before="import os"), FULL, ""),
    "memory_of_many": (called("kept = [bytearray(1 << 30) for _ in range(64)]"), 0, "memory"),
    "memory_by_children": (
        called("for _ in range(4): subprocess.Popen([sys.executable, '-c', 'a = bytearray(1 << 30)'])", before="import subprocess, sys"), FULL, "",
    ),
    "memory_in_files": (
        called("for i in range(4000):\n    try: open(f\"{os.environ['TMPDIR']}/{i}\", 'wb').write(bytes(1 << 20))\n    except OSError: break", before="import os"), FULL, "",
    ),
    "files_without_end": (
        called("for i in range(100_000):\n    try: open(f\"{os.environ['TMPDIR']}/{i}\", 'wb').close()\n    except OSError: break", before="import os"), FULL, "",
    ),
    "folders_without_end": (
        called("os.chdir(os.environ['TMPDIR'])\nfor i in range(3000):\n    try: os.mkdir('d' * 99); os.chdir('d' * 99)\n    except OSError: break", before="import os"), FULL, "",
    ),
    "files_that_stay": (
        called("for f in ('/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~'), os.path.expanduser('~/.config'), '/run', os.getcwd()):\n"
               "    try: open(f + '/hostile_was_here', 'w').close()\n    except OSError: pass", before="import os"), FULL, "",
    ),
    "files_of_classmates": (
        called("for f in ('witness/triton_add.py', '_marks/witness.json', 'mistaken/triton_add.py'):\n    p = os.path.join(os.path.dirname(os.path.dirname(__file__)), f)\n"
               "    for act in (lambda: open(p).read(), lambda: open(p, 'a').close(), lambda: os.unlink(p), lambda: os.utime(p), lambda: os.chmod(p, 0), lambda: os.link(p, p + '2')):\n"
               "        try: act()\n        except OSError: continue\n        assert 0, 'reached'", before="import os"), FULL, "",
    ),
    "names_of_classmates": (
        called("d = os.path.dirname(os.path.dirname(__file__))\ntry: names = os.listdir(d)\nexcept OSError: names = []\nassert 'witness' not in names or not os.access(d + '/witness/triton_add.py', os.R_OK), 'reached'", before="import os"), FULL, "",
    ),
    "its_own_file_changed": (
        called("for mode in 'wa':\n    try: open(__file__, mode).write('x')\n    except OSError: continue\n    assert 0, 'reached'"), FULL, "",
    ),
    "shared_caches_written": (
        called("for top in (os.environ['COMPARE_CACHE_SHARED'], os.path.expanduser('~/.triton'), os.path.expanduser('~/.cache'), os.path.expanduser('~/.cupy'), os.path.expanduser('~/.nv')):\n"
               "    for folder, _, names in os.walk(top):\n        for name in [*names[:20], 'hostile_was_here']:\n"
               "            try: open(os.path.join(folder, name), 'ab').close()\n            except OSError: continue\n            assert 0, 'reached'", before="import os"), FULL, "",
    ),
    "shared_caches_locked": (
        loaded("import fcntl, os\nkept = []\nfor folder, _, names in os.walk(os.environ.get('COMPARE_CACHE_SHARED', '/x')):\n    for name in names[:200]:\n"
               "        try: kept.append(open(os.path.join(folder, name))); fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)\n        except OSError: pass"), FULL, "",
    ),
    "the_projects_files_locked": (
        loaded("import fcntl\nfrom compare.registry import ROOT\nkept = [open(f) for f in sorted((ROOT / 'compare').rglob('*.py'))[:100]]\nfor f in kept: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"), FULL, "",
    ),
    "folders_watched": (
        called("fd = libc.inotify_init()\np = os.path.dirname(os.path.dirname(__file__)) + '/witness'\nassert not os.path.exists(p + '/triton_add.py') or libc.inotify_add_watch(fd, (p + '/triton_add.py').encode(), 0xfff) < 0, 'reached'", before=LIBC), FULL, "",
    ),
    "core_dumps": (called("resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))" + "\nos.abort()", before="import os, resource"), 0, "ValueError|SIGABRT"),
    "core_pattern": (called("for p in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/self/oom_score_adj'):\n    try: open(p, 'w').write('-1000')\n    except OSError: pass\nassert int(open('/proc/self/oom_score_adj').read()) >= 0"), FULL, ""),
    "message_queues": (refused_call(240, "b'hostile'", 0o102, 0o600, 0), FULL, ""),
    "semaphores_that_stay": (called("libc.sem_open(b'/hostile_was_here', os.O_CREAT, 0o600, 1)\nlibc.shm_open(b'/hostile_was_here2', os.O_CREAT | os.O_RDWR, 0o600)", before=LIBC), FULL, ""),
    "shared_memory_of_system_v": (refused_call(29, 77, 4096, 0o1600), FULL, ""),
    "abstract_sockets": (called("try: socket.socket(socket.AF_UNIX).bind('\\0hostile')\nexcept OSError: pass\nelse: assert 0, 'reached'", before="import socket"), FULL, ""),
    "packets": (called("for family, kind in ((2, 1), (2, 2), (10, 2), (16, 3), (17, 3), (38, 5), (40, 1)):\n    try: socket.socket(family, kind)\n    except OSError: continue\n    assert 0, 'reached'", before="import socket"), FULL, ""),
    "io_uring": (refused_call(425, 8, "b'\\0' * 120"), FULL, ""),
    "keys": (refused_call(248, "b'user'", "b'hostile'", "b'x'", 1, -4), FULL, ""),
    "limits_of_others": (refused_call(302, "os.getppid()", 7, "b'\\1' + bytes(15)", 0), FULL, ""),
    "priorities_of_others": (called("try: os.setpriority(os.PRIO_USER, 0, 19)\nexcept OSError: pass\nelse: assert 0, 'reached'", before="import os"), FULL, ""),
    "its_own_limits": (loaded("import resource\nfor n in range(16):\n    if n not in (2, 9):\n        try: resource.setrlimit(n, (0, 0))\n        except (OSError, ValueError): pass"), 0, ""),
    "its_own_priority": (loaded("import os\nos.nice(19)"), FULL, ""),
    "modes_of_files": (loaded("import os\nos.umask(0o777)"), 0, ""),
    "the_current_folder": (loaded("import os\nos.chdir(os.environ['TMPDIR'])\nos.rmdir(os.environ['TMPDIR'])"), FULL, ""),
    "the_environment": (loaded("import os\nos.environ.clear()\nos.environ['LD_PRELOAD'] = '/x.so'\nos.environ['CXX'] = '/bin/false'"), FULL, ""),
    "reads_the_screen": (called("for p in ('/dev/tty', '/dev/stdin', '/dev/pts/0', '/dev/console', '/dev/mem', '/dev/kmsg', '/dev/fuse'):\n    try: os.open(p, os.O_RDWR | os.O_NONBLOCK)\n    except OSError: continue\n    assert p == '/dev/stdin', 'reached'", before="import os"), FULL, ""),
    "types_on_the_screen": (called("import fcntl, termios\nfor fd in (0, 1, 2):\n    try: fcntl.ioctl(fd, termios.TIOCSTI, b'x')\n    except OSError: continue\n    assert 0, 'reached'"), FULL, ""),
    "paints_the_screen": (loaded("print('\\x1b[2J\\x1b]0;full marks\\x07 passed 5/5')"), FULL, ""),
    "secrets_of_the_environment": (called("import os\nassert not [n for n in os.environ if 'SECRET' in n], 'reached'"), FULL, ""),
    # CUDA text: it runs as a program of the host where there is no GPU.
    "cuda_reads_a_file": (source('#include "/etc/passwd"'), 0, ""),
    "cuda_reads_variables": (source('#include "/proc/self/environ"'), 0, ""),
    "cuda_waits_for_input": (source('#include "/dev/stdin"'), 0, ""),
    "cuda_reads_without_end": (source('#include "/dev/zero"'), 0, ""),
    "cuda_includes_itself": (source('#include __FILE__'), 0, ""),
    "cuda_embeds_binaries": (source('asm(".incbin \\"/etc/passwd\\"");'), 0, ""),
    "cuda_starts_a_shell": (source(SYSTEM + AT_START.format('system("touch /tmp/hostile_was_here; sleep 987 &");')), 0, ""),
    "cuda_hangs_at_its_start": (source(SYSTEM + AT_START.format("sleep(1000);")), 0, ""),
    "cuda_exits": (source(AT_START.format(ASM.format(231, 0, 0))), 0, ""),
    "cuda_kills": (source(AT_START.format(ASM.format(62, -1, 9))), 0, ""),
    "cuda_forks": (source(SYSTEM + AT_START.format("for (;;) fork();")), 0, ""),
    "cuda_names_another_line": (source('#line 1 "/work/passed.cu"\n#error \x1b[2Jfull marks'), 0, ""),
    "cuda_redefines_the_harness": (source("#define blockIdx threadIdx\n#define __global__ static\n#define main mine"), 0, ""),
    "cuda_redefines_words": (source("#define float double\n#define long short\n#define if while"), 0, ""),
    "cuda_poisons_words": (source("#pragma GCC poison threadIdx blockIdx printf"), 0, ""),
    "cuda_template_without_end": (source("template <int N> struct A { static constexpr int v = A<N + 1>::v; };\nstatic int a = A<0>::v;"), 0, ""),
    "cuda_constant_without_end": (source("constexpr long f() { long i = 0; while (true) ++i; return i; }\nstatic constexpr long a = f();"), 0, ""),
    "cuda_macros_without_end": (
        source("#define A0 x x x x x x x x x x\n" + "\n".join(f"#define A{i + 1} " + f"A{i} " * 10 for i in range(9)) + "\nstatic const char* a = 0; // \nint b[] = { sizeof(A9) };"), 0, "",
    ),
    "cuda_array_of_gigabytes": (source("static char a[1L << 34] = {1};\nchar* b = a;"), 0, ""),
    "cuda_errors_without_end": (source("#error x\n" * 5_000), 0, ""),
    "cuda_stack_without_end": (
        cuda(("    if (n < N) ", "    volatile char a[1 << 26]; a[threadIdx.x] = 1;\n    if (n < N) ")), 0, "",
    ),
    "cuda_name_of_code": (cuda(('f"add_kernel<{CTYPES[x.dtype]}>"', '"add_kernel<float>; __attribute__((constructor)) void f() { for (;;); } //"')), 0, ""),
    "cuda_name_of_lines": (cuda(('f"add_kernel<{CTYPES[x.dtype]}>"', '"add_kernel<float>\\n#include </etc/passwd>\\n"')), 0, ""),
    "cuda_a_grid_without_end": (cuda(("launch((blocks,)", "launch((1 << 31,)")), 0, ""),
    "cuda_a_block_without_end": (cuda(("(THREADS,), (x", "(1 << 20,), (x")), 0, ""),
    "cuda_arguments_of_objects": (cuda(("np.int64(N))", "object())")), 0, ""),
    "cuda_shared_memory_without_end": (cuda(("np.int64(N)))", "np.int64(N)), shared_mem=1 << 50)")), 0, ""),
}

NAMES = {
    "ph\u202egnp.exe": 0,
    "\u212balice\u0301": FULL,
    "=HYPERLINK(1)": FULL,
    "-rf": FULL,
    "--json": FULL,
    "CON": FULL,
    "a'b\"c`d$(e)": FULL,
    "%2e%2e%2f": FULL,
    "x" * 240: FULL,
    "tab\tand\nline": 0,
    "\u200b\u200bwitness": 0,
    "Witness": FULL,
}
"""Names of folders with a right file."""


def every() -> list[HandIn]:
    """All hostile hand-ins."""
    kinds = {"A": A, "B": B, "C": C}
    rest = [
        HandIn(kind, build, points, says, name)
        for kind, table in kinds.items()
        for name, (build, points, says) in table.items()
    ]
    named = [
        HandIn("A", file(TRITON, RIGHT[TRITON]), points, "" if points else "cannot be printed: rename", name)
        for name, points in NAMES.items()
    ]
    return [*rest, *named]


def build(folder: Path, hand_ins: list[HandIn]) -> None:
    """A class of hostile hand-ins, a right one and one with a known mistake."""
    (folder / "class").mkdir(parents=True)
    (folder / "lab.toml").write_text(RUBRIC)
    for each in hand_ins:
        place = folder / "class" / each.name
        place.mkdir()
        each.build(place)
    for name in ("witness", "mistaken"):
        (folder / "class" / name).mkdir()
        for other, text in RIGHT.items():
            put(folder / "class" / name, other, text)
    short_grid = changed(RIGHT[TRITON], ("(triton.cdiv(N, BLOCK_SIZE),)", "(2,)"))
    put(folder / "class" / "mistaken", TRITON, short_grid)


if __name__ == "__main__":
    names = sys.argv[2:]
    build(Path(sys.argv[1]), [each for each in every() if not names or each.name in names or each.kind in names])
