"""``python -m compare softmax``."""

import sys

from compare.cli import main

sys.exit(main(sys.argv[1:]))
