"""What each compiler makes of a kernel, stage by stage, for any architecture, with or without a GPU.

Imported by `compare.cli` only.

`opening` captures what an implementation would launch, lets its own compiler work one
stage at a time, and returns what came out of every one; `report.stages` prints it.
"""
