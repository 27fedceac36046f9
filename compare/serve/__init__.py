"""A page in which a reader edits a kernel, runs it, and sees its verdict, speed and machine code."""

JUDGE = "compare.serve.judge"
"""The module of a run's process."""
