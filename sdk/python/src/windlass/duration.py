"""Durations as seconds, timedelta or text."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Union

#: Seconds as a number, a timedelta, or a text such as "90s", "1h30m" or "3d".
Duration = Union[float, int, timedelta, str]  # noqa: UP007

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def seconds(duration: Duration) -> float:
    """Converts a duration to seconds. Raises ValueError for a negative or an unreadable one."""
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        parts = _PART.findall(duration)
        if not parts or "".join(number + unit for number, unit in parts) != duration:
            raise ValueError(f"invalid duration {duration!r}; examples: '90s', '1h30m', '3d'")
        value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        value = float(duration)
    if not value >= 0:
        raise ValueError(f"a duration must not be negative; it is {duration!r}")
    return value


def whole_seconds(duration: Duration) -> int:
    """Converts a duration to whole seconds, rounded up."""
    value = seconds(duration)
    return int(value) + (value > int(value))
