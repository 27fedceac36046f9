"""``python -m compare softmax``.  PYTHON_ARGCOMPLETE_OK: the shell may ask this what completes a command."""

import os
import sys

if sys.path[0] in ("", os.getcwd()):  # noqa: PTH109 - a pathlib.py there must not replace Python's
    sys.path.append(sys.path.pop(0))

import signal

try:
    if "_ARGCOMPLETE" in os.environ:
        from compare.cli import parser_of
        from compare.command_line.completion import complete

        complete(parser_of)

    from compare.sandbox.environment import begin_again_without_others

    begin_again_without_others()
    from compare.sandbox import scratch
    from cuda_impl import cache_folders

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)  # as Ctrl-C: results so far are kept
    cache_folders.begin()
    scratch.begin()
    from compare.cli import main

    status = main(sys.argv[1:])
except KeyboardInterrupt:  # before there is anything that could answer it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("python -m compare: interrupted before anything was finished", file=sys.stderr)
    status = 3
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)  # another one would end what Python does at exit by a traceback
exec("")  # Python ends by SIGINT, not with the status, if the last exec of a string was interrupted
sys.exit(status)
