"""Environment variables of the toolchain at work, for docs/toolchain-environment.md.

``__main__`` is the command, `runs` what it does, `examples` the variables and the document's blocks, and
`trying` runs the command once for each variable.
"""
