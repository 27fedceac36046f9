"""One module a command, ``python -m compare NAME``: its arguments, its work and its exit status.

The module's docstring is its help.  ``add_arguments`` declares; ``run`` takes what was parsed, returns the
exit status, and raises a `UsageError` for a mistake.  What is heavy is imported within functions, as
``--help`` and mistakes need no PyTorch.  None imports another; only `compare.cli` imports them."""
