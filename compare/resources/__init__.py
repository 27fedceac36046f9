"""Registers, shared memory and code of each kernel: `static` compiles, `profiler` watches; both must agree.

Imported by workers, `compare.run`, `compare.pipeline` and `compare.aot`; imports no timing and no worker."""
