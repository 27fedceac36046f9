"""``python -m compare softmax``."""

import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):  # a secrets.py there must not replace Python's
    sys.path.append(sys.path.pop(0))

try:
    from compare.sandbox.environment import begin_again_without_others

    begin_again_without_others()
    from compare.cli import main

    sys.exit(main(sys.argv[1:]))
except KeyboardInterrupt:  # before there is anything that could answer it
    print("python -m compare: interrupted before anything was finished", file=sys.stderr)
    sys.exit(3)
