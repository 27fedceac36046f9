"""What is kept on disk: runs in ``results/``, and results of compilers and readers by what they rest on.

Imported by every stage; imports `compare.spec` and `compare.registry` only."""
