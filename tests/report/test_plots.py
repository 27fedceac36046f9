"""``map --plot``: a picture of what effort buys, where there is matplotlib."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from compare import cli, report
from compare.command_line.status import SUCCESS
from compare.history.map import Map
from compare.model.op import UsageError
from compare.records import archive
from compare.registry import ROOT
from compare.report import plots
from made_up import APART, charted, one


def test_without_matplotlib_a_plot_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = archive.record(one(APART), tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not there
    monkeypatch.delitem(sys.modules, "compare.report.figure", raising=False)
    monkeypatch.delattr(report, "figure", raising=False)
    words = ["map", "--plot", str(tmp_path / "map.png"), "--records", str(recorded)]
    assert cli.main(words) == cli.USAGE
    assert f"pip install -r {ROOT / 'requirements-plot.txt'}" in capsys.readouterr().err
    assert cli.main(["map", "--records", str(recorded)]) == SUCCESS


def several() -> Map:
    other = replace(one({**APART, "cupy.onepass": ("tiled", 47.0)}, "M=2,N=2,fp32"), op="vector_add")
    return charted(one(APART), other)


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["png", "svg", "PNG"])
def test_a_picture_is_of_the_kind_its_name_says(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"map.{ending}"
    plots.check(file)
    plots.draw(several(), file)
    if ending.lower() == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")
        plots.draw(several(), again := tmp_path / "again.svg")
        assert again.read_text() == file.read_text()


def test_a_picture_has_a_panel_an_op_and_a_point_an_implementation() -> None:
    figure = pytest.importorskip("compare.report.figure", exc_type=ModuleNotFoundError)
    found = several()
    whole = figure.figure(found)
    panels = [panel for panel in whole.axes if panel.get_visible()]
    assert [panel.get_title() for panel in panels] == ["softmax", "vector_add"]
    for panel in panels:
        points = [p for p in found.points if p.op == panel.get_title()]
        drawn = {tuple(xy) for group in panel.collections for xy in group.get_offsets().tolist()}
        assert drawn == {(p.tokens, p.share) for p in points}
        assert "tokens" in panel.get_xlabel()
        names = sorted(re.sub(r" .*", "", text.get_text()) for text in panel.texts)
        routes = [p.label.replace("pybind.", "cupy.") for p in points]  # which have one name between them
        assert names == sorted(label.partition(".")[2] for label in set(routes))
        dotted = [line for line in panel.lines if line.get_linestyle() == ":"]
        assert len(dotted) == len(routes) - len(set(routes)) > 0
        boxes = [text.get_window_extent() for text in panel.texts]
        assert not [
            1 for i, one in enumerate(boxes) for other in boxes[:i] if one.shrunk(0.9, 0.9).overlaps(other)
        ]
    (legend,) = whole.legends
    said = [text.get_text() for text in legend.get_texts()]
    assert len(said) == len(set(said)) == 6
    assert "share of the ceiling" in panels[0].get_ylabel()


def test_title_and_legend_fit_a_picture_of_one_op() -> None:
    figure = pytest.importorskip("compare.report.figure", exc_type=ModuleNotFoundError)
    whole = figure.figure(charted(one(APART)))
    for words in (*whole.texts, *whole.legends):
        extent = words.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= whole.bbox.width


@pytest.mark.thorough
def test_a_picture_of_many_ops_is_about_as_wide_as_high_and_no_label_covers_a_point() -> None:
    figure = pytest.importorskip("compare.report.figure", exc_type=ModuleNotFoundError)
    run = one(APART)
    found = charted(*(replace(run, op=f"op{i}") for i in range(14)))
    whole = figure.figure(found)
    wide, high = whole.get_size_inches()
    assert 1 <= wide / high <= 2
    panels = [panel for panel in whole.axes if panel.get_visible()]
    assert len(panels) == 14
    assert [bool(panel.get_xlabel()) for panel in panels] == [False] * 10 + [True] * 4
    for panel in panels:
        points = [xy for group in panel.collections for xy in group.get_offsets().tolist()]
        for x, y in panel.transData.transform(points):
            assert not [text for text in panel.texts if text.get_window_extent().contains(x, y)]


def test_a_map_without_points_is_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="code size"):
        plots.draw(replace(several(), points=()), tmp_path / "map.png")
    with pytest.raises(UsageError, match="could not be written"):
        plots.draw(several(), tmp_path / "none" / "map.png")
