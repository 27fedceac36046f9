"""Registers, shared memory and code of each kernel: `static` compiles, `profiler` watches; both must agree.

Imported by `compare.worker`, `compare.run` and `compare.toolchain`; imports no timing and no worker."""
