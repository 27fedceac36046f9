"""``python -m compare softmax``."""

import sys

try:
    from compare.cli import main

    sys.exit(main(sys.argv[1:]))
except KeyboardInterrupt:  # before there is anything that could answer it
    print("python -m compare: interrupted before anything was finished", file=sys.stderr)
    sys.exit(3)
