"""Recorded runs compared: the difference of two, crossovers, and the map of all.

Imported by `compare.report` and by commands."""
