"""The operations in Triton: kernels and their launch, one module per op."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton_impl.interpreter import match_gpu_arithmetic

    match_gpu_arithmetic()
