"""Prints what the command says of each mistake: ``python -m tests.mistakes [OP ...] [--device cuda]``."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

from tests.mistakes import OPS, caught_on, hint_of, judge, rows_of, variants_of


def main() -> int:
    """Print a Markdown table; the number of variants that are judged otherwise than they should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.mistakes", description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"of {', '.join(OPS)}; default: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    ops = arguments.ops or OPS
    amiss = 0
    print("| op | mistake | way | verdict | caught on | hint |\n|---|---|---|---|---|---|")
    parallel = max(1, (os.cpu_count() or 1) // 2)
    with ThreadPoolExecutor(parallel) as pool:
        for op, rows in zip(ops, pool.map(lambda op: rows_of(op, arguments.device), ops), strict=True):
            for variant in variants_of(op):
                row = rows[variant.label]
                verdict = judge(variant, row, arguments.device)
                amiss += verdict.isupper()
                cells = (op, variant.name, variant.route, verdict, caught_on(row), hint_of(row))
                print(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)
    print(f"\n{amiss} amiss")
    return min(amiss, 1)


if __name__ == "__main__":
    raise SystemExit(main())
