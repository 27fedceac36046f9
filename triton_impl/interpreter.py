"""Triton's interpreter, held to the arithmetic of a GPU.

Without a GPU the kernels run in Triton's interpreter, on numpy.  Two things differ there from every GPU,
in all versions up to 3.8 at least, and are put right here:

* fp32 becomes bf16 by cutting bits off, where a GPU rounds to nearest even.
* Overflow and operations on infinities warn, where a GPU goes on with inf and NaN.
"""

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def match_gpu_arithmetic() -> None:
    """Patch the interpreter of this process.  Has no effect on compiled kernels."""
    cast = interpreter.InterpreterBuilder.cast_impl
    run = interpreter.GridExecutor.__call__

    def rounding_cast(builder: Any, src: Any, dst_type: Any) -> Any:
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            return cast(builder, src, dst_type)
        values = torch.from_numpy(np.array(src.data, dtype=np.float32))
        bits = values.to(torch.bfloat16).view(torch.uint16).numpy()
        return interpreter.TensorHandle(bits, dst_type.scalar)

    def quiet_run(executor: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(executor, *args, **kwargs)

    interpreter.InterpreterBuilder.cast_impl = rounding_cast
    interpreter.GridExecutor.__call__ = quiet_run
