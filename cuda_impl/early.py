"""cupy, imported by the server that workers are forked from, where it can be.

Its import makes the folder that it keeps kernels in.  Where that cannot be made, the error would end the
server, and every row with it; who needs cupy meets it again.
"""

from contextlib import suppress

with suppress(OSError):
    import cupy  # noqa: F401
