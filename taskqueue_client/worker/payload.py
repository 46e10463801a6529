"""The check of a task's payload before its handler is called: by the worker's JSON Schema, and for its depth.

The schema is checked by jsonschema, of which `payload_keywords.py` replaces some keywords.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

from taskqueue_client._protocol.schemas import json_path, members_of
from taskqueue_client.errors import InvalidArgument, Problem, shortened

from .config import closest_to
from .outcomes import malformed
from .payload_keywords import (
    REFERENCES,
    additional_keys,
    following_references_once,
    format_checker,
    is_of_format_regex,
    make_validator,
)
from .worker_log import counted, log

if TYPE_CHECKING:
    from jsonschema import ValidationError

MOST = 1000
"""The number of violations that are listed; a large payload can have millions."""

MOST_LOGGED = 10
"""The number of unknown keywords that are logged; a schema that a program has made can have thousands."""

DEEPEST = 100
"""The nesting levels of lists and objects that a payload may have. jsonschema needs several nested calls for
each level, and Python limits these. A payload that was cut off when the claim was decoded has more levels."""

_FLAT = (str, int, float, NoneType)
"""The types without members of a JSON document: most of its values."""


def current_schema(given: Mapping[str, Any] | None, checked: PayloadSchema | None) -> PayloadSchema | None:
    """Return the checked `payload_schema`, also of a worker whose `__init__` or `on_start` has set another.

    Raises:
        InvalidArgument: The schema is not allowed.
    """
    if given is (None if checked is None else checked.given):
        return checked
    return None if given is None else PayloadSchema(given)


def check_payload(schema: PayloadSchema | None, payload: object) -> None:
    """Check the payload of a task. Without a schema, it may be anything that is at most 100 levels deep.

    Raises:
        MalformedPayload: The payload has problems, which the error lists.
    """
    if problems := schema.violations(payload) if schema else _depth_problems(payload):
        raise malformed(problems)


class PayloadSchema:
    """A JSON Schema for payloads.

    `$schema` is the URI of its draft, which holds for all parts of the schema; default: 2020-12. References
    must be to places in the schema itself; no schemas are fetched.

    Attributes:
        given: The schema as it was passed.

    Raises:
        InvalidArgument: The schema is not a dict, names an unknown draft, does not match its draft, or has a
            reference without target.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        if not isinstance(schema, dict):
            raise _wrong_schema([], schema, "a dict with a JSON Schema")
        self.given: Mapping[str, Any] = schema
        try:
            self._validator = _checked_validator(schema)
            next(self._validator.iter_errors(None), None)  # fails if a reference leads directly to itself
        except BaseException as error:
            if not _is_limit_of_calls(error):
                raise
            finding = "nested too deeply, or a reference leads directly back to itself"
            raise _wrong_schema([], None, "", finding) from None

    def violations(self, payload: object) -> list[Problem]:
        """Return the problems of a payload; empty if it matches the schema.

        A payload more than 100 levels deep has that problem only. At most 1,000 problems are listed.
        """
        if problems := _depth_problems(payload):
            return problems
        try:
            with following_references_once():
                found = itertools.chain.from_iterable(map(_problems_of, self._validator.iter_errors(payload)))
                problems = list(itertools.islice(_without_duplicates(found), MOST + 1))
        except BaseException as error:  # noqa: BLE001 - `_why_unchecked` raises those that no payload causes
            return [Problem("$", None, "", _why_unchecked(error))]
        if len(problems) > MOST:
            problems[MOST:] = [Problem("$", None, "", f"more than the {MOST} violations listed above")]
        return problems


def _depth_problems(payload: object) -> list[Problem]:
    """Return the problem of a payload that has more than 100 levels; else nothing."""
    level = [payload]
    for _ in range(DEEPEST + 1):
        level = [member for each in level if not isinstance(each, _FLAT) for _, member in members_of(each)]
        if not level:
            return []
    return [Problem("$", None, f"at most {DEEPEST} levels", "lists and objects are nested too deeply")]


def _is_limit_of_calls(error: BaseException) -> bool:
    """Return whether an error says that Python's limit of nested calls was reached.

    Within rpds, which jsonschema uses, the limit causes a panic. It is not an `Exception`: unless it is
    caught here, the run is not reported.
    """
    return isinstance(error, RecursionError) or type(error).__name__ == "PanicException"


def _why_unchecked(error: BaseException) -> str:
    """Return why a payload could not be checked; raise errors that no payload causes.

    jsonschema fails for some payloads, such as integers above 2**1024: five in a row would end a worker.
    """
    if _is_limit_of_calls(error):
        return "nested too deeply for a schema that refers to itself"
    if isinstance(error, MemoryError) or not isinstance(error, Exception):
        raise error
    log.error("jsonschema failed to check a payload", exc_info=error)
    return shortened(f"the payload cannot be checked: {type(error).__name__}: {error}")


# Checks of the schema itself


def _checked_validator(schema: Mapping[str, Any]) -> Any:  # the type stubs are incomplete
    """Return a validator for a schema that is valid, and has no reference or pattern that fails later."""
    import jsonschema  # noqa: PLC0415 - it takes longer to import than all the rest

    draft = _draft_of(schema)
    try:
        draft.check_schema(schema, format_checker())
    except jsonschema.SchemaError as error:
        # `context` has the errors of alternatives.
        reasons = "; ".join(each.message for each in error.context or ()) or error.message
        raise _wrong_schema(error.absolute_path, None, "", reasons) from None
    _check_parts(schema, draft)
    return make_validator(schema, draft)


def _wrong_schema(
    path: Iterable[str | int], given: object, allowed: str, finding: str = ""
) -> InvalidArgument:
    return InvalidArgument(f"payload_schema at {json_path(*path)}", given, allowed, shortened(finding))


def _draft_of(schema: Mapping[str, Any]) -> Any:
    """Return jsonschema's class for the draft that a schema names.

    Unknown drafts and draft 3 are refused: another draft would ignore some of their keywords, and pass
    payloads that these forbid.
    """
    import jsonschema.validators  # noqa: PLC0415 - as above

    named: object = schema.get("$schema")
    find: Any = jsonschema.validators.validator_for
    default: Any = None if "$schema" in schema else jsonschema.Draft202012Validator
    draft = find(schema, default=default) if isinstance(named, str) else default
    allowed = (
        "the URI of draft 4 or a later one, such as http://json-schema.org/draft-07/schema# or "
        "https://json-schema.org/draft/2020-12/schema; or no such key, which stands for the latter"
    )
    if draft in {None, jsonschema.Draft3Validator}:
        raise _wrong_schema(["$schema"], named, allowed)
    return draft


def _check_parts(schema: Mapping[str, Any], draft: Any) -> None:
    """Refuse references without target and unreadable patterns, and log keywords that have no effect."""
    from referencing.jsonschema import EMPTY_REGISTRY, specification_with  # noqa: PLC0415 - as above

    specification = specification_with(str(draft.META_SCHEMA["$schema"]))
    root, paths = specification.create_resource(schema), _path_of_each_part(schema)
    pending: list[tuple[Any, Any]] = [(EMPTY_REGISTRY.resolver_with_root(root), root)]
    seen: set[int] = set()
    without_effect: list[tuple[str, str]] = []
    for resolver, part in pending:  # which grows
        if id(part.contents) in seen:
            continue
        seen.add(id(part.contents))
        keywords: dict[Any, Any] = dict(members_of(part.contents))
        path = paths[id(part.contents)]
        for wrong in itertools.filterfalse(is_of_format_regex, keywords.get("patternProperties", ())):
            raise _wrong_schema([*path, "patternProperties"], wrong, "a regular expression of Python")
        without_effect += ((json_path(*path, key), why) for key, why in _without_effect(keywords, draft))
        for key in keywords.keys() & REFERENCES & draft.VALIDATORS.keys():
            target = _target(resolver, keywords[key], [*path, key])
            pending.append((target.resolver, specification.create_resource(target.contents)))
        subschemas: list[Any] = [*specification.subresources_of(part.contents)]
        if "dependencies" in draft.VALIDATORS:  # lists in it make `subresources_of` fail, or end too soon
            subschemas += dict(members_of(keywords.get("dependencies"))).values()
        resources = [specification.create_resource(each) for each in subschemas if not isinstance(each, list)]
        pending += [(resolver.in_subresource(each), each) for each in resources]
    _log_without_effect(without_effect)


def _path_of_each_part(schema: Mapping[str, Any]) -> dict[int, list[str | int]]:
    """Return the path to each part of a schema, by its identity: references lead to parts without a path."""
    paths: dict[int, list[str | int]] = {id(schema): []}
    parts: list[object] = [schema]
    for part in parts:  # which grows
        for step, member in members_of(part):
            if id(member) not in paths:
                paths[id(member)] = [*paths[id(part)], step]
                parts.append(member)
    return paths


def _target(resolver: Any, reference: str, path: Sequence[str | int]) -> Any:
    """Return the part of the schema to which a reference leads."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above

    with suppress(Unresolvable):
        target = resolver.lookup(reference)
        if isinstance(target.contents, (dict, bool)):
            return target
    raise _wrong_schema(path, reference, "a reference to an existing place in the schema")


def _without_effect(keys: Iterable[str | int], draft: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of a part of a schema that look like keywords but have no effect, with the reasons.

    They are not refused: JSON Schema allows any other key, and a key may be the target of references. No
    keyword that only annotates is so similar to another one that it counts as misspelled.
    """
    import jsonschema.validators as drafts  # noqa: PLC0415 - as above

    modern = (drafts.Draft201909Validator, drafts.Draft202012Validator)
    validators = (drafts.Draft4Validator, drafts.Draft6Validator, drafts.Draft7Validator, *modern)
    known = {keyword for each in validators for keyword in each.VALIDATORS}
    for key in keys:
        if not isinstance(key, str) or key in draft.VALIDATORS or key.startswith(_EXTENSIONS):
            continue
        if key in known:
            yield key, f"it is not one of {draft.META_SCHEMA['$schema']}"
        elif closest := closest_to(key, known):
            yield key, f"the closest known one is {closest}"


_EXTENSIONS = ("x-", "ts")
"""Prefixes of keys for other programs, such as `tsType` for generators of TypeScript."""


def _log_without_effect(found: list[tuple[str, str]]) -> None:
    for place, why in found[:MOST_LOGGED]:
        log.warning("payload_schema at %s: unknown keyword, which has no effect: %s", place, why)
    if (others := len(found) - MOST_LOGGED) > 0:
        places = counted(others, "further place")
        log.warning("payload_schema: unknown keywords, which have no effect, at %s", places)


# Violations in words

_ALLOWED = {
    "type": "a value of type {}",
    "enum": "one of {}",
    "const": "only {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "{} or more characters",
    "maxLength": "at most {} characters",
    "pattern": "a string that matches the pattern {}",
    "format": "a string in the format {}",
    "minItems": "{} or more elements",
    "maxItems": "at most {} elements",
    "uniqueItems": "a list without duplicates",
    "minProperties": "{} or more keys",
    "maxProperties": "at most {} keys",
}
"""The phrases for the values that keywords allow; for other keywords, the message of jsonschema is used."""


def _problems_of(error: ValidationError) -> Iterator[Problem]:
    """Yield the problems of a violation: one for each key that is missing or unknown."""
    schema, given = cast("Mapping[str, Any]", error.schema), cast("Any", error.instance)
    here = list(error.absolute_path)
    if error.validator == "required":
        for key in schema["required"]:
            if key not in given:
                yield Problem(json_path(*here, key), None, "", "missing")
    elif error.validator == "additionalProperties":
        known: Iterable[str] = [*schema.get("properties", ()), *schema.get("patternProperties", ())]
        finding = shortened(f"unknown key; known keys: {', '.join(known) or 'none'}")
        for key in additional_keys(given, schema):
            yield Problem(json_path(*here, key), given[key], "", finding)
    else:
        allowed = _allowed(error)
        words = "not allowed" if (error.validator, error.validator_value) == ("not", {}) else error.message
        yield Problem(json_path(*here), given, allowed, "" if allowed else shortened(words))


def _without_duplicates(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Drop equal problems: of several missing keys, and of places to which several keywords lead."""
    seen: set[tuple[str, str, str]] = set()
    for problem in problems:
        key = (problem.path, problem.allowed, problem.finding)
        if key not in seen:
            seen.add(key)
            yield problem


def _allowed(error: ValidationError) -> str:
    """Return what the schema allows, as a phrase; empty if there is only the message of jsonschema."""
    if error.context:
        return shortened(f"one of the alternatives: {_alternatives(error.context)}")
    words = _ALLOWED.get(str(error.validator), "")
    return words.format(shortened(json.dumps(error.validator_value)))


def _alternatives(errors: Iterable[ValidationError]) -> str:
    """Return the problems of each alternative as text."""
    by_number = itertools.groupby(errors, key=lambda error: [*error.schema_path][:1])  # none for `false`
    return " | ".join(
        "; ".join(
            f"{each.path}: {each.allowed or each.finding}"
            for each in _without_duplicates(itertools.chain.from_iterable(map(_problems_of, group)))
        )
        for _, group in by_number
    )
