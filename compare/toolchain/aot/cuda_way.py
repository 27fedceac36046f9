"""A CUDA kernel as C that carries its fat binary, in the form that Triton's tools write."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from compare.spec import CudaLaunch
from compare.toolchain.aot.plan import Plan, Pointer
from compare.toolchain.aot.records import Kernel
from cuda_impl import build

_PORTABLE_SHARED_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8

_HEADER = """\
// {title}
#pragma once

#include <cuda.h>
#include <stdint.h>

void load_{name}(void);
CUresult {name}(CUstream stream, {parameters});
"""

_SOURCE = """\
// {title}
#include "{name}.h"

#include "driver.h"

static CUmodule module;
static CUfunction function;
static const unsigned char fatbin[{bytes}] __attribute__((aligned(16))) = {{
{data}
}};

void load_{name}(void) {{
    CHECK(cuModuleLoadData(&module, fatbin));
    CHECK(cuModuleGetFunction(&function, module, "{mangled}"));
{attributes}}}

CUresult {name}(CUstream stream, {parameters}) {{
    void *arguments[] = {{{addresses}}};
    return cuLaunchKernel(function, {grid}, {block}, {shared}, stream, arguments, NULL);
}}
"""

_MORE_SHARED = (
    "    CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {bytes}));\n"
)
_LARGE_CLUSTER = (
    "    CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));\n"
)


def make(plan: Plan, folder: Path) -> Kernel:
    """Write the kernel's C files into ``folder``.

    Raises:
        build.BuildError: nvcc is missing or refuses the source.
    """
    launch = plan.launch
    assert isinstance(launch, CudaLaunch)
    image, mangled = build.fatbin(launch.source, launch.kernel, plan.arch)
    name = re.sub(r"\W+", "_", launch.kernel.partition("<")[0])
    kinds = ["CUdeviceptr" if isinstance(one, Pointer) else one.ctype for one in plan.arguments.values()]
    attributes = ""
    if launch.dynamic_shared_bytes > _PORTABLE_SHARED_BYTES:
        attributes += _MORE_SHARED.format(bytes=launch.dynamic_shared_bytes)
    if launch.cluster > _PORTABLE_CLUSTER:
        attributes += _LARGE_CLUSTER
    words = {
        "title": f"{launch.kernel} for {plan.arch}",
        "name": name,
        "parameters": ", ".join(map(" ".join, zip(kinds, plan.arguments, strict=True))),
        "bytes": len(image),
        "data": textwrap.fill(", ".join(f"0x{byte:02x}" for byte in image), 100, break_on_hyphens=False),
        "mangled": mangled,
        "attributes": attributes,
        "addresses": ", ".join(f"&{parameter}" for parameter in plan.arguments),
        "grid": ", ".join(map(str, launch.grid)),
        "block": ", ".join(map(str, launch.block)),
        "shared": launch.dynamic_shared_bytes,
    }
    (folder / f"{name}.h").write_text(_HEADER.format(**words))
    (folder / f"{name}.c").write_text(_SOURCE.format(**words))
    return Kernel(name, name, f"{name}.h", tuple(plan.arguments), "nvcc -fatbin", len(image))
