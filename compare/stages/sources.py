"""Sources: the hash of each implementation's files, and its code size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from compare.code_size.count import Launched, kept_code_size
from compare.records.encoding import decode, encode
from compare.spec import CodeSize, Implementation
from compare.worker.foreign import Description
from compare.worker.pool import Crew


class Counting:
    """Code sizes: of users' files counted at once, of the project's after the measurements.

    Implementations that cannot be counted are still checked.
    """

    def __init__(self, impls: Sequence[Implementation], crew: Crew) -> None:
        self.code_sizes: dict[str, CodeSize] = {}
        self.uncounted: dict[str, str] = {}
        """Why there is no code size."""
        self._own = [impl for impl in impls if not impl.base and not impl.foreign]
        for impl in impls:
            if impl.foreign and not impl.base:
                self._count(impl, crew)

    def finish(self) -> None:
        """Complete `code_sizes`."""
        for impl in self._own:
            self._count(impl)

    def _count(self, impl: Implementation, crew: Crew | None = None) -> None:
        try:
            self.code_sizes[impl.label] = kept_code_size(impl) if crew is None else _users(impl, crew)
        except Exception as error:
            self.uncounted[impl.label] = f"code size unread: {error}"


def _users(impl: Implementation, crew: Crew) -> CodeSize:
    """A user's file is not run in this process and not parsed; what its worker reports is not cached."""
    kernels = encode(_launched(impl, crew))
    with closing(crew.reader(impl)) as reader:
        described = Description.of(impl).as_json()
        return decode(
            CodeSize, reader.ask("size", "reading its source", described=described, launched=kernels)
        )


def _launched(impl: Implementation, crew: Crew) -> Launched:
    """The kernels that a user's file launches, as its worker reports them."""
    if impl.route != "cupy":
        return Launched()
    try:
        return decode(Launched, crew.of(impl).ask("launched", "finding out what it launches"))
    except Exception:  # the check raises it again and reports it
        return Launched()
