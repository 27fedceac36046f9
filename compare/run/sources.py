"""Sources: the hash of each implementation's files, and its code size."""

from __future__ import annotations

from collections.abc import Sequence

from compare.code_size.count import Launched, code_size, kept_code_size
from compare.model.op import Implementation
from compare.model.result import CodeSize
from compare.run.compiling import launched_by
from compare.worker.messages import FindLaunched
from compare.worker.pool import WorkerPool
from compare.worker.user_files import launches_by_loader


class Counting:
    """Code sizes: of users' files counted at once, of the project's after the measurements.

    Implementations that cannot be counted are still checked.
    """

    def __init__(self, impls: Sequence[Implementation], pool: WorkerPool, *, on_gpu: bool) -> None:
        self.code_sizes: dict[str, CodeSize] = {}
        self.uncounted: dict[str, str] = {}
        """Why there is no code size."""
        self._own = [impl for impl in impls if not impl.base and not impl.user_file]
        for impl in impls:
            if impl.user_file and not impl.base:
                self._count(impl, _launched(impl, pool, on_gpu=on_gpu))

    def finish(self) -> None:
        """Complete `code_sizes`."""
        for impl in self._own:
            self._count(impl)

    def _count(self, impl: Implementation, kernels: Launched | None = None) -> None:
        try:
            # What a user's worker reports is not cached.
            size = kept_code_size(impl) if kernels is None else code_size(impl, kernels)
            self.code_sizes[impl.label] = size
        except Exception as error:
            self.uncounted[impl.label] = f"code size unread: {error}"


def _launched(impl: Implementation, pool: WorkerPool, *, on_gpu: bool) -> Launched:
    """The kernels that a user's file launches by `cuda_impl.loader`, as a worker without a GPU says."""
    try:
        if impl.route != "cupy" or not launches_by_loader(impl):
            return Launched()
        if on_gpu:
            return launched_by(impl, pool.timeout_s)
        return pool.of(impl).ask(FindLaunched(), "finding out what it launches")
    except Exception:  # the check raises it again and reports it
        return Launched()
