"""The allocator of recordings: plain C++ that needs no GPU."""

from __future__ import annotations

import ctypes

import pytest

from compare.replay.arena import BASE, GRANULE, library, whole


@pytest.fixture
def allocator() -> ctypes.CDLL:
    found = ctypes.CDLL(str(library()))
    found.arena_alloc.restype = found.arena_next.restype = ctypes.c_size_t
    found.arena_set(ctypes.c_size_t(BASE), ctypes.c_size_t(BASE + 4 * GRANULE))
    return found


def taken(allocator: ctypes.CDLL, nbytes: int) -> int:
    return int(allocator.arena_alloc(ctypes.c_ssize_t(nbytes), 0, None))


def test_it_hands_out_whole_pages_in_ascending_order(allocator: ctypes.CDLL) -> None:
    assert [taken(allocator, n) for n in (1, GRANULE, GRANULE + 1)] == [
        BASE,
        BASE + GRANULE,
        BASE + 2 * GRANULE,
    ]
    assert allocator.arena_next() == BASE + 4 * GRANULE


def test_it_refuses_more_than_there_is_and_hands_nothing_out_again(allocator: ctypes.CDLL) -> None:
    assert taken(allocator, 4 * GRANULE + 1) == taken(allocator, -1) == 0
    first = taken(allocator, GRANULE)
    allocator.arena_free(ctypes.c_void_p(first), ctypes.c_ssize_t(GRANULE), 0, None)
    assert taken(allocator, 3 * GRANULE) == first + GRANULE
    assert taken(allocator, 1) == 0


def test_sizes_are_whole_pages() -> None:
    assert [whole(n) for n in (0, 1, GRANULE, GRANULE + 1)] == [GRANULE, GRANULE, GRANULE, 2 * GRANULE]
