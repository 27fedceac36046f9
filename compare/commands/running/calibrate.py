"""``python -m compare doctor --calibrate``: the least difference in speed that this GPU can tell apart."""

from __future__ import annotations

import torch
from tabulate import tabulate

from compare.command_line import status
from compare.report.progress import of_run
from compare.report.steps import Steps
from compare.spec import Calibration, UsageError
from compare.timing import calibration
from compare.worker import calibration as calibrating
from compare.worker.start import prepare


def run(told: Steps | None) -> int:
    """Measure it, keep it for every comparison to come, and show it; the exit status.

    Raises:
        UsageError: there is no GPU, or the result cannot be kept.
    """
    device = prepare(ops=sorted({op.name for op, _ in calibrating.subjects()}))
    if device.type != "cuda":
        raise UsageError(
            "--calibrate needs a GPU: without one nothing is timed. "
            "'python -m compare doctor' says why there is none"
        )
    name = torch.cuda.get_device_properties(device).name
    with of_run("calibrating", told) as progress:
        found = calibrating.measured(device, lambda share: progress("timing calls against themselves", share))
    try:
        path = calibration.store(name, found)
    except OSError as error:
        raise UsageError(f"the calibration could not be kept: {error}. Set COMPARE_CACHE_DIR") from None
    print(f"{name}: calls against themselves in other processes\n\n{resolution(found)}\n\nkept in {path}")
    return status.SUCCESS


def resolution(found: Calibration) -> str:
    """The least difference that counts, a line for each class of times."""
    rows, above = [], 0.0
    for size in found.classes:
        reach = f"from {above:.0f} us" if size.below_us == float("inf") else f"below {size.below_us:.0f} us"
        seen = (str(size.pairs), str(size.apart), f"{size.largest:.2%}") if size.pairs else ("none", "-", "-")
        rows.append((reach, *seen, f"{size.share:.2%}"))
        above = size.below_us
    headers = (
        "time",
        "pairs of\nequals",
        "interval\nexcludes 1",
        "largest\ndifference",
        "smallest that\ncounts",
    )
    table = tabulate(rows, headers, "simple", disable_numparse=True, colalign=("left", *["right"] * 4))
    return f"{table}\n\nand nowhere less than the clock's step of {found.tick_us * 1e3:.0f} ns"
