"""How much a reader has to read, and of what: lines and tokens by role, and the concepts used.

Imported by `compare.resources`, `compare.tuning`, `compare.worker` and `compare.stages`; imports capture and
records.

What counts for an implementation:

* kernel: the device code that runs, ``@triton.jit`` or ``__global__`` functions and every helper of the
  project that they use, those in shared headers too;
* launch: the registered function and the helpers of its way that it uses; for pybind the exported C++
  function and the helpers in its file;
* binding: what hands the C++ function to Python: ``PYBIND11_MODULE`` with the variant's own line.

Each helper is charged once.  Left out: comments, docstrings, blank lines, imports and includes, the line
that registers the implementation, and the tools that serve every op: the ``compare`` package and what
compiles and loads CUDA, pybind's ``tensor.h`` included.  One lexer, Pygments, counts both languages.
"""
