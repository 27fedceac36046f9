"""The ops, one module each: what an op computes, its inputs, cost, tolerance and cases.

Found by name through `compare.registry`; imports `compare.model` and `compare.inputs` only.
"""
