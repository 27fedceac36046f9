// The PTX that wgmma needs beyond wgmma.cuh: a TMA load from one of several matrices. Source: PTX ISA,
// "cp.async.bulk.tensor". With HOST_BUILD the same in plain C++.
#pragma once

#include "ring.cuh"
#include "wgmma_8bit.cuh"

#if HAS_WGMMA

// A box of a matrix at (column, row). Elements outside the matrix are read as zeros, which count as bytes.
__device__ __forceinline__ void matrix_copy_to_shared(
    void* to, const TensorMap* from, int column, int row, int matrix, mbarrier_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
        "l"(from), "r"(column), "r"(row), "r"(matrix), "r"(shared_address(barrier))
        : "memory");
}

#elif defined(HOST_BUILD)

inline void matrix_copy_to_shared(
    void* to, const TensorMap* from, int column, int row, int matrix, mbarrier_t* barrier) {
    host::Map map = host::map_of(from);
    if (matrix < 0 || matrix >= map.sizes[2]) host::fail("TMA: no such matrix");
    map.address += matrix * map.strides[1];
    host::load_box(map, column, row, to, barrier);
}

#endif
