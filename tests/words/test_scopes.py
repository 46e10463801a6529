"""Scope expressions: what they need, and who has it."""

from __future__ import annotations

from typing import Any

import pytest

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.scopes import is_satisfied, missing_scopes, render, satisfies, unsatisfied

CREATE: Any = {
    "AllOf": [
        {"for": "scope", "in": "scopes", "each": "<scope>"},
        {"AnyOf": [{"for": "priority", "in": "priorities", "each": "create:<priority>:<queue>"}]},
        {"if": "old", "then": "old:<queue>", "else": {"AnyOf": ["new:<queue>", "newer"]}},
    ]
}
PARAMS: dict[str, Any] = {"scopes": ["a", "b:c"], "priorities": ["high", "low"], "queue": "p/w", "old": False}


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (["*"], None),
        (["a", "b:*", "create:low:p/w", "newer"], None),
        (["a*", "b:c", "create:*", "new:p/*"], None),
        (["a", "create:low:p/w", "newer"], "b:c"),
        (["a", "b:c", "newer"], {"AnyOf": ["create:high:p/w", "create:low:p/w"]}),
        (["a", "b:c", "create:high:p/w"], {"AnyOf": ["new:p/w", "newer"]}),
        (
            [],
            {
                "AllOf": [
                    "a",
                    "b:c",
                    {"AnyOf": ["create:high:p/w", "create:low:p/w"]},
                    {"AnyOf": ["new:p/w", "newer"]},
                ]
            },
        ),
    ],
)
def test_missing_scopes_are_named(held: list[str], missing: Any) -> None:
    assert unsatisfied(render(CREATE, PARAMS), held) == missing


def test_an_alternative_whose_condition_is_false_is_left_out() -> None:
    optional: Any = {"if": "old", "then": {"if": "older", "then": "old:<queue>"}}
    for old in ({"old": False}, {"old": True, "older": False}):
        rendered = render({"AnyOf": ["new:<queue>", optional]}, {**PARAMS, **old})
        assert unsatisfied(rendered, ["other"]) == "new:p/w"
        assert is_satisfied(render(optional, {**PARAMS, **old}), [])


def test_a_condition_for_several_scopes_requires_all_of_them() -> None:
    several: Any = {"if": "own", "then": {"for": "each", "in": "names", "each": "own:<each>"}}
    rendered = render(several, {"own": True, "names": ["a", "b"]})
    assert unsatisfied(rendered, ["own:a"]) == "own:b"


def test_a_parameter_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="queue"):
        render("new:<queue>", {})


@pytest.mark.parametrize("check", [satisfies, is_satisfied, missing_scopes])
def test_one_text_instead_of_a_list_of_scopes_is_refused(check: Any) -> None:
    given: dict[Any, tuple[Any, ...]] = {
        satisfies: ("queue:*", "admin"),
        is_satisfied: ({"AllOf": ["admin"]}, "queue:*"),
        missing_scopes: ("queue:*", ["admin"]),
    }
    with pytest.raises(InvalidArgument, match=r"^held: 'queue:\*' is not valid; expected a list of scopes"):
        check(*given[check])


def test_one_text_instead_of_a_list_of_required_scopes_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^required: 'admin'"):
        missing_scopes(["a*"], "admin")
