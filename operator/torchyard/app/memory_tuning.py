"""How an operator keeps its memory small: garbage is looked for where there is some, large buffers are given back."""

import contextlib
import ctypes
import gc

_M_MMAP_THRESHOLD = -3  # malloc.h
_MAPPED_BYTES = 128 * 1024


def leave_caches_alone() -> None:
    """Call it once the caches are full: what there is now is not looked through again, what comes later only seldom."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def give_large_buffers_back() -> None:
    """Map every large buffer separately, so that only its touched pages take memory.

    uvloop has one of 256 KiB for each TLS connection and reads a few KiB into it. glibc would take them from its heap,
    where they lie between what stays, as soon as the first one was freed.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
