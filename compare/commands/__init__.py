"""One module a command, ``python -m compare NAME``: its arguments, its mistakes and its exit statuses.

They are light, as ``--help`` and mistakes need no PyTorch; `compare.commands.running` does their work. None
imports another; only `compare.cli` imports them."""
