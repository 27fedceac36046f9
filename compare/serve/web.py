"""The page's HTTP server: who is let in, what is served, and events as they come.

Every address begins with a user's token.  A request is refused before its body is read unless the token is
known, the host is one of ours (a name that an attacker points at this machine is not) and no other site has
sent it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.util
import re
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import msgspec
from tornado import httpserver, iostream, web
from tornado.httputil import HTTPServerRequest

from compare import registry
from compare.model.op import UsageError
from compare.pipeline import page as stages_page
from compare.report.html import palette
from compare.serve import content, orders
from compare.serve.access import TOKEN, User, Users
from compare.serve.orders import LabOrder, RunOrder
from compare.serve.runs import FairQueue, PageRun

STATIC = Path(__file__).parent / "page"
EDITOR = "django_ace"
"""The package that has the editor's files; nothing of it is imported."""
MOST_STRANGERS = 200
"""Connections that have not sent a token: with one more, the one that is idle the longest is closed."""
_MOST_STREAMS = 8
"""Of one user; with one more, the oldest ends."""
_IDLE_S = 20.0
_BODY_S = 20.0
_BEAT_S = 15.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

T = TypeVar("T")


@dataclass
class Site:
    """What the handlers share."""

    users: Users
    hosts: frozenset[str]
    """``127.0.0.1:8000``, and names without a port of a proxy."""
    queue: FairQueue
    facts: dict[str, Any]
    """Of the machine, for the page."""
    example: PageRun
    """The run that a first visit shows."""
    streams: dict[str, list[asyncio.Event]] = field(default_factory=lambda: defaultdict(list))
    """By user, what ends each stream."""


class PageServer(httpserver.HTTPServer):
    """An HTTP server that many idle connections do not fill."""

    port = 0
    strangers: OrderedDict[int, iostream.IOStream]
    """Connections without a token so far, the oldest first."""

    def handle_stream(self, stream: iostream.IOStream, address: Any) -> None:
        self.strangers[id(stream)] = stream
        if len(self.strangers) > MOST_STRANGERS:
            self.strangers.popitem(last=False)[1].close()
        super().handle_stream(stream, address)

    def on_close(self, server_conn: Any) -> None:
        self.strangers.pop(id(server_conn.stream), None)
        super().on_close(server_conn)

    def meet(self, request: HTTPServerRequest) -> None:
        """A request on this connection had a token: it is not closed for others."""
        self.strangers.pop(id(getattr(request.connection, "stream", None)), None)


class PageHandler(web.RequestHandler):
    """Checks every request."""

    user: User

    def initialize(self, site: Site, server: PageServer) -> None:
        self.site, self.server = site, server

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        host = self.request.headers.get("Host", "").lower()
        if host not in self.site.hosts and _name_of(host) not in self.site.hosts:
            raise web.HTTPError(
                421, f"{host!r} is no name of this server: open it as it was printed, or --host"
            )
        origin = self.request.headers.get("Origin")
        site = self.request.headers.get("Sec-Fetch-Site", "none")
        foreign = site not in ("same-origin", "none") and not self._is_opened()
        if foreign or (origin and urlsplit(origin).netloc.lower() != host):
            raise web.HTTPError(403, "another site has sent this request")
        user = self.site.users.of(self.path_kwargs["token"])
        if user is None:
            raise web.HTTPError(403, "the token is unknown: open the address that the server has printed")
        if self.request.method == "POST" and self.request.headers.get("Content-Type") != "application/json":
            raise web.HTTPError(415, "send JSON")
        self.user = user
        self.server.meet(self.request)

    def _is_opened(self) -> bool:
        """Whether it is a link to the page that a reader follows, from a course's site."""
        modes = (self.request.headers.get(f"Sec-Fetch-{name}") for name in ("Mode", "Dest"))
        return self.request.method == "GET" and [*modes] == ["navigate", "document"]

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        known = isinstance(error, web.HTTPError) and error.log_message
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode({"error": error.log_message % error.args if known else self._reason}))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, web.HTTPError):
            super().log_exception(typ, value, tb)

    def answer(self, value: Any, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(value))

    def run_of(self, name: str) -> PageRun:
        run = self.site.example if name == "example" else self.site.queue.by_id.get(name)
        if run is None or (run.user != self.user and run is not self.site.example):
            raise web.HTTPError(404, "this run is no longer kept: press Run")
        return run


def _name_of(host: str) -> str:
    return re.sub(r":\d+$", "", host)


# --------------------------------------------------------------------------- what is served


class FileHandler(PageHandler):
    """The page, its style and script."""

    TYPES: ClassVar = {
        ".html": "text/html",
        ".css": "text/css",
        ".js": "text/javascript",
        ".svg": "image/svg+xml",
    }

    def get(self, token: str, name: str) -> None:
        file = STATIC / (name or "page.html")
        text = file.read_text()
        if file.suffix == ".css":
            text = palette.css() + text
        self.set_header("Content-Type", f"{self.TYPES[file.suffix]}; charset=utf-8")
        self.finish(text)


class EditorHandler(PageHandler, web.StaticFileHandler):
    """The editor's own files."""

    def initialize(self, site: Site, server: PageServer) -> None:  # type: ignore[override]
        PageHandler.initialize(self, site, server)
        web.StaticFileHandler.initialize(self, str(editor_folder()))

    async def get(self, token: str, path: str) -> None:  # type: ignore[override]
        await web.StaticFileHandler.get(self, path)

    def set_extra_headers(self, path: str) -> None:
        self.set_header("Cache-Control", "private, max-age=86400")


def editor_folder() -> Path:
    """Where the editor's files are; nothing of the package is imported."""
    spec = importlib.util.find_spec(EDITOR)
    assert spec  # the command has looked
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "static" / EDITOR / "ace"


class ContentHandler(PageHandler):
    """What the page shows before a run: ops, sources, labs."""

    async def get(self, token: str, what: str) -> None:
        words = {name: values[-1].decode() for name, values in self.request.arguments.items()}
        self.answer(await _in_thread(self._content, what, words))

    def _content(self, what: str, words: dict[str, str]) -> Any:
        if what == "catalogue":
            return {**content.catalogue(), **self.site.facts, "user": self.user.name}
        if what == "source":
            return content.source(*(words.get(name, "") for name in ("op", "way", "label")))
        return content.lab(words.get("lab", ""), words.get("hint", ""))


async def _in_thread(function: Any, *arguments: Any) -> Any:
    """What a slow function returns; a mistake in what was asked is a refusal."""
    try:
        return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
    except UsageError as error:
        raise web.HTTPError(400, "%s", str(error)) from None


# --------------------------------------------------------------------------- runs


@web.stream_request_body
class BodyHandler(PageHandler):
    """One whose body is read after the checks of `prepare`."""

    def prepare(self) -> None:
        super().prepare()
        self.body = bytearray()

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def order(self, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise web.HTTPError(400, "%s", f"this is no order: {error}") from None


@web.stream_request_body
class RunsHandler(BodyHandler):
    """``POST runs`` and ``POST marks``: a run that waits for its turn."""

    def post(self, token: str, what: str) -> None:
        order = self.order(RunOrder) if what == "runs" else self.order(LabOrder)
        self._check(order)
        if wait_s := self.site.users.wait_s(self.user):
            raise web.HTTPError(
                429, "%s", f"your runs of this hour are used up: wait {wait_s / 60:.0f} minutes"
            )
        run = PageRun(self.user, order)
        try:
            self.site.queue.put(run)
        except UsageError as error:
            raise web.HTTPError(429, "%s", str(error)) from None
        self.answer({"id": run.id}, 201)

    def _check(self, order: RunOrder | LabOrder) -> None:
        """Refuse what names no op or lab: a file's own op would run in the judge process."""
        try:
            if isinstance(order, LabOrder):
                content.check_lab(order)
            elif order.op not in registry.op_names():
                raise UsageError(registry.unknown("op", order.op, registry.op_names()))
        except UsageError as error:
            raise web.HTTPError(400, "%s", str(error)) from None


@web.stream_request_body
class HandInHandler(BodyHandler):
    """``POST hand-in``: a lab's files as the zip that ``grade`` takes."""

    def post(self, token: str) -> None:
        order = self.order(LabOrder)
        self.set_header("Content-Type", "application/zip")
        self.finish(content.hand_in(order))


class RunHandler(PageHandler):
    """``DELETE runs/ID``, and the page of its stages."""

    def get(self, token: str, name: str) -> None:
        run = self.run_of(name)
        if not run.stages:
            raise web.HTTPError(404, "this run has no stages")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header(
            "Content-Security-Policy",
            "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
            f"script-src {_script_hash()}; frame-ancestors 'self'",
        )
        self.finish(run.stages)

    def delete(self, token: str, name: str) -> None:
        run = self.run_of(name)
        if run is not self.site.example:
            self.site.queue.cancel(run)
        self.answer({})


def _script_hash() -> str:
    """Of the one script that a page of stages may run."""
    script = Path(stages_page.__file__).with_name("page.js").read_text()
    digest = hashlib.sha256(f"\n{script}\n".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


class EventsHandler(PageHandler):
    """``GET runs/ID/events``: all of a run's events from its first on, as server-sent events."""

    async def get(self, token: str, name: str) -> None:
        run, ended = self.run_of(name), asyncio.Event()
        streams = self.site.streams[self.user.name]
        streams.append(ended)
        if len(streams) > _MOST_STREAMS:
            streams.pop(0).set()
        self.ended = ended
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        try:
            await self._send(run, ended)
        except iostream.StreamClosedError:
            pass
        finally:
            if ended in streams:
                streams.remove(ended)

    async def _send(self, run: PageRun, ended: asyncio.Event) -> None:
        sent = 0
        while not ended.is_set():
            for event in run.events[sent:]:
                sent += 1
                self.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
            await self.flush()
            if run.ended and sent == len(run.events):
                return
            waiting = [asyncio.ensure_future(each.wait()) for each in (run.changed, ended)]
            if sent == len(run.events):
                await asyncio.wait(waiting, timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                self.write(b": beat\n\n")
            for each in waiting:
                each.cancel()

    def on_connection_close(self) -> None:
        ended = getattr(self, "ended", None)
        if ended is not None:
            ended.set()


# --------------------------------------------------------------------------- the server


def serve(site: Site, port: int, address: str) -> PageServer:
    """Listen; the event loop is the caller's.

    Raises:
        OSError: the port is taken.
    """
    begin = rf"/(?P<token>{TOKEN})/"
    run = r"runs/(?P<name>[\w-]{1,40})"
    application = web.Application()
    server = PageServer(
        application,
        max_body_size=orders.BODY_BYTES,
        max_header_size=1 << 14,
        idle_connection_timeout=_IDLE_S,
        body_timeout=_BODY_S,
        max_buffer_size=orders.BODY_BYTES + (1 << 16),
    )
    server.strangers = OrderedDict()
    shared = {"site": site, "server": server}
    application.settings["log_function"] = lambda _: None
    application.add_handlers(
        r".*",
        [
            (begin + r"(?P<name>|page\.css|page\.js)", FileHandler, shared),
            (begin + r"ace/(?P<path>[\w/.-]+\.(?:js|css|png|svg))", EditorHandler, shared),
            (begin + r"(?P<what>catalogue|source|lab)", ContentHandler, shared),
            (begin + r"(?P<what>runs|marks)", RunsHandler, shared),
            (begin + r"hand-in", HandInHandler, shared),
            (begin + run, RunHandler, shared),
            (begin + run + "/stages", RunHandler, shared),
            (begin + run + "/events", EventsHandler, shared),
        ],
    )
    server.listen(port, address)
    server.port = next(iter(server._sockets.values())).getsockname()[1]
    return server
