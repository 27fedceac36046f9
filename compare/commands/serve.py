"""A page in which you edit a kernel, run it, and see its verdict, speed, registers and machine code.

examples:
  python -m compare serve
  python -m compare serve --port 9000 --device cpu
  python -m compare serve --auth class.txt --host gpu.example.edu --quota 60

It listens on this machine only, unless --address says otherwise. The address that it prints has a random
token: with it one may run code here, in the sandbox of --load. --auth FILE has a line for each user of a
class, a name and a token. --host names the proxy through which they come. With --cluster each run goes to a
worker of a cluster, one a GPU. docs/run-page.md has more.

exit status:
  0  ended by Ctrl-C or SIGTERM
  2  a mistake in the command, its files or the machine's set-up
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from compare import registry
from compare.cluster import packages
from compare.command_line import options, outputs, status
from compare.model.op import UsageError
from compare.places import to_install
from compare.serve import JUDGE, access
from compare.serve.access import User

if TYPE_CHECKING:
    from compare.serve.site import RunPlaces

_PACKAGES = ("tornado", "django_ace")
_FILES = 4096
"""Open files that a class's connections may need."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--port", type=int, default=8000, metavar="N", help="0: any that is free (default: 8000)")
    add("--address", default="127.0.0.1", metavar="IP", help="listen here (default: this machine only)")
    options.add_repeatable(add, "--host", "NAME", "a further name that the page is opened by, of a proxy")
    add(
        "--auth", type=Path, metavar="FILE", help="users: lines of a name and a token; not readable by others"
    )
    add("--quota", type=int, default=120, metavar="N", help="runs of one user in an hour (default: 120)")
    options.add_device(add)
    options.add_cluster(add, "run on many GPUs, one run on each")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; the exit status."""
    if not 0 <= arguments.port < 1 << 16:
        raise UsageError(f"--port {arguments.port}: give a number from 0 to 65535")
    if arguments.quota < 1:
        raise UsageError(f"--quota {arguments.quota}: give a number from 1 on")
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"serve needs {package}. To install it: {to_install('serve')}")
    everyone = access.read(arguments.auth) if arguments.auth else access.alone()
    _allow_files()
    with _on_cluster(arguments) if arguments.cluster else nullcontext(_here(arguments.device)) as places:
        asyncio.run(_serve(arguments, everyone, places))
    return status.SUCCESS


def _here(device: str) -> RunPlaces:
    from compare.sandbox import isolation

    machine = isolation.found()  # forks need not ask again
    if not machine.holds:
        raise UsageError(f"what is run from the page would have all your rights: this machine {machine.lack}")
    from compare.labs.running import COMMAND_MODULES
    from compare.worker.start import prepare

    prepare(device, registry.op_names(), (*COMMAND_MODULES, JUDGE))
    from compare.serve import site

    return site.here(device)


@contextmanager
def _on_cluster(arguments: argparse.Namespace) -> Iterator[RunPlaces]:
    with packages():
        from compare.cluster import engines
        from compare.cluster.serving import ClusterRuns
    from compare.serve import site

    with engines.connected(arguments.cluster) as (client, patience_s):
        runs = ClusterRuns(client, patience_s, arguments.device, outputs.say)
        yield site.RunPlaces(runs.slots, runs.perform, runs.gpu)


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _serve(arguments: argparse.Namespace, everyone: list[User], places: RunPlaces) -> None:
    from compare.serve import site, web

    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    shared = site.made(everyone, places, arguments.quota)
    try:
        try:
            server = web.serve(shared, arguments.port, arguments.address)
        except (OSError, UnicodeError) as error:  # a name with an empty part cannot be looked up
            where = f"{arguments.address}, port {arguments.port}"
            why = error.strerror if isinstance(error, OSError) else "this is no address"
            raise UsageError(f"{where}: {why}. Give another --port or --address") from None
        port = server.port
        shared.hosts = site.hosts(arguments.address, port, arguments.host)
        shown = f"[{arguments.address}]" if ":" in arguments.address else arguments.address
        for user in everyone if not arguments.auth else everyone[:1]:
            outputs.say(f"open http://{shown}:{port}/{user.token}/ in a browser; Ctrl-C ends the server")
        await ended.wait()
        server.stop()
    finally:
        await loop.run_in_executor(None, shared.queue.close)
