"""Containment: every implementation is built, checked and timed in a process of its own.

Imported by `compare.stages`, `compare.run` and commands; imports checking, timing, resources and tuning.

The process that the user started is the *judge*: it makes the inputs, holds the oracle and all that is
derived from it, decides and reports.  A *worker* holds one implementation and does what the judge asks, a
step at a time.  What a worker crashes, hangs, prints or allocates costs its own row and no other; what it
answers is data, and believed no further than it can be checked from outside.

=========== ======================================================================================
start       what a command does first: decide the device, start the server
server      what workers are forked from
process     the judge's half: starts a worker, sends requests, enforces the time limit, says how it ended
main        the worker's half: does what is asked of it
memory      memory that both see: inputs go in, outputs come out
integrity   which functions a worker's answers rest on, and whether they are still themselves
pool        the workers of a run
exchange    the memory of one case, and a worker as a `compare.checking.stage.Stage`
checking    the checks of one case, side by side
timing      workers as `compare.timing.rounds` times them
calibration equals timed, for `compare.timing.calibration`
user_files  the user's files (``--load``), described by a worker
=========== ======================================================================================
"""
