"""Isolation of any process that runs user code, and its limits.

Imported by whatever starts such a process; imports nothing of the driver but `compare.registry`."""
