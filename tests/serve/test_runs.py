"""Runs through the page's HTTP interface: right, wrong, crashing and hanging kernels, the queue, the end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from page_server import PageClient, PageServerProcess, page_server
from processes import running, until

pytest.importorskip("tornado", reason="the page needs tornado: pip install -r requirements-serve.txt")
pytest.importorskip("django_ace", reason="the page needs its editor: pip install -r requirements-serve.txt")

FIRST_S, FULL_S = 2.0, 6.0
"""A first answer and a full one, warm, without a GPU."""
SLOWER = 4
"""Other tests and builds may have both cores meanwhile."""


@pytest.fixture(scope="module")
def server() -> Iterator[PageServerProcess]:
    with page_server("--device", "cpu") as found:
        assert list(found.client.events("example"))[-1]["kind"] == "done"
        yield found


@pytest.fixture
def client(server: PageServerProcess) -> PageClient:
    return server.client


@pytest.fixture(scope="module")
def right(server: PageServerProcess) -> str:
    return server.client.source("triton", "example")


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def first_line(text: str, word: str) -> int:
    return 1 + next(n for n, line in enumerate(text.splitlines()) if word in line)


def test_a_right_kernel(client: PageClient, right: str):
    begin = time.monotonic()
    run = client.start(right, beside="triton.onepass", predictions={"registers": "34", "speedup": "x"})
    found, at = {}, {}
    for event in client.events(run):
        found[event["kind"]], at[event["kind"]] = event, time.monotonic() - begin
    assert at["answer"] < FULL_S * SLOWER
    assert found["first"]["wrong"] is False
    (verdict,) = found["answer"]["verdicts"]
    assert (verdict["label"], verdict["status"]) == ("triton.mine", "ok")
    assert "hard" not in verdict["text"]
    assert "odd sizes" in verdict["text"]
    rows = {row["label"]: row for row in found["answer"]["rows"]}
    assert {label: row["yours"] for label, row in rows.items()} == {
        "torch.eager": False,
        "triton.onepass": False,
        "triton.mine": True,
    }
    assert float(rows["triton.onepass"]["us"]) > 0  # recorded
    assert rows["triton.mine"]["us"] == "-"
    assert int(rows["triton.mine"]["registers"]) > 0
    assert {kernel["label"] for kernel in found["answer"]["kernels"]} >= {"triton.mine"}
    registers, speedup, lines = found["answer"]["predictions"]
    assert 0 <= float(registers["score"]) <= 1
    assert "expected a number" in speedup["origin"]
    assert lines["predicted"] == "-"
    assert all("<svg" in picture["svg"] for picture in found["lanes"]["pictures"])
    status, page = client.ask(f"runs/{run}/stages")
    assert status == 200
    assert "my_softmax_kernel" in page
    assert found["done"]


def test_a_kernel_that_is_wrong_on_every_input(client: PageClient, right: str):
    wrong = changed(right, "e / tl.sum(e, axis=0)", "e / tl.max(e, axis=0)")
    begin = time.monotonic()
    for event in client.events(client.start(wrong)):
        if event["kind"] == "first":
            assert time.monotonic() - begin < FIRST_S * SLOWER
            (verdict,) = event["verdicts"]
            assert event["wrong"]
            assert verdict["text"].startswith("WRONG  triton.mine on M=")
            assert "first at (0, 0): got" in verdict["text"]
        assert event["kind"] != "answer"


@pytest.mark.thorough
def test_a_kernel_that_is_wrong_on_hard_inputs_only(client: PageClient, right: str):
    found = client.result(changed(right, "x - tl.max(x, axis=0)", "x"))
    assert not found["first"]["wrong"]
    assert found["answer"]["wrong"]
    assert "an overflow: is the row maximum subtracted" in found["answer"]["verdicts"][0]["text"]


@pytest.mark.parametrize(
    ("old", "new", "words", "at"),
    [
        ("tl.exp(", "tl.exq(", "no attribute 'exq'", "tl.exq("),
        ("M, N = x.shape", "import os; os.kill(os.getpid(), 11)", "segmentation fault", ""),
        ("M, N = x.shape", "raise ValueError('<b>&')", "ValueError: <b>&", "raise ValueError"),
    ],
)
def test_a_kernel_that_fails_says_where(
    client: PageClient, right: str, old: str, new: str, words: str, at: str
):
    text = changed(right, old, new)
    found = client.result(text)
    (verdict,) = found["first"]["verdicts"]
    assert verdict["status"] == "failed"
    assert words in verdict["text"]
    assert verdict["lines"] == ([first_line(text, at)] if at else [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "SyntaxError at line 1"),
        ("", "it registers nothing new"),
        ("(" * 20_000, "too many nested|MemoryError|SyntaxError|RecursionError"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_at_once(client: PageClient, text: str, words: str):
    begin = time.monotonic()
    found = client.result(text)
    assert time.monotonic() - begin < FIRST_S * SLOWER
    said = found.get("refused", found.get("lost", {}))["text"]
    assert any(word in said for word in words.split("|")), said


@pytest.mark.thorough
def test_an_error_in_cuda_has_its_line(client: PageClient):
    text = changed(client.source("cuda", "example"), "float row_sum = 0.0f;", "float row_sum = zero;")
    (verdict,) = client.result(text)["first"]["verdicts"]
    assert "‘zero’ was not declared" in verdict["text"]
    assert verdict["lines"] == [first_line(text, "zero;")]


@pytest.mark.thorough
def test_values_of_a_parameter_are_swept(client: PageClient):
    text = client.source("triton", "triton.blocked", "vector_add")
    text = changed(
        text, '"BLOCK_SIZE": (128, 256, 512, 1024, 2048, 4096), "WARPS": (1, 2, 4, 8, 16)', '"WARPS": (4, 8)'
    )
    found = client.result(text, op="vector_add", tune=True)
    trials = found["answer"]["trials"]
    assert [trial["values"] for trial in trials] == [{"WARPS": 4}, {"WARPS": 8}]
    assert all(int(trial["registers"]) > 0 for trial in trials)


def test_a_hanging_kernel_is_cancelled_with_all_its_processes(server: PageServerProcess, right: str):
    hanging = changed(right, "    M, N = x.shape\n", "    while True:\n        pass\n")
    before = set(server.descendants)
    run = server.client.start(hanging)
    events = server.client.events(run)
    next(event for event in events if event["kind"] == "step" and "checking" in event["text"])
    begun = set(server.descendants) - before
    assert begun
    assert server.client.ask(f"runs/{run}", method="DELETE")[0] == 200
    assert [event["kind"] for event in events][-1] == "cancelled"
    assert until(lambda: not any(map(running, begun)), 20)


@pytest.mark.thorough
def test_a_waiting_run_is_cancelled_before_it_begins(client: PageClient, right: str):
    first, second = client.start(right), client.start(right)
    assert client.ask(f"runs/{second}", method="DELETE")[0] == 200
    assert [event["kind"] for event in client.events(second)] == ["queue", "cancelled"]
    assert list(client.events(first))[-1]["kind"] == "done"


@pytest.mark.thorough
def test_a_run_is_told_from_its_first_event_on_and_to_all_that_watch(client: PageClient, right: str):
    run = client.start(right)
    told: list[list[str]] = [[], []]

    def watch(number: int) -> None:
        told[number] = [event["kind"] for event in client.events(run)]

    threads = [threading.Thread(target=watch, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = [event["kind"] for event in client.events(run)]
    assert told[0] == told[1] == again
    assert again[-1] == "done"


@pytest.mark.thorough
def test_a_lab_is_marked(client: PageClient):
    status, lab = client.ask("lab?lab=01")
    assert status == 200
    order = {"lab": "01", "files": lab["files"], "answers": lab["answers"]}
    status, run = client.ask("marks", order)
    assert status == 201, run
    marks = {event["kind"]: event for event in client.events(run["id"])}["marks"]
    assert marks["points"] == 0
    names = [part["name"] for part in marks["parts"]]
    assert [part["name"] for part in lab["parts"]] == [
        name for name in names if name in {p["name"] for p in lab["parts"]}
    ]
    assert {part["result"] for part in marks["parts"]} <= {"not started", "left out"}
    assert client.ask("lab?lab=01&hint=1")[1]["hint"]
    assert client.ask("lab?lab=01&hint=99")[0] == 400


@pytest.mark.thorough
def test_a_killed_server_leaves_no_process(right: str):
    with page_server("--device", "cpu") as server:
        assert list(server.client.events("example"))[-1]["kind"] == "done"
        run = server.client.start(changed(right, "    M, N = x.shape\n", "    while True:\n        pass\n"))
        next(e for e in server.client.events(run) if e["kind"] == "step" and "checking" in e["text"])
        begun = server.descendants
        assert len(begun) >= 3  # the server that forks, the judge, a worker
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        assert until(lambda: not any(map(running, begun)), 20), [pid for pid in begun if running(pid)]
