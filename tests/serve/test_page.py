"""The page in a headless browser: runs, errors, reload, two tabs, narrow, dark, by keyboard only, a lab."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tornado", reason="the page needs tornado: pip install -r requirements-serve.txt")
pytest.importorskip("django_ace", reason="the page needs its editor: pip install -r requirements-serve.txt")

import browser
from page_server import PageServerProcess, page_server
from processes import command, running, until

pytestmark = pytest.mark.thorough

WAIT_MS = 60_000
HOSTILE = '"><img src=x onerror="document.title=1"><script>document.title=2</script>&lt;'


class RunPage:
    """A tab with the page, and what it complained of."""

    def __init__(self, tab: Any, url: str) -> None:
        self.tab = tab
        self.complaints: list[str] = []
        self.requests: list[str] = []
        tab.set_default_timeout(WAIT_MS)
        tab.on("console", lambda message: self.complaints.append(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))
        self.open(url)

    def open(self, url: str) -> None:
        self.tab.goto("about:blank")
        self.tab.goto(url)
        self.tab.wait_for_selector("body[data-ready]")

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).first.inner_text())

    @property
    def source(self) -> str:
        return str(self.tab.evaluate("ace.edit('editor').getValue()"))

    def change(self, old: str, new: str) -> None:
        text = self.source
        assert old in text
        self.tab.evaluate("text => ace.edit('editor').setValue(text, -1)", text.replace(old, new))

    def until(self, condition: str) -> None:
        """Wait until an expression is true; Playwright's own wait needs what the page's policy forbids."""
        assert until(lambda: bool(self.tab.evaluate(condition)), 60), (condition, self.text("#status"))

    def until_source(self, has: str) -> None:
        self.until(f"ace.edit('editor').getValue().includes({has!r})")

    def until_status(self, has: str) -> None:
        self.until(f"document.getElementById('status').textContent.includes({has!r})")

    def run(self) -> None:
        """Press Run, and wait for the end."""
        self.tab.evaluate("delete document.body.dataset.ran")
        self.tab.click("#run")
        self.ended()

    def ended(self) -> None:
        self.tab.wait_for_selector("body[data-ran]")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServerProcess]:
    with page_server("--device", "cpu") as found:
        list(found.client.events("example"))
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.launched() as found:
        yield found


@pytest.fixture
def page(request: pytest.FixtureRequest, chromium: Any, server: PageServerProcess) -> Iterator[RunPage]:
    width, scheme = getattr(request, "param", (1400, "light"))
    found = RunPage(browser.tab(chromium, width, scheme), server.client.url)
    yield found
    assert found.complaints == []
    assert all(url.startswith((server.client.url, "about:", "data:", "blob:")) for url in found.requests)
    found.tab.close()


def test_a_first_visit_shows_a_run_and_what_to_try(page: RunPage):
    page.ended()
    assert "correct on" in page.text("#verdict")
    assert "triton.mine (yours)" in page.text("#speed")
    assert "Try: delete the mask" in page.text("#status")
    frame = page.tab.frame_locator("#stages iframe")
    frame.locator(".column[data-stage=sass] .line").first.wait_for()
    line = frame.locator(".column.left[data-stage=source] .line", has_text="tl.load").first
    line.click()
    assert frame.locator(".column.left[data-stage=sass] .line.lit").count() > 0
    page.tab.click("#tab-lanes")
    assert page.tab.locator("#lanes svg rect").count() > 30
    assert "sectors of 32 bytes" in page.text("#lanes")


def test_an_error_is_marked_at_its_line(page: RunPage):
    page.change("tl.exp(", "tl.exq(")
    line = 1 + page.source[: page.source.index("tl.exq(")].count("\n")
    page.run()
    assert "no attribute 'exq'" in page.text("#verdict")
    annotations = page.tab.evaluate("ace.edit('editor').session.getAnnotations()")
    assert [each["row"] for each in annotations] == [line - 1]
    page.tab.click(f"#verdict button:has-text('line {line}')")
    assert page.tab.evaluate("ace.edit('editor').getCursorPosition().row") == line - 1


def test_markup_stays_text(page: RunPage):
    page.change("M, N = x.shape", f"raise ValueError({HOSTILE!r})")
    page.run()
    assert HOSTILE in page.text("#verdict")
    assert page.tab.title() == "GPU, three ways: run a kernel"
    assert page.tab.locator("#verdict img, #verdict script").count() == 0


def test_a_reload_keeps_everything_and_two_tabs_stay_apart(
    page: RunPage, chromium: Any, server: PageServerProcess
):
    page.change("num_warps=8", "num_warps=4")
    page.run()
    page.tab.click("#ways >> text=CUDA")
    page.until_source("row_max")
    page.change("row_max", "row_most")
    page.tab.wait_for_timeout(500)
    other = RunPage(browser.tab(chromium, 1000), server.client.url)
    assert "num_warps=8" in other.source
    page.tab.reload()
    page.tab.wait_for_selector("body[data-ran]")
    assert "row_most" in page.source
    page.tab.click("#ways >> text=Triton")
    page.until_source("num_warps=4")
    assert "correct on" in page.text("#verdict")
    other.open(page.tab.url)  # the permalink
    assert "row_most" in other.source or "num_warps=4" in other.source
    assert other.complaints == []
    other.tab.close()


def test_a_hanging_kernel_is_cancelled(page: RunPage):
    page.change("    M, N = x.shape\n", "    while True:\n        pass\n")
    page.tab.evaluate("delete document.body.dataset.ran")
    page.tab.click("#run")
    page.until_status("checking")
    page.tab.click("#cancel")
    page.ended()
    assert page.text("#status") == "Cancelled."
    assert page.tab.is_disabled("#cancel")


def test_by_keyboard_only(page: RunPage):
    """From the top of the page to a run of a changed kernel, and back out of the editor."""
    tab = page.tab
    page.ended()
    for _ in range(40):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.matches('#editor .ace_scroller')"):
            break
    assert tab.evaluate("document.activeElement.matches('#editor .ace_scroller')")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Control+Home")
    tab.keyboard.type("typo(")
    tab.evaluate("delete document.body.dataset.ran")
    tab.keyboard.press("Control+Enter")
    page.ended()
    assert "SyntaxError at line 1" in page.text("#verdict")
    tab.keyboard.press("Escape")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.closest('#editor') === null")
    tab.focus("#ways [aria-selected=true]")
    tab.keyboard.press("ArrowRight")
    page.until_source("__global__")
    assert tab.evaluate("document.activeElement.textContent") == "CUDA"


@pytest.mark.parametrize("page", [(500, "light"), (500, "dark"), (1400, "dark")], indirect=True)
def test_narrow_and_dark(page: RunPage):
    page.ended()
    assert page.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = page.tab.evaluate("getComputedStyle(document.querySelector('.ace_editor')).backgroundColor")
    dark = page.tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == dark


@pytest.mark.parametrize("page", [(1400, "light"), (500, "dark")], indirect=True)
def test_axe_finds_nothing_serious(page: RunPage):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    )
    page.ended()
    for view in ("stages", "lanes", "tuning"):
        page.tab.click(f"#tab-{view}")
        found = axe.Axe().run(page.tab).response["violations"]
        serious = {each["id"]: [node["html"][:120] for node in each["nodes"]] for each in found}
        serious = {
            each["id"]: serious[each["id"]] for each in found if each["impact"] in ("serious", "critical")
        }
        assert serious == {}


def test_predictions_come_first(page: RunPage):
    page.ended()
    page.tab.check("#predict")
    page.tab.click("#run")
    assert "Predict first" in page.text("#status")
    for name, value in (("registers", "32"), ("speedup", "1.5"), ("lines", "20")):
        page.tab.fill(f"#questions input[name={name}]", value)
    page.run()
    rows = page.text("#verdict table")
    assert re.search(r"registers\s+32\s+\d+\s+\d\.\d\d", rows), rows
    assert "no record has it" in rows


def test_a_sweep_has_sliders(page: RunPage):
    page.tab.select_option("#op", "vector_add")
    assert page.text("#verdict") == ""  # that of softmax is not shown beside another op
    page.until_source("tunable")
    page.change("(128, 256, 512, 1024, 2048, 4096)", "(512, 1024)")
    page.change("(1, 2, 4, 8, 16)", "(4, 8)")
    page.tab.click("#tab-tuning")
    page.tab.evaluate("delete document.body.dataset.ran")
    page.tab.click("#sweep")
    page.ended()
    chosen = page.text("#trials tr.chosen")
    page.tab.locator("#sliders input").nth(1).press("ArrowRight")
    assert page.text("#trials tr.chosen") != chosen
    assert "WARPS=8" in page.text("#trials tr.chosen")


def test_a_sweep_on_record_has_sliders_before_any_run(page: RunPage):
    figures = dict.fromkeys(("us", "speedup", "registers", "shared", "spilled", "occupancy"), "7")
    trials = [{"values": {"BLOCK_SIZE": size}, "word": "correct", **figures} for size in (128, 256)]

    def with_a_sweep(route: Any) -> None:
        answer = route.fetch()
        sweep = {"origin": "recorded on a GPU", "trials": trials}
        route.fulfill(response=answer, json={**answer.json(), "sweep": sweep})

    page.tab.route(re.compile("source.*triton.blocked"), with_a_sweep)
    page.tab.select_option("#op", "vector_add")
    page.until_source("tunable")
    page.tab.click("#tab-tuning")
    assert page.text("#swept") == "recorded on a GPU"
    page.tab.locator("#sliders input").press("ArrowRight")
    assert "BLOCK_SIZE=256" in page.text("#trials tr.chosen")
    page.tab.click("#ways >> text=CUDA")
    page.until_source("__global__")
    assert page.tab.locator("#sliders input").count() == 0


def test_a_saved_file_is_taken_by_load_and_by_the_page(page: RunPage, tmp_path: Path):
    page.change("num_warps=8", "num_warps=2")
    with page.tab.expect_download() as held:
        page.tab.click("#save")
    file = tmp_path / held.value.suggested_filename
    held.value.save_as(file)
    done = command("softmax", "--load", file, "--only", "triton.mine", "--no-hard-inputs", "--no-resources")
    assert done.returncode == 0, done.stderr + done.stdout
    page.tab.click("#reset")
    page.until_source("num_warps=8")
    page.tab.set_input_files("#file", file)
    page.until_source("num_warps=2")
    with page.tab.expect_download() as held:
        page.tab.click("#notebook")
    held.value.save_as(tmp_path / "x.ipynb")
    cells = json.loads((tmp_path / "x.ipynb").read_text())["cells"]
    assert "num_warps=2" in cells[0]["source"]
    assert 'run("softmax", load=' in cells[1]["source"]


def test_a_lab(page: RunPage, tmp_path: Path):
    page.tab.select_option("#lab", "01")
    page.tab.wait_for_selector("#hand-out table")
    page.tab.click("#hints button >> nth=0")
    page.tab.wait_for_selector("#hinted li")
    page.run()
    assert "not started" in page.text("#parts")
    assert "0 of" in page.text("#progress")
    assert "not written yet" in page.text("#verdict")
    page.tab.select_option("#lab", "02")  # progress stays: here, after a reload, and without the server's run
    page.until("!document.getElementById('parts').textContent.includes('not started')")
    page.tab.select_option("#lab", "01")
    page.until("document.getElementById('parts').textContent.includes('not started')")
    page.tab.wait_for_timeout(500)
    page.tab.route("**/events", lambda route: route.abort())
    page.tab.reload()
    page.tab.wait_for_selector("#hinted li")
    assert "not started" in page.text("#parts")
    assert "0 of" in page.text("#lab option:checked")
    page.complaints.clear()  # of the request that was ended
    with page.tab.expect_download() as held:
        page.tab.click("#hand-in")
    held.value.save_as(tmp_path / "ann.zip")
    done = command("grade", tmp_path, "--device", "cpu", "--html", tmp_path / "class.html")
    assert "ann" in done.stdout, done.stderr


def test_a_server_that_is_killed_and_started_again(chromium: Any):
    with page_server("--device", "cpu") as first:
        list(first.client.events("example"))
        page = RunPage(browser.tab(chromium, 1400), first.client.url)
        page.change("    M, N = x.shape\n", "    while True:\n        pass\n")
        page.tab.click("#run")
        page.until_status("checking")
        begun = first.descendants
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        page.until_status("connection is lost")
        assert until(lambda: not any(map(running, begun)), 20)
        page.tab.click("#run")
        page.until_status("does not answer")
        fragment = page.tab.url.partition("#")[2]
    with page_server("--device", "cpu") as second:
        page.open(f"{second.client.url}#{fragment}")
        assert "while True" in page.source
        assert "press Run" in page.text("#status")
        page.change("    while True:\n        pass\n", "    M, N = x.shape\n")
        page.run()
        assert "correct on" in page.text("#verdict")
    page.tab.close()
