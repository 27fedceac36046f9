"""Correctness: outputs against the fp64 oracle, tolerances, guarded memory.

Imported by `compare.worker` and whatever runs a check; imports no timing and no process."""
