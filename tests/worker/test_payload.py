"""Payloads against a worker's schema."""

from __future__ import annotations

import inspect
import json
import re
import sys
import tracemalloc
from typing import Any, ClassVar

import pytest
from jsonschema import ValidationError

from taskqueue_client._protocol.schemas import json_path
from taskqueue_client.errors import InvalidArgument, Problem
from taskqueue_client.worker import payload_keywords
from taskqueue_client.worker.outcomes import MalformedPayload, outcome_of
from taskqueue_client.worker.payload import DEEPEST, MOST, PayloadSchema
from taskqueue_client.worker.payload_keywords import MOST_FAILED

BUILD: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "required": ["command", "target"],
    "properties": {
        "command": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        "target": {"enum": ["all", "check"]},
        "max time": {"type": "integer", "minimum": 1, "maximum": 3600},
        "since": {"type": "string", "format": "date-time"},
        "child": {"$ref": "#"},
    },
    "patternProperties": {"^x-": {}},
}


def words(schema: dict[str, Any], payload: object) -> list[str]:
    return [str(each) for each in PayloadSchema(schema).violations(payload)]


def test_a_payload_on_the_schema_has_no_violations() -> None:
    payload = {"command": ["make"], "target": "all", "since": "2026-11-21T09:20:53.649Z", "x-note": None}
    assert words(BUILD, payload) == []


def test_every_violation_is_explained() -> None:
    payload = {"command": ["make", "", 3], "max time": 0, "since": "noon", "colour": "red", "size": 1}
    assert sorted(words(BUILD, payload)) == [
        "$.colour: unknown key; known keys: command, target, max time, since, child, ^x-",
        '$.command[1]: "" is not valid; expected 1 or more characters',
        '$.command[2]: 3 is not valid; expected a value of type "string"',
        '$.since: "noon" is not valid; expected a string in the format "date-time"',
        "$.size: unknown key; known keys: command, target, max time, since, child, ^x-",
        "$.target: missing",
        "$['max time']: 0 is not valid; expected at least 1",
    ]


@pytest.mark.parametrize(
    ("schema", "payload", "explanation"),
    [
        ({"type": ["string", "null"]}, 1, '$: 1 is not valid; expected a value of type ["string", "null"]'),
        ({"const": 1}, 2, "$: 2 is not valid; expected only 1"),
        ({"exclusiveMinimum": 1}, 1, "$: 1 is not valid; expected more than 1"),
        ({"multipleOf": 2}, 3, "$: 3 is not valid; expected a multiple of 2"),
        ({"pattern": "^a"}, "b", '$: "b" is not valid; expected a string that matches the pattern "^a"'),
        ({"uniqueItems": True}, [1, 1], "$: [1, 1] is not valid; expected a list without duplicates"),
        ({"not": {"type": "object"}}, {}, "$: {} should not be valid under {'type': 'object'}"),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            '$: "ab" is not valid; expected at most 1 characters',
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]},
            ["x"],
            (
                '$: ["x"] is not valid; expected one of the alternatives: '
                '$: a value of type "integer" | $[0]: a value of type "integer"'
            ),
        ),
        (
            {"oneOf": [{"minimum": 1}, {"minimum": 2}]},
            3,
            "$: 3 is valid under each of {'minimum': 2}, {'minimum': 1}",
        ),
    ],
)
def test_a_violation_says_in_words_which_values_are_allowed(
    schema: dict[str, Any], payload: object, explanation: str
) -> None:
    assert words(schema, payload) == [explanation]


@pytest.mark.parametrize("zone", ["Z", "z", "", "+00:00", "-23:59", "+23:59", "+0530", "-08"])
def test_a_date_time_may_have_any_offset_of_less_than_a_day(zone: str) -> None:
    assert words({"format": "date-time"}, f"2026-11-21T10:00:00{zone}") == []


@pytest.mark.parametrize("zone", ["+24:00", "+25:00", "-99:00", "+00:60", "-0860", "+24", "+2"])
def test_a_date_time_has_no_offset_that_no_zone_has(zone: str) -> None:
    given = f"2026-11-21T10:00:00{zone}"
    expected = f'$: "{given}" is not valid; expected a string in the format "date-time"'
    assert words({"format": "date-time"}, given) == [expected]


@pytest.mark.parametrize(
    ("schema", "payload", "path"),
    [
        ({"properties": {"a": {"pattern": "^[a-z]+$"}}}, {"a": "x\n"}, "$.a"),
        ({"properties": {"a": {"pattern": "^(x|y$)"}}}, {"a": "y\n"}, "$.a"),
        ({"propertyNames": {"pattern": "^[a-z]+$"}}, {"x\n": 1}, "$"),
        ({"patternProperties": {"^x$": {}}, "additionalProperties": False}, {"x\n": 1}, "$['x\\n']"),
        (
            {"patternProperties": {"^x$": {}}, "additionalProperties": {"type": "null"}},
            {"x\n": 1},
            "$['x\\n']",
        ),
    ],
)
def test_a_pattern_ends_at_the_end_and_not_before_a_last_newline(
    schema: dict[str, Any], payload: dict[str, Any], path: str
) -> None:
    assert [each.path for each in PayloadSchema(schema).violations(payload)] == [path]
    without = json.loads(json.dumps(payload).replace(r"\n", ""))
    assert [each.path for each in PayloadSchema(schema).violations(without)] == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("^[$]$", "$"), (r"^\$$", "$"), (r"^[^\]$]$", "x"), ("^[]$]$", "]"), ("(?m)^x$", "x\ny")],
)
def test_only_the_end_of_a_pattern_is_changed(pattern: str, text: str) -> None:
    assert PayloadSchema({"pattern": pattern}).violations(text) == []


@pytest.mark.parametrize("anything", [True, {}])
def test_other_keys_are_allowed_on_request(anything: object) -> None:
    schema: dict[str, Any] = {"properties": {"a": {}}, "additionalProperties": anything}
    assert PayloadSchema(schema).violations({"a": 1, "other": 2}) == []


def test_keys_that_match_a_pattern_have_its_schema_and_all_others_that_of_additional_ones() -> None:
    schema = PayloadSchema(
        {
            "properties": {"a": {}},
            "patternProperties": {"^x-": {"type": "integer"}, "b$": {"minimum": 2}},
            "additionalProperties": {"type": "string"},
        }
    )
    assert schema.violations({"a": None, "x-a": 1, "x-b": 2, "b": 3, "other": "text"}) == []
    found = schema.violations({"x-a": "1", "x-b": 1, "other": 5})
    assert [each.path for each in found] == ["$['x-a']", "$['x-b']", "$.other"]
    assert schema.violations("not an object") == []


def test_the_draft_is_the_one_that_the_schema_names() -> None:
    tuple_of_two = {"prefixItems": [{"type": "integer"}]}
    assert words(tuple_of_two, ["x"])
    assert not words({"$schema": "http://json-schema.org/draft-07/schema#", **tuple_of_two}, ["x"])


@pytest.mark.parametrize(
    "draft",
    [
        "https://json-schema.org/draft-07/schema#",
        "https://tc.example.com/schemas/common/metaschema.json#",
        "/schemas/common/metaschema.json#",
        "",
        7,
        None,
    ],
)
def test_an_unknown_draft_is_refused_as_its_keywords_might_be_ignored(draft: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        PayloadSchema({"$schema": draft, "dependencies": {"a": ["b"]}})
    allowed = "the URI of draft 4 or a later one, such as http://json-"
    words = f"payload_schema at $['$schema']: {draft!r} is not valid; expected {allowed}"
    assert str(caught.value).startswith(words)


def test_the_empty_fragment_of_a_draft_s_uri_makes_no_difference() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema", "dependencies": {"a": ["b"]}}
    assert words(schema, {"a": 1}) == ["$: 'b' is a dependency of 'a'"]


def test_several_findings_about_one_place_are_all_listed() -> None:
    schema = {"dependentRequired": {"a": ["b", "c"]}}
    assert words(schema, {"a": 1}) == ["$: 'b' is a dependency of 'a'", "$: 'c' is a dependency of 'a'"]


def test_a_key_missing_from_an_alternative_is_reported_once() -> None:
    schema = {"oneOf": [{"required": ["a", "b"]}, {"required": ["c"]}]}
    alternatives = "$.a: missing; $.b: missing | $.c: missing"
    assert words(schema, {}) == [f"$: {{}} is not valid; expected one of the alternatives: {alternatives}"]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "objct"}, "payload_schema at $.type: 'objct' is not one of ['array', 'boolean', "),
        ({"properties": {"a": {"minimum": "x"}}}, "payload_schema at $.properties.a.minimum: 'x'"),
        ({"properties": {"a": {"pattern": "("}}}, "payload_schema at $.properties.a.pattern: '('"),
        ({"anyOf": [{}, {"$ref": "#/no"}]}, "payload_schema at $.anyOf[1]['$ref']: '#/no'"),
        ({"$ref": "http://127.0.0.1:1/"}, "payload_schema at $['$ref']: 'http://127.0.0.1:1/'"),
        ({"items": {"$dynamicRef": "#no"}}, "payload_schema at $.items['$dynamicRef']: '#no'"),
        (
            {"$ref": "#/x-a", "x-a": {"not": {"$ref": "#/no"}}},
            "payload_schema at $['x-a'].not['$ref']: '#/no'",
        ),
        (
            {"items": {"$ref": "#/required"}, "required": []},
            "payload_schema at $.items['$ref']: '#/required'",
        ),
        ({"$ref": "#"}, "payload_schema at $: "),
        (Problem, f"payload_schema at $: {Problem} is not valid; expected a dict with a JSON Schema"),
    ],
)
def test_a_wrong_schema_is_an_error_that_names_the_place(schema: Any, place: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        PayloadSchema(schema)
    assert str(caught.value).startswith(place)


def test_a_schema_may_refer_to_itself_and_to_places_that_no_keyword_is_about() -> None:
    schema = {"x-tree": {"items": {"$ref": "#/x-tree"}, "type": "array"}, "$ref": "#/x-tree"}
    assert words(schema, [[], [3]]) == ['$[1][0]: 3 is not valid; expected a value of type "array"']


@pytest.mark.parametrize(
    ("schema", "place", "why"),
    [
        ({"requierd": ["a"]}, "$.requierd", "the closest known one is required"),
        ({"oneof": [{"type": "object"}]}, "$.oneof", "the closest known one is oneOf"),
        ({"itmes": {"type": "object"}}, "$.itmes", "the closest known one is items"),
        (
            {"anyOf": [{}, {"additionalProperty": False}]},
            "$.anyOf[1].additionalProperty",
            "the closest known one is additionalProperties",
        ),
        (
            {"dependencies": {"a": ["b"]}},
            "$.dependencies",
            "it is not one of https://json-schema.org/draft/2020-12/schema",
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "unevaluatedProperties": False},
            "$.unevaluatedProperties",
            "it is not one of http://json-schema.org/draft-07/schema#",
        ),
    ],
)
def test_a_keyword_that_has_no_effect_is_logged(
    caplog: pytest.LogCaptureFixture, schema: dict[str, Any], place: str, why: str
) -> None:
    PayloadSchema(schema)
    assert caplog.messages == [f"payload_schema at {place}: unknown keyword, which has no effect: {why}"]


def test_only_the_first_of_many_keywords_without_effect_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    PayloadSchema({"properties": {f"p{n}": {"itmes": {}} for n in range(5000)}})
    first = [f"payload_schema at $.properties.p{n}.itmes" for n in range(10)]
    assert [each.partition(": ")[0] for each in caplog.messages[:10]] == first
    assert caplog.messages[10:] == [
        "payload_schema: unknown keywords, which have no effect, at 4990 further places"
    ]


def test_keys_that_annotate_and_keys_of_payloads_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    known = dict.fromkeys(["title", "description", "$comment", "contentMediaType", "contentEncoding"], "")
    others: dict[str, object] = {
        "minContains": 1,
        "nullable": True,
        "example": 1,
        "x-order": 1,
        "x-required": True,
        "tsType": "Date",
        "tsEnumNames": [],
        "readOnly": True,
        "then": {},
    }
    PayloadSchema({**known, **others, "$defs": {"type": {}}, "definitions": {}, "default": {"requierd": 1}})
    PayloadSchema({"properties": {"requierd": {}, "types": {}}, "enum": [{"requierd": 1}]})
    assert caplog.messages == []


def test_the_place_of_each_unknown_keyword_is_found_without_a_search(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Counted(dict[str, Any]):
        read: ClassVar[int] = 0

        def items(self) -> Any:
            Counted.read += 1
            return super().items()

    PayloadSchema({"properties": {str(number): Counted(minlength=1) for number in range(200)}})
    assert caplog.messages[-1].endswith(" at 190 further places")
    assert Counted.read < 200 * 50


@pytest.fixture(name="found")
def _found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the texts of the violations that are found."""
    found: list[str] = []
    make = payload_keywords._violation  # pyright: ignore[reportPrivateUsage]

    def counted(problem: str) -> ValidationError:
        found.append(problem)
        return make(problem)

    monkeypatch.setattr(payload_keywords, "_violation", counted)
    return found


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_large_payload_is_not_checked_to_its_end_for_an_alternative_that_it_does_not_match(
    found: list[str], keyword: str
) -> None:
    """Each violation takes 3 kB: those of a payload of 1 MB would take the memory of other runs."""
    schema = {keyword: [{"type": "integer"}, {"items": {"pattern": "b"}}]}
    (problem,) = words(schema, ["a"] * 10_000)
    assert '$[0]: a string that matches the pattern "b"; $[1]: ' in problem
    assert len(found) <= 100
    assert words(schema, ["b"] * 10_000) == []


def test_few_violations_are_looked_for_in_alternatives_within_alternatives(found: list[str]) -> None:
    schema = {"anyOf": [{"type": "string", "pattern": "b"}, {"items": {"$ref": "#"}, "type": "array"}]}
    (problem,) = words(schema, [[["a"] * 20] * 20] * 20)
    assert "expected one of the alternatives: " in problem
    assert len(found) <= 20
    assert words(schema, [[["b"] * 20] * 20] * 20) == []


SAME = {"$ref": "#"}


def operator(name: str, same: dict[str, Any] = SAME) -> dict[str, Any]:
    """Return a schema that checks `args` by `same` before `op`, by which operators differ."""
    members = {"args": {"items": same, "type": "array"}, "op": {"const": name}}
    return {"properties": members, "required": ["op", "args"]}


def deep(leaf: object) -> object:
    payload = leaf
    for _ in range(12):
        payload = {"op": "or", "args": [payload]}
    return payload


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_alternatives_that_refer_to_one_schema_check_each_member_once(found: list[str], keyword: str) -> None:
    """jsonschema would check the innermost member thousands of times; with some more levels, for hours."""
    leaf = {"properties": {"leaf": {"pattern": "b"}}, "required": ["leaf"]}
    schema = {keyword: [operator("and"), leaf, operator("or")]}
    assert words(schema, deep({"leaf": "b"})) == []
    (problem,) = words(schema, deep({"leaf": "a"}))
    assert "one of the alternatives" in problem
    assert '$.leaf: a string that matches the pattern "b"' in words(schema, {"leaf": "a"})[0]
    assert len(found) == 3  # once for each reference, and once in the last payload


@pytest.mark.parametrize(
    ("root", "same"),
    [
        ({"$dynamicAnchor": "node"}, {"$dynamicRef": "#node"}),
        ({"$dynamicAnchor": "node", "$id": "https://example.com/root"}, {"$dynamicRef": "#node"}),
        (
            {"$recursiveAnchor": True, "$schema": "https://json-schema.org/draft/2019-09/schema"},
            {"$recursiveRef": "#"},
        ),
    ],
)
def test_alternatives_that_refer_dynamically_to_one_schema_check_each_member_once(
    found: list[str], root: dict[str, Any], same: dict[str, Any]
) -> None:
    leaf = {"properties": {"leaf": {"pattern": "b"}}, "required": ["leaf"]}
    schema = {**root, "anyOf": [operator("and", same), leaf, operator("or", same)]}
    assert words(schema, deep({"leaf": "b"})) == []
    (problem,) = words(schema, deep({"leaf": "a"}))
    assert "one of the alternatives" in problem
    assert len(found) == 2  # once for each reference


def test_two_references_at_one_place_are_both_followed() -> None:
    defs = {"list": {"type": "array"}, "short": {"$dynamicAnchor": "short", "maxItems": 1}}
    schema = {"$ref": "#/$defs/list", "$dynamicRef": "#short", "$defs": defs}
    assert words(schema, [1]) == []
    assert words(schema, [1, 2]) == ["$: [1, 2] is not valid; expected at most 1 elements"]
    assert words(schema, {}) == ['$: {} is not valid; expected a value of type "array"']


def test_conditions_that_refer_to_one_schema_check_each_member_once(found: list[str]) -> None:
    members = {"args": {"items": {"$ref": "#"}}, "leaf": {"pattern": "b"}}
    same: dict[str, Any] = {"args": {"items": {"$ref": "#"}}}
    schema = {"properties": members, "if": {"properties": same}, "else": {"properties": same}}
    assert words(schema, deep({"leaf": "b"})) == []
    assert len(words(schema, deep({"leaf": "a"}))) == 1
    assert len(found) <= 3


def test_violations_in_thousands_of_alternatives_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each violation takes 4 kB; a payload of 1 MB can have millions, even if it matches the schema."""
    kept: list[ValidationError] = []

    def copied(error: ValidationError) -> ValidationError:
        kept.append(error)
        return copy(error)

    copy = payload_keywords._copied  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(payload_keywords, "_copied", copied)
    element: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}
    listed = {"items": element}
    schema: dict[str, Any] = {
        "$defs": {"a": {"required": ["a"], "type": "object"}, "list": listed},
        "$ref": "#/$defs/list",
    }
    assert words(schema, [dict[str, int]() for _ in range(MOST_FAILED + 500)]) == []
    assert len(kept) == MOST_FAILED
    schema = {**schema, "allOf": [{"$ref": "#/$defs/list"}]}
    first, again = words(schema, [*(dict[str, int]() for _ in range(MOST_FAILED)), list[int]()])
    assert '$[1000]: a value of type "object" | ' in first
    assert "$[1000]: does not match #/$defs/a | " in again


def test_a_dynamic_reference_is_followed_from_each_way_to_it() -> None:
    """The first check of the list is by `list` alone, which takes any elements."""
    schema = {
        "$defs": {
            "list": {
                "$id": "list",
                "items": {"$ref": "#/$defs/each"},
                "$defs": {"each": {"$dynamicRef": "#element"}, "any": {"$dynamicAnchor": "element"}},
            },
            "numbers": {
                "$id": "numbers",
                "allOf": [{"$ref": "list"}],
                "$defs": {"number": {"$dynamicAnchor": "element", "type": "number"}},
            },
        },
        "allOf": [{"$ref": "list"}, {"$ref": "numbers"}],
        "$id": "https://example.com/root",
    }
    assert words(schema, [1]) == []
    an_element: list[int] = []
    assert len(words(schema, [an_element])) == 1


DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2020-12/schema",
]
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_schema_that_names_its_draft_is_checked_alike_after_a_reference_to_it(draft: str) -> None:
    schema = {"$schema": draft, "properties": {"args": {"items": {"$ref": "#"}}}, "pattern": "^a$"}
    assert words(schema, {"args": ["a", {"args": ["a"]}]}) == []
    (problem,) = words(schema, {"args": ["a\n"]})
    assert problem.startswith("$.args[0]: ")


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_part_that_names_a_draft_is_checked_as_all_others(draft: str) -> None:
    part = {"$schema": draft, "pattern": "^a$"}
    schema = {
        "$schema": DRAFTS[1],
        "definitions": {"a": part},
        "properties": {"a": {"$ref": "#/definitions/a"}},
    }
    assert words(schema, {"a": "a"}) == []
    assert len(words(schema, {"a": "a\n"})) == 1


class CountingKey(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    compared: ClassVar[int] = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountingKey.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("draft", [DRAFT_2019, DRAFTS[2]])
@pytest.mark.parametrize("checked", [{"patternProperties": {"^x": {}}}, {"additionalProperties": True}])
def test_the_keys_of_a_large_object_are_not_compared_with_each_other(
    draft: str, checked: dict[str, Any]
) -> None:
    """jsonschema compares each key with each: an object of 1 MB would block the whole worker for minutes."""
    schema = {"$schema": draft, "allOf": [checked], "unevaluatedProperties": False}
    payload = {CountingKey(f"x{number}"): 1 for number in range(300)}
    CountingKey.compared = 0
    assert words(schema, payload) == []
    assert CountingKey.compared < 10 * len(payload)


@pytest.mark.parametrize("draft", [DRAFT_2019, DRAFTS[2]])
@pytest.mark.parametrize(("pattern", "key"), [("^a$", "a\n"), (r"^\d$", "\u0663")])
def test_a_key_that_only_python_finds_to_match_a_pattern_is_unevaluated(
    draft: str, pattern: str, key: str
) -> None:
    """The value of this key would be checked by nothing."""
    patterns = {"patternProperties": {pattern: {"type": "integer"}}}
    schema = {"$schema": draft, **patterns, "unevaluatedProperties": False}
    assert len(words(schema, {key: "text"})) == 1


LEFT_OVER: list[tuple[dict[str, Any], object, object]] = [
    ({"properties": {"a": {}}}, {"a": 1}, {"b": 1}),
    ({"$ref": "#/$defs/a"}, {"a": 1}, {"b": 1}),
    ({"anyOf": [{"$ref": "#/$defs/a"}, {"required": ["b"]}]}, {"a": 1}, {"a": "x", "b": 1}),
    ({"dependentSchemas": {"a": {"properties": {"a": {}, "b": {}}}}}, {"a": 1, "b": 1}, {"b": 1}),
    ({"if": {"required": ["a"]}, "then": {"$ref": "#/$defs/a"}, "else": True}, {"a": 1}, {"b": 1}),
    ({"if": {"required": ["b"]}, "else": {"$ref": "#/$defs/a"}}, {"a": 1}, {"b": 1}),
    ({"allOf": [{"unevaluatedProperties": {"type": "integer"}}]}, {"b": 1}, {"b": "x"}),
    ({"contains": {"type": "integer"}}, [1, 2], [1, "x"]),
    ({"allOf": [{"contains": {"type": "integer"}}]}, [1], [1, "x"]),
    ({"allOf": [{"items": {}}]}, ["x"], {"b": 1}),
    ({"dependentSchemas": {"a": {"items": {}}}}, [], ["a"]),
    ({"allOf": [{"unevaluatedItems": {"type": "string"}}]}, ["x"], [1]),
]


@pytest.mark.parametrize("draft", [DRAFT_2019, DRAFTS[2]])
@pytest.mark.parametrize(("keywords", "checked", "left_over"), LEFT_OVER)
def test_members_that_no_keyword_has_checked_are_unevaluated(
    draft: str, keywords: dict[str, Any], checked: object, left_over: object
) -> None:
    definitions = {"$defs": {"a": {"properties": {"a": {"type": "integer"}}}}}
    none = {"unevaluatedProperties": False, "unevaluatedItems": False}
    assert words({"$schema": draft, **definitions, **none, **keywords}, checked) == []
    assert words({"$schema": draft, **definitions, **none, **keywords}, left_over) != []


@pytest.mark.parametrize(("draft", "name"), [(DRAFT_2019, "items"), (DRAFTS[2], "prefixItems")])
def test_elements_after_the_first_ones_are_unevaluated_unless_a_schema_allows_them(
    draft: str, name: str
) -> None:
    schema = {"$schema": draft, name: [{"type": "string"}], "unevaluatedItems": {"type": "integer"}}
    assert words(schema, ["x", 1, 2]) == []
    assert words(schema, ["x", 1, "y"]) == ["$: Unevaluated items are not allowed ('y' was unexpected)"]


@pytest.mark.parametrize("draft", [DRAFTS[1], DRAFT_2019, DRAFTS[2]])
@pytest.mark.parametrize("others", [{"additionalItems": False}, {"unevaluatedItems": False}])
def test_all_elements_may_be_allowed_or_none(draft: str, others: dict[str, Any]) -> None:
    schema = {"$schema": draft, **others}
    for payload in ([1], [], 1):
        assert words({**schema, "items": True}, payload) == []
        assert len(words({**schema, "items": False}, payload)) >= (payload == [1])
    assert words({**schema, "items": False}, []) == []
    assert words({"$schema": draft, "enum": [{"items": True}]}, {"items": True}) == []


@pytest.mark.parametrize("key", ["const", "enum", "properties", "items", "a"])
@pytest.mark.parametrize("names", ["properties", "definitions"])
def test_a_name_that_is_also_a_keyword_leads_to_a_part_that_is_checked_as_all_others(
    names: str, key: str
) -> None:
    values = [{"$schema": DRAFTS[1], "items": True}, [1], "a\n"]
    part = {"$schema": DRAFTS[1], "additionalItems": False, "enum": values, "items": True}
    schema: dict[str, Any] = {"$schema": DRAFTS[1], "properties": {key: part}}
    if names == "definitions":
        schema |= {names: {key: part}, "properties": {key: {"$ref": f"#/{names}/{key}"}}}
    assert [words(schema, {key: each}) for each in values] == [[]] * 3
    assert len(words(schema, {key: [2]})) == 1
    part["pattern"] = "^a$"
    assert len(words(schema, {key: "a\n"})) == 1  # jsonschema's own `pattern` takes it


@pytest.mark.parametrize("draft", [*DRAFTS[1:], DRAFT_2019])
def test_a_key_that_a_schema_forbids_is_named(draft: str) -> None:
    part = {"properties": {"const": False, "old": False}, "patternProperties": {"^x": False, "^y": True}}
    schema = {"$schema": draft, "properties": {"a": part}}
    assert words(schema, {"a": {"const": 1, "old": 1, "x1": 1, "y1": 1}}) == [
        "$.a.const: not allowed",
        "$.a.old: not allowed",
        "$.a.x1: not allowed",
    ]


def test_a_note_in_a_schema_has_no_effect_whatever_its_key_says() -> None:
    schema = {"properties": {"old": {"not allowed": True, "type": "string"}}, "not allowed": "after 2027"}
    assert words(schema, {"old": "x"}) == []


@pytest.mark.parametrize(
    "dependencies",
    [{"a": {"$ref": "#/definitions/a"}, "c": ["d"]}, {"c": ["d"], "a": {"$ref": "#/definitions/a"}}],
)
def test_a_schema_may_have_dependencies_on_keys_and_on_schemas(dependencies: dict[str, Any]) -> None:
    schema: dict[str, Any] = {"$schema": DRAFTS[1], "dependencies": dependencies}
    with pytest.raises(InvalidArgument, match=re.escape("payload_schema at $.dependencies.a['$ref']: ")):
        PayloadSchema(schema)
    schema["definitions"] = {"a": {"required": ["b"]}}
    assert words(schema, {"a": 1}) == ["$.b: missing"]
    assert words(schema, {"c": 1}) == ["$: 'd' is a dependency of 'c'"]


def test_a_payload_that_jsonschema_fails_to_check_is_malformed() -> None:
    (problem,) = words({"properties": {"a": {"multipleOf": 0.5}}}, {"a": 10**400})
    assert problem == "$: the payload cannot be checked: OverflowError: int too large to convert to float"


def test_a_lack_of_memory_is_not_blamed_on_the_payload() -> None:
    class Exhausting(dict[str, Any]):
        def __contains__(self, _: object) -> bool:
            raise MemoryError

    with pytest.raises(MemoryError):
        words({"properties": {"a": {}}}, Exhausting())


def test_a_value_may_name_a_draft() -> None:
    value = {"$schema": DRAFTS[1]}
    schema = {"$schema": DRAFTS[1], "properties": {"$schema": {"const": value}}}
    assert words(schema, {"$schema": value}) == []
    assert len(words(schema, {"$schema": {}})) == 1


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_alternatives_may_allow_nothing(keyword: str) -> None:
    assert words({keyword: [False, {"type": "string"}]}, "a") == []
    (problem,) = words({keyword: [False, {"type": "string"}]}, 1)
    assert (
        'one of the alternatives: $: False schema does not allow 1 | $: a value of type "string"' in problem
    )


def test_draft_3_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected the URI of draft 4 or a later one"):
        PayloadSchema({"$schema": "http://json-schema.org/draft-03/schema#"})


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_pattern_of_keys_that_python_cannot_read_is_refused(draft: str) -> None:
    keys: dict[str, Any] = {r"\p{L}": {}}
    schema: dict[str, Any] = {"$schema": draft, "properties": {"a": {"patternProperties": keys}}}
    place = re.escape("payload_schema at $.properties.a.patternProperties: ")
    with pytest.raises(InvalidArgument, match=place):
        PayloadSchema(schema)


@pytest.mark.parametrize(("pattern", "given"), [(r"^[\w.]+$", "ä"), (r"^\d+$", "٣"), (r"^a\b", "aä")])
def test_classes_of_characters_in_a_pattern_are_those_of_json_schema(pattern: str, given: str) -> None:
    """They have only ASCII characters; in Python, they also match `ä` and the Arabic digit 3."""
    is_allowed = pattern.endswith("b")
    assert (words({"pattern": pattern}, given) == []) == is_allowed
    assert (words({"patternProperties": {pattern: False}}, {given: 1}) == []) != is_allowed
    assert words({"pattern": pattern}, "a" if "d" not in pattern else "3") == []


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(?u)a"])
def test_a_pattern_that_python_cannot_read_is_refused(pattern: str) -> None:
    assert words({"format": "regex"}, pattern)[0].endswith('a string in the format "regex"')
    with pytest.raises(InvalidArgument, match=r"payload_schema at \$\.pattern: "):
        PayloadSchema({"pattern": pattern})


@pytest.mark.parametrize(
    ("schema", "text", "size"),
    [
        ({"items": {"format": "regex"}, "pattern": "^a$"}, "ab$" * 1_000, 20_000),  # `re` keeps 55 kB of each
        ({"items": {"format": "date-time"}}, "x" * 100_000, 100_000),
    ],
    ids=["regex", "date-time"],
)
def test_long_texts_of_payloads_are_not_kept_in_memory(schema: dict[str, Any], text: str, size: int) -> None:
    payload_schema = PayloadSchema(schema)

    def kept_after(first: int) -> int:
        payload_schema.violations([f"{number}{text}" for number in range(first, first + 5)])
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = kept_after(0)
        assert kept_after(5) - before < size
    finally:
        tracemalloc.stop()


def test_a_long_text_can_be_a_date() -> None:
    assert words({"format": "date-time"}, f"2026-11-21T10:00:00.{'1' * 100_000}Z") == []


def test_a_pattern_with_too_many_groups_within_groups_is_not_a_pattern() -> None:
    assert words({"items": {"format": "regex"}}, ["(" * 5000])[0].startswith("$[0]: ")


def test_a_schema_of_a_thousand_levels_is_an_error() -> None:
    schema: dict[str, Any] = {}
    for _ in range(1000):
        schema = {"not": schema}
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        PayloadSchema(schema)


def test_a_text_that_only_looks_like_a_reference_is_not_a_reference() -> None:
    assert not words(
        {"default": {"$ref": "#/no"}, "properties": {"$ref": {"type": "string"}}}, {"$ref": "#/no"}
    )


def nested(levels: int) -> Any:
    payload: Any = "x"
    for level in range(levels):
        payload = [payload] if level % 2 else {"child": payload}
    return payload


@pytest.mark.parametrize("levels", [DEEPEST + 1, 1000, 100_000])
def test_a_payload_with_too_many_levels_has_that_one_violation(levels: int) -> None:
    (problem,) = PayloadSchema({}).violations(nested(levels))
    assert str(problem).endswith(f"are nested too deeply; expected at most {DEEPEST} levels")


def test_a_payload_with_as_many_levels_as_may_be_is_checked() -> None:
    child = {"anyOf": [{"type": "string"}, {"$ref": "#"}]}
    schema = {"type": ["object", "array"], "properties": {"child": child}, "items": child}
    assert words(schema, nested(DEEPEST)) == []


def test_a_schema_that_needs_more_calls_than_python_has_is_a_violation_too() -> None:
    child: dict[str, Any] = {"$ref": "#"}
    for _ in range(10):
        child = {"allOf": [child]}
    schema = {"properties": {"child": child}, "items": child}
    assert words(schema, nested(5)) == []
    assert "nested too deeply" in words(schema, nested(DEEPEST))[0]


EXPRESSION: dict[str, Any] = {
    "$defs": {
        "expression": {"oneOf": [{"type": "string"}, {"type": "integer"}, {"$ref": "#/$defs/operation"}]},
        "operation": {"type": "array", "items": {"$ref": "#/$defs/expression"}},
    },
    "$ref": "#/$defs/expression",
}


def lists(levels: int) -> Any:
    payload: Any = "x"
    for _ in range(levels):
        payload = [payload]
    return payload


def test_a_payload_with_as_many_levels_as_may_be_is_checked_by_two_references_for_each() -> None:
    assert words(EXPRESSION, lists(DEEPEST)) == []


def test_wherever_a_check_reaches_pythons_limit_of_calls_it_is_a_violation() -> None:
    """Within rpds, it raises a panic, which is not an `Exception`: the run would not be reported."""
    schema, payload, limit = PayloadSchema(EXPRESSION), lists(10), sys.getrecursionlimit()
    assert schema.violations(payload) == []
    calls = len(inspect.stack(0))
    for more in range(30, 200):
        sys.setrecursionlimit(calls + more)
        try:
            found = schema.violations(payload)
        finally:
            sys.setrecursionlimit(limit)
        assert not found or "nested too deeply" in str(found[0])


def test_millions_of_violations_are_cut_off() -> None:
    payload = {"command": ["make", *[3] * 1_000_000], "target": "all"}
    problems = PayloadSchema(BUILD).violations(payload)
    assert len(problems) == MOST + 1
    assert str(problems[-1]).endswith(f"more than the {MOST} violations listed above")


def test_a_payload_of_ten_megabytes_is_explained_in_few_words() -> None:
    payload = json.loads(json.dumps({"command": "x" * 10_000_000, "target": "all"}))
    (problem,) = PayloadSchema(BUILD).violations(payload)
    assert str(problem).endswith('expected a value of type "array"')
    assert len(str(problem)) < 1000


@pytest.mark.parametrize(
    ("elements", "are_unique"),
    [
        (
            [1, True, 0, False, None, "1", "", [], {}, [1], [[1]], {"a": 1}, {"a": True}, {"b": 1}, [0, 1]],
            True,
        ),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([[True], [True]], False),
        ([None, None], False),
    ],
)
def test_elements_are_compared_as_values_of_json(elements: list[Any], *, are_unique: bool) -> None:
    schema = {"uniqueItems": True, "items": {"uniqueItems": False}}
    assert (words(schema, elements) == []) is are_unique
    assert words({"uniqueItems": False}, elements) == []
    assert words(schema, "no list") == []


def test_not_each_element_is_compared_with_each_other() -> None:
    class Counted(str):
        __slots__ = ()
        compared: ClassVar[int] = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    assert words({"uniqueItems": True}, [{"name": Counted(number)} for number in range(1000)]) == []
    assert Counted.compared < 1000


def test_a_schema_can_be_used_from_many_threads_and_often() -> None:
    schema = PayloadSchema(BUILD)
    assert [len(schema.violations({})) for _ in range(3)] == [2, 2, 2]


def test_a_path_can_be_read() -> None:
    assert json_path("env", "two words", 3) == "$.env['two words'][3]"


MALFORMED: list[tuple[object, str]] = [
    ("public/bär", "$.artifacts['public/bär']: \"public/bär\" is not valid; expected ASCII"),
    ("../x", "$.artifacts['public/bär']: \"../x\" is not valid; expected ASCII"),
    (0, "$.timeout: 0 is not valid; expected ASCII"),
    (["a", "b"], '$.commands[1]: ["a", "b"] is not valid; expected ASCII'),
]
REFUSED: dict[str, Any] = {
    "artifacts": {"public/bär": "../x"},
    "timeout": 0,
    "commands": [[], ["a", "b"]],
    "none": None,
    "yes": True,
}


@pytest.mark.parametrize(("given", "words"), MALFORMED)
def test_a_refused_value_of_the_payload_makes_it_malformed(given: object, words: str) -> None:
    refusal = InvalidArgument("name", given, "ASCII")
    outcome = outcome_of(refusal, REFUSED)
    assert isinstance(outcome, MalformedPayload)
    assert str(outcome) == f"the payload has 1 problem:\n  {words}"
    assert outcome.__cause__ is refusal


@pytest.mark.parametrize("given", ["other", "timeouts", 1, 0.0, True, None, b"../x", [], {"a": 1}, object()])
def test_a_refused_value_of_the_worker_is_an_error_of_the_worker(given: object) -> None:
    payload = {**REFUSED, "commands": [["a"]]}
    refusal = InvalidArgument("name", given, "ASCII")
    assert outcome_of(refusal, payload) is refusal


def test_a_group_of_refused_values_of_the_payload_makes_it_malformed() -> None:
    refused = [InvalidArgument("name", "../x", "ASCII"), InvalidArgument("name", "public/bär", "ASCII")]
    assert isinstance(outcome_of(ExceptionGroup("", refused), REFUSED), MalformedPayload)
    mixed = ExceptionGroup("", [*refused, InvalidArgument("name", "other", "ASCII")])
    assert outcome_of(mixed, REFUSED) is mixed
