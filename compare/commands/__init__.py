"""One module a command, ``python -m compare NAME``: its arguments, its work and its exit status.

``add_arguments`` declares, ``run`` takes what was parsed. What is heavy is imported within functions, as
``--help`` and mistakes need no PyTorch. None imports another; only `compare.cli` imports them."""
