"""Code size: lines and tokens of all code that an implementation needs, by role, and the concepts used.

Imported by `compare.resources`, `compare.tuning`, `compare.worker`, `compare.run` and `compare.history`;
imports capture and records.

What counts for an implementation is what one call on the op's default case reaches, each piece once:

* own kernels: those that it launches;
* own host code: the function that launches them, the registered one, of CUDA a launch table; of C++ written
  by hand the exported one, with the variant's statement in ``PYBIND11_MODULE`` and the module without those;
* op helpers: all else that it reaches in the op's files: those named after the op or after the file of its
  kernels, and a user's own;
* shared: what it reaches in the project's other files.

The headline is their sum, so it does not depend on the file that a function is in.  All code is followed by
name; of several C++ overloads `compare.code_size.cpp` says which one counts.  Left out: comments, docstrings,
blank lines, imports and includes, the registration, kernels that only other cases launch, and the tools that
serve every op: the ``compare`` package and the code that compiles, loads and launches CUDA, with pybind's
``tensor.h`` and ``launcher.h``.  One lexer, Pygments, counts both languages.
"""
