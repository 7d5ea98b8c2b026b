"""Bus bandwidth: what the links carry, comparable over operations and numbers of ranks.

The factors are those of nccl-tests (PERFORMANCE.md): all_reduce 2(n-1)/n; all_gather, reduce_scatter and all_to_all
(n-1)/n of the whole message; broadcast, reduce and send_recv 1.
"""

from __future__ import annotations

# NCCL's message size is what one rank gives (all_gather, all_to_all) or gets (reduce_scatter): the whole is n times it.
_OF_ONE_RANK = ("all_gather", "reduce_scatter", "all_to_all")
_WHOLE = ("broadcast", "reduce", "send_recv")


def whole_message(operation: str, ranks: int) -> int:
    """By what NCCL's message size is multiplied to get the size that algbw is about."""
    return ranks if operation in _OF_ONE_RANK else 1


def bus_factor(operation: str, ranks: int) -> float | None:
    """busbw over algbw; None for operations without a standard factor, and for a single rank."""
    if ranks < 2:
        return None
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in _OF_ONE_RANK:
        return (ranks - 1) / ranks
    return 1.0 if operation in _WHOLE else None
