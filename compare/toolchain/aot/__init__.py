"""``python -m compare aot``: kernels as C programs that run without Python.

Imported by `compare.cli` only.

``plan`` finds out from an implementation's own host code what it launches, ``triton_tools`` and ``cuda_way``
turn the kernel into C that carries its machine code, ``program`` writes and builds the program around it, and
``running`` runs it on a GPU beside the same call from Python.
"""
