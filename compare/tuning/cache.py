"""Configurations found by searches, kept between runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

from compare.code_size.hashes import rests_on
from compare.model.op import Implementation
from compare.model.result import Tuning
from compare.records import archive, result_cache
from compare.records.encoding import decode, encode

_KIND = "tuned"
_COMPILERS = ("torch", "triton")


def found_before(impl: Implementation, device: str) -> list[Tuning]:
    """Configurations that earlier runs found for ``impl``, with its present sources, on a device.

    Args:
        device: the GPU's name.
    """
    with suppress(KeyError, TypeError, ValueError):
        entry = result_cache.read(_KIND, _name(impl, device))
        return [decode(Tuning, tuning) for tuning in entry["found"]] if entry else []
    return []


def keep(impl: Implementation, device: str, tunings: Sequence[Tuning]) -> None:
    """Add the configurations found in this run to the file of ``impl`` and ``device``."""
    fresh = {(t.kernel, t.key): t for t in tunings if t.key and not t.kept}
    if not fresh:
        return
    known = {(t.kernel, t.key): t for t in found_before(impl, device)}
    entry = {
        "device": device,
        "op": impl.op,
        "implementation": impl.label,
        "source": rests_on(impl),
        "compilers": result_cache.versions(*_COMPILERS),
        "found": [encode(tuning) for tuning in (known | fresh).values()],
    }
    result_cache.write(_KIND, _name(impl, device), entry)


def dated(tunings: Sequence[Tuning]) -> tuple[Tuning, ...]:
    """``tunings`` with the present time where they have none."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return tuple(tuning if tuning.searched else replace(tuning, searched=now) for tuning in tunings)


def _name(impl: Implementation, device: str) -> str:
    rest = result_cache.key(device, rests_on(impl), result_cache.versions(*_COMPILERS))[:16]
    return f"{archive.device_slug(device)}.{impl.op}.{impl.label}.{rest}"
