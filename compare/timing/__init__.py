"""Time: the stopwatch, rounds of samples, ceilings, and the statistics and figures that follow.

Imported by `compare.worker`, `compare.run`, `compare.history` and `compare.report`; starts no process."""
