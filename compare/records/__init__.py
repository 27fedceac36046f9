"""Files on disk: runs in ``results/``, and cached results of compilers and code counters.

Imported by every stage; imports `compare.model` and `compare.registry` only."""
