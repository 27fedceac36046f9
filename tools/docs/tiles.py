"""The constants of matmul's tiles, fitted to a run on a GPU, and how far the choice is from the best tile.

    python -m compare matmul --sweep shapes --only '*.split_k' --tune TILE --json tiles.json
    python -m tools.docs.tiles tiles.json

Prints new constants for both ways, and speedups vs torch.eager of several choices of tiles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from compare.model.op import Case
from compare.records import archive
from compare.registry import get_op
from compare.tiles import Machine, Tile, possible, predicted_us
from cuda_impl.launches import matmul as in_cuda
from triton_impl import matmul as in_triton

Constants = tuple[Machine, tuple[Tile, ...]]
CURRENT: dict[str, Constants] = {
    "cupy": (in_cuda.H200, in_cuda.SPLIT_K_TILES),
    "triton": (in_triton.H200, in_triton.SPLIT_K_TILES),
}


Size = tuple[tuple[Any, ...], float, dict[int, float]]
"""Arguments of `predicted_us`, PyTorch's time, and that of each tile, by its place in the table."""


def sizes_of(path: Path, way: str) -> list[Size]:
    """From a file that ``--json`` has written."""
    sizes = []
    for run in archive.read(path):
        for each in run.cases:
            case = Case.parse(each.case, get_op("matmul"))
            M, N, K = (case[dim] for dim in "MNK")
            a, b = (case.layout in ("transposed", f"{name}_transposed") for name in "ab")
            args = M, N, K, (M if a else K, K if b else N), run.environment.multiprocessors
            us = {r.label: r.timing.cold_us.median for r in each.rows if r.timing and r.timing.cold_us}
            labels = [f"{way}.split_k:TILE={i + 1}" for i in range(len(CURRENT[way][1]))]
            allowed = possible(CURRENT[way][1], M, K)
            tiles = {
                i: us[label]
                for i, label in enumerate(labels)
                if label in us and CURRENT[way][1][i] in allowed
            }
            if tiles and "torch.eager" in us:
                sizes.append((args, us["torch.eager"], tiles))
    return sizes


def fit(sizes: Sequence[Size], current: Constants) -> Constants:
    """Least squares of logarithms, near ``current``; tiles much slower than the best hardly count."""
    measured = [(args, tile, us) for args, _, times in sizes for tile, us in times.items()]
    weights = np.exp([(1 - us / min(times.values())) / 0.2 for *_, times in sizes for us in times.values()])

    def scaled(logs: np.ndarray) -> Constants:
        machine, times = np.split(np.exp(logs), [len(current[0])])
        pairs = zip(current[1], times.reshape(-1, 2).tolist(), strict=True)
        tiles = (t._replace(step_us=t.step_us * step, tile_us=t.tile_us * rest) for t, (step, rest) in pairs)
        return Machine(*(machine * current[0]).tolist()), tuple(tiles)

    def errors(logs: np.ndarray) -> np.ndarray:
        machine, tiles = scaled(logs)
        ratios = [predicted_us(machine, tiles[tile], *args) / us for args, tile, us in measured]
        return np.array([*weights * np.log(ratios), *0.1 * logs])

    start = np.zeros(len(current[0]) + 2 * len(current[1]))
    return scaled(least_squares(errors, start, loss="soft_l1", f_scale=0.05, max_nfev=40).x)


def refined(sizes: Sequence[Size], constants: Constants, tries: int = 5000) -> Constants:
    """With the times of one tile after another changed by up to 8%, where the choices then take less time."""
    machine, tiles = constants[0], list(constants[1])
    random = np.random.default_rng(0)
    predicted = [{i: predicted_us(machine, tiles[i], *args) for i in us} for args, _, us in sizes]

    def lost(of_sizes: Sequence[dict[int, float]]) -> float:
        chosen = ((us, min(of, key=of.__getitem__)) for of, (_, _, us) in zip(of_sizes, sizes, strict=True))
        return sum(math.log(us[tile] / min(us.values())) for us, tile in chosen)

    least = lost(predicted)
    for _ in range(tries):
        i, step, rest = random.integers(len(tiles)), *np.exp(random.uniform(-0.08, 0.08, 2))
        tile = tiles[i]._replace(step_us=tiles[i].step_us * step, tile_us=tiles[i].tile_us * rest)
        trial = [
            {**of, i: predicted_us(machine, tile, *args)} if i in of else of
            for of, (args, _, _) in zip(predicted, sizes, strict=True)
        ]
        if (now := lost(trial)) <= least:  # also where nothing changes: it may make room for the next change
            least, predicted, tiles[i] = now, trial, tile
    return machine, tuple(tiles)


def main(path: str) -> None:
    for way, current in CURRENT.items():
        sizes = sizes_of(Path(path), way)
        new = refined(sizes, fit(sizes, current))
        print(new[0], *new[1], sep="\n")
        for name, by in {"best tile": None, "as in the source": current, "new": new}.items():
            speedups = []
            for args, baseline_us, us in sizes:
                predicted = us if by is None else {i: predicted_us(by[0], by[1][i], *args) for i in us}
                speedups.append(baseline_us / us[min(us, key=predicted.__getitem__)])
            below, mean = sum(each < 0.95 for each in speedups), np.exp(np.mean(np.log(speedups)))
            print(
                f"{way}, {name}: mean {mean:.3f}, least {min(speedups):.3f}, {below} of {len(sizes)} < 0.95"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
