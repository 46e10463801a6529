"""Times as the Queue writes and reads them; inside, a time is whole milliseconds since the epoch."""

from __future__ import annotations

import re
from datetime import MAXYEAR, UTC, datetime, timedelta
from functools import lru_cache

from .refusal import refuse

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
"""The last moment that can be written."""

_HOURS_ALONE = re.compile(r"[0-9-]+[Tt][0-9:.]+[+-][0-9]{2}")
"""A time with a zone such as `+01`: JavaScript reads it only with a space in place of the `T`."""


def milliseconds(seconds: float) -> int:
    """Return a clock's time, or a duration, in whole milliseconds."""
    return int(seconds * SECOND)


@lru_cache(maxsize=4096)  # definition, status and response of a task have the same few times
def text(moment: int) -> str:
    """Return a time as `YYYY-MM-DDTHH:MM:SS.mmmZ`."""
    return _datetime(moment).isoformat(timespec="milliseconds")[:-6] + "Z"


def database_text(moment: int) -> str:
    """Return a time in the form of the service's database: with `+00:00`, without trailing zeros."""
    whole, fraction = divmod(moment, SECOND)
    return _datetime(whole * SECOND).isoformat()[:-6] + _fraction(fraction) + "+00:00"


def seconds_text(moment: int) -> str:
    """Return the seconds since the epoch as JavaScript prints them: a fraction only if there is one."""
    whole, fraction = divmod(moment, SECOND)
    return str(whole) + _fraction(fraction)


def parse(given: str, name: str) -> int:
    """Read a date-time; a missing zone counts as UTC, and what is finer than a millisecond is cut off.

    Refuses a field, by its name in the request, that is not a date and time in the years 1 to 9999 of UTC.
    """
    try:
        moment = datetime.fromisoformat("" if _HOURS_ALONE.fullmatch(given) else given.upper())
        in_utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        refuse(
            "InputError", f"`{name}` must be a date and time such as 2026-11-21T08:59:12.886Z, not {given!r}"
        )
    return (in_utc - _EPOCH) // _MILLISECOND


def add_years(moment: int, years: int) -> int:
    """Return the same date and time in another year, at most 9999; 29 February may become 1 March."""
    start = _datetime(moment)
    year = min(start.year + years, MAXYEAR)
    try:
        moved = start.replace(year=year)
    except ValueError:
        moved = start.replace(year=year, month=3, day=1)
    return (moved - _EPOCH) // _MILLISECOND


def _datetime(moment: int) -> datetime:
    return _EPOCH + moment * _MILLISECOND


def _fraction(milliseconds: int) -> str:
    return f".{milliseconds:03}".rstrip("0").rstrip(".")
