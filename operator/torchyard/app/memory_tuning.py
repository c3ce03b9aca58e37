"""Settings of the garbage collector and of the allocator that keep the operator's memory small."""

import contextlib
import ctypes
import gc

_M_MMAP_THRESHOLD = -3  # malloc.h
_MAPPED_BYTES = 128 * 1024


def leave_caches_alone() -> None:
    """Exclude the objects of now from garbage collection, and collect later ones rarely; call it with full caches."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def give_large_buffers_back() -> None:
    """Map every large buffer separately, so that only its touched pages take memory.

    uvloop has one of 256 KiB for each TLS connection and reads a few KiB into it. glibc would take them from its heap,
    where they lie between what stays, as soon as the first one was freed.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
