"""Scope expressions: what they need, and who has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.scopes import holds, is_satisfied, missing_scopes, render, satisfies, unsatisfied

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
    assert holds(CREATE, PARAMS, held) == (missing is None)
    assert unsatisfied(render(CREATE, PARAMS), held) == missing


def test_a_parameter_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="queue"):
        holds("new:<queue>", {}, ["*"])


SCOPES = st.sampled_from(["a", "b", "a:b", "<x>", "a:<x>", "<x>:<y>"])
LOOPS = st.sampled_from(["a:<each>", "<each>", "<x>:<each>"]).map(
    lambda scope: {"for": "each", "in": "all", "each": scope}
)


def lists_of(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def grouped(kind: str, of: list[Any]) -> dict[str, Any]:
        return {kind: of}

    return st.builds(grouped, st.sampled_from(["AllOf", "AnyOf"]), st.lists(parts, max_size=3))


def conditions_of(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def chosen(then: Any, otherwise: Any) -> dict[str, Any]:
        return {"if": "flag", "then": then} | ({"else": otherwise} if otherwise else {})

    return st.builds(chosen, parts, st.none() | parts)


EXPRESSIONS: st.SearchStrategy[Any] = st.recursive(
    SCOPES | LOOPS, lambda parts: lists_of(parts) | conditions_of(parts), max_leaves=6
)


@given(
    EXPRESSIONS,
    st.fixed_dictionaries(
        {
            "x": st.sampled_from(["a", "b", 1]),
            "y": st.just("b"),
            "all": st.lists(st.sampled_from("ab"), max_size=2),
            "flag": st.booleans(),
        }
    ),
    st.lists(st.sampled_from(["a", "b", "a:b", "a*", "1:b", "*"]), max_size=3),
)
def test_an_expression_holds_if_its_rendered_form_is_satisfied(
    expression: Any, params: dict[str, Any], held: list[str]
) -> None:
    assert holds(expression, params, held) == is_satisfied(render(expression, params), held)


@pytest.mark.parametrize("check", [satisfies, is_satisfied, holds, missing_scopes])
def test_one_text_instead_of_a_list_of_scopes_is_refused(check: Any) -> None:
    given: dict[Any, tuple[Any, ...]] = {
        satisfies: ("queue:*", "admin"),
        is_satisfied: ({"AllOf": ["admin"]}, "queue:*"),
        holds: ("admin", {}, "queue:*"),
        missing_scopes: ("queue:*", ["admin"]),
    }
    with pytest.raises(InvalidArgument, match=r"^held: 'queue:\*' is not valid; expected a list of scopes"):
        check(*given[check])


def test_one_text_instead_of_a_list_of_required_scopes_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^required: 'admin'"):
        missing_scopes(["a*"], "admin")
