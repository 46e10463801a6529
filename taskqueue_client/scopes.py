"""Scopes, and the scope expressions of the Queue's reference.

The rules are those of Taskcluster's scopes documentation: a scope satisfies another if both are equal, or if
it ends in `*` and the other begins with the text before the `*`. A required scope is plain text: a required
`x*` is satisfied by `x*` or by a shorter prefix with `*`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NoReturn

__all__ = [
    "ScopeExpression", "in_words", "is_satisfied", "missing_scopes", "render", "satisfies",
    "unsatisfied",
]  # fmt: skip

ScopeExpression = str | Mapping[str, Any]
"""`"text<param>"`, or a dict: `AllOf`, `AnyOf`, `for`/`in`/`each`, `if`/`then`/`else`."""

_PARAMETER = re.compile(r"<([^>]*)>")


def satisfies(held: Iterable[str], required: str) -> bool:
    """Return whether one of the `held` scopes satisfies the `required` scope.

    Raises:
        InvalidArgument: `held` is a str, whose characters would be the scopes.
    """
    if isinstance(held, str):
        _refuse_text("held", held)
    for scope in held:  # noqa: SIM110 - runs many times in a request, and `any` takes twice as long
        if scope == required or (scope.endswith("*") and required.startswith(scope[:-1])):
            return True
    return False


def missing_scopes(held: Collection[str], required: Iterable[str]) -> list[str]:
    """Return the `required` scopes that no `held` scope satisfies, in their order.

    Raises:
        InvalidArgument: `held` or `required` is a str instead of a list.
    """
    if isinstance(required, str):
        _refuse_text("required", required)
    return [scope for scope in required if not satisfies(held, scope)]


def _refuse_text(argument: str, given: str) -> NoReturn:
    from .errors import InvalidArgument  # noqa: PLC0415 - `errors` imports this module

    raise InvalidArgument(argument, given, "a list of scopes")


def render(expression: ScopeExpression, params: Mapping[str, Any]) -> ScopeExpression:
    """Return an expression with its parameters filled in: only scopes, `AllOf` and `AnyOf` remain.

    Args:
        expression: A scope expression of the Queue's reference.
        params: A value for each parameter: text and numbers for `<param>`, a list for `for … in`,
            a bool for `if`.

    Raises:
        KeyError: A parameter has no value.
    """
    if isinstance(expression, str):
        return _filled_in(expression, params)
    if "if" in expression:
        chosen = _chosen(expression, params)
        return {"AllOf": []} if chosen is None else render(chosen, params)
    if "for" in expression:
        return {"AllOf": [*_each(expression, params)]}
    (kind, parts) = next(iter(expression.items()))
    return {kind: [rendered for part in parts for rendered in _in_list(part, params)]}


def _filled_in(scope: str, params: Mapping[str, Any]) -> str:
    texts = _texts_and_names(scope)
    return "".join([str(params[each]) if at % 2 else each for at, each in enumerate(texts)])


@lru_cache(maxsize=256)  # more than the reference has
def _texts_and_names(scope: str) -> list[str]:
    """Split a scope at its parameters: every other part is the name of a parameter."""
    return _PARAMETER.split(scope)


def _in_list(part: ScopeExpression, params: Mapping[str, Any]) -> list[ScopeExpression]:
    """Return what `part` is rendered to in an AllOf or AnyOf.

    A `for` gives one scope per element, and an `if` without a branch for its condition gives nothing.
    """
    if isinstance(part, Mapping) and "for" in part:
        return [*_each(part, params)]
    if isinstance(part, Mapping) and "if" in part:
        chosen = _chosen(part, params)
        return [] if chosen is None else _in_list(chosen, params)
    return [render(part, params)]


def _chosen(choice: Mapping[str, Any], params: Mapping[str, Any]) -> ScopeExpression | None:
    return choice["then"] if params[choice["if"]] else choice.get("else")


def _each(loop: Mapping[str, Any], params: Mapping[str, Any]) -> Iterator[str]:
    return (_filled_in(loop["each"], {**params, loop["for"]: value}) for value in params[loop["in"]])


def is_satisfied(expression: ScopeExpression, held: Collection[str]) -> bool:
    """Return whether the `held` scopes satisfy a rendered expression."""
    if isinstance(expression, str):
        return satisfies(held, expression)
    if "AllOf" in expression:
        return all(is_satisfied(part, held) for part in expression["AllOf"])
    return any(is_satisfied(part, held) for part in expression["AnyOf"])


def unsatisfied(expression: ScopeExpression, held: Collection[str]) -> ScopeExpression | None:
    """Return the part of a rendered expression that the `held` scopes do not satisfy, or None.

    Alternatives of an `AnyOf` stay alternatives, and a list with one entry becomes that entry.
    """
    if is_satisfied(expression, held):
        return None
    if isinstance(expression, str):
        return expression
    kind = "AllOf" if "AllOf" in expression else "AnyOf"
    parts = [part for part in (unsatisfied(each, held) for each in expression[kind]) if part is not None]
    return parts[0] if len(parts) == 1 else {kind: parts}


def leaves(expression: ScopeExpression) -> Iterator[str]:
    """Yield the scopes in a rendered expression."""
    if isinstance(expression, str):
        yield expression
    else:
        for parts in expression.values():
            yield from (leaf for part in parts for leaf in leaves(part))


def in_words(expression: ScopeExpression) -> str:
    """Return a rendered expression as text: `a and one of: b, c`."""
    if isinstance(expression, str):
        return expression
    kind, parts = next(iter(expression.items()))
    if kind == "AllOf":
        return " and ".join(in_words(part) for part in parts)
    return "one of: " + ", ".join(f"({text})" if " " in text else text for text in map(in_words, parts))
