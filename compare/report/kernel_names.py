"""Names of kernels as a reader knows them, in messages of compilers, drivers and libraries."""

from __future__ import annotations

import ctypes
import functools
import re

from compare.timing.figures import short_kernel


def shortened(text: str) -> str:
    """``text`` with every mangled name as its short one: ``_Z6squarePfi`` as ``square``."""
    return re.sub(r"\b_Z\w+", lambda name: short_kernel(demangled(name[0])), text)


@functools.cache
def demangled(name: str) -> str:
    """A mangled name in C++; as it is where the C++ library of this machine does not know it."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        status = ctypes.c_int()
        address = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    except (OSError, AttributeError):
        return name
    if not address:
        return name
    text = ctypes.string_at(address).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    return text
