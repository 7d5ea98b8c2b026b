"""Memory that was freed and is still held."""

from __future__ import annotations

import contextlib
import ctypes

import pyarrow as pa


def return_freed() -> None:
    """Gives freed memory back to the system, where the C library can: reading a big report leaves much of it.

    Also lets Arrow use the same allocator as NumPy; its own keeps freed memory to itself.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
