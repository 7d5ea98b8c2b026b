"""Interval arithmetic against plain sets of nanoseconds."""

import numpy as np
import pytest

from recipes.base import intervals


def arrays(*pairs):
    pairs = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def nanoseconds(starts, ends):
    return {t for start, end in zip(starts, ends, strict=True) for t in range(start, end)}


def random_intervals(seed, count=60):
    random = np.random.default_rng(seed)
    starts = np.sort(random.integers(0, 200, count))
    return starts, starts + random.integers(0, 15, count)


def test_no_intervals_give_no_intervals():
    empty = arrays()
    assert [len(part) for part in intervals.added_ns(*empty)] == [0, 0]
    assert [len(part) for part in intervals.merge(*empty)] == [0, 0]
    assert intervals.length_ns(*empty) == 0
    assert intervals.covered_ns(*empty, empty).tolist() == []
    assert intervals.covered_ns(*arrays((1, 5)), empty).tolist() == [0]


def test_each_interval_adds_what_the_ones_before_left():
    starts, ends = intervals.added_ns(*arrays((0, 10), (2, 5), (8, 14), (20, 21)))
    assert (ends - starts).tolist() == [10, 0, 4, 1]


def test_touching_intervals_are_joined():
    starts, ends = intervals.merge(*arrays((0, 5), (5, 7), (6, 6), (9, 12)))
    assert (starts.tolist(), ends.tolist()) == ([0, 9], [7, 12])


def test_order_is_stable_and_free_when_given():
    assert intervals.by_start(np.array([1, 1, 2])) == slice(None)
    assert intervals.by_start(np.array([3, 1, 1])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("seed", range(20))
def test_union_equals_the_set_of_nanoseconds(seed):
    starts, ends = random_intervals(seed)
    expected = nanoseconds(starts, ends)
    assert nanoseconds(*intervals.merge(starts, ends)) == expected
    parts = intervals.added_ns(starts, ends)
    assert (parts[1] >= parts[0]).all()
    assert nanoseconds(*parts) == expected
    assert intervals.length_ns(*parts) == len(expected)


@pytest.mark.parametrize("seed", range(20))
def test_covered_part_equals_the_set_intersection(seed):
    starts, ends = random_intervals(seed)
    union = intervals.merge(*random_intervals(seed + 100, 12))
    inside = nanoseconds(*union)
    expected = [len(inside & set(range(s, e))) for s, e in zip(starts, ends, strict=True)]
    assert intervals.covered_ns(starts, ends, union).tolist() == expected
