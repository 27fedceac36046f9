"""The picture of effort against speed."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from compare.history.map import Map, Point
from tools.docs import effort

SVG = "{http://www.w3.org/2000/svg}"


def point(op: str, label: str, tokens: int, share: float, front: bool) -> Point:
    return Point(op, label, 1, tokens, share, share, share, 1, 1, 0.01, front, changed=False)


def test_effort_is_logarithmic_and_speed_linear_with_a_panel_for_each_op() -> None:
    points = (
        point("first", "torch.eager", 100, 0.2, front=True),
        point("first", "triton.a", 1000, 0.8, front=True),
        point("first", "cupy.a", 10_000, 0.5, front=False),
        point("second", "library.cub", 100, 0.2, front=False),
        point("second", "pybind.a", 100, 2.0, front=True),
    )
    svg = ElementTree.fromstring(effort.picture(Map("a card", ("2026-01-01",), (), points, ())))
    assert "a card" in str(svg.findtext(f"{SVG}title"))
    assert [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "op"] == ["first", "second"]
    marks = {
        str(title.text): use
        for use in svg.iter(f"{SVG}use")
        if (title := use.find(f"{SVG}title")) is not None
    }

    def at(text: str) -> tuple[float, float]:
        use: Element = next(use for said, use in marks.items() if said.startswith(text))
        return float(use.attrib["x"]), float(use.attrib["y"])

    (eager_x, eager_y), (triton_x, triton_y), (cupy_x, cupy_y) = map(
        at, ("torch.eager", "triton.a", "cupy.a")
    )
    assert triton_x - eager_x == pytest.approx(cupy_x - triton_x, abs=0.2)
    assert cupy_y - triton_y == pytest.approx(eager_y - cupy_y, abs=0.2)
    assert at("pybind.a")[1] == 0, "a share above the axis is drawn at its end"
    assert marks["triton.a: 1000 tokens, 80%"].get("class") == "triton"
    assert marks["cupy.a: 10000 tokens, 50%"].get("class") == "cuda behind"
    fronts = [path.attrib["d"] for path in svg.iter(f"{SVG}path") if path.get("class") == "front"]
    assert fronts[0] == f"M{eager_x} {eager_y}H{triton_x}V{triton_y}H{effort.PLOT_WIDTH}"
