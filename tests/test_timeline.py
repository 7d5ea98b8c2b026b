"""Lookup beside a search through all intervals."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.base.interval_lookup import Lookup


def open_at(group, start_ns, end_ns, wanted, time_ns):
    """The interval of a group that is open and started last; -1 for none."""
    found = [i for i in range(len(group)) if group[i] == wanted and start_ns[i] <= time_ns < end_ns[i]]
    return max(found, key=lambda i: (start_ns[i], i), default=-1)


@pytest.mark.parametrize("seed", range(30))
def test_lookup_equals_a_search_through_all(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 40))
    start_ns, group = np.sort(random.integers(-20, 60, count)), random.integers(0, 3, count)
    end_ns = start_ns + random.integers(0, 40, count)
    lookup = Lookup(group, start_ns, end_ns, np.arange(count))
    groups, times_ns = np.repeat(np.arange(4), 130), np.tile(np.arange(-25, 105), 4)
    expected = [open_at(group, start_ns, end_ns, *one) for one in zip(groups, times_ns, strict=True)]
    assert lookup.find(groups, times_ns).tolist() == expected
