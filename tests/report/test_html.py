"""The HTML report: what is in it, that only its own scripts can run, and that a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import browser
import made_up
import processes
from browser import BrowserPage
from compare import cli, registry
from compare.code_size.hashes import source_hash
from compare.history.recorded import recorded
from compare.model.op import Cost, Implementation
from compare.model.result import CaseComparison, Ceilings, Comparison
from compare.registry import ROOT
from compare.report import lines
from compare.report.html import figures, page, sources

pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: pip install '.[html]'")

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}'\"&"
MOST_BYTES = 2_500_000
FAILED = "RuntimeError: it broke"
SIZES = tuple(f"M=4096,N={n},fp32" for n in (1024, 2048, 8192))


def hostile() -> Comparison:
    """Of an op, with a row, a reason and a note, that are all markup."""
    case = made_up.with_row(made_up.case(), "cupy.online", status="failed", reason=HOSTILE, timing=None)
    timed = next(row for row in case.rows if row.label == "triton.online")
    assert timed.timing
    rows = (
        *case.rows,
        replace(timed, label=f"triton.{HOSTILE}", timing=replace(timed.timing, notes=(HOSTILE,))),
    )
    return replace(made_up.comparison(replace(case, rows=rows)), op=HOSTILE, signature=HOSTILE)


def several() -> list[Comparison]:
    """A sweep with a failure and what was not run, and a second op."""
    case = made_up.with_row(made_up.case(), "cupy.online", status="failed", reason=FAILED, timing=None)
    case = made_up.with_row(case, "pybind.online", status="unavailable", reason="needs sm_100", timing=None)
    wrong = {"status": "disagrees", "agreement": made_up.DISAGREEMENT, "timing": None}
    case = made_up.with_row(case, "triton.online", **wrong)
    ceilings = Ceilings(2990.0, 3105.0, 760.0, 790.0)
    product = replace(
        made_up.case("M=4096,N=4096,K=4096,bf16"), ceilings=ceilings, cost=Cost(2**37, 2**26, 2**25)
    )
    return [
        made_up.comparison(case, *map(made_up.case, SIZES)),
        made_up.comparison(product, op="matmul", signature="a[M,K], b[K,N] -> c[M,N]"),
    ]


@pytest.fixture(scope="module")
def text() -> str:
    return page.dumps(several())


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


class Elements(HTMLParser):
    """Every element with its attributes, and what stands in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        self._within = tag
        self.scripts += [""] * (tag == "script")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "script":
            self.scripts[-1] += data


# --------------------------------------------------------------------------- what it holds


@pytest.mark.thorough
def test_it_needs_nothing_but_itself(text: str) -> None:
    without_library = text.replace(figures.library(), "")
    assert not re.search(r"src=\"|url\(|@import", without_library)
    elements = Elements(text)
    for tag, attributes in elements.found:  # a link is opened by a click only
        assert re.fullmatch(
            r"|data:,|#[\w.~-]+" + r"|[\w.~-]+\.html" * (tag == "a"), attributes.get("href") or ""
        )
    assert not {tag for tag, _ in elements.found} & {"img", "iframe", "object", "embed", "base", "form"}
    policy = next(a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "eval" not in policy
    # Only these scripts may run: the first is data.
    named = re.findall(r"'sha256-([^']+)'", policy)
    _, *run = elements.scripts
    assert named == [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in run]
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]


def test_every_row_and_sample_is_there(text: str) -> None:
    ops = data_of(text)["ops"]
    for comparison in several():
        for case in comparison.cases:
            shown = {row["label"]: row for row in ops[comparison.op]["cases"][case.case]["rows"]}
            for row in case.rows:
                assert f">{row.label.replace('.', '.<wbr>')}</a>" in text
                if row.timing and row.timing.cold_us:
                    expected = [pytest.approx(sample, rel=1e-4) for sample in row.timing.cold_us.samples]
                    assert shown.pop(row.label)["samples"] == expected
            assert not shown


def test_a_row_names_the_command_that_writes_the_pipeline_page_it_links_to(text: str) -> None:
    for label, beside in (("triton.onepass", "cupy.onepass"), ("pybind.onepass", "triton.onepass")):
        _, _, details = text.partition(f'<details id="softmax--{label}">')
        details = unescape(details.partition("</details>")[0])
        page = f"softmax.{label}.html"
        assert f'<a href="{page}">' in details
        only = f"--only {label} --only {beside}"
        assert f"compare pipeline softmax --case M=4096,N=4096,fp32 {only} --html {page}" in details
    assert 'href="softmax.torch.compile.html"' in text
    assert 'href="softmax.torch.eager.html"' not in text


def test_failures_come_first_with_their_reason(text: str) -> None:
    first = text.index('<section class="failures">')
    assert first < text.index("<table")
    for reason in (FAILED, "12 elements are NaN, the first at (0, 5)"):
        assert first < text.index(reason) < text.index("<table")
    assert text.index("<h2>Not run</h2>") > text.index("Each implementation")
    assert "needs sm_100" in text


def test_nothing_of_a_comparison_is_markup() -> None:
    elements = Elements(page.dumps([hostile(), *several()]))
    assert "img" not in {tag for tag, _ in elements.found}
    assert sum(tag == "script" for tag, _ in elements.found) == 3
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)


def test_a_users_file_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "<img src=x onerror=alert(3)>"
    folder.mkdir()
    file = folder / "<script>alert(4)<.py"
    file.write_text(f"def run(x):\n    return {HOSTILE!r}\n")
    impl = Implementation("softmax", "triton.mine", "tiled", run=hostile, user_file=file)
    monkeypatch.setattr(sources, "implementations", lambda op: {impl.label: impl})
    rows = (replace(made_up.rows()[1], label=impl.label), *made_up.rows())
    text = page.dumps([made_up.comparison(made_up.case(made=rows))])
    elements = Elements(text)
    assert sum(tag == "script" for tag, _ in elements.found) == 3
    assert "img" not in {tag for tag, _ in elements.found}
    (template,) = re.findall(r"<template[^>]*>(.*?)</template>", text)
    assert "return" in template
    assert f"--load '{file}'" in unescape(text), "how to measure it again"


def test_a_library_that_holds_the_end_of_a_script_is_embedded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "library", lambda: 'window.end = "</script><!-- ";')
    scripts = Elements(page.dumps([made_up.comparison()])).scripts
    assert 'window.end = "\\x3c/script>\\x3c!-- ";' in scripts


def test_without_its_library_nothing_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(figures, "library", figures.library.__wrapped__)  # the cache may have it
    monkeypatch.setattr("compare.run.run", None)
    file = tmp_path / "report.html"
    assert cli.main(["softmax", "--html", str(file)]) == cli.USAGE
    assert f"pip install -r {ROOT / 'requirements-html.txt'}" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.thorough
def test_the_command_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    done = processes.command(
        "vector_add", "--only", "triton.*", "--device", "cpu", "--arch", "sm_80", "--html", file
    )
    assert done.returncode == 0, done.stderr
    assert [*data_of(file.read_text())["ops"]] == ["vector_add"]


def test_runs_of_one_op_are_one() -> None:
    """As a search for a crossover makes them."""
    runs = [made_up.comparison(made_up.case(name)) for name in SIZES]
    ops = data_of(page.dumps(runs))["ops"]
    assert [*ops] == ["softmax"]
    assert [*ops["softmax"]["cases"]] == [*SIZES]


@pytest.mark.parametrize(
    "made", [made_up.comparison(cases=()), made_up.comparison(replace(made_up.case(), rows=()))]
)
def test_nothing_compared_is_a_page_too(made: Comparison) -> None:
    assert "softmax" in page.dumps([made])


def test_recorded_times_carry_their_label_and_no_registers_of_another_architecture() -> None:
    rows = tuple(
        replace(
            row,
            recorded=made_up.RECORDED,
            resources=(made_up.kernel(row.label, arch="sm_75", reader="cubin", registers=77),),
        )
        for row in made_up.rows()
    )
    text = page.dumps([made_up.comparison(made_up.case(made=rows), environment=made_up.LAPTOP)])
    assert f"times recorded on {made_up.H100.device}, 2026-11-21" in text
    assert ">77<" not in text.partition("<tbody")[2].partition("</tbody>")[0]


def not_run_here() -> CaseComparison:
    """A row with recorded times that this machine cannot run."""
    return made_up.with_row(made_up.case(), "cupy.onepass", status="unavailable", recorded=made_up.RECORDED)


def test_a_row_not_run_here_is_in_table_and_figures_as_on_the_screen() -> None:
    text = page.dumps([made_up.comparison(not_run_here())])
    assert "correct<small>when recorded</small>" in text
    assert f"Hollow: recorded on {made_up.H100.device}, 2026-11-21." in text
    (row,) = (row for row in figures_of(not_run_here())["rows"] if row["recorded"])
    assert row["label"] == "cupy.onepass"
    assert row["front"], "the fastest row is on the front though it was not run here"
    assert "Hollow" not in page.dumps([made_up.comparison()])


def test_names_of_kernels_are_those_of_the_screen() -> None:
    mangled = "_Z6squarePfi: too many resources"
    case = made_up.with_row(made_up.case(), "cupy.online", status="failed", reason=mangled, timing=None)
    text = page.dumps([made_up.comparison(case)])
    assert "square: too many resources" in text
    assert "_Z6square" not in text


def test_values_tried_stand_in_order_in_a_figure_of_their_own() -> None:
    rows = []
    for row in made_up.rows():
        if row.label == "triton.onepass":
            for label, size in (
                (row.label, 512),
                (f"{row.label}:BLOCK=64", 64),
                (f"{row.label}:BLOCK=128", 128),
            ):
                choice = replace(row.configuration, parameters=(("BLOCK", size),))
                rows.append(replace(row, label=label, configuration=choice))
        else:
            rows.append(row)
    entry = made_up.case(made=tuple(rows))
    assert ">triton.<wbr>onepass:<wbr>BLOCK=<wbr>64</a>" in page.dumps([made_up.comparison(entry)])
    tuned = [row for row in figures_of(entry)["rows"] if "tuned" in row]
    assert {row["tuned"] for row in tuned} == {"triton.onepass"}
    assert [row["values"] for row in sorted(tuned, key=lambda row: row["place"])] == [
        "BLOCK=64", "BLOCK=128", "BLOCK=512"
    ]  # fmt: skip
    assert not any("tuned" in row for row in figures_of(made_up.case())["rows"])


def test_rows_of_pytorch_have_the_registers_that_the_screen_shows() -> None:
    """Without a GPU its kernels are known from the record only."""
    rows = tuple(replace(row, recorded=made_up.RECORDED, resources=()) for row in made_up.rows())
    laptop = made_up.comparison(made_up.case(made=rows), environment=made_up.LAPTOP)
    (line,) = (
        line
        for line in lines.every(lines.of_one_arch(laptop, laptop.cases[0])[0])
        if line.label == "torch.eager"
    )
    assert line.registers
    text = page.dumps([laptop])
    assert f'data-v="{line.registers}"' in text.partition(">torch.<wbr>eager</a>")[2].partition("</tr>")[0]
    details = text.partition('<details id="softmax--torch.eager">')[2].partition("</details>")[0]
    assert f"<td>{line.registers}</td>" in details


def test_a_row_checked_on_other_cases_says_so() -> None:
    """Without a GPU the default case is not run."""
    label = "cupy.onepass"
    timed = made_up.with_row(made_up.case(), label, agreement=None)
    text = page.dumps([made_up.comparison(timed, made_up.case(SIZES[0]))])
    assert "correct<small>elsewhere</small>" in text
    assert "not checked" in page.dumps([made_up.comparison(timed)])


# --------------------------------------------------------------------------- figures


def figures_of(case: CaseComparison) -> Any:
    return figures.of_case(case, lines.every(case, made_up.comparison(case).code_sizes))


def test_no_row_is_shorter_and_faster_than_one_of_the_front() -> None:
    rows = figures_of(made_up.case())["rows"]
    front = [row for row in rows if row["front"]]
    assert front
    for row in rows:
        better = [
            o for o in rows if o["tokens"] <= row["tokens"] and o["share"] >= row["share"] and o is not row
        ]
        strictly = [o for o in better if (o["tokens"], o["share"]) != (row["tokens"], row["share"])]
        assert row["front"] == (not strictly), row["label"]


def test_the_roofs_are_the_measured_ceilings() -> None:
    product = several()[1].cases[0]
    shown = figures_of(product)
    found = shown["roofline"]
    ridge = 790.0e3 / 2990.0
    assert [point["x"] for point in found["datasets"]["ridges"]] == [pytest.approx(ridge)]
    left, bend, right = found["datasets"]["roof"]
    assert bend == {"x": pytest.approx(ridge), "y": pytest.approx(790.0)}
    assert left["y"] / left["x"] == pytest.approx(2.990)
    assert right["y"] == 790.0
    assert shown["rows"][0]["intensity"] == product.cost.flops / product.cost.bytes
    assert "arithmetic binds" in found["caption"]
    # fp32 on cores without tensor cores: a roof of its own below that of fp16.
    slower = replace(product, ceilings=Ceilings(2990.0, 3105.0, 760.0, 50.0))
    assert {point["y"] for point in figures_of(slower)["roofline"]["datasets"]["ridges"]} == {760.0, 50.0}
    assert "memory binds" in figures_of(made_up.case())["roofline"]["caption"]


def test_curves_go_over_cases_that_differ_in_one_size() -> None:
    names = [*SIZES, "M=1,N=8,fp32", "M=4096,N=4096,fp16", *(f"M={n},N={n},bf16" for n in (256, 512, 1024))]
    found = figures.sweeps(made_up.comparison(*map(made_up.case, names)))
    assert {line: [*given["cases"].values()] for line, given in found.items()} == {
        "N at M=4096, fp32": [1024, 2048, 8192],
        "M=N, bf16": [256, 512, 1024],
    }
    assert not figures.sweeps(made_up.comparison())


# --------------------------------------------------------------------------- sources


def test_each_row_leads_to_its_own_code() -> None:
    impls = sources.implementations("softmax")
    comparison = recorded(registry.get_op("softmax"))
    assert comparison
    for row in comparison.cases[0].rows:
        found = sources.code(impls[row.label], row)
        first, last = found.start
        lines = found.files[0].read_text().splitlines()[first - 1 : last]
        variant = row.label.partition(".")[2]
        assert any(variant in line for line in lines[:3]), (row.label, lines[:3])
        assert lines[-1].startswith(("}", "    ")), row.label
        assert not any("flags.py" in file.name or "ops" in file.parts for file in found.files)


def test_highlighting_leaves_the_text_as_it_is() -> None:
    for name in ("triton_impl/softmax.py", "cuda_impl/kernels/transpose.cuh", "cuda_impl/pybind/softmax.cu"):
        marked = sources.highlighted(ROOT / name)
        lines = [unescape(re.sub(r"</?i[^>]*>", "", line)) for line in re.findall(r"<b>(.*?)</b>", marked)]
        assert lines == (ROOT / name).read_text().rstrip("\n").split("\n")
        assert "<i class=k>" in marked


def test_a_record_of_older_sources_says_so() -> None:
    assert "The source has changed since this was measured" in page.dumps([made_up.comparison()])
    label = "cupy.onepass"
    impl = sources.implementations("softmax")[label]
    fresh = replace(made_up.rows()[6], source_hash=source_hash(impl))
    assert fresh.label == label
    assert "The source has changed" not in page.dumps([made_up.comparison(made_up.case(made=(fresh,)))])


@pytest.mark.exhaustive
def test_all_of_softmax_is_light() -> None:
    comparison = recorded(registry.get_op("softmax"))
    assert comparison
    assert len(page.dumps([comparison]).encode()) < MOST_BYTES


# --------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.launched() as found:
        yield found


@pytest.fixture
def shown(request: pytest.FixtureRequest, chromium: Any, text: str, tmp_path: Path) -> Iterator[BrowserPage]:
    file = tmp_path / "report.html"
    file.write_text(text)
    found = BrowserPage(browser.tab(chromium, *getattr(request, "param", (1280, "light"))), file)
    yield found
    assert found.complaints == []
    assert [url.partition("#")[0] for url in found.requests] == [file.as_uri()], "a request left the page"
    found.tab.close()


WIDTHS = pytest.mark.parametrize(
    "shown", [(1280, "light"), (400, "dark")], ids=["1280 px, light", "400 px, dark"], indirect=True
)


@WIDTHS
def test_it_fits_its_window_and_scheme(shown: BrowserPage) -> None:
    assert shown.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    front = shown.tab.locator(".front tbody tr").first
    for cell in front.locator("th, td").all()[:3]:  # the op, the first way's time and its speedup
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= shown.tab.viewport_size["width"]
    takes = shown.tab.locator(".takes", has_text="occupancy, limited by").first
    assert takes.is_visible()
    assert shown.is_dark() == shown.tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


@WIDTHS
def test_every_figure_is_drawn_and_no_name_lies_on_another(shown: BrowserPage) -> None:
    tab = shown.tab
    for figure in ("strip", "roofline", "effort", "sweep"):
        assert tab.locator(f"#softmax figure[data-figure={figure}] svg .mark-symbol path").count() > 0
    strip = tab.locator("#softmax figure[data-figure=strip] svg")
    labels = strip.locator(".role-axis-label text").all_text_contents()
    assert [label for label in labels if label[:1].isalpha()] == [
        "cupy.onepass", "pybind.onepass", "triton.onepass", "torch.compile", "torch.eager", "torch.naive"
    ]  # fmt: skip
    overlaps = tab.evaluate("""() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
      const boxes = [...svg.querySelectorAll("text")]
        .filter((text) => text.textContent && getComputedStyle(text).opacity !== "0")
        .map((text) => [text.textContent, text.getBoundingClientRect()]);
      return boxes.flatMap(([a, p], i) => boxes.slice(i + 1)
        .filter(([, q]) => p.left < q.right - 1 && q.left < p.right - 1)
        .filter(([, q]) => p.top < q.bottom - 3 && q.top < p.bottom - 3)
        .map(([b]) => `${a} / ${b}`));
    })""")
    assert overlaps == []


def test_recorded_times_are_drawn_hollow(chromium: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.dumps([made_up.comparison(not_run_here())]))
    found = BrowserPage(browser.tab(chromium, 1280), file)
    for figure in ("strip", "roofline", "effort"):
        points = found.tab.locator(f"figure[data-figure={figure}] .mark-symbol path")
        fills = points.evaluate_all("all => all.filter((p) => p.style.opacity !== '0' && "
            "p.getAttribute('opacity') !== '0').map((p) => p.getAttribute('fill'))")  # fmt: skip
        assert fills.count("var(--paper)") == 1, figure
        assert len(fills) > 3
    assert found.complaints == []
    found.tab.close()


@pytest.mark.parametrize("shown", [(500, "light")], indirect=True)
def test_a_narrow_window_shows_names_and_shares(shown: BrowserPage) -> None:
    tab = shown.tab
    row = tab.locator("#softmax .summary tbody:visible tr").nth(1)
    for cell in row.locator("th, td").all()[:5]:  # implementation, status, us, speedup, share of ceiling
        box = cell.bounding_box()
        assert box["x"] + box["width"] <= 500
    tab.locator("#softmax .scroll").first.evaluate("box => box.scrollLeft = 1000")
    assert 0 <= row.locator("th").bounding_box()["x"] < 20, "its name stays"
    assert tab.evaluate("document.documentElement.scrollWidth") <= 500
    for plot in tab.locator("#softmax .plot svg:visible").all():
        box = plot.bounding_box()
        assert box["x"] + box["width"] <= 500


def test_a_table_sorts_by_any_column(shown: BrowserPage) -> None:
    tab = shown.tab
    rows = tab.locator("#softmax .summary tbody:visible tr")
    header = tab.locator("#softmax .summary th").nth(2)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    names = rows.locator("th").all_inner_texts()
    assert names[:3] == ["cupy.onepass", "pybind.onepass", "triton.onepass"]
    assert set(names[-3:]) == {"cupy.online", "pybind.online", "triton.online"}, "no time: last"
    header.locator("button").click()
    assert rows.locator("th").first.inner_text() == "torch.naive"
    assert tab.locator("#softmax .summary tbody:visible .best th").all_inner_texts() == ["cupy.onepass"]
    assert "failed" in tab.locator("#softmax .summary tr.bad", has_text="cupy.online").inner_text()


def test_a_case_is_chosen(shown: BrowserPage) -> None:
    tab = shown.tab
    tab.locator("#softmax .case").select_option(SIZES[0])
    assert tab.locator("#softmax .summary tbody:visible").get_attribute("data-case") == SIZES[0]
    label = "#softmax figure[data-figure=strip] .role-axis-label >> text=triton.online"
    tab.wait_for_selector(label)


def test_a_row_leads_to_its_source_beside_the_others(shown: BrowserPage) -> None:
    tab = shown.tab
    tab.locator("#softmax .summary tbody:visible a", has_text="triton.onepass").click()
    details = tab.locator('[id="softmax--triton.onepass"]')
    assert details.get_attribute("open") is not None
    assert "python -m compare pipeline softmax" in details.inner_text()
    assert "64" in details.locator(".kernels").inner_text()
    details.locator(".show").click()
    chosen = [
        tab.locator(f"#softmax .column.{way} .label").input_value() for way in ("torch", "triton", "cuda")
    ]
    assert chosen == ["torch.eager", "triton.onepass", "cupy.onepass"]
    for way in ("triton", "cuda"):
        lit = tab.locator(f"#softmax .column.{way} .lit")
        assert "softmax_onepass_kernel" in "".join(lit.all_inner_texts()[:4])


@pytest.mark.parametrize("shown", [(1280, "dark")], indirect=True)
def test_print_is_light_and_without_sources(shown: BrowserPage) -> None:
    shown.tab.emulate_media(media="print")
    assert not shown.is_dark()
    assert shown.tab.locator(".sources:visible").count() == 0
    assert shown.tab.locator("figure svg:visible").count() > 0


def test_hostile_names_are_drawn_as_text(chromium: Any, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(page.dumps([hostile(), *several()]))
    found = BrowserPage(browser.tab(chromium, 1280), file)
    found.tab.on("dialog", lambda dialog: found.complaints.append(dialog.message))
    assert found.text("article h1").startswith(HOSTILE)
    found.tab.locator("article").first.locator("figure[data-figure=strip] .mark-symbol path").last.hover()
    for point in (
        found.tab.locator("article").first.locator("figure[data-figure=effort] .mark-symbol path").all()
    ):
        point.hover(force=True)
    assert found.tab.locator("img").count() == 0
    assert found.complaints == []
    found.tab.close()


def test_lines_of_spaces_take_no_time(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text((" " * 25 + "\n") * 9000 + "x = 1\n")
    begin = time.process_time()
    assert "<b></b>" in sources.highlighted(file)
    assert time.process_time() - begin < 5
