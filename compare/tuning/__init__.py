"""Parameters of implementations: sweeps, configurations found before, searches watched in a worker.

Imported by `compare.worker`, `compare.run` and `compare.report`."""
