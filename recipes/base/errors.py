"""The one error that the pack raises for things a user can cause."""

from __future__ import annotations


class PackError(Exception):
    """What happened, where, why and what to do next, in one line.

    Takes one string, so that it survives pickling between worker processes.
    """
