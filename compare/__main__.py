"""``python -m compare softmax``."""

import signal
import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):  # a secrets.py there must not replace Python's
    sys.path.append(sys.path.pop(0))

try:
    from compare.sandbox.environment import begin_again_without_others

    begin_again_without_others()
    from compare.cli import main

    status = main(sys.argv[1:])
except KeyboardInterrupt:  # before there is anything that could answer it
    print("python -m compare: interrupted before anything was finished", file=sys.stderr)
    status = 3
signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would end what Python does at exit by a traceback
sys.exit(status)
