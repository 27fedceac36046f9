"""Provenance: a recording's sources compile to the very machine code that the user's process ran."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import msgspec
import pytest
import torch
from triton import knobs

from compare.replay.images import compiled
from compare.replay.nodes import CudaSource, Source, TritonSource
from compare.replay.sources import Sources
from compare.worker.messages import Compile, Setup
from compare.worker.process import Worker
from cuda_impl import build, flags
from cuda_impl.build import cuda_include
from loops import for_each
from processes import python

ADD = 'extern "C" __global__ void add(const float* x, float* y) { y[threadIdx.x] += x[threadIdx.x]; }\n'
TEMPLATE = "template <typename T> __global__ void scale(T* y, T by) { y[threadIdx.x] *= by; }\n"


def sent(source: Source) -> Source:
    """As it comes out of another process."""
    return msgspec.json.decode(msgspec.json.encode(source), type=TritonSource | CudaSource)


AS_TRITON = """
import msgspec, sys
import torch
from triton import knobs
from compare import registry
from compare.capture import capture
from compare.replay.images import compiled
from compare.replay.nodes import TritonSource
from compare.replay.sources import Sources
from compare.resources.compiler import compile_triton

op, label = registry.get_op("softmax"), sys.argv[1]
(impl,) = (i for i in registry.implementations("softmax") if i.label == label)
(launch,) = capture(impl, op, op.cases.default, "sm_90")
kernel, _ = compile_triton(launch, "sm_90")
(sources := Sources(torch.device("cpu"))).watch()
knobs.runtime.kernel_load_end_hook(7, 8, kernel.name, kernel.metadata_group, kernel.hash)  # needs a GPU else
source = msgspec.json.decode(msgspec.json.encode(sources.of(7)), type=TritonSource)
print(source.stage, compiled([source], "sm_90") == [kernel.asm["cubin"]])
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("label", "stage"), [("triton.online", "ttir"), ("triton.gluon", "ttgir")])
def test_tritons_ir_compiles_to_the_same_machine_code(label: str, stage: str) -> None:
    """In a process of its own: in this one Triton may be interpreted."""
    done = python("-c", AS_TRITON, label, ready="triton")
    assert done.stdout.split() == [stage, "True"], done.stderr


@pytest.fixture
def watching() -> Iterator[Sources]:
    cupy, sources = build.cupy(), Sources(torch.device("cpu"))
    with (
        mock.patch.multiple(cupy, RawModule=cupy.RawModule, RawKernel=cupy.RawKernel),
        mock.patch.object(knobs.runtime.kernel_load_end_hook, "calls", []),
        mock.patch("compare.replay.sources.arch", return_value="sm_90"),
        mock.patch("compare.replay.sources._module", side_effect=lambda raw: len(raw.options)),
    ):
        sources.watch()
        yield sources


@pytest.mark.parametrize(("code", "names"), [(ADD, ()), (TEMPLATE, ("scale<float>", "scale<double>"))])
def test_cupys_source_compiles_to_the_same_machine_code(
    code: str, names: tuple[str, ...], watching: Sources
) -> None:
    """Loading a module is made up: that needs a GPU."""
    cupy = build.cupy()
    cupy.RawModule(code=f'#include "cupy/carray.cuh"\n{code}', options=("-DONE",))
    cupy.RawModule(code=code, options=("-DONE",), backend="nvcc")
    made = cupy.RawModule(code=code, options=("-DONE", "-DTWO"), name_expressions=names or None)
    assert isinstance(made, cupy.RawModule)
    assert watching.of(1) is None  # neither cupy's own nor nvcc's are compiled again
    source = watching.of(2)
    program = cupy.cuda.compiler._NVRTCProgram(code, "kern.cu", name_expressions=names, method="cubin")
    theirs, _ = program.compile((*made.options, "-ftz=true", "-arch=sm_90"))
    assert (source.code, source.names) == (code, names)
    (image,) = compiled([sent(source)], "sm_90")
    assert image.rstrip(b"\0") == theirs.rstrip(b"\0")  # cupy loses a byte at the end


def test_a_kernel_of_its_own_has_a_source(watching: Sources) -> None:
    build.cupy().RawKernel(ADD, "add", options=("-DONE",))
    assert watching.of(1) == CudaSource(
        ADD, (), ("-DONE", "-ftz=true", "-arch=sm_90", "--device-as-default-execution-space")
    )
    assert watching.of(3) is None


IR = """
module {
  tt.func public @store(%y: !tt.ptr<f32>, %value: f32) attributes {noinline = false} {
    tt.store %y, %value : !tt.ptr<f32>
    tt.return
  }
}
"""


def test_an_isolated_process_compiles() -> None:
    sources = CudaSource(ADD, (), flags.nvrtc("sm_90", cuda_include())), TritonSource(IR, "ttir", {})
    worker = Worker("the compiler", torch.device("cpu"), 60.0, isolated=True)
    try:
        worker.ask(Setup("cpu", worker.environment))
        of_cuda, of_triton = worker.ask(Compile(sources, "sm_90"))
    finally:
        worker.close()
    assert b".text.add\0" in of_cuda
    assert b".text.store\0" in of_triton


@for_each("variable", ["__device__ float kept;", "__constant__ float kept;", "__device__ float kept = 1;"])
def test_variables_that_are_used_are_refused(variable: str) -> None:
    code = variable + ADD.replace("+= x", "+= kept + x")
    with pytest.raises(NotImplementedError, match="Pass a tensor instead"):
        compiled([CudaSource(code, (), flags.nvrtc("sm_90", cuda_include()))], "sm_90")


def test_constants_that_are_folded_are_no_variables() -> None:
    code = "constexpr int ONE = 1; template <int N> constexpr int TWICE = 2 * N;" + ADD.replace(
        "+=", "+= TWICE<ONE> *"
    )
    (image,) = compiled([CudaSource(code, (), flags.nvrtc("sm_90", cuda_include()))], "sm_90")
    assert b".text.add\0" in image


def test_a_source_that_does_not_compile_is_refused_with_the_compilers_words() -> None:
    with pytest.raises(build.BuildError, match="NVRTC failed"):
        compiled([CudaSource("no C++", (), ("-arch=sm_90",))], "sm_90")
    with pytest.raises(ValueError, match="no architecture"):
        compiled([CudaSource(ADD, (), ("-arch=compute_90",))], "sm_90")


def test_triton_runs_no_other_options() -> None:
    """Paths that a user's process names are not read."""
    with mock.patch("compare.replay.images.triton.compile") as called:
        compiled([TritonSource("module", "ttir", {"num_warps": 8, "ir_override": "/x.ttir"})], "sm_90")
    assert called.call_args.kwargs["options"] == {"num_warps": 8}
