"""The ops, one module each: what an op computes, its inputs, cost, tolerance and cases."""
