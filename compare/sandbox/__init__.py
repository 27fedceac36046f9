"""What any process gives up before it runs code of the user: limits, signals, the project's files.

Imported by whatever starts such a process; imports nothing of the driver but `compare.registry`."""
