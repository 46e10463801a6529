"""Dates as the Queue reads and writes them: text in UTC, to the millisecond.

The Queue checks `format: date-time` loosely: a space may stand for the `T`, letters may be in lower
case, and the zone may be `Z`, `+hh`, `+hhmm`, `+hh:mm` or missing (the server's local time, then).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

DATE_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt\s]"
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]|23:59:60)(?:\.[0-9]+)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
"""The form of a date-time that the Queue takes (use `fullmatch`)."""


@lru_cache(maxsize=128)  # the tasks of a graph have the same few dates
def is_date_time(text: str) -> bool:
    """Whether the Queue takes `text` as a date-time: in form, and as a day that exists."""
    found = DATE_TIME.fullmatch(text)
    return found is not None and _is_day(int(found[1]), int(found[2]), int(found[3]))


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        date(year or 2000, month, day)  # the Queue knows the leap year 0, Python doesn't
    except ValueError:
        return False
    return True


@lru_cache(maxsize=128)
def instant(text: str) -> datetime | None:
    """The moment that a date-time names, or None if that is not certain.

    It is not if the zone is missing, and for leap seconds, zones that do not exist, and years that
    Python does not know.
    """
    found = DATE_TIME.fullmatch(text)
    if found is None or found["zone"] is None:
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def timestamp(moment: datetime) -> str:
    """An aware datetime as the Queue writes it: `2026-11-21T09:20:53.649Z`, the rest cut off."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def normalised(text: str) -> str:
    """A date-time as the Queue stores it, taking a missing zone for UTC; as it is if it cannot be read."""
    moment = instant(text) or instant(text + "Z")
    return text if moment is None else timestamp(moment)


def a_year_after(moment: datetime) -> datetime:
    """The same day and time of the next calendar year; 1 March for 29 February, as JavaScript has it."""
    try:
        return moment.replace(year=moment.year + 1)
    except ValueError:
        return moment.replace(year=moment.year + 1, day=28) + timedelta(days=1)
