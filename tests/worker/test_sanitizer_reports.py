"""What compare reads in the output of compute-sanitizer's tools: samples in the forms of several versions."""

from __future__ import annotations

import pytest

from compare.worker.sanitized import SanitizedStep
from compare.worker.sanitizer_reports import places_of, reports_in, trouble_in

TEXT = "\n".join(
    ("__device__ float block_max(float v)", "{", "}", "__global__ void sm(float* s)", "{", "}", "")
)
PLACES = places_of(
    [SanitizedStep(), SanitizedStep(text=TEXT, places=tuple(f"mine.py:{n + 10}" for n in range(1, 8)))]
)
RACED = "shared memory that mine.py:{} of another thread writes, no barrier between"
HEAD = "========= COMPUTE-SANITIZER\n"
HASH = "0a1b2c3d4e.cubin.cu"

MEMCHECK = f"""
========= Invalid __global__ read of size 4 bytes
=========     at sm(float *)+0x110 in {HASH}:5
=========     by thread (3,0,0) in block (0,0,0)
=========     Access to 0x7f2f2be00040 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2f2be00000 of size 64 bytes
=========
========= Invalid __global__ read of size 4 bytes
=========     at sm(float *)+0x110 in {HASH}:5
=========     by thread (4,0,0) in block (0,0,0)
=========     Access to 0x7f2f2be00044 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call.
=========
========= ERROR SUMMARY: 3 errors
"""
MISALIGNED = """
========= Invalid __shared__ write of size 16 bytes
=========     at 0xda0 in /home/me/mine.py:175:my_kernel
=========     by thread (96,0,0) in block (44,0,0)
=========     Address 0x763995f9f004 is misaligned
========= ERROR SUMMARY: 1 error
"""
NO_LINE = """
========= Invalid __global__ write of size 1 bytes
=========     at void mine<float>(T1 *, int)+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x0 is out of bounds
"""
RACE = f"""
========= Error: Race reported between Write access at block_max(float)+0x2a0 in {HASH}:2
=========     and Read access at sm(float *)+0x3b0 in {HASH}:5 [28 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
TWO_WRITES = """
========= Warning: Race reported between Write access at my_kernel+0x2a0 in mine.py:14
=========     and Write access at my_kernel+0x2a0 in mine.py:14 [4 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
BARRIER = f"""
========= Barrier error detected. Divergent thread(s) in block.
=========     at sm(float *)+0x70 in {HASH}:6
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error
"""
INLINED = f"""
========= Barrier error detected. Divergent thread(s) in warp.
=========     at block_max(float)+0x70 in {HASH}:3
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame: sm(float *)+0x50 in {HASH}:6
========= ERROR SUMMARY: 1 error
"""
UNWRITTEN = """
========= Uninitialized __global__ memory read of size 4 bytes
=========     at my_kernel+0x70 in mine.py:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
========= ERROR SUMMARY: 1 error
"""
OF_PYTORCH = """
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::elementwise_kernel<(int)4, at::native::Fill<float>>(int)+0x70
=========     by thread (31,0,0) in block (1,0,0)
========= Error: Race reported between Write access at sm80_xmma_gemm_f32f32+0x2a0
=========     and Read access at sm80_xmma_gemm_f32f32+0x3b0 [28 hazards]
========= ERROR SUMMARY: 2 errors
"""


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (MEMCHECK, ["mine.py:15 reads 4 bytes out of bounds in global memory"]),
        (MISALIGNED, ["mine.py:175 writes 16 bytes at an unaligned address in shared memory"]),
        (NO_LINE, ["void mine<float> writes 1 bytes out of bounds in global memory"]),
        (RACE, [f"mine.py:15 reads {RACED.format(12)}"]),
        (TWO_WRITES, [f"mine.py:14 writes {RACED.format(14)}"]),
        (BARRIER, ["mine.py:16: not all threads of the block reach this barrier"]),
        (INLINED, ["mine.py:13: not all threads of the warp reach this barrier"]),
        (UNWRITTEN, ["mine.py:41 reads 4 bytes of global memory that nothing has written"]),
        (OF_PYTORCH, []),
        ("========= ERROR SUMMARY: 0 errors\n", []),
        ("what a library printed\n", []),
    ],
)
def test_a_report_is_a_sentence_with_the_users_lines(output: str, says: list[str]) -> None:
    assert reports_in(HEAD + output, PLACES) == says
    assert trouble_in(HEAD + output) == ""


def test_a_text_without_known_places_is_named_by_its_own_line() -> None:
    (report,) = reports_in(HEAD + BARRIER, {})
    assert report.startswith("line 6 of the CUDA text: ")


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "========= Error: No attachable process found. compute-sanitizer timed-out.\n",
            "No attachable process",
        ),
        (
            "========= Error: Target application terminated before first instrumented API call\n",
            "Target appl",
        ),
        ("========= Device not supported. Please refer to the documentation\n", "Device not supported"),
    ],
)
def test_what_keeps_a_tool_from_watching_is_quoted(output: str, says: str) -> None:
    assert trouble_in(HEAD + output).startswith(says)
