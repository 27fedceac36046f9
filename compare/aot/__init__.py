"""Kernels as C programs that run without Python.

`plan` captures what an implementation's host code launches, `building` writes and builds the program around
the kernel's machine code, `running` checks and times it on a GPU.  Imported by commands only.
"""
