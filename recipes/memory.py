"""Less memory: what was freed and is still held, and pieces beside the whole."""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
import pyarrow as pa


def return_freed() -> None:
    """Gives freed memory back to the system, where the C library can: reading a big report leaves much of it.

    Also lets Arrow use the same allocator as NumPy; its own keeps freed memory to itself.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def join_pieces(pieces: list[np.ndarray]) -> np.ndarray:
    """The pieces as one array, int64 if there are none. The list is emptied, so that both are not held for long."""
    whole = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
    pieces.clear()
    return whole
