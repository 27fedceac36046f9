"""Code size: lines and tokens by role, and the concepts used.

Imported by `compare.resources`, `compare.tuning`, `compare.worker` and `compare.stages`; imports capture and
records.

What counts for an implementation:

* kernel: its ``@triton.jit`` or ``__global__`` functions and every helper of the project that they use, in
  shared headers too;
* launch: the registered function and the helpers of its way that it uses; for pybind the exported C++
  function and the helpers in its file;
* binding: ``PYBIND11_MODULE`` with the variant's own line.

Each helper counts once.  Left out: comments, docstrings, blank lines, imports and includes, the registration,
and the tools that serve every op: the ``compare`` package and the code that compiles and loads CUDA, with
pybind's ``tensor.h``.  One lexer, Pygments, counts both languages.
"""
