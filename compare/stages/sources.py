"""Sources: the hash of each implementation's files, and its code size."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from compare.code_size.count import Launched, kept_code_size
from compare.code_size.hashes import source_hash
from compare.records.encoding import decode, encode
from compare.spec import CodeSize, Implementation
from compare.stages.context import Sources
from compare.worker.foreign import Description
from compare.worker.pool import Crew


def read_sources(impls: Sequence[Implementation], crew: Crew) -> Sources:
    """Hash and count the sources of all implementations; those that cannot be counted are still checked.

    A first count takes ten seconds for an op with many CUDA kernels, so a thread does it.  Users' files are
    counted before this returns, as their workers answer one question at a time.
    """
    hashes = {impl.label: source_hash(impl) for impl in impls}
    found: dict[str, CodeSize | str] = {}
    stop = threading.Event()

    def count(impls: Sequence[Implementation]) -> Mapping[str, CodeSize | str]:
        for impl in impls:
            if stop.is_set():
                break
            try:
                found[impl.label] = _code_size(impl, crew)
            except Exception as error:
                found[impl.label] = f"code size unread: {error}"
        return found

    registered = [impl for impl in impls if not impl.base]
    count([impl for impl in registered if impl.foreign])
    thread = ThreadPoolExecutor(1, "sources")
    counted = thread.submit(count, [impl for impl in registered if not impl.foreign])
    thread.shutdown(wait=False)
    return Sources(hashes, counted, stop)


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
