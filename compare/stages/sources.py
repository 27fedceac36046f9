"""Sources: the hash of each implementation's files, and its code size."""

from __future__ import annotations

from collections.abc import Sequence

from compare.code_size.count import Launched, code_size, kept_code_size
from compare.code_size.hashes import source_hash
from compare.records.encoding import decode
from compare.spec import CodeSize, Implementation
from compare.stages.context import Sources
from compare.worker.pool import Crew


def read_sources(impls: Sequence[Implementation], crew: Crew) -> Sources:
    """Hash and count the sources of all implementations; those that cannot be counted are still checked."""
    hashes, sizes, uncounted = {}, {}, {}
    for impl in impls:
        hashes[impl.label] = source_hash(impl)
        if impl.base:
            continue
        try:
            sizes[impl.label] = _code_size(impl, crew)
        except Exception as error:
            uncounted[impl.label] = f"code size unread: {error}"
    return Sources(hashes, sizes, uncounted)


def _code_size(impl: Implementation, crew: Crew) -> CodeSize:
    # A user's file is not run in this process, and what its worker reports is not cached.
    return code_size(impl, _launched(impl, crew)) if impl.foreign else kept_code_size(impl)


def _launched(impl: Implementation, crew: Crew) -> Launched:
    """The kernels that a user's file launches, as its worker reports them."""
    if impl.route != "cupy":
        return Launched()
    try:
        return decode(Launched, crew.of(impl).ask("launched", "finding out what it launches"))
    except Exception:  # the check raises it again and reports it
        return Launched()
