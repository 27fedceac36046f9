"""SASS: disassembled, instruction by instruction, and grouped by what each does.

Imported by `compare.resources`, for the instruction that a kernel multiplies with, and by
`compare.pipeline`, for all instructions.
"""
