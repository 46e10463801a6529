"""A task's payload against the worker's JSON Schema: everything that is wrong with it, in words."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from taskqueue_client._dates import is_date_time
from taskqueue_client.errors import InvalidArgument, Problem

if TYPE_CHECKING:
    import jsonschema

DEEPEST = 100
"""Levels of lists and objects in each other. jsonschema calls itself several times for each, and Python has
only so many calls. A payload of which a part was cut off as it was read is still deeper than this."""

MOST = 1000
"""Violations that are explained: nobody reads more, and a large payload can have millions."""

FORMATS = ("date", "email", "ipv4", "ipv6", "regex", "uuid")
"""The formats that are checked besides `date-time`: those that need no other packages, so that all
installations agree."""


class PayloadSchema:
    """A JSON Schema, made ready once.

    Its `$schema` says which draft it is of; 2020-12 without. References lead to somewhere in the schema
    itself: nothing is fetched.

    Args:
        schema: The schema.

    Raises:
        InvalidArgument: It is not on its draft, or a reference leads nowhere; names the place in it.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._validator = _validator(schema)
            next(self._validator.iter_errors(None), None)  # ends, unless it refers to itself at once
        except RecursionError:
            raise _wrong_schema(
                [], type(schema), "fewer levels, and no part that refers to itself at once"
            ) from None

    def violations(self, payload: object) -> list[Problem]:
        """What is wrong with a payload; nothing if it is on the schema.

        One with lists and objects more than 100 levels deep has that one violation. At most 1,000 are listed.
        """
        if problems := too_deep(payload):
            return problems
        try:
            problems = list(itertools.islice(_each_once(_problems(self._validator, payload)), MOST + 1))
        except RecursionError:
            return [Problem("$", type(payload), "not as deep, where the schema refers to itself")]
        if len(problems) > MOST:
            problems[MOST:] = [Problem("$", type(payload), f"more than the {MOST} violations listed above")]
        return problems


def json_path(*steps: str | int) -> str:
    """A place in a document: `$.env['two words'][3]`."""
    return "$" + "".join(
        f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]" for step in steps
    )


def _validator(schema: Mapping[str, Any]) -> Any:  # of which the type stubs know only half
    import jsonschema  # noqa: PLC0415 - it takes longer to import than all the rest
    import jsonschema.validators  # noqa: PLC0415 - as above
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415 - as above

    find: Any = jsonschema.validators.validator_for
    kind: Any = find(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise _wrong_schema(error.absolute_path, cast("object", error.instance), error.message) from None
    _check_references(schema, str(kind.META_SCHEMA["$schema"]), EMPTY_REGISTRY)
    formats = jsonschema.FormatChecker(formats=FORMATS)
    formats.checks("date-time")(_is_date_time_if_text)
    return kind(schema, format_checker=formats, registry=EMPTY_REGISTRY)


def _wrong_schema(path: Iterable[str | int], given: object, allowed: str) -> InvalidArgument:
    return InvalidArgument(f"payload_schema at {json_path(*path)}", given, _shortened(allowed))


def _check_references(schema: Mapping[str, Any], draft: str, registry: Any) -> None:
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above
    from referencing.jsonschema import specification_with  # noqa: PLC0415 - as above

    root = specification_with(draft).create_resource(schema)
    pending: list[tuple[Any, Any]] = [(registry.resolver_with_root(root), root)]
    for resolver, part in pending:  # which grows
        reference = dict(_members(part.contents)).get("$ref")
        try:
            if reference is not None:
                resolver.lookup(reference)
        except Unresolvable:
            path = [*next(_paths_to(part.contents, schema)), "$ref"]
            raise _wrong_schema(path, reference, "a reference to a place in the schema") from None
        pending += [(resolver.in_subresource(each), each) for each in part.subresources()]


def _paths_to(wanted: object, value: object) -> Iterator[list[str | int]]:
    """The ways that lead to this very object."""
    if value is wanted:
        yield []
    for step, member in _members(value):
        for path in _paths_to(wanted, member):
            yield [step, *path]


def _members(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).items()
    return enumerate(cast("list[object]", value)) if isinstance(value, list) else ()


def too_deep(payload: object) -> list[Problem]:
    """What is wrong with a payload of more than 100 levels, whatever its schema; nothing if it has less."""
    level = [payload]
    for _ in range(DEEPEST + 1):
        level = [member for each in level for _, member in _members(each)]
        if not level:
            return []
    return [Problem("$", type(payload), f"lists and objects at most {DEEPEST} levels deep")]


def _is_date_time_if_text(given: object) -> bool:
    return not isinstance(given, str) or is_date_time(given)


def _each_once(problems: Iterable[Problem]) -> Iterator[Problem]:
    seen: set[tuple[str, str]] = set()
    for problem in problems:
        if (problem.path, problem.allowed) not in seen:
            seen.add((problem.path, problem.allowed))
            yield problem


def _problems(validator: Any, payload: object) -> Iterator[Problem]:
    for error in validator.iter_errors(payload):
        yield from _problems_of(error)


_ALLOWED = {
    "type": "of type {}",
    "enum": "one of {}",
    "const": "only {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "a text in which {} is found",
    "format": "a text of the format {}",
    "minItems": "at least {} elements",
    "maxItems": "at most {} elements",
    "uniqueItems": "no element twice",
    "minProperties": "at least {} keys",
    "maxProperties": "at most {} keys",
}
"""What keywords allow, in words; jsonschema's own message stands for those that are not here."""


def _problems_of(error: jsonschema.ValidationError) -> Iterator[Problem]:
    schema, given = cast("Mapping[str, Any]", error.schema), cast("Any", error.instance)
    here = list(error.absolute_path)
    if error.validator == "required":
        for key in schema["required"]:
            if key not in given:
                yield Problem(json_path(*here, key), None, "required")
    elif error.validator == "additionalProperties":
        known: Iterable[str] = schema.get("properties", ())
        patterns: Iterable[str] = schema.get("patternProperties", ())
        allowed = _shortened(f"no such key; there are: {', '.join([*known, *patterns]) or 'none'}")
        for key in given:
            if key not in known and not any(re.search(pattern, key) for pattern in patterns):
                yield Problem(json_path(*here, key), given[key], allowed)
    else:
        yield Problem(json_path(*here), given, _allowed(error))


def _allowed(error: jsonschema.ValidationError) -> str:
    if error.context:
        return _shortened(f"one of the alternatives: {_alternatives(error.context)}")
    if words := _ALLOWED.get(str(error.validator)):
        return words.format(_shortened(json.dumps(error.validator_value)))
    return _shortened(error.message)


def _alternatives(errors: Iterable[jsonschema.ValidationError]) -> str:
    """What is wrong with each alternative."""
    by_number = itertools.groupby(errors, key=lambda error: error.schema_path[0])
    return " | ".join(
        "; ".join(f"{each.path}: {each.allowed}" for error in group for each in _problems_of(error))
        for _, group in by_number
    )


_LONGEST = 500


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
