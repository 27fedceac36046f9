"""One self-contained HTML report of comparisons: what ``--html`` writes.

Imported by commands, the pipeline page (for the colours of source code) and tools.
"""
