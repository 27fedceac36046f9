"""What each kernel takes of the machine, by two readers that must agree.

`from_cubin` compiles what an implementation would launch, for any architecture, without a GPU.
`from_profiler` watches one real call on a GPU, and sees every kernel of every way, PyTorch's own too.
"""

from compare.resources.profiler import from_profiler
from compare.resources.static import CompileError, Compiling, Refused, Request, from_cubin, from_cubins

__all__ = ["CompileError", "Compiling", "Refused", "Request", "from_cubin", "from_cubins", "from_profiler"]
