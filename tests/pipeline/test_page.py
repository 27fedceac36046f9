"""The page of a pipeline: what is in it, and that a browser shows it, alone and by keyboard too."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import browser
from browser import BrowserPage
from compare.pipeline import page
from compare.pipeline.records import CompilerStage, Opened, Pass, StageFailure
from compare.resources.sass.disassembly import instructions
from processes import command

pytestmark = pytest.mark.thorough

MOST_BYTES = 1_000_000
VARIANTS = ("triton.online", "cupy.online", "pybind.split")
ARCHS = ("sm_80", "sm_90a")


@pytest.fixture(scope="session")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of some of softmax, made once however many processes test it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    file = shared / "softmax.html"
    with FileLock(shared / "softmax.lock"):
        if not file.is_file():
            only = [word for label in VARIANTS for word in ("--only", label)]
            done = command("pipeline", "softmax", *only, "--arch", ",".join(ARCHS), "--html", file)
            assert done.returncode == 0, done.stderr
    return file


def data_of(text: str) -> dict[str, Any]:
    packed = re.search(r'id="packed">([^<]*)<', text)
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


# --------------------------------------------------------------------------- without a browser


HOSTILE = '</script><script>alert("&")</script>'


def made_up(tmp_path: Path) -> Opened:
    source = tmp_path / "kernel.cuh"
    source.write_text(f"// {HOSTILE}\n__global__ void f(int* x) {{\n  *x = 1;\n}}\n")
    sass = f'\t//## File "{source}", line 3\n        /*0000*/                   STG.E.128 [R2], R4 ;\n'
    ptx = f'\t.file 1 "{source}"\n\t.loc 1 3 0\n\tst.global.u32 [%rd1], 1;\n'
    stages = (
        CompilerStage("source", "CUDA C++", source.read_bytes(), file=str(source)),
        CompilerStage("ptx", "NVRTC", ptx.encode(), 3.5),
        CompilerStage("cubin", "NVRTC", b"\x7fELF\0"),
        CompilerStage("sass", "nvdisasm", sass.encode()),
    )
    passes = (Pass("ttir", "same", "Same", "a", "a"), Pass("ttir", "other", "Other", "a", "b"))
    return Opened(HOSTILE, "cupy.a", "N=1,fp32", "sm_80", "f", stages, passes, instructions(sass))


def test_what_a_page_holds(tmp_path: Path):
    text = page.render([made_up(tmp_path)], "x[N] -> y[N]")
    assert HOSTILE not in text
    assert not re.search(r"(?:src|href)=\"(?!data:,)|url\(|@import|https?://", text)
    data = data_of(text)
    (kernel,) = data["kernels"]
    texts = {
        stage["name"]: data["texts"][stage["text"]] for stage in kernel["stages"] if stage["text"] is not None
    }
    assert list(texts) == ["source", "ptx", "sass"]
    assert kernel["first"] == 2
    assert texts["source"]["lines"] == [[1], [2], [3], [4]]
    assert (texts["ptx"]["text"], texts["ptx"]["lines"]) == ("\tst.global.u32 [%rd1], 1;", [[3]])
    assert texts["sass"]["lines"] == [[3]]
    assert kernel["mix"] == {"global stores, 128 bits": 1}
    assert [(ran["name"], ran["changed"]) for ran in kernel["passes"]] == [("same", False), ("other", True)]
    assert kernel["passes"][1]["diff"].splitlines()[1:] == ["-a", "+b"]
    for one in data["texts"]:  # colours cover the text they belong to
        rows = one["text"].split("\n")
        assert len(one["lines"]) == len(rows)
        for row, runs in zip(rows, one["colours"].split("\n"), strict=True):
            assert sum(int(re.sub(r"\D", "", run)) for run in runs.split()) == len(row)


def test_every_way_is_on_the_page(softmax: Path) -> None:
    assert softmax.stat().st_size < MOST_BYTES
    data = data_of(softmax.read_text())
    assert {kernel["way"] for kernel in data["kernels"]} == {"triton", "cuda"}
    assert {kernel["arch"] for kernel in data["kernels"]} == {*ARCHS}
    for kernel in data["kernels"]:
        assert kernel["failure"] is None
        assert kernel["mix"], kernel["label"]
        assert bool(kernel["passes"]) == (kernel["way"] == "triton")
        for stage in kernel["stages"]:
            if stage["name"] in ("ttir", "ttgir", "ptx", "sass"):
                lines = data["texts"][stage["text"]]["lines"]
                assert any(lines), (kernel["label"], stage["name"])


# --------------------------------------------------------------------------- in a browser


class PipelinePage(BrowserPage):
    """The page of a pipeline."""

    def lit(self, stage: str, side: str = "left") -> int:
        return int(self.tab.locator(f".column.{side}[data-stage={stage}] .line.lit").count())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.launched() as found:
        yield found


def opened(chromium: Any, file: Path, width: int, scheme: str = "light") -> PipelinePage:
    return PipelinePage(browser.tab(chromium, width, scheme), file)


@pytest.fixture
def shown(request: pytest.FixtureRequest, chromium: Any, softmax: Path) -> Iterator[PipelinePage]:
    found = opened(chromium, softmax, *getattr(request, "param", (1280, "light")))
    yield found
    assert found.complaints == []
    assert {url.partition("#")[0] for url in found.requests} == {softmax.as_uri()}, "a request left the page"
    found.tab.close()


WIDTHS = pytest.mark.parametrize(
    "shown", [(1280, "light"), (400, "dark")], ids=["1280 px, light", "400 px, dark"], indirect=True
)


@WIDTHS
def test_a_click_on_a_source_line_lights_up_what_it_became(shown: PipelinePage):
    assert shown.text("#left option:checked").startswith("triton.")
    assert not shown.text("#right option:checked").startswith("triton.")
    line = shown.tab.locator(".column.left[data-stage=source] .line", has_text="tl.load(").first
    line.click()
    assert shown.lit("source") == 1
    assert shown.lit("ttir") > 0
    assert shown.lit("ttgir") > 0
    assert shown.lit("ptx") > 0
    loads = shown.tab.locator(".column.left[data-stage=sass] .line.lit", has_text="LDG.E")
    assert loads.count() > 0
    assert shown.lit("source", "right") == 0
    assert re.search(
        r"triton_impl/softmax\.py:\d+ of triton\.\w+ became lines: .*\d+ sass", shown.text("#status")
    )

    # From the machine code back to the source, on the other side.
    shown.tab.locator(".column.right[data-stage=sass] .line[data-traced]").first.click()
    assert shown.lit("source", "right") == 1
    assert shown.lit("source") == 0
    assert "softmax.cuh" in shown.text("#status")


@WIDTHS
def test_it_opens_with_source_and_sass_side_by_side_in_its_window(shown: PipelinePage):
    tab = shown.tab
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    first = tab.locator("#first .column")
    assert [one.get_attribute("data-stage") for one in first.all()] == ["source", "sass"] * 2
    source, sass = (first.nth(i).bounding_box() for i in (0, 1))
    beside = sass["y"] == source["y"] and sass["x"] >= source["x"] + source["width"]
    assert beside if tab.viewport_size["width"] > 1000 else sass["y"] >= source["y"] + source["height"]
    further = tab.locator("#further .column:visible")
    assert [one.get_attribute("data-stage") for one in further.all()] == ["ttir", "ttgir", "ptx", "ptx"]
    assert shown.is_dark() == tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    tab.emulate_media(media="print")
    assert not shown.is_dark()
    assert not tab.is_visible("#bar")
    assert first.nth(1).locator(".code").evaluate("e => e.scrollHeight <= e.clientHeight"), "printed whole"


def test_source_and_machine_code_share_a_tint_without_a_click(shown: PipelinePage):
    tab = shown.tab
    tinted = "e => e.style.getPropertyValue('--tint')"
    line = tab.locator(".column.left[data-stage=source] .line", has_text="tl.load(").first
    tint = line.evaluate(tinted)
    assert tint.startswith("var(--tint-")
    assert line.evaluate("e => getComputedStyle(e).backgroundColor") != "rgba(0, 0, 0, 0)"
    line.hover()
    loads = tab.locator(".column.left[data-stage=sass] .line.near", has_text="LDG.E")
    assert loads.count() > 0
    assert {load.evaluate(tinted) for load in loads.all()} == {tint}
    assert shown.text("#status") == "No line chosen."
    assert tab.locator(".column.right .line.near").count() == 0
    tab.locator("h1").hover()
    assert tab.locator(".line.near").count() == 0


def test_two_sources_of_one_language_stand_side_by_side(shown: PipelinePage):
    tab = shown.tab
    assert not tab.is_visible("#source-diff"), "Triton and CUDA are not compared line by line"
    online = tab.locator("#right option:checked").get_attribute("value")
    tab.select_option(
        "#left", tab.locator("#left option", has_text="pybind.split").first.get_attribute("value")
    )
    assert tab.locator("#source-diff th").all_inner_texts() == ["pybind.split", "cupy.online"]
    data = data_of(Path(shown.requests[0].removeprefix("file://")).read_text())
    left, right = (data["kernels"][int(tab.input_value(side))]["file"] for side in ("#left", "#right"))
    assert data["kernels"][int(online)]["file"] == right != left
    rows = tab.locator("#source-diff-rows tr")
    cells = [row.locator("td").all_text_contents() for row in rows.all()]
    changed = [row.get_attribute("class") == "changed" for row in rows.all()]
    assert any(changed)
    assert not all(changed)
    for row, differs in zip(cells, changed, strict=True):
        assert (row[0] != row[1]) == differs
    for side, cell in (("#left", 0), ("#right", 1)):
        lines = "".join(row[cell] for row in cells)
        name = tab.locator(f"{side} option:checked").inner_text().split(": ")[1].partition("<")[0]
        assert name in lines


def test_a_search_steps_through_the_lines_that_match(shown: PipelinePage):
    tab = shown.tab
    sass = ".column.left[data-stage=sass] .line"
    rows = [row.lower() for row in tab.locator(sass).all_text_contents()]
    tab.keyboard.press("/")
    tab.keyboard.type("mufu.EX2")
    found = tab.locator(f"{sass}.found")
    assert found.count() == sum("mufu.ex2" in row for row in rows) > 2
    count = tab.locator(".line.found").count()
    assert shown.text("#matches") == f"{count} lines"
    tab.keyboard.press("Enter")
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("n")
    assert (
        shown.text("#matches")
        == f"2 of {count} lines: {shown.text('#left option:checked').split(':')[0]} sass"
    )
    assert found.nth(1).evaluate("e => e.matches('.current')")
    for _ in range(2):
        tab.keyboard.press("N")
    assert shown.text("#matches").startswith(f"{count} of {count} lines: cupy.online sass")
    line, column = tab.locator(".line.current").bounding_box(), tab.locator(".column.right .code").nth(1)
    box = column.bounding_box()
    assert box["y"] <= line["y"] <= box["y"] + box["height"] - line["height"], "scrolled to"
    tab.check("#only")
    assert tab.locator(f"{sass}:visible").count() == found.count()
    tab.fill("#find", "")
    assert tab.locator(f"{sass}:visible").count() == len(rows)
    tab.check("#wrap")
    assert tab.locator(".column.left[data-stage=ttir] .code").evaluate("e => e.scrollWidth <= e.clientWidth")


def test_a_line_number_is_a_link_to_the_line(shown: PipelinePage):
    tab = shown.tab
    tab.select_option("#arch", "sm_90a")
    tab.select_option(
        "#right", tab.locator("#right option", has_text="pybind.split").first.get_attribute("value")
    )
    line = tab.locator(".column.right[data-stage=sass] .line").nth(122)
    line.locator(".number").click()
    assert "#sass-123&side=right&arch=sm_90a" in tab.url
    tab.reload()
    tab.wait_for_selector("body[data-ready]")
    linked = tab.locator(".line.linked")
    assert linked.inner_text().startswith("123")
    assert linked.evaluate("e => e.closest('.column').matches('.right[data-stage=sass]')")
    assert shown.text(".column.right h3") == "pybind.split source"
    tab.evaluate("location.hash = '#llir-7'")
    assert linked.evaluate("e => e.closest('.column').matches('.left[data-stage=llir]')")
    assert linked.is_visible()
    tab.evaluate("location.hash = '#left=triton.online&right=cupy.online'")
    assert shown.text("#right option:checked").startswith("cupy.online")


def test_the_slider_goes_over_passes_that_changed_something(shown: PipelinePage):
    tab = shown.tab
    few = int(tab.get_attribute("#pass", "max")) + 1
    seen = set()
    tab.focus("#pass")
    for _ in range(few):
        assert "It changed nothing" not in shown.text("#diff")
        assert tab.locator("#diff .added, #diff .removed").count() > 0
        seen.add(shown.text("#pass-name"))
        tab.keyboard.press("ArrowRight")
    assert len(seen) == few
    assert any("tritongpu-coalesce" in name for name in seen)
    tab.check("#every")
    assert int(tab.get_attribute("#pass", "max")) + 1 > few


def test_the_keyboard_is_enough(shown: PipelinePage):
    tab = shown.tab
    tab.focus(".column.left[data-stage=source] .code")
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowDown")
    assert tab.locator(".column.left[data-stage=source] .line").nth(1).evaluate("e => e.matches('.cursor')")
    for _ in range(200):
        if "tl.load(" in tab.locator(".column.left[data-stage=source] .line.cursor").inner_text():
            break
        tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert shown.lit("sass") > 0
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.closest('.column').matches('.left[data-stage=sass]')")
    tab.keyboard.press("End")
    assert tab.locator(".column.left[data-stage=sass] .line").last.evaluate("e => e.matches('.cursor')")
    tab.keyboard.press("Escape")
    assert shown.lit("sass") == 0
    assert shown.text("#status") == "No line chosen."
    tab.focus("#arch")
    tab.keyboard.press("ArrowDown")
    assert tab.input_value("#arch") == "sm_90a"
    tab.focus("#shown input >> nth=0")
    tab.keyboard.press("Space")
    assert tab.locator(".column[data-stage=frontend]:visible").count() == 1


def test_choices_change_what_is_shown(shown: PipelinePage):
    tab = shown.tab
    before = shown.text("#mix")
    label = tab.locator("#right option", has_text="pybind.split").first.get_attribute("value")
    tab.select_option("#right", label)
    assert "pybind.split" in shown.text(".column.right h3")
    assert shown.text("#mix") != before
    data = data_of(Path(shown.requests[0].removeprefix("file://")).read_text())
    kernel = data["kernels"][int(label)]
    for kind, count in kernel["mix"].items():
        row = tab.locator("#mix tr", has=tab.locator(f'th:text-is("{kind}")'))
        assert row.locator(".bar.right span").inner_text() == str(count)
    tab.select_option("#arch", "sm_90a")
    assert tab.locator("#right option:checked").inner_text().startswith("pybind.split")
    tab.locator("#caches summary").first.click()
    assert "key" in shown.text("#caches details[open] pre")


def test_a_kernel_that_stopped_says_where(chromium: Any, tmp_path: Path):
    stopped = made_up(tmp_path)
    failed = Opened(
        "op",
        "cupy.b",
        "N=1,fp32",
        "sm_80",
        "f",
        stopped.stages[:1],
        failure=StageFailure("ptx", HOSTILE, "k.cu:2"),
    )
    file = tmp_path / "page.html"
    file.write_text(page.render([stopped, failed], "x[N] -> y[N]"))
    found = opened(chromium, file, 1280)
    found.tab.select_option("#right", "1")
    assert found.text(".failure") == f"cupy.b stopped at ptx, at k.cu:2: {HOSTILE}"
    assert HOSTILE in found.text("h1")
    assert found.complaints == []
    found.tab.close()
