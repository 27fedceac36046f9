"""Registers, shared memory and code of each kernel: `compiler` compiles, `profiler` watches; both must agree.

Imported by workers, `compare.run`, `compare.pipeline` and `compare.aot`; imports no timing and no worker."""
