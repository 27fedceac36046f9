"""Imports cupy in the server that forks the workers, if possible.

The import creates cupy's kernel cache folder.  If that fails, the error must not end the server and every row
with it. Whoever imports cupy later sees the error again.
"""

from contextlib import suppress

with suppress(OSError):
    import cupy  # noqa: F401
