"""The level ``triton.gluon_cluster``, one module per op: a row in the registers of a cluster's blocks."""
