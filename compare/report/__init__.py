"""A `Comparison` as a screen, Markdown, CSV and HTML; `history`'s findings as tables.

Imported by commands and by tools/docs; imports no command and not `compare.run`.
"""
