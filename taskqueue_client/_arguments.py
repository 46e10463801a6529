"""Validation of arguments before a request is made, also for callers that use no type checker.

The patterns are those of the Queue's URL parameters and request schemas: no argument that the Queue accepts
is refused. Most functions return their argument in the form in which it is sent, or raise `InvalidArgument`.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from inspect import Signature, iscoroutinefunction, signature
from itertools import islice
from types import NoneType, UnionType
from typing import Any, TypeGuard, TypeVar, cast, get_args
from urllib.parse import quote

import msgspec

from ._dates import is_date_time, moment_of, seconds_of, timestamp
from .errors import InvalidArgument
from .slugid import SLUGID

T = TypeVar("T")

_IDENTIFIER = re.compile(r"[a-zA-Z0-9_-]{1,38}")
_PAIR = re.compile(r"[a-zA-Z0-9_-]{1,38}/[a-zA-Z0-9_-]{1,38}")
_TASK_QUEUE_ID = re.compile(r"[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?")
_PROJECT_ID = re.compile(r"[a-zA-Z0-9._/-]{1,500}")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")
_NAME = re.compile(r"[\x20-\x7e]+")
_NEW_NAME = re.compile(r"[\x20-\x7e]{1,1024}")  # the Queue takes longer ones, but fails to list them
_CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,255}")
_ODD_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""A float in MessagePack with all bits of the exponent set; never within text, which is UTF-8."""
_LONG_NUMBER = re.compile(rb"\xcf(?!\x00[\x00-\x1f])|\xd3(?!\xff[\xe0-\xff])")
"""An integer of 64 bits in MessagePack, 2^53 or more, or less than -2^53; or something in a text."""

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?: *; *{_WORD}=(?:{_WORD}|\"[^\"\\]*\"))*")


def check_kind(argument: str, given: object, kind: type | UnionType, allowed: str = "") -> None:
    """Raise InvalidArgument unless an argument is of a kind. True and False are not numbers."""
    kinds: tuple[Any, ...] = get_args(kind) or (kind,)
    if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
        names = ["None" if each is NoneType else each.__name__ for each in kinds]
        raise InvalidArgument(argument, given, allowed or " or ".join(names))


def check_kinds(arguments: Mapping[str, object], /, **kinds: type | UnionType) -> None:
    """Check the kinds of several arguments; see `check_kind`."""
    for name, kind in kinds.items():
        check_kind(name, arguments[name], kind)


def check_function(argument: str, given: object) -> None:
    """Raise InvalidArgument unless an argument is a function."""
    if not callable(given):
        raise InvalidArgument(argument, given, "a function")


def check_callback(argument: str, given: object) -> None:
    """Raise InvalidArgument unless an argument is a synchronous function: nobody would await another."""
    if not callable(given) or iscoroutinefunction(given):
        raise InvalidArgument(argument, given, "a function that is not asynchronous")


def signature_of(method: object) -> Signature:
    """Return the signature of a method; if it is unknown, one that accepts any arguments.

    A compiled method may have no signature. Annotations may be names that only type checkers import, which
    raise an error when they are read (Python 3.14). A decorator may add arguments to those of the caller, so
    the function that it wraps does not count.
    """
    if not callable(method):
        message = f"{method} is not callable"
        raise TypeError(message)
    try:
        return signature(method, follow_wrapped=False)
    except Exception as error:
        if str(error) == "invalid method signature":  # it has no parameter for `self`
            raise TypeError(error) from error
        return signature(lambda *_: None)


def path(*parts: str | int) -> str:
    """Return the path of a call, with each part percent-encoded as the official clients do.

    The dots of a part `.` or `..` are encoded as well: proxies and HTTP libraries would resolve such a part.
    """
    return "/" + "/".join([_encoded(part) for part in parts])


@lru_cache(maxsize=512)  # most parts belong to routes, and programs use few ids at a time
def _encoded(part: str | int) -> str:
    plain = str(part)
    return plain.replace(".", "%2E") if plain in {".", ".."} else quote(plain, safe="")


def text(argument: str, given: object, pattern: re.Pattern[str], allowed: str) -> str:
    """Return `given`, which must match a pattern, as a plain str; it may be a member of a `str, Enum`."""
    if not isinstance(given, str) or not pattern.fullmatch(given):
        raise InvalidArgument(argument, given, allowed)
    return str.__str__(given)  # `str` of a member of an enumeration is the member's name


def json_value(given: object) -> str | float:
    """Return a str, int or float of a subclass as a plain one: the `enc_hook` of msgspec's encoders.

    The encoders call the hook for each object that they cannot encode. Libraries for YAML, TOML and templates
    have subclasses of str; `numpy.float64` is a subclass of float.

    Raises:
        TypeError: The object is not a str, int or float.
    """
    if isinstance(given, str):
        return str.__str__(given)
    if isinstance(given, int):
        return int.__int__(given)
    if isinstance(given, float):
        return float.__float__(given)
    message = f"Encoding objects of type {type(given).__name__} is unsupported"
    raise TypeError(message)


def as_json(document: object) -> bytes:
    """Return a document as JSON, with keys and the members of sets in the same order in each process.

    Python iterates over a set of strings in another order in each process: a task that is created again would
    be a conflict.

    Raises:
        TypeError: JSON has no form of a value.
    """
    try:
        return msgspec.json.encode(document, enc_hook=json_value, order="deterministic")
    except TypeError:  # also if a key is not a str, or members of a set cannot be compared
        plain = _plain(document)
    return msgspec.json.encode(plain, enc_hook=json_value, order="deterministic")


def _plain(given: Any) -> Any:
    """Return a document with dicts for dataclasses, lists in order for sets, and all keys as str."""
    if is_dataclass(given) and not isinstance(given, type):
        members = ((each.name, getattr(given, each.name, msgspec.UNSET)) for each in fields(given))
        given = {name: each for name, each in members if each is not msgspec.UNSET}
    if isinstance(given, dict):
        return _with_text_keys(cast("dict[object, Any]", given))
    if isinstance(given, (set, frozenset)):
        return sorted(map(_plain, cast("Collection[Any]", given)), key=as_json)
    return [_plain(each) for each in cast("list[Any]", given)] if isinstance(given, (list, tuple)) else given


def _with_text_keys(given: dict[object, Any]) -> dict[str, Any]:
    keys: dict[str, object] = {}
    for key in given:
        other = keys.setdefault(_key(key), key)
        if other is not key:
            raise TypeError(f"the keys {other!r} and {key!r} are the same in JSON")
    return {key: _plain(each) for key, each in zip(keys, given.values(), strict=True)}


def _key(given: object) -> str:
    """Return a key as `json` writes it: msgspec would write 1 for True, which is `on` in YAML."""
    if given is None or isinstance(given, bool):
        return json.dumps(given)
    try:
        encoded = msgspec.json.encode({given: 0}, enc_hook=json_value)
    except TypeError:
        raise TypeError(f"the key {given!r} has no form in JSON") from None
    [key] = msgspec.json.decode(encoded, type=dict[str, int])
    return key


def as_message_pack(document: object) -> bytes:
    """Return a document as MessagePack, in which numbers are found sooner than in the document or its JSON.

    Integers of more than 64 bits, which MessagePack cannot represent, become the nearest of 64 bits.
    """
    try:
        return msgspec.msgpack.encode(document, enc_hook=json_value)
    except OverflowError:
        text = json.dumps(msgspec.to_builtins(document, str_keys=True, enc_hook=json_value))
        return msgspec.msgpack.encode(json.loads(text, parse_int=_in_64_bits))


def _in_64_bits(digits: str) -> int:
    return int(max(-(2.0**63), min(float(digits), 2.0**63)))


def may_have_odd_numbers(message_pack: bytes) -> bool:
    """Return whether a document may have NaN or infinity in it: msgspec writes both as the `null` of JSON."""
    return _ODD_NUMBER.search(message_pack) is not None


def may_have_long_numbers(message_pack: bytes) -> bool:
    """Return whether a document may have an integer beyond 2^53 in it."""
    is_of_64_bits = b"\xcf" in message_pack or b"\xd3" in message_pack  # ten times as fast as the pattern
    return is_of_64_bits and _LONG_NUMBER.search(message_pack) is not None


def encoded(argument: str, given: str) -> bytes:
    """Return text as UTF-8. Bytes that `os.fsdecode` could not decode are returned as they were."""
    try:
        return given.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(argument, given, f"text that UTF-8 can encode ({error.reason})") from error


def some_of(names: Collection[str], most: int) -> str:
    """Return up to `most` names for a message, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(islice(names, most)) + more


def printable(text: str) -> str:
    """Return a text from a task in one line, without characters that control the terminal."""
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def is_system_text(given: object) -> TypeGuard[str]:
    """Return whether an object is a str that can be a path, a program's argument, or a variable's value."""
    try:
        return isinstance(given, str) and b"\0" not in os.fsencode(given)
    except UnicodeEncodeError:
        return False


_ENCODING = sys.getfilesystemencoding()

SYSTEM_TEXT = (
    "without NUL or lone surrogates"
    if _ENCODING == "utf-8"
    else f"without NUL, lone surrogates and characters that {_ENCODING} lacks, the encoding of the locale"
)
"""The end of a phrase: what is allowed as a path, an argument of a program or a variable."""


def check_path(argument: str, given: object) -> None:
    """Raise InvalidArgument unless an argument is a str or path that the system accepts."""
    path: object = None
    with suppress(TypeError):  # neither text nor a path
        path = os.fspath(cast("str", given))
    if not is_system_text(path):
        raise InvalidArgument(argument, given, f"a str or a path, {SYSTEM_TEXT}")


def slugid(argument: str, given: object) -> str:
    """Return a task id, task group id or upload id."""
    return text(argument, given, SLUGID, "a slugid of 22 characters, as slugid() returns")


def number(argument: str, given: object, *, least: int = 0, most: int | None = None) -> int:
    """Return a run id, limit or count."""
    if isinstance(given, int) and not isinstance(given, bool) and least <= given <= (most or given):
        return int(given)
    limits = f"{least} or more" if most is None else f"{least} to {most}"
    raise InvalidArgument(argument, given, f"a whole number, {limits}")


def seconds(argument: str, given: object) -> float | None:
    """Return a duration in seconds, which may be negative or infinite, or None. Booleans are refused."""
    if given is None:
        return None
    found = seconds_of(given) if isinstance(given, str) else given
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        size = abs(found)  # NaN is not less than anything; an int may be too large for a float
        if size <= sys.float_info.max or size == math.inf:
            return found
    raise InvalidArgument(
        argument, given, "a number of seconds, whole numbers with units like '10 minutes', or None"
    )


def identifier(argument: str, given: object) -> str:
    """Return the id of a provisioner, worker type, worker group or worker."""
    allowed = "1 to 38 of a-z A-Z 0-9 - _"
    return text(argument, given, _IDENTIFIER, allowed if isinstance(given, str) else f"a str of {allowed}")


def project_id(given: object) -> str:
    """Return the id of a project."""
    return text("project_id", given, _PROJECT_ID, "1 to 500 of a-z A-Z 0-9 . _ / -")


def name(given: object) -> str:
    """Return the name of an artifact or object."""
    return text("name", given, _NAME, "one or more printable ASCII characters")


def new_name(given: object) -> str:
    """Return the name of an artifact that is to be created."""
    checked = text("name", given, _NEW_NAME, "1 to 1024 printable ASCII characters")
    if {".", ".."} & set(checked.split("/")):  # storage services and browsers resolve such parts
        raise InvalidArgument("name", given, "a name in which no part between slashes is '.' or '..'")
    return checked


def content_type(given: object) -> str:
    """Return a content type that can be sent as a header."""
    return text("content_type", given, _CONTENT_TYPE, "1 to 255 printable ASCII characters")


def media_type(given: str) -> str:
    """Return a content type that the object service can read: with another one, an upload begins and fails.

    Raises:
        InvalidArgument: The content type is malformed (RFC 9110).
    """
    if not _MEDIA_TYPE.fullmatch(given):
        allowed = "a type such as text/plain; charset=utf-8, which the object service requires"
        raise InvalidArgument("content_type", given, allowed)
    return given


def artifact_expires(
    expires: datetime | str, task_expires: datetime | None, now: Callable[[], datetime]
) -> str:
    """Return an artifact's expiry, reduced to the task's: the Queue refuses a later one."""
    moment = moment_of("expires", expires, now)
    if task_expires is not None:
        moment = min(moment, moment_of("task_expires", task_expires))
    return timestamp(moment)


def one_of(argument: str, given: object, allowed: Collection[str]) -> str:
    """Return a value of an enumeration."""
    if not isinstance(given, str) or given not in allowed:
        raise InvalidArgument(argument, given, f"one of {', '.join(allowed)}")
    return str.__str__(given)


def mapping(argument: str, given: Mapping[str, T]) -> dict[str, T]:
    """Return a copy of a dict. A list of pairs is refused, and so is text."""
    check_kind(argument, given, Mapping, "a dict")
    return dict(given)


def texts(argument: str, given: object) -> list[str]:
    """Return a list of strings. A single string is refused: iterating over it would give its letters."""
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidArgument(argument, given, "a list of str")
    members = [*cast("Collection[object]", given)]
    if not all(isinstance(member, str) for member in members):
        raise InvalidArgument(argument, members, "a list of str")
    return cast("list[str]", members)


def moment(argument: str, given: object) -> str:
    """Return a time as a date-time; see `moment_of`. A date-time is not changed, even without a time zone."""
    return given if isinstance(given, str) and is_date_time(given) else timestamp(moment_of(argument, given))


def task_queue_id(given: object, provisioner_id: object, worker_type: object) -> str:
    """Return the task queue id, given as one id or as a provisioner and a worker type."""
    if given is None or provisioner_id is not None or worker_type is not None:
        given = "/".join(task_queue_pair(given, provisioner_id, worker_type))
    allowed = (
        "PROVISIONER/WORKER_TYPE, the former 1 to 38 of a-z A-Z 0-9 - _, the latter 1 to 38 of a-z 0-9 -, "
        "beginning with a letter and not ending in -"
    )
    return text("task_queue_id", given, _TASK_QUEUE_ID, allowed)


def task_queue_pair(given: object, provisioner_id: object, worker_type: object) -> tuple[str, str]:
    """Return provisioner and worker type of a task queue that is given in either form."""
    if given is None and provisioner_id is not None and worker_type is not None:
        return identifier("provisioner_id", provisioner_id), identifier("worker_type", worker_type)
    if given is None or provisioner_id is not None or worker_type is not None:
        allowed = "either task_queue_id, or both provisioner_id and worker_type"
        finding = "missing" if given is None else "given together with provisioner_id or worker_type"
        raise InvalidArgument("task_queue_id", given, allowed, finding)
    allowed = "PROVISIONER/WORKER_TYPE, each 1 to 38 of a-z A-Z 0-9 - _"
    first, _, second = text("task_queue_id", given, _PAIR, allowed).partition("/")
    return first, second


def page_size(given: int | None) -> int | None:
    """Return the number of items of each page. 0 is refused: the Queue would return one empty page."""
    return None if given is None else number("page_size", given, least=1)


def page_query(continuation_token: object, limit: object) -> dict[str, str]:
    """Return the query parameters of a request for one page."""
    query: dict[str, str] = {}
    if continuation_token is not None:
        allowed = "the continuation_token of the previous page"
        query["continuationToken"] = text("continuation_token", continuation_token, _PRINTABLE, allowed)
    if limit is not None:
        query["limit"] = str(number("limit", limit))
    return query
