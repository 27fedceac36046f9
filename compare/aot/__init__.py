"""Kernels as C programs that run without Python.

`plan` captures what an implementation's host code launches, `building` writes and builds a program around the
kernel's machine code, `running` does so for an op, and checks and times what this GPU can run.  Imported by
commands only.
"""
