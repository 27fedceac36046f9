"""Resources on a GPU: what PyTorch's profiler saw one call of an implementation run, PyTorch's kernels too.

Kernels only: copies and memsets that the driver does without a kernel take no registers, and are left
out.  (``torch.zeros`` fills with a kernel, and that is listed.)
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from compare.capture import Launch, capture_call
from compare.device import arch
from compare.model.architecture import LIMITS
from compare.model.op import CudaLaunch, Implementation
from compare.model.result import KernelResources
from compare.resources.kernels import merged, with_occupancy

_ATTEMPTS = 2  # the first profile of a process may come back empty
_LONGEST_NAME = 100  # ours are shorter; PyTorch's fill pages


def from_profiler(impl: Implementation, inputs: Sequence[torch.Tensor]) -> tuple[KernelResources, ...]:
    """What every kernel of one call ``impl.call(*inputs)`` takes, in order of their first launch.

    The profiler tells the sum of static and dynamic shared memory.  They are told apart by the launches
    that the implementation's host code asks for; for a kernel that is not its own, such as PyTorch's,
    the sum stands as static.

    Args:
        impl: called a few times, to compile and warm up first.
        inputs: on one CUDA device.

    Raises:
        Exception: whatever the implementation raises.
    """
    device = inputs[0].device
    name = arch(device)
    assert name is not None, "only a GPU can be profiled"
    impl.call(*inputs)
    events: list[dict[str, Any]] = []
    for _ in range(_ATTEMPTS):
        torch.cuda.synchronize(device)
        # What torch.profiler stands on: that itself would import torch.compile's compiler first, for seconds.
        with torch.autograd.profiler.profile(
            use_cpu=False, use_device="cuda", use_kineto=True, acc_events=True
        ) as profile:
            impl.call(*inputs)
            torch.cuda.synchronize(device)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            profile.export_chrome_trace(str(file))
            events = kernel_events(json.loads(file.read_text()))
        if events:
            break
    launches = _captured(impl, inputs) if impl.way == "cuda" else ()
    cuda = [launch for launch in launches if isinstance(launch, CudaLaunch)]
    dynamic = {readable(launch.kernel): launch.dynamic_shared_bytes for launch in cuda}
    return merged(_described(event, name, impl, dynamic) for event in events)


def kernels_of_its_own(impl: Implementation, inputs: Sequence[torch.Tensor]) -> list[str]:
    """Names of the kernels that the host code of ``impl`` asks for; empty where capture fails."""
    return [
        readable(one.kernel if isinstance(one, CudaLaunch) else one.kernel.fn.__name__)
        for one in _captured(impl, inputs)
    ]


def _captured(impl: Implementation, inputs: Sequence[torch.Tensor]) -> Sequence[Launch]:
    if impl.way != "torch":
        with suppress(Exception):  # some launches depend on values on the GPU
            return capture_call(impl, [x.to("meta") for x in inputs], arch(inputs[0].device) or "")
    return ()


def kernel_events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The kernels in a Chrome trace of the profiler, in the order they ran."""
    events = (event for event in trace["traceEvents"] if event.get("cat") == "kernel")
    return sorted(events, key=lambda event: float(event["ts"]))


def readable(name: str) -> str:
    """A demangled kernel name without its parameters, namespaces of no interest and casts.

    >>> readable("void (anonymous namespace)::softmax_warp_forward<float, (int)10, (bool)0>(float*, int)")
    'softmax_warp_forward<float, 10, false>'
    """
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    name = re.sub(r"\(bool\)([01])", lambda match: ("false", "true")[int(match[1])], name)
    name = re.sub(r"\((?:unsigned |long |int|short|char)+\)(?=-?\d)", "", name)
    name = re.sub(r"\b(\d+)(?:u?l{0,2})\b", r"\1", name)  # 256u, 4l
    name = name.replace("unsigned int", "unsigned")
    # The parameters start at the first parenthesis outside of the template arguments.
    depth = 0
    for i, char in enumerate(name):
        depth += (char == "<") - (char == ">" and name[i - 1] != "-")
        if char == "(" and depth == 0:
            name = name[:i]
            break
    base, bracket, arguments = name.partition("<")
    name = base.rpartition("::")[2] + bracket + arguments
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def _described(
    event: dict[str, Any], arch: str, impl: Implementation, dynamic: dict[str, int]
) -> KernelResources:
    args = event["args"]
    name = readable(event["name"])
    shared = int(args["shared memory"])
    # Triton has dynamic shared memory only.
    all_dynamic = impl.route == "triton" or name.startswith("triton_")
    of_launch = shared if all_dynamic else min(shared, dynamic.get(name, 0))
    known = LIMITS.get(int(arch.removeprefix("sm_")))
    kernel = KernelResources(
        kernel=name,
        arch=arch,
        reader="profiler",
        registers=int(args["registers per thread"]),
        static_shared_bytes=shared - of_launch,
        dynamic_shared_bytes=of_launch,
        reserved_shared_bytes=known.reserved_bytes if known else 0,
        grid=_three(args["grid"]),
        block=_three(args["block"]),
    )
    return with_occupancy(kernel) if known else kernel


def _three(sizes: Sequence[Any]) -> tuple[int, int, int]:
    x, y, z = (int(size) for size in sizes)
    return x, y, z
