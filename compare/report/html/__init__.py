"""One self-contained HTML report of comparisons: what ``--html`` writes.
Imported by the compare command and by tools only; imports report, timing, code_size and registry."""
