"""Limits of any process that runs user code: resources, signals, the project's files.

Imported by whatever starts such a process; imports nothing of the driver but `compare.registry`."""
