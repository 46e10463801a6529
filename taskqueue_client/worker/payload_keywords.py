"""The keywords and formats of JSON Schema that the check of payloads does not leave to jsonschema.

A payload may be the work of a stranger, of up to a megabyte. For some payloads, jsonschema's `uniqueItems`,
`unevaluatedProperties`, `unevaluatedItems`, `anyOf`, `oneOf` and references take hours or gigabytes. Its
regular expressions are Python's, which differ from those of JSON Schema.

jsonschema calls a keyword with the validator, the keyword's value, the value to check, and the part of the
schema that has the keyword. The keyword yields violations.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from taskqueue_client._dates import is_date_time
from taskqueue_client._protocol.schemas import members_of

if TYPE_CHECKING:
    from jsonschema import FormatChecker, ValidationError

MOST_OF_ALTERNATIVE = 10
"""How many violations are looked for in each alternative of `anyOf` and `oneOf`, nested alternatives
included; few are shown."""

MOST_FAILED = 1000
"""How many places with violations that a reference has found are remembered: each takes 4 kB."""

LONGEST_PATTERN = 1000
"""Characters of a regular expression of a payload above which the cache of `re`, of hundreds, is cleared."""

REFERENCES = {"$ref", "$dynamicRef"}
"""The keywords whose targets must exist; of `$recursiveRef`, the only value with an effect is `#`."""

_FORMATS = ("date", "email", "ipv4", "ipv6", "uuid")
"""The formats that are left to jsonschema: those that need no packages that may be missing."""

_WITH_NAMES = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
"""The keywords whose values are objects with names as keys, which may be the names of keywords, too."""


def make_validator(schema: Mapping[str, Any], draft: Any) -> Any:
    """Return a validator of a draft, with this module's keywords and formats, for a schema that is valid."""
    import jsonschema.validators  # noqa: PLC0415 - slow to import
    from referencing.jsonschema import EMPTY_REGISTRY  # noqa: PLC0415 - as above

    keywords = _KEYWORDS | {name: partial(_bounded, draft.VALIDATORS[name]) for name in ("anyOf", "oneOf")}
    for name in _UNEVALUATED.keys() & draft.VALIDATORS.keys():
        keywords[name] = partial(_UNEVALUATED[name], draft.VALIDATORS[name])
    if _has_fixed_targets(schema):
        for number, name in enumerate((REFERENCES | {"$recursiveRef"}) & draft.VALIDATORS.keys()):
            keywords[name] = partial(_checked_once, draft.VALIDATORS[name], number)
    extend: Any = jsonschema.validators.extend  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    kind = extend(draft, keywords)
    return kind(_prepared(schema, draft), format_checker=format_checker(), registry=EMPTY_REGISTRY)


def _has_fixed_targets(schema: Mapping[str, Any]) -> bool:
    """Return whether each reference always has the same target.

    A dynamic reference can have several if parts of the schema are resources, too: those with an `$id`.
    """
    text = json.dumps(schema, default=str, skipkeys=True)
    resources = text.count('"$id"') + ("$id" not in schema)
    return resources == 1 or not re.search(r'"\$(dynamic|recursive)Ref"', text)


def _prepared(part: Any, draft: Any, keyword: str | None = "") -> Any:
    """Return a copy of a schema, or of a keyword's value, for which our keywords are called everywhere.

    It has no `$schema`, where jsonschema would go on with its own keywords instead of ours. Some booleans
    become objects: those of named members, for which jsonschema would name no keyword, and those of `items`,
    for which it fails in older drafts. `keyword` is None for a named member.
    """
    is_list_of_older_draft = keyword == "items" and "additionalItems" in draft.VALIDATORS
    if isinstance(part, bool) and (keyword is None or is_list_of_older_draft):
        return {} if part else {"not": {}}
    if not isinstance(part, dict):
        elements = cast("list[object]", part)
        return [_prepared(each, draft) for each in elements] if isinstance(part, list) else part
    has_names = keyword in _WITH_NAMES
    values = () if has_names else ("const", "enum")
    return {
        name: member if name in values else _prepared(member, draft, None if has_names else name)
        for name, member in cast("dict[str, object]", part).items()
        if name != "$schema" or not isinstance(member, str)
    }


def _violation(words: str) -> ValidationError:
    import jsonschema  # noqa: PLC0415 - slow to import

    return jsonschema.ValidationError(words)


# Formats


def format_checker() -> FormatChecker:
    """Return the formats that are checked."""
    import jsonschema  # noqa: PLC0415 - slow to import

    checker = jsonschema.FormatChecker(formats=_FORMATS)
    checker.checks("date-time")(_is_of_format_date_time)
    checker.checks("regex")(is_of_format_regex)
    return checker


_NO_ZONE = re.compile(r"[+-]((2[4-9]|[3-9][0-9])(:?[0-9]{2})?|[0-9]{2}:?[6-9][0-9])$")
"""An offset that no zone can have, such as `+25:00`: RFC 3339 forbids it, and the Queue accepts it."""


def _is_of_format_date_time(given: object) -> bool:
    """Return whether `date-time` accepts a value: any that is not text, and dates that the Queue accepts.

    Unlike RFC 3339, the Queue also accepts dates without a zone.
    """
    return not isinstance(given, str) or (is_date_time(given) and not _NO_ZONE.search(given))


def is_of_format_regex(given: object) -> bool:
    """Return whether `regex` accepts a value: any that is not text, and patterns that `pattern` can use.

    Patterns of payloads are not cached, long ones not by `re` either: one of a megabyte takes 15 MB and more.
    """
    try:
        return not isinstance(given, str) or bool(_compiled.__wrapped__(given))
    except (re.error, OverflowError, ValueError, RecursionError):
        return False
    finally:
        if isinstance(given, str) and len(given) > LONGEST_PATTERN:
            re.purge()


# Regular expressions

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
"""An escaped character, a class of characters, or the `$` at which a pattern ends."""


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    r"""Return a pattern whose `$` matches only the very end, and `\d` and `\w` only ASCII, as in JSON Schema.

    In Python, `$` also matches before a last newline, which payloads could add, and `\w` matches `ä`.
    """
    compiled = re.compile(pattern, re.ASCII)
    if compiled.flags & re.MULTILINE:  # by `(?m)`, where `$` is the end of each line
        return compiled
    return re.compile(_PARTS.sub(lambda part: r"\Z" if part[0] == "$" else part[0], pattern), re.ASCII)


def _pattern(_: Any, pattern: str, given: object, __: object) -> Iterator[ValidationError]:
    """Check `pattern`. Like the next two keywords, it uses regular expressions as in JSON Schema."""
    if isinstance(given, str) and not _compiled(pattern).search(given):
        yield _violation("no match")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], given: object, _: object
) -> Iterator[ValidationError]:
    """Check `patternProperties`: the values of keys that match a pattern."""
    members = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    for (pattern, schema), (key, member) in itertools.product(patterns.items(), members.items()):
        if _compiled(pattern).search(key):
            yield from validator.descend(member, schema, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: object, given: object, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Check `additionalProperties`. One violation stands for all keys: see `additional_keys`."""
    members = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    additional = additional_keys(members, schema)
    if isinstance(allowed, dict):
        for key in additional:
            yield from validator.descend(members[key], allowed, path=key)
    elif additional and not allowed:
        yield _violation("unknown keys")


def additional_keys(given: Iterable[str], schema: Mapping[str, Any]) -> list[str]:
    """Return the keys that match neither `properties` nor `patternProperties` of a schema."""
    known: Iterable[str] = schema.get("properties", ())
    patterns = [_compiled(pattern) for pattern in schema.get("patternProperties", ())]
    return [key for key in given if key not in known and not any(each.search(key) for each in patterns)]


# Duplicates


def _unique_items(_: Any, wanted: object, given: object, __: object) -> Iterator[ValidationError]:
    """Check `uniqueItems`. jsonschema compares each object with each: a list of a megabyte takes hours."""
    elements = cast("list[object]", given) if wanted and isinstance(given, list) else []
    if len(set(map(_hashable, elements))) < len(elements):
        yield _violation("duplicates")


def _hashable(value: object) -> object:
    """Return a form that is equal for values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(each)) for key, each in members_of(cast("object", value)))
    if isinstance(value, list):
        return tuple(_hashable(each) for each in cast("list[object]", value))
    return type(value) is bool, value


# Unevaluated members


def _unevaluated_properties(
    keyword: Any, validator: Any, allowed: object, given: object, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Check `unevaluatedProperties`.

    jsonschema looks up each key in a list of the evaluated ones: an object of a megabyte takes minutes. Its
    list has the keys that match a pattern by the rules of Python, and nothing would check their values.
    """
    if not isinstance(given, dict):
        return iter(())
    members = cast("dict[str, object]", given)
    evaluated = _evaluated_keys(validator, members, schema)
    left = {key: member for key, member in members.items() if key not in evaluated}
    violations: Iterator[ValidationError] = keyword(validator, allowed, left, {})  # none of them is evaluated
    return violations


def _unevaluated_items(
    keyword: Any, validator: Any, allowed: object, given: object, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Check `unevaluatedItems`, for which jsonschema looks up each index in a list, too."""
    if not isinstance(given, list):
        return iter(())
    elements = cast("list[object]", given)
    evaluated, is_allowed = _evaluated_indexes(validator, elements, schema), validator.evolve(schema=allowed)
    left = [each for index, each in enumerate(elements) if index not in evaluated]
    left = [each for each in left if not is_allowed.is_valid(each)]
    violations: Iterator[ValidationError] = keyword(validator, allowed, left, {})
    return violations


def _evaluated_keys(validator: Any, given: Mapping[str, object], schema: Mapping[str, Any]) -> set[str]:
    """Return the keys that keywords of a schema other than `unevaluatedProperties` check."""
    if "additionalProperties" in schema:
        return {*given}
    evaluated = given.keys() - additional_keys(given, schema)
    for inner, part in _in_place(validator, given, schema):
        evaluated |= {*given} if "unevaluatedProperties" in part else _evaluated_keys(inner, given, part)
    return evaluated


def _evaluated_indexes(validator: Any, given: list[object], schema: Mapping[str, Any]) -> set[int]:
    """Return the indexes of the elements that keywords of a schema other than `unevaluatedItems` check."""
    items: object = schema.get("items")
    first: object = schema.get("prefixItems") if "prefixItems" in validator.VALIDATORS else items
    if isinstance(items, (dict, bool)) or (isinstance(items, list) and "additionalItems" in schema):
        return {*range(len(given))}
    evaluated = {*range(len(cast("list[object]", first)) if isinstance(first, list) else 0)}
    if "contains" in schema:
        contained = validator.evolve(schema=schema["contains"])
        evaluated |= {index for index, each in enumerate(given) if contained.is_valid(each)}
    for inner, part in _in_place(validator, given, schema):
        everything = "unevaluatedItems" in part
        evaluated |= {*range(len(given))} if everything else _evaluated_indexes(inner, given, part)
    return evaluated


def _in_place(
    validator: Any, given: Collection[object], schema: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a schema that check `given` itself and match it, each with a validator for it."""
    from referencing.jsonschema import lookup_recursive_ref  # noqa: PLC0415 - slow to import

    for name in sorted((REFERENCES | {"$recursiveRef"}) & schema.keys() & validator.VALIDATORS.keys()):
        resolver = validator._resolver  # noqa: SLF001 - no public attribute knows the base of references
        is_recursive = name == "$recursiveRef"
        target: Any = lookup_recursive_ref(resolver) if is_recursive else resolver.lookup(schema[name])
        if not isinstance(target.contents, bool):
            yield validator.evolve(schema=target.contents, _resolver=target.resolver), target.contents
    parts = [each for name in ("allOf", "anyOf", "oneOf") for each in schema.get(name, ())]
    if isinstance(given, dict):
        parts += [part for key, part in schema.get("dependentSchemas", {}).items() if key in given]
    if "if" in schema:
        is_met = validator.evolve(schema=schema["if"]).is_valid(given)
        parts += [schema["if"], schema.get("then")] if is_met else [schema.get("else")]
    for part in parts:
        if isinstance(part, dict) and (inner := validator.evolve(schema=part)).is_valid(given):
            yield inner, part


_UNEVALUATED = {"unevaluatedItems": _unevaluated_items, "unevaluatedProperties": _unevaluated_properties}
"""The keywords that check what other keywords have not checked. The drafts have different ones."""


# Alternatives

_violations_left: ContextVar[list[int] | None] = ContextVar("violations left", default=None)
"""How many more violations of the outermost alternative to look for; nested ones have at least one each."""


class _FewErrors:
    """A validator that looks for few violations: each takes 3 kB, and a payload can have a million."""

    def __init__(self, validator: Any) -> None:
        self.evolve = validator.evolve
        self._descend = validator.descend

    def descend(self, *args: Any, **options: Any) -> list[ValidationError]:
        left = _violations_left.get() or [MOST_OF_ALTERNATIVE]
        outer = _violations_left.set(left)
        found: list[ValidationError] = []
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
    """Check a keyword with alternatives: alone, jsonschema would list all violations of each alternative."""
    return keyword(_FewErrors(validator), *args)


# References


class _Checked(NamedTuple):
    """What references have found in a payload. A place is a reference with a list or object that it checks.

    Attributes:
        passed: The places without violations.
        failed: The first violations of each other place; beyond `MOST_FAILED` places, an empty list.
    """

    passed: set[int]
    failed: dict[int, list[ValidationError]]


_checked: ContextVar[_Checked] = ContextVar("checked")


@contextmanager
def following_references_once() -> Generator[None]:
    """Check one payload in this context: references of `make_validator` remember what they find in it."""
    token = _checked.set(_Checked(set(), {}))
    try:
        yield
    finally:
        _checked.reset(token)


def _checked_once(
    keyword: Any, number: int, validator: Any, target: str, given: object, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Check references, but each list and object only once for each reference.

    If two alternatives refer to the same schema for a member, jsonschema checks the member twice, its own
    members four times, then eight times: 1 kB with 25 levels takes hours. A later check yields the violations
    of the first check: at most ten, and not more than were needed then; or one if too many places have some.

    `number` distinguishes the keywords for references: a part of a schema may have several of them.
    """
    violations: Iterator[ValidationError] = keyword(validator, target, given, schema)
    if type(given) not in {dict, list}:
        return violations
    passed, failed = _checked.get()
    place = (id(schema) << 2 | number) << 64 | id(given)  # smaller than a tuple
    if place in passed:
        return iter(())
    if place in failed:
        return map(_copied, failed[place] or [_violation(f"does not match {target}")])
    found: list[ValidationError] = []
    most = MOST_OF_ALTERNATIVE if len(failed) < MOST_FAILED else 0

    def note(violation: ValidationError) -> ValidationError:
        if len(found) < most:
            found.append(_copied(violation))
        failed[place] = found  # at each violation: the caller may need no more
        return violation

    def note_end() -> Iterator[ValidationError]:
        if place not in failed:
            passed.add(place)
        yield from ()

    return itertools.chain(map(note, violations), note_end())  # a generator would be one more nested call


def _copied(error: ValidationError) -> ValidationError:
    """Return a copy of a violation: jsonschema extends the path of each one that it passes on.

    The copy lacks the violations of nested alternatives.
    """
    same = {name: getattr(error, name) for name in ("validator", "validator_value", "instance", "schema")}
    return type(error)(error.message, path=error.path, schema_path=error.schema_path, **same)


_KEYWORDS: dict[str, Any] = {
    "additionalProperties": _additional_properties,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "uniqueItems": _unique_items,
}
"""The keywords that replace those of jsonschema in every schema."""
