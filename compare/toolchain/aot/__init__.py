"""``python -m compare aot``: kernels as C programs that run without Python.

Imported by `compare.cli` only.

``plan`` captures what an implementation's host code launches, ``triton_tools`` and ``cuda_way`` write the
kernel as C that carries its machine code, ``building`` builds the program around it, and ``running`` runs it
on a GPU beside the same call from Python.
"""
