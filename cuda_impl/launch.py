"""Launch tables of CUDA variants: written once, executed through cupy, on the CPU, by a capture, from C++.

A variant is a function from tensors to a `Plan`: the memory that a call allocates, and its launches.  It may
depend on its arguments' layouts alone (`layout_of`), never on their values, so a plan is made once a layout
and kept: later calls allocate and launch.  ``cuda_impl/pybind/launcher.h`` keeps and executes the same plans
in C++.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from compare.inputs import TORCH_DTYPES
from compare.registry import get_op, implementation
from cuda_impl import build, loader
from cuda_impl.buffers import Buffer, Tensor, allocation, copy_of

CTYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
"""The kernels' ``T``."""
HALVES = (torch.float16, torch.bfloat16)
HOPPER: dict[str, Any] = {"level": "hopper", "requires": "sm_90a", "emulated": True}
"""Declared of variants with wgmma, which no other architecture has."""
CLUSTERED: dict[str, Any] = {**HOPPER, "requires": "sm_90"}
"""Declared of variants with clusters or TMA, which later architectures have too."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


MOST_COUNT = (1 << 31) - (1 << 16) - 1
"""So that the last step of a loop in a kernel, below 2^16, does not pass 2^31 - 1."""


def check_counts(*values: int) -> None:
    """
    Raises:
        NotImplementedError: a kernel that counts to a value in 32 bits may overflow.
    """
    for value in values:
        if value > MOST_COUNT:
            raise NotImplementedError(f"a count of {value}: the kernel has 32 bits, at most {MOST_COUNT}")


def int32(*values: int) -> tuple[np.int32, ...]:
    check_counts(*values)
    return tuple(map(np.int32, values))


def int64(*values: int) -> tuple[np.int64, ...]:
    return tuple(map(np.int64, values))


# --------------------------------------------------------------------------- what a plan consists of


class Offset(NamedTuple):
    """The address so many bytes into a tensor."""

    tensor: Tensor
    offset_bytes: int


class Mapped(NamedTuple):
    """A tensor map for TMA: ``encode(address)`` gives its 128 bytes."""

    tensor: Tensor
    encode: Callable[[int], np.void]


Argument = Tensor | Offset | Mapped | np.generic
"""A tensor stands for its address; a number states its size: ``np.int64(N)``."""


class Launch(NamedTuple):
    kernel: Instance
    grid: int
    """Blocks; without any there is nothing to launch."""
    block: int
    """Threads per block."""
    args: tuple[Argument, ...]
    shared_bytes: int = 0
    """Dynamic shared memory per block."""
    cluster: int = 1
    """Blocks per cluster; above 8 the launch needs a kernel attribute."""
    overlap: bool = False
    """Programmatic dependent launch: as of `cuda_impl.loader.kernel`."""
    cooperative: bool = False
    """All blocks are resident before any starts: they may wait for each other, beside any other kernel."""


MOST_BLOCKS = (1 << 31) - 1


class Plan:
    """The outputs of a call and its launches, in order; without launches where no output has an element.

    Raises:
        NotImplementedError: a launch has more blocks than a grid can have.
    """

    def __init__(self, result: Tensor | tuple[Tensor, ...], *launches: Launch) -> None:
        self.result = result
        outputs = result if isinstance(result, tuple) else (result,)
        some = any(output.numel() for output in outputs)
        self.launches = tuple(launch for launch in launches if launch.grid > 0) if some else ()
        most = max((launch.grid for launch in self.launches), default=0)
        if most > MOST_BLOCKS:
            raise NotImplementedError(f"{most} blocks: a grid has at most {MOST_BLOCKS}")


class Instance(str):
    """A kernel as a C++ expression: ``softmax_online_kernel<float, 4, 1024>``."""

    source: str
    """The op whose file has it; empty: the variant's."""


class Kernel:
    """A kernel template, and the template arguments that its launches choose among.

    Args:
        template: ``"softmax_online_kernel<{T}, {VEC}, 1024>"``; ``{T}`` is the C++ type of a dtype.
        dtypes: those that it is built for.
        source: the op whose file has it, where that is another than the variant's.
        choices: for each further field its values, or a function to them from ``T``, the dtype, and the
            fields before.
    """

    def __init__(
        self,
        template: str,
        dtypes: Sequence[torch.dtype] = tuple(CTYPES),
        source: str = "",
        **choices: Any,
    ) -> None:
        self.template, self.dtypes, self.source, self._choices = template, dtypes, source, choices

    def __call__(self, dtype: torch.dtype | None = None, **chosen: object) -> Instance:
        """An instance for a dtype and these template arguments."""
        words = {name: _cpp(value) for name, value in chosen.items()}
        instance = Instance(self.template.format(T=CTYPES.get(dtype, ""), **words))  # type: ignore[arg-type]
        instance.source = self.source
        return instance

    def instances(self, dtype: torch.dtype) -> Iterator[Instance]:
        """Those that a module for this dtype holds."""
        if "{T}" in self.template and dtype not in self.dtypes:
            return
        chosen: list[dict[str, object]] = [{}]
        for name, choices in self._choices.items():
            chosen = [
                {**before, name: value}
                for before in chosen
                for value in (choices(dtype, **before) if callable(choices) else choices)
            ]
        yield from dict.fromkeys(self(dtype, **each) for each in chosen)


def _cpp(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_cpp, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# --------------------------------------------------------------------------- variants

Plans = Callable[..., Plan]
Run = Callable[..., Any]


def variant(op: str, name: str, *, kernels: Sequence[Kernel], **declared: Any) -> Callable[[Plans], Variant]:
    """Register ``cupy.<name>`` of an op: a function from tensors to a `Plan`.

    Args:
        op: the op's name, and of the file with its kernels.
        name: the variant's.
        kernels: those that it launches, also where it falls back to another variant.
        declared: as of `compare.registry.implementation`.
    """

    def registered(plan: Plans) -> Variant:
        table = Variant(op, plan, kernels)
        implementation(op, f"cupy.{name}", **declared)(table.run)
        return table

    return registered


class Variant:
    """A launch table: `plan` makes a call's plan, and the object itself is called with tensors."""

    def __init__(self, op: str, plan: Plans, kernels: Sequence[Kernel]) -> None:
        self.op, self.plan, self.kernels = op, plan, tuple(kernels)
        self.run = _through_python(self)
        functools.update_wrapper(self, plan)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.run(*args, **options)


def _through_python(table: Variant) -> Run:
    """The variant's function of tensors: plans of calls on a GPU are kept, as a launch must be cheap."""
    ready: dict[object, tuple[Run, bool]] = {}

    def planned_anew(args: Sequence[Any], options: dict[str, Any]) -> tuple[Run, bool]:
        """A function of the call's tensors, and whether these are its arguments as given; kept on a GPU."""
        tensors = tensors_of(args, options)
        plan = planned(table, args, options).through_python(), [*map(id, tensors)] == [*map(id, args)]
        if all(x.is_cuda for x in tensors):
            ready[layout_of(args, options)] = plan
        return plan

    @functools.wraps(table.plan)
    def run(*args: Any, **options: Any) -> Any:
        try:
            call, as_given = ready[layout_of(args, options)]
        except (KeyError, RuntimeError, TypeError):  # a new layout, no strides, or what no plan depends on
            call, as_given = planned_anew(args, options)
        return call(args if as_given else tensors_of(args, options))

    run.table = table  # type: ignore[attr-defined]
    return run


def layout_of(args: Sequence[Any], options: dict[str, Any]) -> tuple[object, ...]:
    """What a plan may depend on: of a tensor its dtype, shape, strides, device, and address modulo 16."""
    layout: list[object] = [*options]
    for value in (*args, *options.values()) if options else args:
        if isinstance(value, Tensor):
            layout += value.dtype, value.shape, value.stride(), value.data_ptr() & 15, value.device
        elif isinstance(value, tuple):
            layout.append(layout_of(value, {}))
        else:
            layout += type(value), value
    return tuple(layout)


def tensors_of(args: Sequence[Any], options: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, in order; those of a tuple one by one."""
    values = (each for value in (*args, *options.values()) for each in _each(value))
    return [value for value in values if isinstance(value, torch.Tensor)]


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


# --------------------------------------------------------------------------- execution


def planned(table: Variant, args: Sequence[Any], options: dict[str, Any]) -> Planned:
    """A call's plan.  A tensor given twice is planned as two: other calls of the layout may give two."""
    known: dict[int, torch.Tensor] = {}

    def distinct(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(distinct, value))
        if not isinstance(value, torch.Tensor):
            return value
        alias = value.detach() if id(value) in known else value
        return known.setdefault(id(alias), alias)

    args, options = distinct(tuple(args)), {name: distinct(value) for name, value in options.items()}
    return Planned(table.op, table.plan(*args, **options), tensors_of(args, options))


class Planned:
    """A plan with its buffers in the order in which a call makes them, each known by its number.

    Numbers below ``len(tensors)`` are the arguments'.

    Raises:
        ValueError: a launch takes a tensor that is neither an argument nor a buffer.
    """

    def __init__(self, op: str, plan: Plan, tensors: Sequence[torch.Tensor]) -> None:
        self.op, self.plan, self.tensors = op, plan, tensors
        self.buffers: list[Buffer] = []
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        for launch in plan.launches:
            for argument in launch.args:
                if not isinstance(argument, np.generic):
                    self._add(argument.tensor if isinstance(argument, (Offset, Mapped)) else argument)
        for output in _each(plan.result):
            self._add(output)

    def _add(self, tensor: object) -> None:
        if id(tensor) in self._numbers:
            return
        if not isinstance(tensor, Buffer):
            raise ValueError(f"{self.op}: a launch takes a tensor that the plan did not get or allocate")
        if tensor.source is not None:
            self._add(tensor.source)
        self._numbers[id(tensor)] = len(self.tensors) + len(self.buffers)
        self.buffers.append(tensor)

    def number(self, tensor: object) -> int:
        return self._numbers[id(tensor)]

    def result(self) -> int | tuple[int, ...]:
        """The number of the output, or the outputs'."""
        outputs = self.plan.result
        return tuple(map(self.number, outputs)) if isinstance(outputs, tuple) else self.number(outputs)

    def kernel(self, launch: Launch) -> loader.Kernel:
        device = self.tensors[0].device
        source, name = launch.kernel.source or self.op, str(launch.kernel)
        options = launch._asdict()
        return loader.kernel(
            source, name, device, **{key: options[key] for key in ("cluster", "overlap", "cooperative")}
        )

    def model(self, buffer: Buffer) -> tuple[int, bool]:
        """The number of the tensor that a buffer is made of, and whether it is ``torch.empty_like`` of it."""
        if buffer.source is not None:
            return self.number(buffer.source), False
        for number, x in enumerate(self.tensors):
            if x.dtype == buffer.dtype and (x.shape, x.stride()) == (buffer.shape, buffer.stride()):
                return number, True
        return 0, False

    def maker(self, buffer: Buffer) -> tuple[int | None, Callable[..., torch.Tensor]]:
        """The number of the tensor that a buffer is made of, None without one, and a function of it."""
        number, is_like = self.model(buffer)
        if buffer.source is not None:
            return number, functools.partial(copy_of, buffer=buffer)
        make: Callable[..., torch.Tensor] = torch.empty_like
        if not is_like:
            number, make = None, allocation(buffer.shape, buffer.stride(), buffer.dtype, buffer.device)
        size_bytes = buffer.numel() * buffer.element_size()
        if not buffer.zeroed or size_bytes == 0:
            return number, make
        if buffer.device.type != "cuda":
            return number, functools.partial(_zeroed, make)
        return number, functools.partial(
            _zeroed_on_gpu, make, build.cupy().cuda.runtime.memsetAsync, size_bytes
        )

    def through_python(self) -> Run:
        """A function of the call's tensors that allocates, launches and returns the outputs."""
        makers = [self.maker(buffer) for buffer in self.buffers]
        launches = [
            (self.kernel(each), (each.grid,), (each.block,), self._addressed(each.args), each.shared_bytes)
            for each in self.plan.launches
        ]
        result = self.result()

        def call(tensors: Sequence[torch.Tensor]) -> Any:
            held = [*tensors]
            for number, make in makers:  # a copy may be of a buffer before it
                held.append(make() if number is None else make(held[number]))
            for run, grid, block, args, shared_bytes in launches:
                run(grid, block, args(held), shared_bytes)
            return held[result] if isinstance(result, int) else tuple([held[number] for number in result])

        return call

    def _addressed(self, args: Sequence[Argument]) -> Callable[[Sequence[torch.Tensor]], list[Any]]:
        """A function from tensors to a launch's arguments."""
        kept: list[Any] = list(args)
        addresses: list[tuple[int, int]] = []
        others: list[tuple[int, int, Callable[[int], Any]]] = []
        for place, argument in enumerate(args):
            if isinstance(argument, Offset):
                others.append((place, self.number(argument.tensor), argument.offset_bytes.__add__))
            elif isinstance(argument, Mapped):
                others.append((place, self.number(argument.tensor), argument.encode))
            elif not isinstance(argument, np.generic):
                addresses.append((place, self.number(argument)))

        def addressed(held: Sequence[torch.Tensor]) -> list[Any]:
            given = kept.copy()
            for place, number in addresses:
                given[place] = held[number].data_ptr()
            for place, number, of in others:
                given[place] = of(held[number].data_ptr())
            return given

        return addressed


def _zeroed(make: Callable[..., torch.Tensor], *like: torch.Tensor) -> torch.Tensor:
    return make(*like).zero_()


def _zeroed_on_gpu(
    make: Callable[..., torch.Tensor], memset: Callable[..., None], size_bytes: int, *like: torch.Tensor
) -> torch.Tensor:
    memory = make(*like)
    device = memory.get_device()
    if device != torch._C._cuda_getDevice():  # memset would take stream 0 as that device's
        return memory.zero_()
    memset(memory.data_ptr(), 0, size_bytes, torch._C._cuda_getCurrentRawStream(device))
    return memory


# --------------------------------------------------------------------------- the same from C++

_MODULE = """\
// Generated from cuda_impl/launches/{op}.py: the kernels of its launch tables, which launcher.h launches.
{includes}

#include "launcher.h"

template <typename... Parameters>
const void* address_of(void (*kernel)(Parameters...)) {{
    return reinterpret_cast<const void*>(kernel);
}}

PYBIND11_MODULE({op}, m) {{
    Kernels kernels;
{kernels}
    define_launcher(m, std::move(kernels));
}}
"""


def module_text(op: str, dtype: str = "") -> str:
    """The C++ of an op's module: its tables' kernels for a dtype, ``bf16``, or for all that the op takes."""
    module = importlib.import_module(f"cuda_impl.launches.{op}")
    tables = (each for each in vars(module).values() if isinstance(each, Variant) and each.op == op)
    kernels = dict.fromkeys(kernel for table in tables for kernel in table.kernels)
    dtypes = [TORCH_DTYPES[name] for name in ([dtype] if dtype else get_op(op).dtypes)]
    instances = dict.fromkeys(
        name for each in dtypes for kernel in kernels for name in kernel.instances(each)
    )
    sources = dict.fromkeys((op, *(instance.source or op for instance in instances)))
    return _MODULE.format(
        op=op,
        includes="\n".join(f'#include "{source}.cuh"' for source in sources),
        kernels="\n".join(f'    kernels["{name}"] = address_of({name});' for name in instances),
    )


def encoded(table: Variant, *args: Any, **options: Any) -> tuple[list[object], list[object], object]:
    """A call's plan as launcher.h reads it: memory to make, launches, and the outputs' numbers."""
    call = planned(table, args, options)
    return (
        [_encoded_buffer(call, buffer) for buffer in call.buffers],
        [_encoded_launch(call, launch) for launch in call.plan.launches],
        call.result(),
    )


def _encoded_buffer(planned: Planned, buffer: Buffer) -> tuple[object, ...]:
    number, is_like = planned.model(buffer)
    zeroed_bytes = buffer.numel() * buffer.element_size() if buffer.zeroed else 0
    if buffer.source is not None:
        return number, None, None, functools.partial(copy_of, buffer=buffer), 0
    return number, None if is_like else buffer.shape, buffer.dtype, None, zeroed_bytes


def _encoded_launch(planned: Planned, launch: Launch) -> tuple[object, ...]:
    on_gpu = planned.tensors[0].is_cuda
    kernel = str(launch.kernel) if on_gpu else planned.kernel(launch)
    args = [_encoded_argument(planned, argument) for argument in launch.args]
    return (
        *(kernel, launch.grid, launch.block, args),
        *(launch.shared_bytes, launch.cluster, launch.overlap, launch.cooperative),
    )


def _encoded_argument(planned: Planned, argument: Argument) -> tuple[int, int, object]:
    if isinstance(argument, np.generic):
        return -1, 0, argument
    if isinstance(argument, Offset):
        return planned.number(argument.tensor), argument.offset_bytes, None
    if isinstance(argument, Mapped):
        return planned.number(argument.tensor), 0, argument.encode
    return planned.number(argument), 0, None
