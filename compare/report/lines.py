"""The figures of every row of a comparison, each computed once: what all renderers loop over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from compare.model.op import is_library, way_of
from compare.model.result import (
    CaseComparison,
    CodeSize,
    Comparison,
    Estimate,
    KernelResources,
    Mismatch,
    Row,
    Timing,
)
from compare.records import archive
from compare.records.archive import Recorded
from compare.timing import figures

WORDS = {
    # The status of a row.
    "ok": "correct",
    "ordinary": "ordinary inputs only",
    "disagrees": "WRONG",
    "impossible": "impossible",
    "failed": "failed",
    "unavailable": "not run",
    # The result of a part of a submission.
    "passed": "passed",
    "marked": "marked",
    "partial": "partly",
    "wrong": "WRONG",
    "error": "ERROR",
    "timeout": "TIMED OUT",
    "refused": "REFUSED",
    "not started": "not started",
    "to be read": "to be read",
    "inconclusive": "inconclusive",
    "machine": "machine fault",
    "left out": "not on this machine",
}
"""What a reader sees of a status or a result."""

K = TypeVar("K")


@dataclass(frozen=True)
class Line:
    """One row's figures on one case, or those of cupy and pybind together; None: not known."""

    row: Row
    label: str
    """The row's, or ``cuda.VARIANT`` where cupy and pybind are within noise."""
    timing: Timing
    """The row's; an empty one where it was not timed."""
    reference: bool
    """It is the baseline."""
    speedup: Estimate | None
    """Against the baseline, with its interval."""
    differs: bool
    """The speedup is more than noise."""
    few: int
    """How many rounds it and the baseline share, where these are too few for an interval; else 0."""
    terms: str
    """The precision it sums in, where that is not the baseline's; it then has no speedup."""
    gbs: float | None
    """Compulsory bytes over the cold time; its share of copy bandwidth, 0 to 1."""
    share_of_copy: float | None
    tflops: float | None
    """The case's operations over the cold time; its share of the measured peak, 0 to 1."""
    share_of_product: float | None
    share: float | None
    """Of the ceiling that binds, 0 to 1."""
    used: float | None
    """The share of its tolerance."""
    kernels: tuple[KernelResources, ...]
    size: CodeSize | None
    stale: bool
    """Its source has changed since its time was recorded."""

    @property
    def way(self) -> str:
        """``torch``, ``triton``, ``cuda``, or ``library``."""
        return way_of(self.row.label)

    @property
    def route(self) -> str:
        return self.row.label.partition(".")[0]

    @property
    def us(self) -> float | None:
        """The cold median."""
        return self.timing.cold_us.median if self.timing.cold_us else None

    @property
    def same(self) -> bool:
        """The speedup is within noise, as far as so many rounds can say."""
        return self.speedup is not None and not self.few and not self.differs

    @property
    def launch_us(self) -> float | None:
        """The median of the launch overhead."""
        return self.timing.hot_launch_us.median if self.timing.hot_launch_us else None

    @property
    def registers(self) -> int | None:
        """Per thread, of the kernel that takes most."""
        return max((kernel.registers for kernel in self.kernels), default=None)

    @property
    def shared_bytes(self) -> int | None:
        """Shared memory per block, static and dynamic, of the kernel that takes most."""
        return max(map(shared_bytes, self.kernels), default=None)

    @property
    def occupancy(self) -> float | None:
        """The lowest of its kernels, 0 to 1."""
        return min((k.occupancy for k in self.kernels if k.occupancy is not None), default=None)

    @property
    def lines(self) -> int | None:
        return self.size.lines if self.size else None

    @property
    def tokens(self) -> int | None:
        return self.size.tokens if self.size else None


def got_and_expected(mismatch: Mismatch) -> str:
    """``got 5.99999976, expected 6``: six digits, or as many as show that they differ."""
    pairs = [(f"{mismatch.got:.{digits}g}", f"{mismatch.expected:.{digits}g}") for digits in (6, 9, 17)]
    got, expected = next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])
    return f"got {got}, expected {expected}"


def shared_bytes(kernel: KernelResources) -> int:
    """Static and dynamic shared memory of a block."""
    return kernel.static_shared_bytes + kernel.dynamic_shared_bytes


def line(case: CaseComparison, row: Row, sizes: Mapping[str, CodeSize], label: str = "") -> Line:
    """The figures of one row, called ``label`` if that is given."""
    timing = row.timing or Timing()
    reference = figures.row_of(case, figures.baseline_of(case))
    ratio = figures.ratio(row, reference) if reference else None
    unequal = reference is not None and timing.cold_us and row.accumulator != reference.accumulator
    used = None
    if row.agreement and row.agreement.limit > 0:
        used = row.agreement.error / row.agreement.limit
    return Line(
        row,
        label or row.label,
        timing,
        reference=row is reference,
        speedup=ratio,
        differs=reference is not None and figures.differs(row, reference),
        few=figures.few(row, reference) if reference else 0,
        terms=row.accumulator if unequal else "",
        gbs=figures.gbs(case, row),
        share_of_copy=figures.share_of_copy(case, row),
        tflops=figures.tflops(case, row),
        share_of_product=figures.share_of_product(case, row),
        share=figures.share(case, row),
        used=used,
        kernels=tuple(kernel for _, _, by_arch in figures.kernels([row]) for kernel in by_arch.values()),
        size=sizes.get(row.label),
        stale=archive.changed_since(row),
    )


def every(case: CaseComparison, sizes: Mapping[str, CodeSize] | None = None) -> list[Line]:
    """A line for each row, in their order."""
    return [line(case, row, sizes or {}) for row in case.rows]


def grouped(entries: Iterable[tuple[K, str]]) -> dict[K, list[str]]:
    """Names by what they have in common, each once."""
    groups: dict[K, list[str]] = {}
    for key, name in entries:
        names = groups.setdefault(key, [])
        if name not in names:
            names.append(name)
    return groups


def recorded_on(rows: Iterable[Row]) -> list[str]:
    """Devices and dates of recorded figures."""
    return list(dict.fromkeys(row.recorded.device_and_date for row in rows if row.recorded))


# --------------------------------------------------------------------------- the best of each way


def best_of_each_way(
    case: CaseComparison, sizes: Mapping[str, CodeSize], yours: Collection[str] = ()
) -> list[Line]:
    """Lines of PyTorch and of the fastest variant of Triton and of CUDA; without times all that are correct.

    Args:
        case: what was compared.
        sizes: by label.
        yours: labels of a user's rows, which are always there.
    """
    rows = [row for row in case.rows if figures.stands(row) and not figures.is_trial(row)]
    chosen = [row for row in rows if row.label not in yours]
    if is_timed(case):
        have = [row for row in chosen if row.timing and row.timing.cold_us]
        chosen = [row for row in have if way_of(row.label) == "torch"]
        for way in ("triton", "cuda"):
            chosen += best_variant(case, way, have)
        fastest = figures.fastest(have)
        chosen += [row for row in have if row is fastest and is_library(row.label)]
    named = [(*figures.represented(case, row), row) for row in chosen]
    merged = [line(case, row, sizes, name) for name, of, row in named if row is of or of not in chosen]
    own = (row for row in case.rows if row.label in yours and not figures.is_trial(row))
    return merged + [line(case, row, sizes) for row in own if figures.stands(row) or row.status == "ordinary"]


def is_timed(case: CaseComparison) -> bool:
    """Whether a row has a cold time."""
    return any(row.timing and row.timing.cold_us for row in case.rows)


def best_variant(case: CaseComparison, way: str, rows: Iterable[Row]) -> list[Row]:
    """The fastest row of a way, best in the baseline's precision; of CUDA its variant by both routes."""
    own = [row for row in rows if way_of(row.label) == way]
    unequal = {row.label for row in figures.unequal_terms(case, figures.baseline_of(case))}
    fastest = figures.fastest(row for row in own if row.label not in unequal) or figures.fastest(own)
    if fastest is None or way != "cuda":
        return [fastest] if fastest else []
    variant = fastest.label.partition(".")[2]
    return [row for row in own if row.label.partition(".")[2] == variant and figures.stands(row)]


# --------------------------------------------------------------------------- one architecture


def of_one_arch(comparison: Comparison, case: CaseComparison) -> tuple[CaseComparison, str]:
    """``case`` with one architecture's kernels, and its name: that of the times; without times the newest.

    The kernels of a recorded time are those recorded with it; others were compiled or profiled here.
    """
    arch, recorded = _arch_of(comparison, case)

    def narrowed(row: Row) -> Row:
        return replace(row, resources=_recorded_kernels(row, arch, recorded) or _kernels(row, arch))

    return replace(case, rows=tuple(map(narrowed, case.rows))), arch


def compiled_here(comparison: Comparison, case: CaseComparison) -> list[str]:
    """Labels of the rows whose kernels `of_one_arch` shows as compiled here, beside recorded times."""
    arch, recorded = _arch_of(comparison, case)
    rows = [row for row in case.rows if recorded and _kernels(row, arch)]
    return [row.label for row in rows if not _recorded_kernels(row, arch, recorded)]


def _arch_of(comparison: Comparison, case: CaseComparison) -> tuple[str, dict[str, Recorded]]:
    """The architecture to show, and the recorded rows of this case where its times are recorded ones."""
    recorded: dict[str, Recorded] = {}
    if comparison.environment.device_type == "cuda":
        arch = comparison.environment.arch or ""
    elif device := next((row.recorded.device for row in case.rows if row.recorded), ""):
        recorded = archive.find(comparison.op, case.case, device=device)
        arch = next((each.run.environment.arch or "" for each in recorded.values()), "")
    else:
        archs = {kernel.arch.rstrip("af") for row in case.rows for kernel in row.resources}
        arch = max(archs, key=lambda arch: int(arch.removeprefix("sm_")), default="")
    return arch.rstrip("af"), recorded


def _kernels(row: Row, arch: str) -> tuple[KernelResources, ...]:
    return tuple(kernel for kernel in row.resources if kernel.arch.rstrip("af") == arch)


def _recorded_kernels(row: Row, arch: str, recorded: Mapping[str, Recorded]) -> tuple[KernelResources, ...]:
    """The kernels recorded with a row's time."""
    return _kernels(recorded[row.label].row, arch) if row.recorded and row.label in recorded else ()
