"""The driver: ``python -m compare``.  docs/architecture.md says what is where."""

__version__ = "0.1.0"
