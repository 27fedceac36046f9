"""The map: the fastest way on every recorded op and case, its speedup and its code size.

Imported by `compare.report`, by the map command and by tools/docs.
"""
