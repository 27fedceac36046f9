"""Containment: every implementation is built, checked and timed in a process of its own.

The process that the user started is the *judge*: it makes the inputs, holds the oracle and all that is
derived from it, decides and reports.  A *worker* holds one implementation and does what the judge asks, a
step at a time.  What a worker crashes, hangs, prints or allocates costs its own row and no other; what it
answers is data, and believed no further than it can be checked from outside.

========== =======================================================================================
server     what workers are forked from
process    the judge's half: starts a worker, asks, waits no longer than the limit, says how it ended
inside     the worker's half: does what is asked of it
memory     memory that both see: inputs go in, outputs come out
limits     what a worker gives up before it runs a line of anybody's code
integrity  which functions a worker's answers rest on, and whether they are still themselves
tree       the project's files, looked at before and after
crew       the workers of a run
stage      a worker as a `compare.checking.stage.Stage`
contest    workers as `compare.timing.rounds` times them
files      the user's files (``--load``), described by a worker
========== =======================================================================================
"""
