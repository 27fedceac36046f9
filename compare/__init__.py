"""The driver: ``python -m compare``.  docs/architecture.md says what is where."""
