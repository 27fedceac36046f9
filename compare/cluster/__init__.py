"""Many GPUs: tasks of a Dask cluster, one for each op and device model, or for each hand-in of a class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compare.model.op import UsageError
from compare.places import to_install


@contextmanager
def packages() -> Iterator[None]:
    """Within it `compare.cluster`'s modules are imported; a package that is missing is a `UsageError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        how = to_install("cluster")
        raise UsageError(f"--cluster needs the package {error.name}. To install it: {how}") from None
