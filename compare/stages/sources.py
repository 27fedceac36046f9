"""Sources: the hash of each implementation's files, and its code size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from compare.code_size.count import Launched, kept_code_size
from compare.code_size.hashes import source_hash
from compare.records.encoding import decode, encode
from compare.spec import CodeSize, Implementation
from compare.stages.context import Sources
from compare.worker.foreign import Description
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
    if not impl.foreign:
        return kept_code_size(impl)
    # A user's file is not run in this process and not parsed; what its worker reports is not cached.
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
