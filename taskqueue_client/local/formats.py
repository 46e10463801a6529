"""The string formats of the request schemas, as loosely as the service checks them."""

from __future__ import annotations

import ipaddress
import re
import warnings
from calendar import monthrange
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_DATE_TIME = re.compile(
    r"(?!0000)(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"[Tt ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?",
    re.ASCII,
)
_SHORTEST_MONTH = 28
_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2}|\[[0-9A-Fa-f:.]+\])+",
    re.ASCII,
)
_HOSTNAME_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LONGEST_HOSTNAME = 253


def is_date_time(text: str) -> bool:
    """A date and a time of day that exist, with or without a zone (leap seconds are refused)."""
    found = _DATE_TIME.fullmatch(text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    return day <= _SHORTEST_MONTH or day <= monthrange(year, month)[1]


def is_uri(text: str) -> bool:
    """An absolute URI: a scheme, a colon, and characters of RFC 3986 only."""
    return _URI.fullmatch(text) is not None


def is_regex(text: str) -> bool:
    """A regular expression (by Python's reading)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd expressions are the caller's business
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError):
            return False
    return True


def is_hostname(text: str) -> bool:
    """Dot-separated labels of letters, digits and inner dashes (an IPv4 address is one, too)."""
    labels = text.removesuffix(".").split(".")
    return len(text) <= _LONGEST_HOSTNAME and all(map(_HOSTNAME_LABEL.fullmatch, labels))


def is_ipv4(text: str) -> bool:
    """Four decimal numbers with dots between them."""
    return _is_address(ipaddress.IPv4Address, text)


def is_ipv6(text: str) -> bool:
    """An IPv6 address, without a zone."""
    return "%" not in text and _is_address(ipaddress.IPv6Address, text)


def _is_address(kind: Callable[[str], object], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": is_date_time,
    "uri": is_uri,
    "regex": is_regex,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
}
