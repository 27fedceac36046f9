"""What `pipeline` found, for readers: the stages as text, and one HTML page.

Imported by `compare.toolchain.pipeline` only.
"""
