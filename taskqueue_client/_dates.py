"""Dates as the Queue reads and writes them: text in UTC, to the millisecond.

The Queue checks `format: date-time` loosely: a space may stand for the `T`, letters may be in lower
case, and the zone may be `Z`, `+hh`, `+hhmm`, `+hh:mm` or missing (the server's local time, then).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from .errors import InvalidArgument

DATE_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt\s]"
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]|23:59:60)(?:\.[0-9]+)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
"""The form of a date-time that the Queue takes (use `fullmatch`)."""


def is_date_time(text: str) -> bool:
    """Return whether the Queue accepts `text` as a date-time: the form is right, and the day exists."""
    read = epoch_seconds if len(text) <= _LONGEST_KEPT else epoch_seconds.__wrapped__
    return read(text) is not None


_LONGEST_KEPT = 100
"""The length of the longest str in the cache of `epoch_seconds`: in a payload, one may have a megabyte."""


@lru_cache(maxsize=128)  # the tasks of a graph have the same few dates
def epoch_seconds(text: str) -> float | None:
    """Return a date-time as seconds since the epoch; None if the Queue does not accept it as one.

    Fractions of a millisecond are cut off, as by the Queue. NaN if the moment is uncertain: without a zone,
    and for leap seconds, zones that do not exist, and years that Python does not know.
    """
    found = DATE_TIME.fullmatch(text)
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
    except (ValueError, OverflowError):
        return math.nan if _is_day(int(found[1]), int(found[2]), int(found[3])) else None
    to_the_millisecond = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    return to_the_millisecond.timestamp() if moment.tzinfo else math.nan


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        date(year or 2000, month, day)  # the Queue knows the leap year 0, Python doesn't
    except ValueError:
        return False
    return True


def instant(text: str) -> datetime | None:
    """Return a date-time as a datetime in UTC; None if it is not one, or uncertain (see `epoch_seconds`)."""
    seconds = epoch_seconds(text)
    if seconds is None or math.isnan(seconds):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except OverflowError:
        return None


def timestamp(moment: datetime) -> str:
    """Return an aware datetime as the Queue writes it: `2026-11-21T09:20:53.649Z`, the rest cut off."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def normalised(text: str) -> str:
    """Return a date-time as the Queue stores it; without a zone, as UTC. Other text is returned as it is."""
    moment = instant(text) or instant(text + "Z")
    return text if moment is None else timestamp(moment)


def a_year_after(moment: datetime) -> datetime:
    """Return the same day and time of the next calendar year; 1 March for 29 February, as in JavaScript."""
    try:
        return moment.replace(year=moment.year + 1)
    except ValueError:
        return moment.replace(year=moment.year + 1, day=28) + timedelta(days=1)


_UNITS = {
    "years": (r"y(?:ears?)?", timedelta(days=365)),
    "months": (r"mo(?:nths?)?", timedelta(days=30)),
    "weeks": (r"w(?:eeks?)?", timedelta(weeks=1)),
    "days": (r"d(?:ays?)?", timedelta(days=1)),
    "hours": (r"h(?:ours?)?", timedelta(hours=1)),
    "minutes": (r"m(?:in(?:utes?)?)?", timedelta(minutes=1)),
    "seconds": (r"s(?:ec(?:onds?)?)?", timedelta(seconds=1)),
}
"""The units of the official clients; a year has 365 days and a month 30."""

_OFFSET = (  # not compiled here, which would take a hundredth of the import
    r"\s*(?P<past>-?)\s*\+?"
    + "".join(rf"(?:\s*(?P<{unit}>\d+)\s*{spelling})?" for unit, (spelling, _) in _UNITS.items())
    + r"\s*"
)


def shifted(argument: str, offset: object, start: datetime, allowed: str = "") -> datetime:
    """Return the time at a distance from another one, such as `14 days`; see `definitions.from_now`."""
    distance = _distance(offset) if isinstance(offset, str) else None
    if distance is None:
        allowed = allowed or "whole numbers with units, largest first, like '1 day 12 hours'"
        raise InvalidArgument(argument, offset, allowed)
    return _in_utc(argument, offset, start, distance)


def _in_utc(argument: str, given: object, moment: datetime, distance: timedelta = timedelta()) -> datetime:
    try:
        return (moment + distance).astimezone(UTC)
    except OverflowError:
        raise InvalidArgument(argument, given, "a time between the years 1 and 9999") from None


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration such as `10 minutes` or `2h30m`; None if `text` is not a duration."""
    distance = _distance(text) if re.search(r"\d", text) else None
    return None if distance is None else distance.total_seconds()


@lru_cache(maxsize=64)  # a program uses the same few offsets for all its tasks
def _distance(offset: str) -> timedelta | None:
    """Return an offset as a timedelta, negative after a minus sign; None if it cannot be parsed.

    An offset that is too long becomes the longest timedelta of Python: adding it to any date fails.
    """
    found = re.fullmatch(_OFFSET, offset)
    if found is None:
        return None
    try:
        distance = sum((int(found[unit] or 0) * length for unit, (_, length) in _UNITS.items()), timedelta())
    except (OverflowError, ValueError):  # int converts at most 4,300 digits
        distance = timedelta(days=999_999_999)
    return -distance if found["past"] else distance


_TIME = (
    "a datetime with a time zone, text like '2026-11-21T09:20:53.649Z', "
    "or whole numbers with units like '14 days'"
)


def machine_time() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(UTC)


def moment_of(argument: str, given: object, start: Callable[[], datetime] = machine_time) -> datetime:
    """Return the time that an argument describes, in any of the accepted forms.

    A distance, as in `from_now`, is measured from the time that `start` returns.
    """
    moment = instant(given) if isinstance(given, str) else given
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return _in_utc(argument, given, moment)
    if not isinstance(given, str) or not any(map(str.isdigit, given)):
        raise InvalidArgument(argument, given, _TIME)
    return shifted(argument, given, start(), _TIME)
