"""Validation of a task's payload: by the worker's JSON Schema, and by the methods that a handler calls."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

from taskqueue_client._dates import is_date_time_of_zone_if_text
from taskqueue_client._protocol.schemas import json_path, members_of
from taskqueue_client.errors import InvalidArgument, Problem, shortened
from taskqueue_client.worker.outcomes import malformed, too_deep
from taskqueue_client.worker.worker_log import counted, log

if TYPE_CHECKING:
    import jsonschema

MOST = 1000
"""The number of violations that are listed; a large payload can have millions."""

MOST_OF_ALTERNATIVE = 10
"""The number of violations of each alternative of `anyOf` and `oneOf` that are looked for, with those of the
alternatives within it; few are shown."""

MOST_LOGGED = 10
"""The number of unknown keywords that are logged; a schema that a program has made can have thousands."""

LONG_PATTERN = 1000
"""Characters above which Python forgets the regular expression of a payload: `re` keeps hundreds of them."""

FORMATS = ("date", "email", "ipv4", "ipv6", "regex", "uuid")
"""The formats that are checked besides `date-time`: those that need no packages that may be missing."""


class PayloadSchema:
    """A JSON Schema for payloads.

    `$schema` names its draft, also for all of its parts, by the draft's own URI; default: 2020-12. References
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
            self._validator = _validator(schema)
            next(self._validator.iter_errors(None), None)  # ends, unless it refers to itself at once
        except BaseException as error:
            if not _is_limit_of_calls(error):
                raise
            finding = "nested too deeply, or a reference leads directly back to itself"
            raise _wrong_schema([], None, "", finding) from None

    def violations(self, payload: object) -> list[Problem]:
        """Return the problems of a payload; empty if it matches the schema.

        A payload more than 100 levels deep has that problem only. At most 1,000 problems are listed.
        """
        if problems := too_deep(payload):
            return problems
        known = _known.set((set(), {}))
        try:
            found = itertools.chain.from_iterable(map(_problems_of, self._validator.iter_errors(payload)))
            problems = list(itertools.islice(_each_once(found), MOST + 1))
        except BaseException as error:  # noqa: BLE001 - `_finding` raises those that no payload causes
            return [Problem("$", None, "", _finding(error))]
        finally:
            _known.reset(known)
        if len(problems) > MOST:
            problems[MOST:] = [Problem("$", None, "", f"more than the {MOST} violations listed above")]
        return problems


def _is_limit_of_calls(error: BaseException) -> bool:
    """Return whether an error says that Python's limit of nested calls was reached.

    Within rpds, which jsonschema uses, it is a panic, not an `Exception`: the run would get no report.
    """
    return isinstance(error, RecursionError) or type(error).__name__ == "PanicException"


def _finding(error: BaseException) -> str:
    """Return why a payload could not be checked; raise what no payload causes.

    jsonschema fails for some payloads, such as integers above 2**1024, and five of them would end a worker.
    """
    if _is_limit_of_calls(error):
        return "nested too deeply for a schema that refers to itself"
    if isinstance(error, MemoryError) or not isinstance(error, Exception):
        raise error
    log.error("jsonschema failed to check a payload", exc_info=error)
    return shortened(f"the payload cannot be checked: {type(error).__name__}: {error}")


def check_payload(schema: PayloadSchema | None, payload: object) -> None:
    """Check the payload of a task. Without a schema, it may be anything that is at most 100 levels deep.

    Raises:
        MalformedPayload: It lists the problems.
    """
    if problems := schema.violations(payload) if schema else too_deep(payload):
        raise malformed(problems)


def _validator(schema: Mapping[str, Any]) -> Any:  # the type stubs are incomplete
    import jsonschema.validators  # noqa: PLC0415 - it takes longer to import than all the rest
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415 - as above

    kind = _draft(schema)
    formats = jsonschema.FormatChecker(formats=FORMATS)
    formats.checks("date-time")(is_date_time_of_zone_if_text)
    formats.checks("regex")(_is_pattern)
    try:
        kind.check_schema(schema, formats)
    except jsonschema.SchemaError as error:
        raise _wrong_schema(error.absolute_path, None, "", error.message) from None
    _check_parts(schema, kind, EMPTY_REGISTRY)
    extend: Any = jsonschema.validators.extend  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    keywords = _KEYWORDS | {name: partial(_bounded, kind.VALIDATORS[name]) for name in ("anyOf", "oneOf")}
    text = json.dumps(schema, default=str, skipkeys=True)  # without several `$id`s, each target is fixed
    if text.count('"$id"') <= ("$id" in schema) or not re.search(r'"\$(dynamic|recursive)Ref"', text):
        for number, name in enumerate((_REFERENCES | {"$recursiveRef"}) & kind.VALIDATORS.keys()):
            keywords[name] = partial(_checked_once, kind.VALIDATORS[name], number)
    return extend(kind, keywords)(_prepared(schema, kind), format_checker=formats, registry=EMPTY_REGISTRY)


def _prepared(part: Any, kind: Any, key: object = "") -> Any:
    """Return a copy without `$schema`, where jsonschema would go on with its own keywords instead of ours."""
    if isinstance(part, bool) and (key is None or (key == "items" and "additionalItems" in kind.VALIDATORS)):
        return {} if part else {"not": {}}  # for booleans, jsonschema names no key, or fails
    if not isinstance(part, dict):
        elements = cast("list[object]", part)
        return [_prepared(each, kind) for each in elements] if isinstance(part, list) else part
    has_names = key in _WITH_NAMES
    values = () if has_names else ("const", "enum")
    return {
        name: member if name in values else _prepared(member, kind, None if has_names else name)
        for name, member in cast("dict[str, object]", part).items()
        if name != "$schema" or not isinstance(member, str)
    }


_WITH_NAMES = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
"""The keywords whose members have names, which may be those of keywords, too."""


def _draft(schema: Mapping[str, Any]) -> Any:
    """Return the class of validators for a schema's draft.

    Unknown ones and draft 3 are refused: other drafts ignore some keywords, and what they forbid would pass.
    """
    import jsonschema.validators  # noqa: PLC0415 - as above

    named: object = schema.get("$schema")
    find: Any = jsonschema.validators.validator_for
    default: Any = None if "$schema" in schema else jsonschema.Draft202012Validator
    kind = find(schema, default=default) if isinstance(named, str) else default
    allowed = (
        "the URI of draft 4 or a later one, such as http://json-schema.org/draft-07/schema# or "
        "https://json-schema.org/draft/2020-12/schema; or no such key, which stands for the latter"
    )
    if kind in {None, jsonschema.Draft3Validator}:
        raise _wrong_schema(["$schema"], named, allowed)
    return kind


def _unique_items(_: Any, wanted: object, given: object, __: object) -> Iterator[jsonschema.ValidationError]:
    """Check `uniqueItems`. jsonschema compares each object with each: that of a megabyte takes hours."""
    elements = cast("list[object]", given) if wanted and isinstance(given, list) else []
    if len(set(map(_hashable, elements))) < len(elements):
        yield _violation("duplicates")


def _violation(words: str) -> jsonschema.ValidationError:
    import jsonschema  # noqa: PLC0415 - as above

    return jsonschema.ValidationError(words)


_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
"""An escaped character, a class of characters, or the `$` at which a pattern ends."""


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    r"""Return a pattern whose `$` is the very end (`\Z`), and `\d` and `\w` are ASCII, as in JSON Schema.

    For Python, `$` is also before a last newline, which payloads could add, and `\w` has letters such as `ä`.
    """
    compiled = re.compile(pattern, re.ASCII)
    if compiled.flags & re.MULTILINE:  # by `(?m)`, where `$` is the end of each line
        return compiled
    return re.compile(_PARTS.sub(lambda part: r"\Z" if part[0] == "$" else part[0], pattern), re.ASCII)


def _is_pattern(given: object) -> bool:
    """Return whether a value is accepted by the format `regex`, which concerns text only.

    Patterns of payloads are not kept, long ones not by `re` either: one of a megabyte takes 15 MB and more.
    """
    try:
        return not isinstance(given, str) or bool(_compiled.__wrapped__(given))
    except (re.error, OverflowError, ValueError, RecursionError):
        return False
    finally:
        if isinstance(given, str) and len(given) > LONG_PATTERN:
            re.purge()


def _pattern(_: Any, pattern: str, given: object, __: object) -> Iterator[jsonschema.ValidationError]:
    if isinstance(given, str) and not _compiled(pattern).search(given):
        yield _violation("no match")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], given: object, _: object
) -> Iterator[jsonschema.ValidationError]:
    members = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    for (pattern, schema), (key, member) in itertools.product(patterns.items(), members.items()):
        if _compiled(pattern).search(key):
            yield from validator.descend(member, schema, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: object, given: object, schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    members = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    additional = _additional(members, schema)
    if isinstance(allowed, dict):
        for key in additional:
            yield from validator.descend(members[key], allowed, path=key)
    elif additional and not allowed:
        yield _violation("unknown keys")


def _additional(given: Iterable[str], schema: Mapping[str, Any]) -> list[str]:
    """Return the keys that neither `properties` nor `patternProperties` of a schema are about."""
    known: Iterable[str] = schema.get("properties", ())
    patterns = [_compiled(pattern) for pattern in schema.get("patternProperties", ())]
    return [key for key in given if key not in known and not any(each.search(key) for each in patterns)]


_violations_left: ContextVar[list[int] | None] = ContextVar("violations left", default=None)
"""How many violations of the outermost alternative are still looked for; at least one of each within it."""


class _FewErrors:
    """A validator that looks for few violations: each takes 3 kB, and a payload can have a million."""

    def __init__(self, validator: Any) -> None:
        self.evolve = validator.evolve
        self._descend = validator.descend

    def descend(self, *args: Any, **options: Any) -> list[jsonschema.ValidationError]:
        left = _violations_left.get() or [MOST_OF_ALTERNATIVE]
        outer = _violations_left.set(left)
        found: list[jsonschema.ValidationError] = []
        try:
            for violation in self._descend(*args, **options):
                found.append(violation)
                left[0] -= 1
                if left[0] <= 0:
                    break
        finally:
            _violations_left.reset(outer)
        return found


def _bounded(keyword: Any, validator: Any, *args: Any) -> Any:
    """Check a keyword with alternatives. jsonschema lists all violations of each alternative."""
    return keyword(_FewErrors(validator), *args)


_known: ContextVar[tuple[set[int], dict[int, list[jsonschema.ValidationError]]]] = ContextVar("known")
"""Where references found no violations, and the violations that they found elsewhere, by the identities of
reference and list or object. Only the first thousand places have their violations: each takes 4 kB."""


def _checked_once(
    keyword: Any, number: int, validator: Any, target: str, given: object, schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    """Check references, but each list and object only once for each reference.

    For each alternative that refers to a schema for a member, jsonschema checks the member once more, and its
    own members four times, then eight times: 1 kB with 25 levels takes hours. Later checks have the first ten
    violations of the first check; fewer if no more were needed then, or one if too many places have some.
    """
    violations: Iterator[jsonschema.ValidationError] = keyword(validator, target, given, schema)
    if type(given) not in {dict, list}:
        return violations
    passed, failed = _known.get()
    place = (id(schema) << 2 | number) << 64 | id(given)  # smaller than a tuple
    if place in passed:
        return iter(())
    if place in failed:
        return map(_copied, failed[place] or [_violation(f"does not match {target}")])
    found: list[jsonschema.ValidationError] = []
    most = MOST_OF_ALTERNATIVE if len(failed) < MOST else 0

    def note(violation: jsonschema.ValidationError) -> jsonschema.ValidationError:
        if len(found) < most:
            found.append(_copied(violation))
        failed[place] = found  # now: no more may be needed
        return violation

    def note_end() -> Iterator[jsonschema.ValidationError]:
        if place not in failed:
            passed.add(place)
        yield from ()

    return itertools.chain(map(note, violations), note_end())  # a generator would be one more nested call


def _copied(error: jsonschema.ValidationError) -> jsonschema.ValidationError:
    """Return a copy, whose path grows separately; without violations of alternatives, which would double."""
    same = {name: getattr(error, name) for name in ("validator", "validator_value", "instance", "schema")}
    return type(error)(error.message, path=error.path, schema_path=error.schema_path, **same)


_KEYWORDS: dict[str, Any] = {
    "additionalProperties": _additional_properties,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "uniqueItems": _unique_items,
}
"""The keywords that jsonschema checks in another way."""


def _hashable(value: object) -> object:
    """Return what is equal for equal values of JSON: those of 1 and 1.0 are, those of 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(each)) for key, each in members_of(cast("object", value)))
    if isinstance(value, list):
        return tuple(_hashable(each) for each in cast("list[object]", value))
    return type(value) is bool, value


def _wrong_schema(
    path: Iterable[str | int], given: object, allowed: str, finding: str = ""
) -> InvalidArgument:
    return InvalidArgument(f"payload_schema at {json_path(*path)}", given, allowed, shortened(finding))


def _check_parts(schema: Mapping[str, Any], kind: Any, registry: Any) -> None:
    """Refuse references without target and unreadable patterns, and log keywords that have no effect."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above
    from referencing.jsonschema import specification_with  # noqa: PLC0415 - as above

    specification = specification_with(str(kind.META_SCHEMA["$schema"]))
    root, paths = specification.create_resource(schema), _paths(schema)
    pending: list[tuple[Any, Any]] = [(registry.resolver_with_root(root), root)]
    seen: set[int] = set()
    without_effect: list[tuple[str, str]] = []
    for resolver, part in pending:  # which grows
        if id(part.contents) in seen:
            continue
        seen.add(id(part.contents))
        keywords: dict[Any, Any] = dict(members_of(part.contents))
        place = paths[id(part.contents)]
        for wrong in itertools.filterfalse(_is_pattern, keywords.get("patternProperties", ())):
            raise _wrong_schema([*place, "patternProperties"], wrong, "a regular expression of Python")
        without_effect += ((json_path(*place, key), why) for key, why in _without_effect(keywords, kind))
        for key in keywords.keys() & _REFERENCES & kind.VALIDATORS.keys():
            target = None
            with suppress(Unresolvable):
                target = resolver.lookup(keywords[key])
            if target is None or not isinstance(cast("object", target.contents), (dict, bool)):
                allowed = "a reference to an existing place in the schema"
                raise _wrong_schema([*place, key], keywords[key], allowed)
            pending.append((target.resolver, specification.create_resource(target.contents)))
        subschemas: list[Any] = [*specification.subresources_of(part.contents)]
        if "dependencies" in kind.VALIDATORS:  # where lists make `subresources_of` fail, or end too soon
            subschemas += dict(members_of(keywords.get("dependencies"))).values()
        resources = [specification.create_resource(each) for each in subschemas if not isinstance(each, list)]
        pending += [(resolver.in_subresource(each), each) for each in resources]
    _log_without_effect(without_effect)


def _log_without_effect(found: list[tuple[str, str]]) -> None:
    for place, why in found[:MOST_LOGGED]:
        log.warning("payload_schema at %s: unknown keyword, which has no effect: %s", place, why)
    if (others := len(found) - MOST_LOGGED) > 0:
        places = counted(others, "further place")
        log.warning("payload_schema: unknown keywords, which have no effect, at %s", places)


_REFERENCES = {"$ref", "$dynamicRef"}
"""The keywords whose targets must exist; of `$recursiveRef`, the only value with an effect is `#`."""


def _without_effect(keys: Iterable[str | int], kind: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of a part of a schema that its author takes for keywords, and why they are not.

    They are not refused: JSON Schema allows any other key, and a key may be the target of references.
    """
    import jsonschema.validators as drafts  # noqa: PLC0415 - as above

    modern = (drafts.Draft201909Validator, drafts.Draft202012Validator)
    validators = (drafts.Draft4Validator, drafts.Draft6Validator, drafts.Draft7Validator, *modern)
    known = {keyword for each in validators for keyword in each.VALIDATORS}
    for key in keys:
        if not isinstance(key, str) or key in kind.VALIDATORS or key.startswith(_EXTENSIONS):
            continue
        if key in known:
            yield key, f"it is not one of {kind.META_SCHEMA['$schema']}"
        elif closest := get_close_matches(key, known, n=1, cutoff=_LIKENESS):
            yield key, f"the closest known one is {closest[0]}"


_EXTENSIONS = ("x-", "ts")
"""Prefixes of keys for other programs, such as `tsType` for generators of TypeScript."""

_LIKENESS = 0.8
"""From this similarity on, a key is a misspelled keyword, such as `oneof`; no keyword of any draft is so
similar to another one that only annotates."""


def _paths(schema: Mapping[str, Any]) -> dict[int, list[str | int]]:
    """Return the path to each part of a schema, by its identity."""
    paths: dict[int, list[str | int]] = {id(schema): []}
    parts: list[object] = [schema]
    for part in parts:  # which grows
        for step, member in members_of(part):
            if id(member) not in paths:
                paths[id(member)] = [*paths[id(part)], step]
                parts.append(member)
    return paths


def _each_once(problems: Iterable[Problem]) -> Iterator[Problem]:
    seen: set[tuple[str, str, str]] = set()
    for problem in problems:
        key = (problem.path, problem.allowed, problem.finding)
        if key not in seen:
            seen.add(key)
            yield problem


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


def _problems_of(error: jsonschema.ValidationError) -> Iterator[Problem]:
    schema, given = cast("Mapping[str, Any]", error.schema), cast("Any", error.instance)
    here = list(error.absolute_path)
    if error.validator == "required":
        for key in schema["required"]:
            if key not in given:
                yield Problem(json_path(*here, key), None, "", "missing")
    elif error.validator == "additionalProperties":
        known: Iterable[str] = [*schema.get("properties", ()), *schema.get("patternProperties", ())]
        finding = shortened(f"unknown key; known keys: {', '.join(known) or 'none'}")
        for key in _additional(given, schema):
            yield Problem(json_path(*here, key), given[key], "", finding)
    else:
        allowed = _allowed(error)
        words = "not allowed" if (error.validator, error.validator_value) == ("not", {}) else error.message
        yield Problem(json_path(*here), given, allowed, "" if allowed else shortened(words))


def _allowed(error: jsonschema.ValidationError) -> str:
    """Return what the schema allows, as a phrase; empty if there is only the message of jsonschema."""
    if error.context:
        return shortened(f"one of the alternatives: {_alternatives(error.context)}")
    words = _ALLOWED.get(str(error.validator), "")
    return words.format(shortened(json.dumps(error.validator_value)))


def _alternatives(errors: Iterable[jsonschema.ValidationError]) -> str:
    """Return the problems of each alternative as text."""
    by_number = itertools.groupby(errors, key=lambda error: [*error.schema_path][:1])  # none for `false`
    return " | ".join(
        "; ".join(
            f"{each.path}: {each.allowed or each.finding}"
            for each in _each_once(itertools.chain.from_iterable(map(_problems_of, group)))
        )
        for _, group in by_number
    )
