"""Containment: every implementation is built, checked and timed in a process of its own.

Imported by `compare.run` and commands; imports checking, timing, resources and tuning.

The *judge process* is the one the user started: it makes the inputs, holds the oracle, decides and reports.
A *worker process* holds one implementation and answers one request at a time.  A worker that crashes, hangs,
prints or allocates too much fails its own row only.  The judge reads answers as data and verifies what it
can see from outside.

=========== ======================================================================================
start       the first step of a command: decides the device, starts the server
server      the process that workers are forked from
process     the judge's half: starts a worker, sends requests, enforces the time limit, reports how it ended
main        the worker's half: handles the requests
messages    what the judge asks and what a worker may answer, typed
channel     messages over a socket, read within limits of size and time
memory      shared memory for inputs and outputs
pool        the workers of a run
buffers     the shared memory of one case, and a worker as a `compare.checking.stage.Stage`
checking    the checks of one case, in parallel
timing      workers timed by `compare.timing.rounds`
calibration A/A measurements for `compare.timing.calibration`
user_files  the rows of the user's files (``--load``), read from their text
=========== ======================================================================================
"""
