"""Constants of matmul's tiles, fitted to a run: `tools.docs.tiles`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import made_up
from compare.records import archive
from compare.tiles import predicted_us
from tools.docs import tiles

SIZES = [(m, n, k) for m in (1, 128, 512, 2048) for n, k in ((4096, 4096), (1280, 8192), (768, 3072))]


def test_a_card_with_other_times_gets_constants_that_choose_its_tiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = []
    for M, N, K in SIZES:
        medians = {"torch.eager": ("vendor", 20.0)}
        for way, (machine, table) in tiles.CURRENT.items():
            slow = machine._replace(DRAM=machine.DRAM * 2)
            for number, tile in enumerate(table, 1):
                other = tile._replace(step_us=tile.step_us * (1.5 if tile.BLOCK_M == 64 else 0.6))
                us = predicted_us(slow, other, M, N, K, (K, N), 132)
                medians[f"{way}.split_k:TILE={number}"] = ("hopper", us)
        cases.append(made_up.case(f"M={M},N={N},K={K},bf16", made_up.rows(medians)))
    path = tmp_path / "tiles.json"
    path.write_text(archive.dumps([made_up.comparison(*cases, op="matmul")]))
    tiles.main(str(path))
    printed = capsys.readouterr().out
    assert len(re.findall(r"(?m)^Tile\(", printed)) == sum(len(table) for _, table in tiles.CURRENT.values())
    for way in tiles.CURRENT:
        means = dict(re.findall(rf"{way}, ([\w ]+): mean ([\d.]+)", printed))
        best, source, new = (float(means[name]) for name in ("best tile", "as in the source", "new"))
        assert source < best - 0.02
        assert new == pytest.approx(best, abs=0.01)
