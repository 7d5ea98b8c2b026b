"""Less memory: one heap for all, freed memory given back, long columns taken in pieces."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

_M_ARENA_MAX = -8  # glibc's malloc.h
_PIECE_ROWS = 1 << 20  # added up at once: copies of a piece stay small
_EXACT = 1 << 53  # up to here a double holds every whole number


def share_heap() -> None:
    """Lets Arrow, its threads and NumPy use one heap where the C library can: each of several keeps what it freed."""
    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_freed() -> None:
    """Gives freed memory back to the system, where the C library can: reading a big report leaves much of it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def gather(pieces: Iterable[Sequence[np.ndarray]], rows: int, types: Sequence[type]) -> list[np.ndarray]:
    """Columns of so many rows out of pieces of them, each piece let go as soon as it is in its place.

    A piece has one array per column, equally long; `types` are the dtypes of the columns, `rows` the most that they
    can have.
    """
    columns: list[np.ndarray] = [np.empty(rows, dtype) for dtype in types]
    first = 0
    for piece in pieces:
        last = first + len(piece[0])
        for column, values in zip(columns, piece, strict=True):
            column[first:last] = values
        first = last
    return [column[:first] for column in columns]


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values (any dtype, [n]) in order. np.unique hashes, which is slow where they are almost in order."""
    ordered = np.sort(values, kind="stable")
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    # Mostly all are: nothing to copy then.
    return ordered if first.all() else ordered[first]


def sums(code: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """The sum of the values (int64[n], none negative) of each code (int[n], 0 to count - 1), int64[count] and exact."""
    total = np.zeros(count, dtype=np.int64)
    for first in range(0, len(code), _PIECE_ROWS):
        piece = slice(first, first + _PIECE_ROWS)
        if int(values[piece].max()) * len(values[piece]) < _EXACT:
            # Through doubles, which is faster.
            total += np.bincount(code[piece], values[piece], count).astype(np.int64)
        else:
            np.add.at(total, code[piece], values[piece])
    return total
