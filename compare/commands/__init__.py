"""One module a command, ``python -m compare NAME``.

None imports another; only `compare.cli` imports them."""
