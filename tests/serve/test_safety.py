"""Who is let in, what is refused, and that one client's flood harms no other."""

from __future__ import annotations

import asyncio
import http.client
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tornado", reason="the page needs tornado: pip install -r requirements-serve.txt")
pytest.importorskip("django_ace", reason="the page needs its editor: pip install -r requirements-serve.txt")

from compare.model.op import UsageError
from compare.serve import access, content, starters
from compare.serve.access import User
from compare.serve.orders import BODY_BYTES, RunOrder
from compare.serve.runs import MOST_WAITING, FairQueue, PageRun
from page_server import PageClient, PageServerProcess, page_server, seconds_of
from processes import command

NAMES = [f"user{number}" for number in range(30)]
TOKENS = {name: f"{name}-0123456789abcdef" for name in NAMES}
QUICK_S = 0.2
"""The 95th percentile of requests that are no run."""
WRONG = """from compare.registry import implementation

@implementation("softmax", "torch.mine", level="naive")
def mine(x):
    return x
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServerProcess]:
    file = tmp_path_factory.mktemp("auth") / "class.txt"
    file.write_text("# a class\n" + "".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    file.chmod(0o600)
    with page_server(
        "--device", "cpu", "--auth", str(file), "--quota", "12", "--host", "gpu.example.edu"
    ) as found:
        yield found


@pytest.fixture
def client(server: PageServerProcess) -> PageClient:
    return server.client


def another(client: PageClient, name: str) -> PageClient:
    return PageClient(client.port, TOKENS[name])


# --------------------------------------------------------------------------- who is let in


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "gpu.example.edu"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "gpu.example.edu", "Origin": "https://gpu.example.edu"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_other_hosts_and_sites_are_refused(client: PageClient, headers: dict[str, str], status: int):
    assert client.ask("catalogue", headers=headers)[0] == status
    order = {"op": "none", "text": ""}
    assert client.ask("runs", order, headers=headers)[0] == (400 if status == 200 else status)


@pytest.mark.parametrize(
    "path", ["", "page.js", "catalogue", "runs/example", "runs/example/events", "ace/ace.js"]
)
def test_a_wrong_token_is_refused_everywhere(client: PageClient, path: str):
    for token in ("x" * 32, client.token[:-1] + "0"):
        assert PageClient(client.port, token).ask(path)[0] == 403


def test_a_link_on_another_site_opens_the_page_and_starts_nothing(client: PageClient):
    follows = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.ask("", headers=follows)[0] == 200
    assert client.ask("runs", {"op": "softmax", "text": WRONG}, headers=follows)[0] == 403


def test_a_form_of_another_site_cannot_start_a_run(client: PageClient):
    headers = {"Content-Type": "text/plain"}
    assert client.ask("runs", {"op": "softmax", "text": WRONG}, headers=headers)[0] == 415


@pytest.mark.parametrize(
    "path", ["ace/../__init__.py", "ace/%2e%2e/__init__.js", "../x", "page.html", "runs/none"]
)
def test_no_other_file_is_served(client: PageClient, path: str):
    assert client.ask(path)[0] in (403, 404)


def test_no_script_runs_but_the_page_s(client: PageClient):
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    connection.request("GET", f"/{client.token}/")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "<script>" not in text
    assert " style=" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert answer.headers["Referrer-Policy"] == "no-referrer"


# --------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"op": "softmx", "text": ""}, "no op"),
        ({"op": "my_own_op", "text": "from compare.model.op import Op\nOP = Op('my_own_op')"}, "no op"),
        ({"op": "softmax", "text": "", "case": "M=1;--record"}, "case"),
        ({"op": "softmax", "text": "", "beside": "--load"}, "beside"),
        ({"op": "softmax", "text": "", "suffix": ".sh"}, "suffix"),
        ({"op": "softmax", "text": "", "arch": "sm_90a,sm_80"}, "arch"),
        ({"op": "softmax", "text": "", "more": 1}, "more"),
        ({"op": "softmax", "text": "x" * (1 << 19)}, "text"),
        ([[[]]], "object"),
    ],
)
def test_an_order_that_is_none_is_refused(client: PageClient, order: Any, words: str):
    status, answer = client.ask("runs", order)
    assert status == 400
    assert words in answer["error"]


def test_a_lab_takes_its_own_files_only(client: PageClient):
    for name in ("../x.py", "conftest.py", ".py"):
        order = {"lab": "01", "files": {name: ""}, "answers": ""}
        assert client.ask("marks", order)[0] == 400
    assert client.ask("marks", {"lab": "../01", "files": {}, "answers": ""})[0] == 400


@pytest.mark.thorough
def test_a_run_is_its_user_s_own(client: PageClient):
    run = client.start(WRONG)
    other = another(client, "user1")
    for path in (f"runs/{run}/events", f"runs/{run}/stages"):
        assert other.ask(path)[0] == 404
    assert other.ask(f"runs/{run}", method="DELETE")[0] == 404
    assert list(client.events(run))[-1]["kind"] == "done"


def test_a_quota_of_runs_in_an_hour(client: PageClient):
    user = another(client, "user2")
    for _ in range(12):
        list(user.events(user.start("")))
    status, answer = user.ask("runs", {"op": "softmax", "text": ""})
    assert status == 429
    assert "wait 60 minutes" in answer["error"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--port 70000", "--port 70000: give a number from 0"),
        ("--quota 0", "--quota 0: give a number from 1"),
        ("--auth none.txt", "none.txt"),
        ("--device cuda:99", "cuda:99"),
    ],
)
def test_mistakes_in_the_command(words: str, says: str):
    done = command("serve", "--port", "0", *words.split())
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no user"),
        ("ann short\n", "line 1: write a name"),
        ("ann 0123456789abcdef x\n", "line 1: write a name"),
        ("ann 0123456789abcdef\nben 0123456789abcdef\n", "two users have one token"),
        ("ann 0123456789abcdef\nann 0123456789abcdeg\n", "two users have one name"),
    ],
)
def test_mistakes_in_a_file_of_users(tmp_path: Path, text: str, words: str):
    file = tmp_path / "class.txt"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(UsageError, match=words):
        access.read(file)


def test_a_file_of_tokens_that_others_may_read(tmp_path: Path):
    file = tmp_path / "class.txt"
    file.write_text("ann 0123456789abcdef\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        access.read(file)


# --------------------------------------------------------------------------- order


def test_the_order_of_runs_is_fair():
    """A user with many runs waits behind each other user's first."""
    begun: list[str] = []
    at_work, go_on = threading.Event(), threading.Event()

    def perform(run: PageRun, device: str, tell: Any) -> None:
        at_work.set()
        go_on.wait(10)
        begun.append(run.user.name)
        tell({"kind": "done"})

    async def queued() -> None:
        queue = FairQueue(["cpu"], perform)
        try:
            ann, ben, eve = (User(name, name) for name in ("ann", "ben", "eve"))
            runs = [PageRun(user, RunOrder("", "")) for user in (ann, ann, ann, ben, ben, eve)]
            queue.put(runs[0])
            await asyncio.get_running_loop().run_in_executor(None, at_work.wait, 10)
            for run in runs[1:]:
                queue.put(run)
            await asyncio.sleep(0.05)
            assert [run.events[-1].get("before") for run in runs[1:]] == [3, 5, 1, 4, 2]
            for _ in range(MOST_WAITING - 2):
                queue.put(PageRun(ann, RunOrder("", "")))
            with pytest.raises(UsageError, match="of your runs wait"):
                queue.put(PageRun(ann, RunOrder("", "")))
            go_on.set()
            while not all(run.ended for run in queue.by_id.values()):
                await asyncio.sleep(0.02)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, queue.close)

    asyncio.run(queued())
    assert begun[:6] == ["ann", "ben", "eve", "ann", "ben", "ann"]


# --------------------------------------------------------------------------- floods


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def quickness(client: PageClient, requests: int = 40) -> float:
    """The 95th percentile of the seconds that a request takes which is no run."""
    assert client.ask("catalogue")[0] == 200
    return statistics.quantiles([seconds_of(lambda: client.ask("page.js")) for _ in range(requests)], n=20)[
        -1
    ]


def test_a_hundred_megabytes_harm_no_other(server: PageServerProcess, client: PageClient):
    before = memory_mb(server.process.pid)
    for token, length in ((client.token, 100 << 20), (client.token, BODY_BYTES), ("x" * 32, BODY_BYTES)):
        with socket.create_connection(("127.0.0.1", client.port)) as flood:
            head = f"POST /{token}/runs HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n"
            flood.sendall(
                f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()
            )
            with suppress(OSError):  # refused while it sends
                for _ in range(length >> 20):
                    flood.sendall(b"[" * (1 << 20))
            with suppress(OSError):
                assert flood.recv(1 << 16)[9:12] in (b"400", b"403", b"413")
        assert quickness(client) < QUICK_S
    assert memory_mb(server.process.pid) < before + 4 * (BODY_BYTES >> 20) + 30


@pytest.mark.thorough
def test_a_thousand_connections_harm_no_other(server: PageServerProcess, client: PageClient):
    """Idle ones, and ones that send a header a byte at a time: the oldest are closed."""
    before = memory_mb(server.process.pid)
    watched = client.events("example")
    assert next(watched)
    flood = []
    try:
        for _ in range(1000):
            flood.append(socket.create_connection(("127.0.0.1", client.port)))
            flood[-1].sendall(b"GET /")
        assert quickness(client) < QUICK_S
        time.sleep(0.5)
        for one in flood:
            one.settimeout(0)
        assert sum(_closed(one) for one in flood) >= 700
        assert memory_mb(server.process.pid) < before + 60
        assert list(watched)[-1]["kind"] == "done"  # a user's own connection is not among the closed
    finally:
        for one in flood:
            one.close()


def _closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.thorough
def test_thirty_users_at_once(server: PageServerProcess, client: PageClient):
    """None is lost, the order is fair, and what is no run is quick meanwhile."""
    users = [another(client, name) for name in NAMES if name != "user2"]
    ended: list[tuple[float, int, str]] = []

    def press(number: int) -> None:
        *_, last = users[number].events(users[number].start(WRONG))
        ended.append((time.monotonic(), number, last["kind"]))

    threads = [threading.Thread(target=press, args=[number]) for number in range(len(users))]
    for thread in threads:
        thread.start()
    seconds = [quickness(client, 20)]
    while any(thread.is_alive() for thread in threads):
        seconds.append(quickness(client, 20))
    assert [kind for _, _, kind in ended] == ["done"] * len(users)
    assert statistics.median(seconds) < QUICK_S


# --------------------------------------------------------------------------- what is shown


@pytest.mark.thorough
def test_the_catalogue_offers_every_op_s_own_sources():
    catalogue = content.catalogue()
    for op in catalogue["ops"]:
        assert op["starters"]["triton"], op["name"]
        assert op["starters"]["cuda"], op["name"]
    with pytest.raises(UsageError, match="no starting point"):
        starters.text("softmax", "triton", "triton.none")
