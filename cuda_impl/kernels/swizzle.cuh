// The XOR swizzle of tiles that ldmatrix reads, in attention, its gradients and decode_attention.
#pragma once

// The offset of a row's 16-byte vector, in elements of 16 bits. ldmatrix reads one vector from each of 8
// rows: 8-way bank conflict -> none.
template <int LENGTH>
__device__ __forceinline__ int swizzle(int row, int vector) {
    static_assert(LENGTH % 64 == 0, "rows of whole lines of 128 bytes: all 32 banks");
    return row * LENGTH + (vector ^ row % 8) * 8;
}
