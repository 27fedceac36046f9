"""A run on a GPU through the page's HTTP interface: ``pytest -s --require-gpu`` and this file."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("tornado", reason="the page needs tornado: pip install -r requirements-serve.txt")
pytest.importorskip("django_ace", reason="the page needs its editor: pip install -r requirements-serve.txt")

from page_server import page_server

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

FULL_S = 8.0
"""A full answer, warm, on an H100."""
SLOWER = 1.25
"""The host of an H200 took 1.4 times as long for a launch, and 8.9 and 5.2 s for these two."""


@pytest.mark.parametrize(("way", "beside"), [("triton", "triton.onepass"), ("cuda", "cupy.onepass")])
def test_a_run_is_timed(way: str, beside: str):
    with page_server() as server:
        client = server.client
        assert list(client.events("example"))[-1]["kind"] == "done"
        assert client.ask("catalogue")[1]["gpu"]
        text = client.source(way, "example")
        client.result(text, beside=beside)  # compiled and warm
        begin = time.monotonic()
        found, at = {}, {}
        for event in client.events(client.start(text, beside=beside)):
            found[event["kind"]], at[event["kind"]] = event, time.monotonic() - begin
        print({kind: round(seconds, 1) for kind, seconds in at.items()})
        rows = {row["label"]: row for row in found["answer"]["rows"]}
        assert all(float(row["us"]) > 0 for row in rows.values()), rows
        assert rows[beside]["speedup"] != "-"
        assert found["lanes"]["pictures"]
        assert found["stages"]
        assert at["answer"] < FULL_S * SLOWER
