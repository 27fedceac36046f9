"""Correctness: outputs against the fp64 oracle, tolerances, guarded memory.

============== ===============================================================================
check          calls an implementation on several inputs; the result is an `Agreement`
probes         those inputs, with their reference and limit; a copy with one element changed
tolerance      the limit: the op's floor, or from the error of PyTorch's own implementation
errors         the errors of an output against the reference, block by block, and its first wrong element
mismatch       the guess from the pattern of the wrong elements
stage          where an implementation is called, and what is observed of the call
reference      the oracle's output, piece by piece; the shape and dtype that outputs must have
guarded_memory poisoned memory with guard zones; PyTorch operators that were called
============== ===============================================================================

Each imports only modules below it.  Imported by `compare.worker` and others that run a check; imports no
timing and no process.
"""
