"""The map: which way is fastest on every recorded op and case, by how much, and at what code size.

Imported by `compare.report`, by the map command and by tools/docs.
"""
