"""Validation of task definitions before they are sent, with all problems in one error.

The rules are those of the Queue's schema and of its checks after that. A definition that the Queue accepts is
never refused here, so some rules are not checked: that `metadata.source` is a URI or a regular expression of
JavaScript; how far away a deadline may be, which is a setting of the deployment; and all rules that need the
Queue's database. Dates without a zone are in the server's local time, and are not compared.

jsonschema finds the problems. It takes a second to import and a tenth of a millisecond to run, so `_is_valid`
checks first, with msgspec and types made of the same schema. Valid definitions pass it, except those with
rare dates, such as leap seconds and `+00` for `+00:00`, and those with bytes, or numbers as keys, where the
schema has strings. In these, jsonschema then finds no problem.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec.structs import replace

from taskqueue_client._arguments import (
    as_json,
    as_message_pack,
    json_value,
    may_have_long_numbers,
    may_have_odd_numbers,
)
from taskqueue_client._dates import epoch_seconds, is_date_time
from taskqueue_client.errors import InvalidDefinition, Problem
from taskqueue_client.models import Priority
from taskqueue_client.slugid import SLUGID, slugid

from .wire import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import jsonschema

    from taskqueue_client.definitions import TaskDefinition

Schema = Mapping[str, Any]

_log = logging.getLogger("taskqueue_client.definitions")


def _text(description: str, **rules: object) -> Schema:
    return {"type": "string", **rules, "description": description}


def _up_to(longest: int) -> Schema:
    return _text(f"a string of at most {longest} characters", maxLength=longest)


def _list(description: str, items: Schema, **rules: object) -> Schema:
    return {"type": "array", "items": items, **rules, "description": description}


_SLUGID = _text("a slugid of 22 characters, as slugid() returns", pattern=rf"^{SLUGID.pattern}\Z")
_IDENTIFIER = _text("1 to 38 of a-z A-Z 0-9 - _", pattern=r"^[a-zA-Z0-9_-]{1,38}\Z")
_DATE_TIME = _text("a date-time like 2026-11-21T09:20:53.649Z", format="date-time")
_MOMENT = f"whole numbers with units like 2 hours, or {_DATE_TIME['description']}"
_OBJECT: Schema = {"type": "object", "description": "an object"}

DEFINITION: Schema = {
    "type": "object",
    "description": "an object",
    "required": ["created", "deadline", "payload", "metadata"],
    "additionalProperties": False,
    "properties": {
        "provisionerId": _IDENTIFIER,
        "workerType": _text(
            "1 to 38 of a-z 0-9 -, with a letter first and no - at the end",
            pattern=r"^[a-z]([-a-z0-9]{0,36}[a-z0-9])?\Z",
        ),
        "taskQueueId": _text(
            "PROVISIONER/WORKER_TYPE, each 1 to 38 of a-z 0-9 -, the former also of A-Z _",
            pattern=r"^[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?\Z",
        ),
        "schedulerId": _IDENTIFIER,
        "projectId": _text("1 to 500 of a-z A-Z 0-9 . _ / -", pattern=r"^[a-zA-Z0-9._/-]{1,500}\Z"),
        "taskGroupId": _SLUGID,
        "dependencies": _list(
            "a list of at most 10000 task ids, each once", _SLUGID, maxItems=10_000, uniqueItems=True
        ),
        "requires": {
            "enum": ["all-completed", "all-resolved"],
            "description": "all-completed or all-resolved",
        },
        "routes": _list(
            "a list of at most 64 routes, each once",
            _text("a string of 1 to 249 characters", minLength=1, maxLength=249),
            maxItems=64,
            uniqueItems=True,
        ),
        "priority": {
            "enum": [str(priority) for priority in Priority],
            "description": f"one of {', '.join(Priority)}",
        },
        "retries": {"type": "integer", "minimum": 0, "maximum": 49, "description": "a whole number, 0 to 49"},
        "created": _DATE_TIME,
        "deadline": _DATE_TIME,
        "expires": _DATE_TIME,
        "scopes": _list("a list of scopes", _text("printable ASCII characters", pattern=r"^[\x20-\x7e]*\Z")),
        "payload": _OBJECT,
        "metadata": {
            "type": "object",
            "description": "an object with name, description, owner and source",
            "required": ["name", "description", "owner", "source"],
            "additionalProperties": False,
            "properties": {
                "name": _up_to(255),
                "description": _up_to(32_768),
                "owner": _up_to(255),
                "source": _text(
                    "a URL of at most 4096 characters: https://, http://, ssh:// or git@",
                    maxLength=4096,
                    pattern="^(https?://|ssh://|git@)",
                ),
            },
        },
        "tags": {
            "type": "object",
            "additionalProperties": _up_to(4096),
            "description": "an object whose values are strings",
        },
        "extra": _OBJECT,
    },
}
"""The JSON schema of a task definition. As in JavaScript, no newline may follow the match of a pattern."""

_WINDOW = timedelta(minutes=15).total_seconds()  # how far `created` may be from the Queue's time

_UNCERTAIN = 60.0  # seconds: the Queue's time is known to a few seconds, and a call may be retried meanwhile

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""U+0000 as JSON writes it: an odd number of backslashes before `u0000`."""

_NO_TEXT = r"[\x00\ud800-\udfff]"
"""Characters that the Queue's database cannot store in any text; the response would be a 500. Compiled at the
first definition with an error, to keep the import short."""

_MOST_SHOWN = 10

_DATES = ("created", "deadline", "expires")

_SLUGIDS = re.compile(f"(?:{SLUGID.pattern}\n)*+")
_SLUGID_AND_NEWLINE = 23  # characters


def check_definition(definition: TaskDefinition, now: float) -> bytes:
    """Return the JSON of a task definition if the Queue may accept it; log the numbers that it would round.

    `now` is the Queue's time in seconds since the epoch, or NaN if it is not known.
    """
    encoded, message_pack = _valid(definition, now)
    if may_have_long_numbers(message_pack):
        _warn_of_rounded_numbers(json.loads(encoded, parse_int=Decimal))
    return encoded


def _valid(definition: TaskDefinition, now: float) -> tuple[bytes, bytes]:
    """Return a definition as JSON and as MessagePack."""
    try:
        encoded = as_json(definition)
        message_pack = as_message_pack(definition)
        odd_values = _number_problems(definition) if may_have_odd_numbers(message_pack) else []
    except (TypeError, ValueError, RecursionError) as error:
        problems = _encoding_problems(definition) or [
            Problem("$", type(definition), f"values that JSON can represent ({error})")
        ]
        raise InvalidDefinition(problems) from error
    has_nul = b"\\u0000" in encoded and _NUL.search(encoded) is not None
    if has_nul or odd_values or not _is_valid(definition, message_pack, now):
        _raise_problems(
            _in_given_order(definition, encoded), now, odd_values + _local_times(definition), has_nul=has_nul
        )
    return encoded, message_pack


def definition_problems(path: str, definition: TaskDefinition) -> Iterator[Problem]:
    """Yield the problems of the definition at `path` of a graph's document; the current time is ignored.

    Expected dates are described as in such a document, where they may be durations.
    """
    try:
        size = len(_valid(definition, math.nan)[0])
    except InvalidDefinition as error:
        for problem in error.problems:
            allowed = _MOMENT if problem.allowed == _DATE_TIME["description"] else problem.allowed
            yield replace(problem, path=path + problem.path[1:], allowed=allowed)
    else:
        if size > MAX_BODY:
            yield Problem(path, None, f"at most {MAX_BODY:,}", f"the definition has {size:,} bytes as JSON")


def expiry_problems(tasks: Mapping[str, tuple[str, TaskDefinition]]) -> Iterator[Problem]:
    """Yield a problem for each task of a graph whose deadline is after the expiry of a dependency.

    The Queue would refuse such a task, after it has created the dependency.

    Args:
        tasks: The name and the definition of each task, by task id.
    """
    expiries = {task_id: _seconds(task.get("expires")) for task_id, (_, task) in tasks.items()}
    for name, task in tasks.values():
        deadline = _seconds(task["deadline"])
        early = [each for each in task.get("dependencies", ()) if expiries.get(each, math.nan) < deadline]
        if early:
            dependency, first = tasks[min(early, key=expiries.__getitem__)]
            allowed = f"at or before {first.get('expires')}, when the dependency {dependency!r} expires"
            yield Problem(f"$.tasks.{name}.deadline", task["deadline"], allowed)


def _is_valid(definition: object, message_pack: bytes, now: float) -> bool:
    """Return whether a definition surely passes jsonschema and the rules after it."""
    try:
        given = _decoder().decode(message_pack)
    except msgspec.DecodeError:
        return False
    dates = (given.created, given.deadline, given.expires)
    return (
        _are_slugids(given.dependencies)
        and len(set(given.routes)) == len(given.routes)
        and (given.retries is None or given.retries.is_integer())
        and _are_scopes(given.scopes)
        and _task_queue_problem(given.taskQueueId, given.provisionerId, given.workerType) is None
        and (all(map(_has_zone, dates)) or not _local_times(definition))
        and not any(_broken_date_rules(map(_instant, dates), now))
    )


def _has_zone(moment: datetime | None) -> bool:
    return moment is None or moment.tzinfo is not None


def _instant(moment: datetime | None) -> float:
    """Return seconds since the epoch; NaN without a date, or if the date has no time zone."""
    return math.nan if moment is None or moment.tzinfo is None else moment.timestamp()


def _are_slugids(given: Sequence[str]) -> bool:
    """Return whether all are slugids, and none is repeated."""
    lines = "\n".join([*given, ""])
    return (
        len(lines) == _SLUGID_AND_NEWLINE * len(given)
        and _SLUGIDS.fullmatch(lines) is not None
        and len(set(given)) == len(given)
    )


def _are_scopes(given: Sequence[str]) -> bool:
    text = "".join(given)
    return text.isascii() and text.isprintable() and not ("**" in text and any(map(_is_odd_scope, given)))


def _is_odd_scope(scope: str) -> bool:
    return scope.endswith("**")


@cache
def _decoder() -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(_type_of(DEFINITION))


def _type_of(schema: Schema) -> Any:
    """Return a msgspec type for a schema; `_is_valid` checks rules about a whole list."""
    match schema:
        case {"enum": allowed}:
            return Literal[tuple(allowed)]
        case {"type": "integer"}:  # to JSON Schema, a float without a fraction is one
            return Annotated[float, msgspec.Meta(ge=schema["minimum"], le=schema["maximum"])]
        case {"type": "array"}:
            items = _type_of({key: value for key, value in schema["items"].items() if key != "pattern"})
            return Annotated[GenericAlias(list, items), msgspec.Meta(max_length=schema.get("maxItems"))]
        case {"type": "object"}:
            return _object_type(schema)
        case _:
            longest, pattern = schema.get("maxLength"), schema.get("pattern")
            limits = msgspec.Meta(min_length=schema.get("minLength"), max_length=longest, pattern=pattern)
            return datetime if schema is _DATE_TIME else Annotated[str, limits]


class _AnyObject(msgspec.Struct, gc=False):
    """What msgspec makes of an object with any keys: it skips them."""


def _object_type(schema: Schema) -> Any:
    if "properties" not in schema:
        if "additionalProperties" not in schema:
            return _AnyObject
        return GenericAlias(dict, (str, _type_of(schema["additionalProperties"])))
    fields = [
        (name, _type_of(each)) if name in schema["required"] else (name, _type_of(each), _default(each))
        for name, each in schema["properties"].items()
    ]
    return msgspec.defstruct("Definition", fields, kw_only=True, forbid_unknown_fields=True, gc=False)


def _default(schema: Schema) -> Any:
    return () if schema.get("type") == "array" else None


def _in_given_order(definition: TaskDefinition, encoded: bytes) -> Any:
    """Return a definition as a document, in its own order if msgspec can write its keys."""
    try:
        return msgspec.json.decode(msgspec.json.encode(definition, enc_hook=json_value))
    except TypeError:
        return msgspec.json.decode(encoded)


def _raise_problems(document: Any, now: float, problems: list[Problem], *, has_nul: bool) -> None:
    problems += _schema_problems(document)
    if has_nul:
        problems += _text_problems(document)
    if isinstance(document, dict):
        known = cast("dict[str, Any]", document)
        problems += [*_relation_problems(known, now)]
    if problems:
        raise InvalidDefinition(problems)


def _schema_problems(document: Any) -> list[Problem]:
    """Return the problems that jsonschema finds, at most one for each place."""
    found = [problem for error in _validator().iter_errors(document) for problem in _problems_of(error)]
    return list({problem.path: problem for problem in found}.values())


@cache
def _validator() -> Any:  # jsonschema's type stubs are incomplete
    import jsonschema  # noqa: PLC0415 - it takes longer to import than all the rest

    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time")(is_date_time_if_text)
    return jsonschema.Draft6Validator(DEFINITION, format_checker=formats)


def is_date_time_if_text(given: object) -> bool:
    """Return whether a value is accepted by the format `date-time`, which applies to strings only."""
    return not isinstance(given, str) or is_date_time(given)


def _problems_of(error: jsonschema.ValidationError) -> Iterator[Problem]:
    schema, given = cast("Schema", error.schema), cast("Any", error.instance)
    here = list(error.absolute_path)
    if error.validator == "required":
        for key in schema["required"]:
            if key not in given:
                allowed = schema["properties"][key]["description"]
                yield Problem(json_path(*here, key), None, allowed, "missing")
    elif error.validator == "additionalProperties":
        for key in given:
            if key not in schema["properties"]:
                finding = f"unknown key; known keys: {', '.join(schema['properties'])}"
                yield Problem(json_path(*here, key), given[key], "", finding)
    else:
        yield Problem(json_path(*here), given, schema["description"])


def members_of(value: object) -> Iterable[tuple[str | int, object]]:
    """Return the members of a list or object, each with its index or key; nothing for other values."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).items()
    return enumerate(cast("list[object]", value)) if isinstance(value, list) else ()


def json_path(*steps: str | int) -> str:
    """Return the JSON path of a place in a document, such as `$.env['two words'][3]`."""
    return "$" + "".join(
        f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]" for step in steps
    )


def _encoding_problems(definition: object) -> list[Problem]:
    """Return a problem for each part that cannot be encoded; none if the reason is something else."""
    unknown: dict[object, object] = {}  # by the slugid that replaces each of them in the document

    def replaced(value: object) -> str | float:
        try:
            return json_value(value)
        except TypeError:
            unknown[stand_in := slugid()] = value
            return stand_in

    try:
        document = msgspec.to_builtins(definition, str_keys=True, enc_hook=replaced)
    except (TypeError, ValueError, RecursionError):
        return []
    return [*_text_problems(document), *_unknown_problems(document, unknown)]


def _unknown_problems(document: object, unknown: Mapping[object, object]) -> Iterator[Problem]:
    for path, given in _everything_in(document):
        if given in unknown:
            steps = (str(unknown[step]) if step in unknown else step for step in path)
            yield Problem(json_path(*steps), unknown[given], "a value that JSON can represent")


def _text_problems(document: object) -> Iterator[Problem]:
    for path, given in _everything_in(document):
        if isinstance(given, str) and re.search(_NO_TEXT, given):
            yield Problem(json_path(*path), given, "a string without U+0000 and without lone surrogates")


def _local_times(definition: object) -> list[Problem]:
    """Return a problem for each `datetime` without a zone: it may be local, and would be sent as UTC."""
    if not isinstance(definition, Mapping):
        return []
    given = cast("Mapping[str, object]", definition)
    return [
        Problem(f"$.{key}", date, "a datetime with a time zone")
        for key in _DATES
        if isinstance(date := given.get(key), datetime) and date.tzinfo is None
    ]


def _number_problems(definition: object) -> list[Problem]:
    """Return a problem for each NaN and infinity: msgspec would write them as null."""
    return [
        Problem(json_path(*path), given, "a finite number")
        for path, given in _everything_in(msgspec.to_builtins(definition, str_keys=True, enc_hook=json_value))
        if isinstance(given, float) and not math.isfinite(given)
    ]


def _warn_of_rounded_numbers(definition: dict[str, Any]) -> None:
    paths = [
        json_path(*path)
        for path, given in _everything_in(definition)
        if isinstance(given, Decimal) and Decimal(repr(float(given))) != given  # as JavaScript writes it
    ]
    if paths:
        shown, others = ", ".join(paths[:_MOST_SHOWN]), len(paths) - _MOST_SHOWN
        more = f" and {others} more places" if others > 0 else ""
        text = "the Queue rounds whole numbers beyond 2^53: send these of the task %r as strings: %s%s"
        _log.warning(text, definition["metadata"]["name"], shown, more)


def _everything_in(document: object) -> Iterator[tuple[tuple[str | int, ...], object]]:
    """Yield all values and keys in a document, each with its path."""
    waiting: list[tuple[tuple[str | int, ...], object]] = [((), document)]
    while waiting:  # no recursion: the nesting may be as deep as Python's limit of recursion
        path, given = waiting.pop()
        if isinstance(given, dict):
            for key, value in reversed(cast("dict[str, object]", given).items()):
                waiting += [((*path, key), value), ((*path, key), key)]
        elif isinstance(given, list | tuple):
            items = cast("Sequence[object]", given)
            waiting += [((*path, index), items[index]) for index in reversed(range(len(items)))]
        else:
            yield path, given


def _relation_problems(document: dict[str, Any], now: float) -> Iterator[Problem]:
    """Yield the problems that the schema cannot express: keys that contradict each other, wrong dates."""
    names = (document.get(key) for key in ("taskQueueId", "provisionerId", "workerType"))
    if queue := _task_queue_problem(*names):
        yield queue
    scopes = document.get("scopes")
    for index, scope in enumerate(cast("list[object]", scopes) if isinstance(scopes, list) else ()):
        if isinstance(scope, str) and _is_odd_scope(scope):
            yield Problem(json_path("scopes", index), scope, "a scope that ends in at most one *")
    dates = (_seconds(document.get(key)) for key in _DATES)
    for key, allowed in _broken_date_rules(dates, now):
        yield Problem(f"$.{key}", document[key], allowed.format_map(document))


def _task_queue_problem(task_queue_id: object, *pair: object) -> Problem | None:
    """Return the problem if the task queue is missing, or the id and the pair contradict each other."""
    if task_queue_id is None:
        if None in pair:
            allowed = "taskQueueId, or both provisionerId and workerType"
            return Problem("$.taskQueueId", None, allowed, "missing")
    elif None not in pair and task_queue_id != (named := "/".join(map(str, pair))):
        return Problem("$.taskQueueId", task_queue_id, f"{named!r}, as provisionerId and workerType say")
    return None


def _broken_date_rules(dates: Iterable[float], now: float) -> Iterator[tuple[str, str]]:
    """Yield the key of each date that breaks a rule, with a template of what is allowed; NaN breaks none.

    `dates` are those of the keys `_DATES`, in seconds since the epoch.
    """
    created, deadline, expires = dates
    if created < now - _WINDOW - _UNCERTAIN:
        yield "created", "at most 15 minutes ago"
    if created > now + _WINDOW + _UNCERTAIN:
        yield "created", "at most 15 minutes from now"
    if deadline < created:
        yield "deadline", "at or after created, {created}"
    if deadline < now - _UNCERTAIN:
        yield "deadline", "in the future"
    if expires < deadline:
        yield "expires", "at or after deadline, {deadline}"


def _seconds(given: object) -> float:
    """Return a date-time in seconds since the epoch; for others NaN, for which every comparison is false."""
    seconds = epoch_seconds(given) if isinstance(given, str) else None
    return math.nan if seconds is None else seconds
