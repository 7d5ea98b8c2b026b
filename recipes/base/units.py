"""Numbers as text for people. Tables keep whole nanoseconds and shares of 1."""

from __future__ import annotations

#: Units of time by their ns, the largest first.
_STEPS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def format_ns(time_ns: float) -> str:
    """A time in the unit that suits it, with three significant digits: 33.0 ms, 250 us, 12 ns."""
    for scale, unit in _STEPS:
        # What rounds up to 1000 of a unit is 1.00 of the next.
        if time_ns >= 0.9995 * scale:
            return f"{_significant(time_ns / scale)} {unit}"
    return f"{time_ns:.0f} ns"


def _significant(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def format_ms(time_ns: float) -> str:
    """A time in ms with enough digits for microseconds."""
    return f"{time_ns / 1e6:,.3f}"


def format_share(share: float) -> str:
    """A share of 1 in per cent; what is above nothing never shows as nothing."""
    return "<0.1 %" if 0 < share < 0.0005 else f"{share * 100:.1f} %"


def format_count(count: float, noun: str) -> str:
    """A number of things: 1 step, 5,215 kernels."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"
