"""The place of each row among those of its group."""

from __future__ import annotations

import numpy as np


def places(order: np.ndarray, *groups: np.ndarray) -> np.ndarray:
    """For each row its place from 0 on, int64[n], among the rows that are like it in all `groups` (int64[n], not
    negative); in `order` (int64[n], row numbers) the rows of a group lie together."""
    begins = np.zeros(len(order), dtype=bool)
    for group in groups:
        begins |= np.diff(group[order], prepend=-1) != 0
    first = np.flatnonzero(begins)
    nth = np.empty(len(order), dtype=np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return nth
