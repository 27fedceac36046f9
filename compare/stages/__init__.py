"""What a run does with one case: check it, time it, inspect its kernels.

Imported by `compare.run`; each stage takes values and returns values.
"""
