"""What a compiled kernel says of itself: ptxas's report, and the sections of the cubin."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """Of one kernel, as ptxas compiled it."""

    registers: int
    """Of a thread."""
    static_shared_bytes: int
    """Of a block, without what CUDA reserves."""
    spilled_bytes: int
    """Spill stores plus loads."""
    stack_bytes: int
    """Local memory of a thread: what was spilled, and arrays that are indexed at run time."""


def read_report(log: str) -> dict[str, Figures]:
    """The figures of every kernel in a report of ``ptxas -v``, by mangled name.

    >>> read_report('''
    ... ptxas info    : Compiling entry function 'f' for 'sm_90'
    ... ptxas info    : Function properties for f
    ...     8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
    ... ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 256 bytes smem
    ... ''')
    {'f': Figures(registers=40, static_shared_bytes=256, spilled_bytes=32, stack_bytes=8)}
    """
    found = {}
    for entry in log.split("Compiling entry function '")[1:]:
        name = entry.partition("'")[0]
        # The properties of functions that are called, not inlined, follow under their own names.
        _, _, own = entry.partition(f"Function properties for {name}\n")
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", own)
        used = re.search(r"Used (\d+) registers.*", own)
        if frame is None or used is None:
            raise ValueError(f"a report of ptxas that does not read as expected:\n{entry}")
        shared = re.search(r"(\d+) bytes smem", used[0])
        stack = re.search(r"(\d+) bytes cumulative stack size", used[0])
        found[name] = Figures(
            registers=int(used[1]),
            static_shared_bytes=int(shared[1]) if shared else 0,
            spilled_bytes=int(frame[2]) + int(frame[3]),
            stack_bytes=int(stack[1]) if stack else int(frame[1]),
        )
    return found


def code_bytes(cubin: bytes, kernel: str) -> int:
    """Bytes of a kernel's machine code: its ``.text`` section.

    Args:
        cubin: a 64-bit little-endian ELF, as every cubin is.
        kernel: the kernel's mangled name.

    Raises:
        ValueError: it is no such file, or holds no such kernel.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a cubin: it does not start as a 64-bit little-endian ELF file does")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, entries, names_index = struct.unpack_from("<3H", cubin, 0x3A)
    # Of a section header: name, type, flags, address, offset, size.
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_bytes) for i in range(entries)]
    names = sections[names_index][4]
    for name, _, _, _, _, size in sections:
        end = cubin.index(b"\0", names + name)
        if cubin[names + name : end] == b".text." + kernel.encode():
            return int(size)
    raise ValueError(f"the cubin holds no kernel {kernel}")
