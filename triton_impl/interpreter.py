"""Triton's interpreter with a GPU's arithmetic.

Without a GPU the kernels run in Triton's interpreter, on numpy.  These patches remove its differences from
every GPU:

* It truncates fp32 to bf16, where a GPU rounds to nearest even; it turns bf16 subnormals into 0.
* Arithmetic and ``tl.dot`` take the bits of bf16 for integers, and there are no bf16 constants.
* It rounds to e4m3 wrongly at ties, takes the largest numbers of e4m3 for infinities, and does not saturate.
* ``tl.fma`` rounds twice.
* Overflow and operations on infinities warn, where a GPU continues with inf and NaN.
* NVIDIA's libdevice is missing: `triton_impl.libdevice`.
* ``tl.dot`` of fp32 is exact, where tensor cores take TF32 unless ``input_precision`` says otherwise.
* Loads and stores outside of the arguments, and loads of what another program stores, are errors:
  `triton_impl.addresses`.
* A search by ``@triton.autotune`` needs a GPU: the first configuration runs.
* ``kernel.warmup`` returns nothing: `triton_impl.recorded_device`.
* A launch copies to the interpreter's memory and back, which would count as the caller's copies.  Rounding
  here would count as PyTorch's.
* ``tl.xor_sum``, which ``tl.sort`` and ``tl.topk`` consist of, would run element by element.
* Each call of a device function, ``tl.max`` too, would patch all of ``tl`` again: half of some kernels' time.
* In Triton 3.6 a loop that ends at a loaded number fails with numpy 2.5.
* In Triton 3.9 ``&`` makes 64-bit integers of two comparisons, and a load refuses these as its mask.
"""

import inspect
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

from triton_impl.addresses import Bounds
from triton_impl.libdevice import interpret_libdevice
from triton_impl.notes import note
from triton_impl.recorded_device import WarmedUp

_search = Autotuner.run


def first_configuration(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of ``Autotuner.run``: a launch with the first configuration that its pruning leaves.

    One that has a benchmark of its own searches with that.
    """
    if tuner._do_bench is not None or "do_bench" in vars(tuner):
        return _search(tuner, *args, **kwargs)
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    configs = tuner.configs if len(tuner.configs) == 1 else tuner.prune_configs(kwargs)
    tuner.best_config = config = configs[0]
    if len(tuner.configs) > 1:
        note(f"ran with the first of {len(tuner.configs)} configurations: a search needs a GPU")
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


def match_gpu_arithmetic() -> None:
    """Patch the interpreter of this process.  No effect on compiled kernels."""
    cast = interpreter.InterpreterBuilder.cast_impl
    run = interpreter.GridExecutor.__call__

    def exact_cast(builder: Any, src: Any, dst_type: Any) -> Any:
        if tl.bfloat16 in (src.dtype.scalar, dst_type.scalar) and src.dtype.scalar != dst_type.scalar:
            src = widened(src)
            if dst_type.scalar == tl.bfloat16:
                return interpreter.TensorHandle(rounded(src.data), tl.bfloat16)
        return cast(builder, src, dst_type)

    def in_fp32(method: Any) -> Any:
        """``method`` with bf16 operands computed in fp32 and rounded: a GPU's result, because fp32 has more
        than twice the digits."""

        def run(builder: Any, *args: Any) -> Any:
            found = method(builder, *map(widened, args))
            if not any(is_bfloat16(arg) for arg in args) or found.data.dtype == bool:
                return found
            return interpreter.TensorHandle(rounded(found.data), tl.bfloat16)

        return run

    def is_bfloat16(operand: Any) -> bool:
        return isinstance(operand, interpreter.TensorHandle) and operand.dtype.scalar == tl.bfloat16

    def reduced_in_fp32(method: Any) -> Any:
        def run(reduction: Any, operand: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_bfloat16(operand.handle):
                return method(reduction, operand, *args, **kwargs)
            wide = tl.core.tensor(widened(operand.handle), tl.block_type(tl.float32, operand.shape))
            found = method(reduction, wide, *args, **kwargs)
            return tuple(map(narrowed, found)) if isinstance(found, tuple) else narrowed(found)

        return run

    def narrowed(found: Any) -> Any:
        if found.dtype != tl.float32:  # an index
            return found
        kind = tl.block_type(tl.bfloat16, found.shape) if found.shape else tl.bfloat16
        return tl.core.tensor(interpreter.TensorHandle(rounded(found.handle.data), tl.bfloat16), kind)

    element_by_element = interpreter.ReduceOps.generic_reduce

    def xor_sum_at_once(reduction: Any, operands: Any) -> Any:
        if reduction.combine_fn is not tl.standard._xor_combine:
            return element_by_element(reduction, operands)
        (x,) = operands
        found = np.bitwise_xor.reduce(x.handle.data, axis=reduction.axis, keepdims=reduction.keep_dims)
        return [reduction.to_tensor(found, x.dtype)]

    def get_bf16(builder: Any, value: float) -> Any:
        return interpreter.TensorHandle(rounded([value]), tl.bfloat16)

    patch = interpreter._patch_lang
    patched: set[int] = set()
    """The modules for which this was done in the launch that runs."""

    def patch_once(fn: Any) -> Any:
        module = id(fn.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch(fn)

    def quiet_run(executor: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        with np.errstate(all="ignore"):
            return run(executor, *args, **kwargs)

    dot = interpreter.InterpreterBuilder.create_dot

    def tensor_core_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.float32 and input_precision == ir.INPUT_PRECISION.TF32:
            note("tl.dot rounded fp32 operands to TF32, as a GPU does")
            a, b = tf32(a), tf32(b)
        return dot(builder, widened(a), widened(b), d, input_precision, *rest)

    def tf32(operand: Any) -> Any:
        bits = operand.data.view(np.uint32) & np.uint32(0xFFFFE000)
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def widened(operand: Any) -> Any:
        if is_e4m3(operand):
            return interpreter.TensorHandle(from_e4m3(operand.data), tl.float32)
        if not is_bfloat16(operand):
            return operand
        values = np.left_shift(operand.data.astype(np.uint32), 16).view(np.float32)
        return interpreter.TensorHandle(values, tl.float32)

    load = interpreter.InterpreterBuilder.create_masked_load
    store = interpreter.InterpreterBuilder.create_masked_store

    def one_bit(mask: Any) -> Any:
        values = mask if isinstance(mask, np.ndarray) else mask.data  # descriptors pass an array
        return interpreter.TensorHandle(values.astype(bool), tl.int1)

    bounds: list[Bounds] = []
    """Of the launch that runs."""

    def masked_load(builder: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        mask = one_bit(mask)
        check(builder, "load", ptrs, mask)
        return load(builder, ptrs, mask, *rest, **named)

    def masked_store(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        mask = one_bit(mask)
        check(builder, "store", ptrs, mask)
        return store(builder, ptrs, value, mask, *rest, **named)

    rmw = interpreter.InterpreterBuilder.create_atomic_rmw
    cas = interpreter.InterpreterBuilder.create_atomic_cas

    def atomic_rmw(builder: Any, operation: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(builder, "atomic operation", ptrs, one_bit(mask))
        return rmw(builder, operation, ptrs, value, mask, *rest)

    def atomic_cas(builder: Any, ptrs: Any, *rest: Any) -> Any:
        check(builder, "atomic operation", ptrs, one_bit(np.ones_like(ptrs.data)))
        return cas(builder, ptrs, *rest)

    def check(builder: Any, what: str, ptrs: Any, mask: Any) -> None:
        (x, y, z), (columns, rows, _) = builder.grid_idx, builder.grid_dim
        program = 1 + x + columns * (y + rows * z)
        for each in bounds:
            each.check(what, ptrs.data, mask.data, ptrs.get_element_ty().primitive_bitwidth // 8, program)

    def unseen(method: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch._C._DisableTorchDispatch():  # type: ignore[no-untyped-call]
                return method(*args, **kwargs)

        return run

    def is_e4m3(operand: Any) -> bool:
        return isinstance(operand, interpreter.TensorHandle) and operand.dtype.scalar == tl.float8e4nv

    def codes_of_e4m3(data: Any) -> Any:
        values = torch.from_numpy(np.array(data, dtype=np.float32)).clamp(-448, 448)
        return values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    def values_of_e4m3(data: Any) -> Any:
        return torch.from_numpy(np.array(data, dtype=np.uint8)).view(torch.float8_e4m3fn).float().numpy()

    fp_to_fp = interpreter.InterpreterBuilder.create_fp_to_fp

    def exact_fp_to_fp(builder: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if is_e4m3(src):
            return exact_cast(builder, widened(src), dst_type)
        if dst_type.scalar == tl.float8e4nv:
            return interpreter.TensorHandle(to_e4m3(widened(src).data), tl.float8e4nv)
        return fp_to_fp(builder, src, dst_type, rounding_mode)

    fma = interpreter.InterpreterBuilder.create_fma

    def fused_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype != np.float32:
            return fma(builder, x, y, z)
        # In fp64 the product is exact.
        total = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(total.astype(np.float32), z.dtype.scalar)

    def to_bfloat16(data: Any) -> Any:
        values = torch.from_numpy(np.array(data, dtype=np.float32))
        return values.to(torch.bfloat16).view(torch.uint16).numpy()

    rounded = unseen(to_bfloat16)
    to_e4m3, from_e4m3 = unseen(codes_of_e4m3), unseen(values_of_e4m3)
    copies_of = interpreter.GridExecutor._init_args_hst

    def bounded_copies(executor: Any, args: Any, kwargs: Any) -> Any:
        copies, named_copies = copies_of(executor, args, kwargs)
        names = inspect.getfullargspec(executor.fn).args
        bounds[:] = [
            Bounds(
                dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in named_copies},
                dict(zip(names, copies, strict=False)) | named_copies,
            )
        ]
        return copies, named_copies

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: scalar.handle.data.item())

    launch = interpreter.InterpretedFunction.run

    def run_or_warm_up(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if warmup:
            return WarmedUp(kernel, launch, args, options)
        return launch(kernel, *args, grid=grid, warmup=False, **options)

    interpreter._patch_lang = patch_once
    interpreter._patch_lang_tensor = patch_tensor_and_index
    interpreter.InterpretedFunction.run = run_or_warm_up
    interpreter.GridExecutor._init_args_hst = unseen(bounded_copies)
    interpreter.GridExecutor._restore_args_dev = unseen(interpreter.GridExecutor._restore_args_dev)
    interpret_libdevice(unseen)
    Autotuner.run = first_configuration
    interpreter.InterpreterBuilder.create_masked_load = masked_load
    interpreter.InterpreterBuilder.create_masked_store = masked_store
    interpreter.InterpreterBuilder.create_atomic_rmw = atomic_rmw
    interpreter.InterpreterBuilder.create_atomic_cas = atomic_cas
    interpreter.InterpreterBuilder.create_dot = tensor_core_dot
    interpreter.InterpreterBuilder.create_fp_to_fp = exact_fp_to_fp
    interpreter.InterpreterBuilder.create_fma = fused_fma
    interpreter.InterpreterBuilder.get_bf16 = get_bf16
    interpreter.ReduceOps.generic_reduce = xor_sum_at_once
    for name in ("sum", "min_max"):
        setattr(interpreter.ReduceOps, name, reduced_in_fp32(getattr(interpreter.ReduceOps, name)))
    for name in ("binary_op", "unary_op", "create_fma", "create_clampf"):
        setattr(interpreter.InterpreterBuilder, name, in_fp32(getattr(interpreter.InterpreterBuilder, name)))
    interpreter.InterpreterBuilder.cast_impl = exact_cast
    interpreter.GridExecutor.__call__ = quiet_run
