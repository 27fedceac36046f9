"""One call's GPU work, recorded where a user's file runs and replayed where it never ran.

Imported by `compare.worker`; imports no stage.  The recorder is untrusted: what it tells is data, and a lie
harms its own row only.  Addresses are the same in both processes, so that pointers and tensor maps in the
parameters stay valid.

========= ==========================================================================================
arena     device memory at a fixed virtual address, and the allocator that PyTorch takes it from
nodes     a recording as plain data, and what is wrong with one
record    captures a call as a CUDA graph, and reads its nodes
sources   notes what each kernel was compiled from, where it is compiled
images    compiles those sources again, in a process of its own
player    launches the nodes of a recording
========= ==========================================================================================
"""
