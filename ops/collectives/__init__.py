"""Ops of several GPUs, one module each, found by name through `compare.registry`.

A case's first dimension, ``D``, is the number of GPUs.  Implementations run on each of them, in a process of
its own, and get a rank's part of the inputs.
"""
