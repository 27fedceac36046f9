"""Sources: the hash of each implementation's files, and its code size."""

from __future__ import annotations

from collections.abc import Sequence

from compare.code_size.count import Launched, kept_code_size
from compare.model.op import Implementation
from compare.model.result import CodeSize
from compare.worker.foreign import Description
from compare.worker.messages import Count, FindLaunched
from compare.worker.pool import WorkerPool
from compare.worker.user_files import reader


class Counting:
    """Code sizes: of users' files counted at once, of the project's after the measurements.

    Implementations that cannot be counted are still checked.
    """

    def __init__(self, impls: Sequence[Implementation], pool: WorkerPool) -> None:
        self.code_sizes: dict[str, CodeSize] = {}
        self.uncounted: dict[str, str] = {}
        """Why there is no code size."""
        self._own = [impl for impl in impls if not impl.base and not impl.foreign]
        for impl in impls:
            if impl.foreign and not impl.base:
                self._count(impl, pool)

    def finish(self) -> None:
        """Complete `code_sizes`."""
        for impl in self._own:
            self._count(impl)

    def _count(self, impl: Implementation, pool: WorkerPool | None = None) -> None:
        try:
            self.code_sizes[impl.label] = kept_code_size(impl) if pool is None else _users(impl, pool)
        except Exception as error:
            self.uncounted[impl.label] = f"code size unread: {error}"


def _users(impl: Implementation, pool: WorkerPool) -> CodeSize:
    """A user's file is not run in this process and not parsed; what its worker reports is not cached."""
    kernels = _launched(impl, pool)
    with reader(f"the reader of {impl.label}", pool.timeout_s) as worker:
        request = Count(impl.origin, Description.of(impl, impl.origin), kernels)
        return worker.ask(request, "reading its source")


def _launched(impl: Implementation, pool: WorkerPool) -> Launched:
    """The kernels that a user's file launches, as its worker reports them."""
    if impl.route != "cupy":
        return Launched()
    try:
        return pool.of(impl).ask(FindLaunched(), "finding out what it launches")
    except Exception:  # the check raises it again and reports it
        return Launched()
