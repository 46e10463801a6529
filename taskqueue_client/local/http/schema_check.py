"""A JSON-schema checker for request bodies: fills in defaults, and lists all violations in the Queue's words.

It knows the keywords that the request schemas of this package use, and checks them in the order in
which the service's own checker does, so that the violations of a body come out in the same order.
"""

from __future__ import annotations

import json
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from itertools import chain
from typing import Any

from taskqueue_client._dates import is_date_time

Schema = Mapping[str, Any]
Check = Callable[[Any, str, list[str]], None]
"""Adds to the list what is wrong with the value at the path."""

_Rule = tuple[str, Callable[[Schema], Check]]  # a keyword, and the function that makes its check

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) in (int, float) and float(value).is_integer(),
}


def compile_schema(schema: Schema) -> Check:
    """Return a function that checks values against the schema; making it is slow, calling it is quick."""
    typed = [make(schema) for (keyword, make) in _TYPED if keyword in schema]
    untyped = [make(schema) for (keyword, make) in _UNTYPED if keyword in schema]
    type_name = schema.get("type")
    is_type = _TYPES[type_name] if type_name else None

    def check(value: Any, path: str, errors: list[str]) -> None:
        if is_type is not None and not is_type(value):
            errors.append(f"{path} must be {type_name}")
        else:
            for rule in typed:
                rule(value, path, errors)
        for rule in untyped:
            rule(value, path, errors)

    return check


def _must(fits: Callable[[Any], object], words: str) -> Check:
    """Return a check of one condition, which reports "must" and `words` if a value violates it."""

    def check(value: Any, path: str, errors: list[str]) -> None:
        if not fits(value):
            errors.append(f"{path} must {words}")

    return check


def _bound(keyword: str, fits: Callable[[Any, int], bool], words: str) -> _Rule:
    def make(schema: Schema) -> Check:
        bound = schema[keyword]
        return _must(lambda value: fits(value, bound), words.format(bound))

    return keyword, make


def _pattern(schema: Schema) -> Check:
    r"""Read the pattern as JavaScript does: `$` is the very end (`\Z`), and classes hold ASCII only."""
    pattern: str = schema["pattern"]
    expression = re.compile(pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern, re.ASCII)
    return _must(expression.match, f"match pattern {json.dumps(pattern)}")


def _format(schema: Schema) -> Check:
    name = schema["format"]
    fits = FORMATS[name]
    return _must(lambda value: not isinstance(value, str) or fits(value), f'match format "{name}"')


def _unique_items(_schema: Schema) -> Check:
    def check(value: Any, path: str, errors: list[str]) -> None:
        seen: dict[str, int] = {}
        for index in range(len(value) - 1, -1, -1):
            item = value[index]
            if isinstance(item, str) and seen.setdefault(item, index) != index:
                errors.append(
                    f"{path} must NOT have duplicate items (items ## {seen[item]} and {index} are identical)"
                )
                return

    return check


def _items(schema: Schema) -> Check:
    check_item = compile_schema(schema["items"])

    def check(value: Any, path: str, errors: list[str]) -> None:
        for index, item in enumerate(value):
            check_item(item, f"{path}/{index}", errors)

    return check


def _required(schema: Schema) -> Check:
    names = schema["required"]

    def check(value: Any, path: str, errors: list[str]) -> None:
        errors.extend(f"{path} must have required property '{name}'" for name in names if name not in value)

    return check


def _additional_properties(schema: Schema) -> Check:
    known = frozenset(schema.get("properties", ()))
    allowed = schema["additionalProperties"]
    check_value = None if allowed is False else compile_schema(allowed)

    def check(value: Any, path: str, errors: list[str]) -> None:
        for name in value:
            if name in known:
                continue
            if check_value is not None:
                check_value(value[name], path + _pointer(name), errors)
            else:
                which = ": " + json.dumps(name, ensure_ascii=False) if name else ""
                errors.append(f"{path} must NOT have additional properties{which}")

    return check


def _properties(schema: Schema) -> Check:
    checks = [(name, _pointer(name), compile_schema(each)) for name, each in schema["properties"].items()]

    def check(value: Any, path: str, errors: list[str]) -> None:
        for name, step, check_value in checks:
            if name in value:
                check_value(value[name], path + step, errors)

    return check


def _defaults(schema: Schema) -> Check:
    """Return a function that adds missing defaults to an object, before the checks."""
    defaults = [(name, each["default"]) for name, each in schema["properties"].items() if "default" in each]

    def fill_in(value: Any, _path: str, _errors: list[str]) -> None:
        for name, default in defaults:
            if name not in value:
                value[name] = default.copy() if isinstance(default, (dict, list)) else default

    return fill_in


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _const(schema: Schema) -> Check:
    constant = schema["const"]
    return _must(lambda value: value == constant and type(value) is type(constant), "be equal to constant")


def _any_of(schema: Schema) -> Check:
    branches = [compile_schema(each) for each in schema["anyOf"]]

    def check(value: Any, path: str, errors: list[str]) -> None:
        found: list[str] = []
        for branch in branches:
            before = len(found)
            branch(value, path, found)
            if len(found) == before:
                return
        errors += [*found, f"{path} must match a schema in anyOf"]

    return check


def _one_of(schema: Schema) -> Check:
    branches = [compile_schema(each) for each in schema["oneOf"]]

    def check(value: Any, path: str, errors: list[str]) -> None:
        found: list[list[str]] = [[] for _ in branches]
        for branch, wrong in zip(branches, found, strict=True):
            branch(value, path, wrong)
        if found.count([]) != 1:
            errors += [*chain.from_iterable(found), f"{path} must match exactly one schema in oneOf"]

    return check


# The string formats, as loosely as the service checks them.


def _uri_chars(more: str) -> str:
    """Return an expression for the characters of URIs and `more`; megabytes of them take little memory."""
    return rf"(?:[A-Za-z0-9._~!$&'()*+,;={more}-]++|%[0-9A-Fa-f]{{2}})*+"


_GROUP = "[0-9A-Fa-f]{1,4}"
_BYTE = r"(?:25[0-5]|2[0-4]\d|[01]?\d\d?)"
_LAST_32_BITS = rf"(?:{_GROUP}:{_GROUP}|{_BYTE}(?:\.{_BYTE}){{3}})"
_UP_TO_COLONS = [rf"(?:(?:{_GROUP}:){{0,{more}}}{_GROUP})?::" for more in range(7)]
"""The beginnings of IPv6 addresses that have up to 1, 2, … 7 groups before the double colon."""
_IPV6 = "|".join(
    [
        rf"(?:{_GROUP}:){{6}}{_LAST_32_BITS}",
        rf"::(?:{_GROUP}:){{5}}{_LAST_32_BITS}",
        *(rf"{_UP_TO_COLONS[more]}(?:{_GROUP}:){{{4 - more}}}{_LAST_32_BITS}" for more in range(5)),
        _UP_TO_COLONS[5] + _GROUP,
        _UP_TO_COLONS[6],
    ]
)
_LATER_IP = r"[Vv][0-9A-Fa-f]++\.[A-Za-z0-9._~!$&'()*+,;=:-]++"
_HOST = rf"(?:\[(?:{_IPV6}|{_LATER_IP})\]|{_uri_chars('')})"
_SEGMENTS = rf"(?:/{_uri_chars(':@')})*+"
_PATH = rf"(?=[^/?#]){_uri_chars(':@')}{_SEGMENTS}"
_URI = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*:(?:/?/(?:{_uri_chars(':')}@)?{_HOST}(?::\d*)?{_SEGMENTS}|/(?:{_PATH})?|{_PATH})"
    rf"(?:\?{_uri_chars(':@/?')})?(?:#{_uri_chars(':@/?')})?",
    re.ASCII,
)
"""A URI with a scheme, by RFC 3986, but as loosely as the service: an authority may follow one slash."""
_LONGEST_REGEX = 4096
_JS_GROUP = re.compile(r"\(\?<(?![=!])")
_PYTHON_ONLY = re.compile(r"\(\?[P#(>aiLmsux]|\\[AZ]")
"""Groups and escapes that JavaScript does not have."""
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escape or a class of characters
_POSSESSIVE = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\+")
"""Such as `c++`, which JavaScript does not have either."""

_HOSTNAME_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LONGEST_HOSTNAME = 253


def is_regex(text: str) -> bool:
    """Return whether a text is a regular expression of JavaScript, as far as Python can tell.

    A string that is too long for every schema is not parsed, which would take minutes: it counts as valid.
    """
    if len(text) > _LONGEST_REGEX:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about odd expressions do not matter
        try:
            re.compile(_JS_GROUP.sub("(?P<", text))
        except (re.error, RecursionError, OverflowError):
            return False
    return not (_PYTHON_ONLY.search(text) or _POSSESSIVE.search(_ATOM.sub("x", text)))


def is_hostname(text: str) -> bool:
    """Return whether a text consists of labels of letters, digits and inner dashes, separated by dots."""
    labels = text.removesuffix(".").split(".")
    return len(text) <= _LONGEST_HOSTNAME and all(map(_HOSTNAME_LABEL.fullmatch, labels))


def is_address(text: str, version: int | None = None) -> bool:
    """Return whether a text is an IP address, of `version` if that is given."""
    try:
        found = ip_address(text)
    except ValueError:
        return False
    return version in {None, found.version}


FORMATS: dict[str, Callable[[str], object]] = {
    "date-time": is_date_time,
    "uri": _URI.fullmatch,
    "regex": is_regex,
    "hostname": is_hostname,
    "ipv4": lambda text: is_address(text, version=4),
    "ipv6": lambda text: is_address(text, version=6) and "%" not in text,  # without a zone
}

_TYPED: tuple[_Rule, ...] = (
    _bound("maximum", operator.le, "be <= {}"),
    _bound("minimum", operator.ge, "be >= {}"),
    _bound("maxLength", lambda text, most: len(text) <= most, "NOT have more than {} characters"),
    _bound("minLength", lambda text, least: len(text) >= least, "NOT have fewer than {} characters"),
    ("pattern", _pattern),
    ("format", _format),
    _bound("maxItems", lambda items, most: len(items) <= most, "NOT have more than {} items"),
    ("uniqueItems", _unique_items),
    ("items", _items),
    ("properties", _defaults),
    ("required", _required),
    ("additionalProperties", _additional_properties),
    ("properties", _properties),
)
"""Checks that mean something only for a value of the schema's type, in the service's order."""

_UNTYPED: tuple[_Rule, ...] = (
    ("const", _const),
    ("enum", lambda schema: _must(schema["enum"].__contains__, "be equal to one of the allowed values")),
    ("anyOf", _any_of),
    ("oneOf", _one_of),
)
