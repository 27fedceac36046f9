"""The concepts that a reader must know, recognised by identifiers in the code."""

from __future__ import annotations

import re
from collections.abc import Iterable

from compare.code_size.pieces import CodePiece, bare

CONCEPTS: dict[str, dict[str, str]] = {
    "programs": {"python": r"\b[tg]l\.program_id\b"},
    "threads and blocks": {"cuda": r"\b(threadIdx|blockIdx)\b"},
    "block tensors": {"python": r"\b[tg]l\.(arange|full|zeros)\b"},
    "masks": {"python": r"\bmask\s*="},
    "raw pointers": {"python": r"\.data_ptr\(\)", "cuda": r"\.data<"},
    "pointer arithmetic": {
        "python": r"\b[tg]l\.(load|store|atomic_\w+)\b",
        "cuda": r"\b(float|double|int|half|__half|__nv_bfloat16|T|\w+_t)\s*\*|\breinterpret_cast\b",
    },
    "64-bit offsets": {"python": r"\b[tg]l\.int64\b", "cuda": r"\b(index_t|long long|u?int64_t|size_t)\b"},
    "compile-time parameters": {"python": r"\b[tg]l\.constexpr\b", "cuda": r"\btemplate\s*<|\bconstexpr\b"},
    "reductions": {"python": r"\b[tg]l\.(sum|max|min|argmax|argmin|reduce|associative_scan)\b"},
    "warp intrinsics": {"cuda": r"\b__(shfl|ballot|any|all|reduce|match|activemask)\w*\b"},
    "register layouts": {"python": r"\bgl\.(Blocked|Slice|\w+Distributed)Layout\b"},
    "shared memory": {
        "python": r"\bgl\.allocate_shared_memory\b",
        "cuda": r"\b(__shared__|DYNAMIC_SHARED)\b",
    },
    "barriers": {
        "python": r"\btl\.debug_barrier\b|\bgl\.(thread_)?barrier\b|\bmbarrier\.wait\b",
        "cuda": r"\b(__syncthreads|__syncwarp|cluster_sync|mbarrier_\w+)\b",
    },
    "atomics": {"python": r"\b[tg]l\.atomic_", "cuda": r"\batomic[A-Z]\w+|\batomic_ref\b"},
    "memory ordering": {
        "python": r"\b(volatile|sem)\s*=",
        "cuda": r"\bvolatile\b|\b__threadfence|\.(acquire|release)\b",
    },
    "cache hints": {
        "python": r"\b(cache_modifier|eviction_policy)\s*=",
        "cuda": r"\b__(ld|st)(cs|cg|g|lu|wt)\b",
    },
    "vector loads": {"cuda": r"\b(float|u?int|u?short|u?char|double)[248]\b"},
    "clusters": {"cuda": r"\b(__cluster_dims__|cluster_\w+)\b"},
    "async copies": {
        "python": r"\btl\.make_tensor_descriptor\b|\basync_(load|store)\(",
        "cuda": r"\b(bulk_copy_\w+|CUtensorMap|TensorMap|__pipeline_\w+)\b|\bcp\.async",
    },
    "tensor cores": {"python": r"\btl\.dot\b|\bwarpgroup_mma\b", "cuda": r"\bwmma\b|\bmma\.sync\b|\bwgmma\b"},
    "inline PTX": {"python": r"\b[tg]l\.inline_asm_elementwise\b", "cuda": r"\basm\b"},
    "persistent blocks": {"python": r"\b[tg]l\.num_programs\b", "cuda": r"\bgridDim\b"},
    "launch configuration": {
        "python": r"\bnum_(warps|stages)\"?\s*[=:]|\b(kernel|Launch)\(",
        "cuda": r"<<<|\bcudaLaunch\w+\b|\blaunch\(",
    },
    "C++ binding": {"cuda": r"\bPYBIND11_MODULE\b"},
}
"""Each concept's patterns by language, from common to rare concepts."""


def concepts_of(pieces: Iterable[CodePiece]) -> tuple[str, ...]:
    """The concepts that any piece uses, in the table's order."""
    code = {"python": "", "cuda": ""}
    for piece in dict.fromkeys(pieces):
        code[piece.language] += bare(piece) + "\n"
    return tuple(
        concept
        for concept, patterns in CONCEPTS.items()
        if any(re.search(pattern, code[language]) for language, pattern in patterns.items())
    )
