"""Every example once: ``python -m tools.docs.toolchain_variables.trying OP ARCH`` prints them as JSON.

Each run of the command is a fork of this process, which has imported what takes seconds.  All else is
imported there, with the variables set: cupy reads its own at import.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch  # noqa: F401 - once for all
from triton.runtime.cache import triton_key

from compare import registry
from tools.docs.toolchain_variables.examples import EXAMPLES, Example

_COMMAND = "tools.docs.toolchain_variables"
_FIRST = 4
"""Lines of an output that are shown; what follows is counted."""
_OF_THIS_MACHINE = ("nvdisasm warning", "Options: ")
_WIDEST = 110


def main(name: str, arch: str) -> None:
    triton_key()  # reads all of Triton, which takes seconds: once for all as well
    print(json.dumps({variable: tried(example, name, arch) for variable, example in EXAMPLES.items()}))


def tried(example: Example, name: str, arch: str) -> str:
    """Command and output as the document has them.

    Raises:
        RuntimeError: the command ended early; the text is what it said.
    """
    words = [name, arch, *(("--run", example.run) if example.run else ())]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "DIR")
        folder.mkdir()
        cache = {"TRITON_CACHE_DIR": str(Path(scratch, "cache"))}
        if example.edited:
            dump = {"TRITON_ALWAYS_COMPILE": "1", "TRITON_KERNEL_DUMP": "1", "TRITON_DUMP_DIR": str(folder)}
            _forked(words, cache | dump)
            _edit(folder)
        given = dict(pair.split("=", 1) for pair in example.variables.split())
        variables = cache | {n: str(folder) if value == "DIR" else value for n, value in given.items()}
        try:
            said = "$ again\n".join(_forked(words, variables) for _ in range(example.runs))
        except RuntimeError as error:
            raise RuntimeError(f"{example.variables}: {error}") from None
        return _written(example, words, said, folder)


def _forked(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """What the command prints, in a process of its own, which need not import everything anew."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.environ.update(variables)
                warnings.simplefilter("ignore")  # Triton 3.9 warns of a default that no example is about
                sys.argv = [_COMMAND, *words]
                sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
                runpy.run_path(str(Path(__file__).with_name("__main__.py")), run_name="__main__")
            except SystemExit as ended:
                status = int(ended.code or 0)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, waited = os.waitpid(child, 0)
        output.seek(0)
        said = output.read().decode(errors="replace")
        if waited != 0:
            raise RuntimeError(said[-2000:])
        return said


def _edit(folder: Path) -> None:
    """Leave of what Triton dumped the PTX alone, with a remark of ours in it."""
    for file in folder.rglob("*"):
        if file.suffix == ".ptx":
            file.write_text(f"// edited by hand\n{file.read_text()}")
        elif file.is_file():
            file.unlink()


def _written(example: Example, words: Sequence[str], said: str, folder: Path) -> str:
    command = f"python -m {_COMMAND} {' '.join(words)}"
    wanted = re.compile(r"^\$ again|" + (example.shown or r"\S"))
    lines = [
        _normal(line.rstrip(), folder)
        for line in said.splitlines()
        if wanted.search(line) and not line.startswith(_OF_THIS_MACHINE)
    ]
    last = lines[-1:] if example.shown else []
    body = lines[: len(lines) - len(last)]
    most = _FIRST if example.shown else 6 * _FIRST
    if len(body) > most:
        body = [*body[:most], f"... {len(body) - most} more such lines"]
    shown = [f"$ {example.variables} {command}", *body, *last]
    if example.files:
        files = sorted(_normal(str(path), folder) for path in folder.glob(example.files) if path.is_file())
        shown += ["$ find DIR -type f", *dict.fromkeys(files)]
    return "\n".join(shown)


def _normal(line: str, folder: Path) -> str:
    """A line without paths, keys and times, which are another machine's tomorrow."""
    line = line.expandtabs(8).replace(str(folder), "DIR").replace(str(registry.ROOT), ".")
    line = re.sub(r"\b[A-Z2-7]{52}\b|\b[0-9a-f]{20}\b", "KEY", line)
    line = re.sub(r"/tmp/tmp\w+|/tmp(?=/kernel)", "TMP", line)
    line = re.sub(r"\b\d+\.\d+ ?(s\b|seconds|ms\b)", r"TIME \1", line)
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 4]} ..."


if __name__ == "__main__":
    main(*sys.argv[1:])
