"""Ops that several GPUs of one host compute together: a process for each, its *rank*, and NVLink between."""
