"""What each compiler makes of a kernel, stage by stage, for any architecture, with or without a GPU.

Imported by `compare.cli` only.

`opening` captures an implementation's launches, runs its compiler stage by stage, and returns every stage;
`report.stages` prints them.
"""
