"""``python -m compare cache``: what compilers keep on disk, what keys are made of, and what is ours.

Imported by `compare.cli` only; imports capture, resources and records.
"""
