"""A task definition, checked before it is sent: everything that is wrong with it, in one error.

The rules are those of the Queue's own schema and of what it does after that. What it accepts is never
refused here, which is why some of its rules are left out: that `metadata.source` is a URI or a regular
expression (as JavaScript has them), and whatever it has to look up. Dates whose zone is missing are the
server's local time and are not compared.

jsonschema finds the problems. It takes a second to import and a tenth of a millisecond to run, so that
`_fits` goes before it: msgspec, with types made of the same schema, which lets most definitions pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec

from ._dates import instant, is_date_time
from .errors import InvalidDefinition, Problem
from .models import Priority

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import jsonschema

    from .definitions import TaskDefinition

Schema = Mapping[str, Any]

_SLUGID: Schema = {
    "type": "string",
    "pattern": r"^[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]\Z",
    "description": "a slugid: 22 characters, as slugid() makes them",
}
_DATE_TIME: Schema = {
    "type": "string",
    "format": "date-time",
    "description": "a date-time like 2026-11-21T09:20:53.649Z",
}
_OBJECT: Schema = {"type": "object", "description": "an object"}


def _text(longest: int) -> Schema:
    return {
        "type": "string",
        "maxLength": longest,
        "description": f"a text of at most {longest} characters",
    }


DEFINITION: Schema = {
    "type": "object",
    "description": "an object",
    "required": ["created", "deadline", "payload", "metadata"],
    "additionalProperties": False,
    "properties": {
        "provisionerId": {
            "type": "string",
            "pattern": r"^[a-zA-Z0-9_-]{1,38}\Z",
            "description": "1 to 38 letters, digits, - and _",
        },
        "workerType": {
            "type": "string",
            "pattern": r"^[a-z]([-a-z0-9]{0,36}[a-z0-9])?\Z",
            "description": "1 to 38 of a-z, 0-9 and -, beginning with a letter and not ending with -",
        },
        "taskQueueId": {
            "type": "string",
            "pattern": r"^[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?\Z",
            "description": "<provisionerId>/<workerType>, each as these are",
        },
        "schedulerId": {
            "type": "string",
            "pattern": r"^[a-zA-Z0-9_-]{1,38}\Z",
            "description": "1 to 38 letters, digits, - and _",
        },
        "projectId": {
            "type": "string",
            "pattern": r"^[a-zA-Z0-9._/-]{1,500}\Z",
            "description": "1 to 500 letters, digits, ., _, / and -",
        },
        "taskGroupId": _SLUGID,
        "dependencies": {
            "type": "array",
            "items": _SLUGID,
            "maxItems": 10_000,
            "uniqueItems": True,
            "description": "at most 10000 task ids, each once",
        },
        "requires": {
            "enum": ["all-completed", "all-resolved"],
            "description": "all-completed or all-resolved",
        },
        "routes": {
            "type": "array",
            "items": {
                "type": "string",
                "minLength": 1,
                "maxLength": 249,
                "description": "a text of 1 to 249 characters",
            },
            "maxItems": 64,
            "uniqueItems": True,
            "description": "at most 64 routes, each once",
        },
        "priority": {
            "enum": [str(priority) for priority in Priority],
            "description": f"one of {', '.join(Priority)}",
        },
        "retries": {
            "type": "integer",
            "minimum": 0,
            "maximum": 49,
            "description": "a whole number, 0 to 49",
        },
        "created": _DATE_TIME,
        "deadline": _DATE_TIME,
        "expires": _DATE_TIME,
        "scopes": {
            "type": "array",
            "items": {
                "type": "string",
                "pattern": r"^[\x20-\x7e]*\Z",
                "description": "printable ASCII characters",
            },
            "description": "a list of scopes",
        },
        "payload": _OBJECT,
        "metadata": {
            "type": "object",
            "description": "an object with name, description, owner and source",
            "required": ["name", "description", "owner", "source"],
            "additionalProperties": False,
            "properties": {
                "name": _text(255),
                "description": _text(32_768),
                "owner": _text(255),
                "source": {
                    "type": "string",
                    "maxLength": 4096,
                    "pattern": "^(https?://|ssh://|git@)",
                    "description": "a URL of at most 4096 characters: https://, http://, ssh:// or git@",
                },
            },
        },
        "tags": {
            "type": "object",
            "additionalProperties": _text(4096),
            "description": "an object of texts",
        },
        "extra": _OBJECT,
    },
}
"""What the Queue takes as a task definition; its patterns end where the text ends, as in JavaScript."""

_WINDOW = timedelta(minutes=15).total_seconds()
"""How far `created` may be from the Queue's time."""

_LONGEST = timedelta(days=5).total_seconds()
"""How far away a deadline may be, unless a deployment sets its MAX_TASK_DEADLINE_DAYS."""

_UNCERTAIN = 60.0
"""Seconds: the Queue's clock is known to a few, and a call may be tried for a while."""


_NUL = rb"\u0000"
"""In JSON; it is not one after another backslash, which is for `_text_problems` to see."""

_NO_TEXT = re.compile(r"[\x00\ud800-\udfff]")
"""What the Queue's database cannot keep, wherever it stands; the answer would be a 500."""


def check_definition(definition: TaskDefinition, now: float) -> None:
    """Do nothing if the Queue may accept a task definition.

    Args:
        definition: The definition.
        now: The Queue's time, in seconds since the epoch; NaN if it is not known: then nothing is
            compared with it.

    Raises:
        InvalidDefinition: It cannot; with every reason.
    """
    try:
        encoded = msgspec.json.encode(definition)
        # null is what msgspec makes of NaN and infinity, which the client does not send
        odd_numbers = [*_number_problems(msgspec.to_builtins(definition))] if b"null" in encoded else []
    except (TypeError, ValueError, RecursionError) as error:
        problems = _surrogate_problems(definition) or [
            Problem("$", type(definition), f"what JSON can hold: {error}")
        ]
        raise InvalidDefinition(problems) from error
    has_nul = _NUL in encoded
    if not has_nul and not odd_numbers and _is_plain(encoded, now):
        return
    document: Any = msgspec.json.decode(encoded)
    problems = odd_numbers + _schema_problems(document)
    if has_nul:
        problems += _text_problems(document)
    if isinstance(document, dict):
        known = cast("dict[str, Any]", document)
        problems += [*_task_queue_problems(known), *_scope_problems(known), *_date_problems(known, now)]
    if problems:
        raise InvalidDefinition(problems)


def _is_plain(encoded: bytes, now: float) -> bool:
    """Whether it is certain, at a glance, that nothing is wrong with a definition."""
    try:
        plain = _plain_definition().decode(encoded)
    except msgspec.DecodeError:
        return False
    lists = [each for each in (plain.dependencies, plain.routes, plain.scopes) if each is not msgspec.UNSET]
    created, deadline = _seconds(plain.created), _seconds(plain.deadline)
    in_time = math.isnan(now) or (now - _WINDOW < created < now + _WINDOW and now < deadline < now + _LONGEST)
    return (
        plain.provisionerId is plain.workerType is msgspec.UNSET is not plain.taskQueueId
        and in_time
        and created <= deadline
        and (plain.expires is msgspec.UNSET or deadline <= _seconds(plain.expires))
        and not any(lists)
    )


@cache
def _plain_definition() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_type_of(DEFINITION))


def _type_of(schema: Schema) -> Any:
    """A msgspec type for what the schema accepts, but for `format` and `uniqueItems`."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    return _TYPES[schema["type"]](schema)


def _string_type(schema: Schema) -> Any:
    limits = msgspec.Meta(
        min_length=schema.get("minLength"), max_length=schema.get("maxLength"), pattern=schema.get("pattern")
    )
    return Annotated[str, limits]


def _integer_type(schema: Schema) -> Any:
    return Annotated[int, msgspec.Meta(ge=schema["minimum"], le=schema["maximum"])]


def _array_type(schema: Schema) -> Any:
    items = _type_of(schema["items"])
    return Annotated[GenericAlias(list, items), msgspec.Meta(max_length=schema.get("maxItems"))]


def _object_type(schema: Schema) -> Any:
    if "properties" not in schema:
        values = _type_of(schema["additionalProperties"]) if "additionalProperties" in schema else Any
        return GenericAlias(dict, (str, values))
    fields = [
        (name, _type_of(each)) if name in schema["required"] else (name, _optional(each), msgspec.UNSET)
        for name, each in schema["properties"].items()
    ]
    return msgspec.defstruct("Definition", fields, kw_only=True, forbid_unknown_fields=True)


def _optional(schema: Schema) -> Any:
    return _type_of(schema) | msgspec.UnsetType


_TYPES = {"string": _string_type, "integer": _integer_type, "array": _array_type, "object": _object_type}


def _schema_problems(document: Any) -> list[Problem]:
    """What jsonschema finds; one problem for each place, however many rules it breaks."""
    found = [problem for error in _validator().iter_errors(document) for problem in _problems_of(error)]
    return list({problem.path: problem for problem in found}.values())


@cache
def _validator() -> Any:  # of which the type stubs know only half
    import jsonschema  # noqa: PLC0415 - it takes longer to import than all the rest

    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time")(_is_date_time_if_text)
    return jsonschema.Draft6Validator(DEFINITION, format_checker=formats)


def _is_date_time_if_text(given: object) -> bool:
    return not isinstance(given, str) or is_date_time(given)


def _problems_of(error: jsonschema.ValidationError) -> Iterator[Problem]:
    schema, given = cast("Schema", error.schema), cast("Any", error.instance)
    here = list(error.absolute_path)
    if error.validator == "required":
        for key in schema["required"]:
            if key not in given:
                yield Problem(_json_path(*here, key), None, "required: " + _allowed_in(schema, key))
    elif error.validator == "additionalProperties":
        for key in given:
            if key not in schema["properties"]:
                yield Problem(
                    _json_path(*here, key), given[key], "no such key; there are " + _keys_of(schema)
                )
    else:
        yield Problem(_json_path(*here), given, schema["description"])


def _allowed_in(schema: Schema, key: str) -> str:
    return str(schema["properties"][key]["description"])


def _keys_of(schema: Schema) -> str:
    return ", ".join(schema["properties"])


def _json_path(*steps: str | int) -> str:
    """`$.metadata.owner`, `$.routes[3]`, `$.tags['two words']`."""
    return "$" + "".join(
        f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]" for step in steps
    )


def _surrogate_problems(definition: object) -> list[Problem]:
    """The texts that keep a definition from being encoded; none if there is something else."""
    try:
        return [*_text_problems(msgspec.to_builtins(definition, str_keys=True))]
    except (TypeError, ValueError, RecursionError):
        return []


def _text_problems(document: object) -> Iterator[Problem]:
    for path, given in _everything_in(document):
        if isinstance(given, str) and _NO_TEXT.search(given):
            yield Problem(_json_path(*path), given, "a text without U+0000 and without lone surrogates")


def _number_problems(document: object) -> Iterator[Problem]:
    for path, given in _everything_in(document):
        if isinstance(given, float) and not math.isfinite(given):
            yield Problem(_json_path(*path), given, "a finite number, as JSON has no others")


def _everything_in(document: object) -> Iterator[tuple[tuple[str | int, ...], object]]:
    """All values and keys in a document, each with the way to it."""
    waiting: list[tuple[tuple[str | int, ...], object]] = [((), document)]
    while waiting:  # no recursion: a document may be nested as deeply as that of Python goes
        path, given = waiting.pop()
        if isinstance(given, dict):
            for key, value in reversed(cast("dict[str, object]", given).items()):
                waiting += [((*path, key), value), ((*path, key), key)]
        elif isinstance(given, list | tuple):
            items = cast("Sequence[object]", given)
            waiting += [((*path, index), items[index]) for index in reversed(range(len(items)))]
        else:
            yield path, given


def _task_queue_problems(document: dict[str, Any]) -> Iterator[Problem]:
    """The Queue takes the pair, or the id with anything that does not contradict it."""
    task_queue_id, *pair = (document.get(key) for key in ("taskQueueId", "provisionerId", "workerType"))
    named = "/".join(str(part) for part in pair if part is not None)
    if task_queue_id is None and None in pair:
        yield Problem("$.taskQueueId", None, "required, unless provisionerId and workerType are given")
    elif task_queue_id is not None and None not in pair and task_queue_id != named:
        yield Problem("$.taskQueueId", task_queue_id, f"<provisionerId>/<workerType>, which is {named}")


def _scope_problems(document: dict[str, Any]) -> Iterator[Problem]:
    scopes = document.get("scopes")
    if isinstance(scopes, list):
        for index, scope in enumerate(cast("list[object]", scopes)):
            if isinstance(scope, str) and scope.endswith("**"):
                yield Problem(_json_path("scopes", index), scope, "no scope that ends in **")


def _date_problems(document: dict[str, Any], now: float) -> Iterator[Problem]:
    created, deadline, expires = (_seconds(document.get(key)) for key in ("created", "deadline", "expires"))
    rules = [
        ("created", created < now - _WINDOW - _UNCERTAIN, "at most 15 minutes ago"),
        ("created", created > now + _WINDOW + _UNCERTAIN, "at most 15 minutes from now"),
        ("created", created > deadline, "not after deadline"),
        ("deadline", deadline < now - _UNCERTAIN, "not in the past"),
        ("deadline", deadline > now + _LONGEST + _WINDOW + _UNCERTAIN, "at most 5 days from now"),
        ("expires", expires < deadline, "not before deadline"),
    ]
    for key, is_broken, allowed in rules:
        if is_broken:
            yield Problem(f"$.{key}", document[key], allowed)


def _seconds(given: object) -> float:
    """A date-time in seconds since the epoch; NaN, which no comparison holds for, if it is none."""
    moment = instant(given) if isinstance(given, str) else None
    return math.nan if moment is None else moment.timestamp()
