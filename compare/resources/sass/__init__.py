"""Machine code as text: disassembled, instruction by instruction, and told apart by what each does.

Imported by `compare.resources` and `compare.toolchain.pipeline`.

The one place that reads SASS: for the instruction that a kernel multiplies with
(`compare.resources`), and for all of them (`compare.toolchain.pipeline`).
"""
