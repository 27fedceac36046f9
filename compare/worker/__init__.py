"""Containment: every implementation is built, checked and timed in a process of its own.

The process that the user started is the *judge*: it makes the inputs, holds the oracle and all that is
derived from it, decides and reports.  A *worker* holds one implementation and does what the judge asks, a
step at a time.  What a worker crashes, hangs, prints or allocates costs its own row and no other; what it
answers is data, and believed no further than it can be checked from outside.

=========== ==============================================================================="""
