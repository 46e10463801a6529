"""Clients and roles, and the expansion of the roles in a set of scopes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from taskqueue_client._arguments import check_kind, check_kinds
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local.times import LATEST, SECOND
from taskqueue_client.scopes import satisfies

CLIENT_ID = re.compile(r"[A-Za-z0-9!@/:.+|_-]+")
_TOKEN = re.compile(r"[\x21-\x7e]+")

ANONYMOUS_SCOPES = (
    "queue:get-artifact:public/*",
    "queue:get-provisioner:*",
    "queue:get-task:*",
    "queue:get-worker-type:*",
    "queue:get-worker:*",
    "queue:list-artifacts:*",
    "queue:list-dependent-tasks:*",
    "queue:list-provisioners",
    "queue:list-task-group:*",
    "queue:list-worker-types:*",
    "queue:list-workers:*",
    "queue:pending-count:*",
    "queue:status:*",
)
"""The scopes of everybody in the standard deployment, with or without credentials."""

PUBLIC_SCOPES = (*ANONYMOUS_SCOPES, "auth:current-scopes", "auth:get-client:*")
"""The scopes of everybody in a public deployment: also those to list one's scopes, and to look up clients."""


def is_scope(value: object) -> bool:
    """Return whether `value` is a str of printable ASCII characters."""
    return isinstance(value, str) and value.isascii() and value.isprintable()


@dataclass(frozen=True, slots=True)
class Client:
    """A client of the local queue.

    Args:
        client_id: The name.
        access_token: The secret that the client signs with.
        scopes: The client's scopes, before roles are expanded.
        expires: When the client expires, in seconds since the epoch; None: never.
        disabled: Whether the client's requests are refused.
    """

    client_id: str
    access_token: str = field(repr=False)
    scopes: Sequence[str] = ()
    expires: float | None = None
    disabled: bool = False


def check_clients(clients: Iterable[Client]) -> dict[str, Client]:
    """Return the clients by their ids; raise a ValueError for a malformed one, and for two with one id."""
    by_id: dict[str, Client] = {}
    for client in clients:
        _check_client(client)
        if client.client_id in by_id:
            raise ValueError(f"there are two clients with the clientId {client.client_id!r}")
        by_id[client.client_id] = client
    return by_id


def _check_client(client: object) -> None:
    if not isinstance(client, Client):
        raise InvalidArgument("clients", type(client), "Client")  # not the value, which may be a secret
    given = {name: getattr(client, name) for name in ("client_id", "expires", "disabled")}
    check_kinds(given, client_id=str, expires=int | float | None, disabled=bool)
    if client.expires is not None and not 0 <= client.expires <= LATEST / SECOND:
        allowed = "a time in the years 1970 to 9999, in seconds since the epoch, or None"
        raise InvalidArgument("expires", client.expires, allowed)
    if not CLIENT_ID.fullmatch(client.client_id):
        raise ValueError(
            f"clientId {client.client_id!r} has characters other than A-Z a-z 0-9 ! @ / : . + | _ -"
        )
    if not _is_token(client.access_token):
        raise ValueError(
            f"the access token of {client.client_id!r} must be printable ASCII without spaces, not empty"
        )
    check_scopes(client.scopes, f"client {client.client_id!r}")


def _is_token(given: object) -> bool:
    return isinstance(given, str) and _TOKEN.fullmatch(given) is not None


def check_scopes(scopes: Iterable[str], owner: str) -> None:
    """Raise a ValueError if one of the owner's scopes is malformed.

    A single string is refused: each of its characters would be a scope, and `*` gives all scopes.
    """
    if isinstance(scopes, str):
        raise ValueError(f"{owner}: scopes {scopes!r} must be a list of scopes")  # noqa: TRY004 - as for all other scopes that are not valid
    check_kind(f"{owner}: scopes", scopes, Collection, "a list of scopes")
    for scope in scopes:
        if not is_scope(scope) or scope.endswith("**"):
            raise ValueError(f"{owner}: scope {scope!r} must be printable ASCII and must not end in `**`")


class Roles:
    """Roles by id, and the expansion of scopes through them.

    An id that ends in `*` stands for all ids with this prefix; `<..>` in its scopes is the rest of the id.

    Raises:
        ValueError: A role's scope is malformed, or some roles make scopes longer and longer.
    """

    def __init__(self, roles: Mapping[str, Sequence[str]]) -> None:
        for role_id, scopes in roles.items():
            check_kind("roles", role_id, str)
            check_scopes(scopes, f"role {role_id!r}")
            if role_id.endswith("*"):
                _check_parameters(scopes, role_id)
        _check_growth(roles)
        self._roles = {role_id: tuple(scopes) for role_id, scopes in roles.items()}
        self._expand = lru_cache(maxsize=1024)(self._expand_uncached)

    def expand(self, scopes: Iterable[str]) -> list[str]:
        """Return the scopes and those of all roles that they assume, less the scopes that others cover."""
        return list(self._expand(tuple(scopes)))

    def _expand_uncached(self, scopes: tuple[str, ...]) -> tuple[str, ...]:
        found = dict.fromkeys(scopes)
        queue = [*scopes]
        while queue:
            for scope in self._given_by(queue.pop()):
                if scope not in found:
                    found[scope] = None
                    queue.append(scope)
        return tuple(normalized(found))

    def _given_by(self, scope: str) -> Iterable[str]:
        """Return the scopes of the roles that one scope assumes, not of the roles that these assume."""
        if not scope.startswith("assume:") and not (scope.endswith("*") and "assume:".startswith(scope[:-1])):
            return
        for role_id, scopes in self._roles.items():
            rest = _rest(scope, role_id)
            if rest is not None:
                yield from (_fill_in(each, rest) for each in scopes) if role_id.endswith("*") else scopes


def _rest(scope: str, role_id: str) -> str | None:
    """Return the text for `<..>` if `scope` assumes the role; None if it does not."""
    role_scope = f"assume:{role_id}"
    if not role_id.endswith("*"):
        return "" if satisfies([scope], role_scope) else None
    prefix = role_scope[:-1]
    if scope.startswith(prefix):
        return scope[len(prefix) :]
    return "*" if scope.endswith("*") and prefix.startswith(scope[:-1]) else None


def _fill_in(scope: str, rest: str) -> str:
    before, parameter, after = scope.partition("<..>")
    if not parameter:
        return scope
    return before + rest if rest.endswith("*") else before + rest + after


def _check_parameters(scopes: Iterable[str], role_id: str) -> None:
    """Raise a ValueError for a scope that the service refuses: before an empty `<..>`, `*` is a wildcard."""
    for scope in scopes:
        if scope.count("<..>") > 1 or scope.endswith("*<..>"):
            raise ValueError(
                f"role {role_id!r}: scope {scope!r} must have at most one `<..>`, and must not end in `*<..>`"
            )


def _check_growth(roles: Mapping[str, Sequence[str]]) -> None:
    """Raise a ValueError if the expansion of a scope might never end, as each scope gives a longer one.

    The service refuses all roles that assume each other in a cycle. Cycles in which no scope grows are
    allowed here: their expansion ends.
    """
    steps = list(_growing_steps({role_id: each for role_id, each in roles.items() if role_id.endswith("*")}))
    longest = dict.fromkeys(roles, 0)
    for _ in longest:  # the longest path without a cycle has fewer steps than there are roles
        before = dict(longest)
        for giver, taker, growth in steps:
            longest[taker] = max(longest[taker], longest[giver] + growth)
        if longest == before:
            return
    if steps:
        raise ValueError("roles with `<..>` form a cycle in which scopes become longer without end")


def _growing_steps(roles: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, str, int]]:
    """Yield a role, a role that `<..>` in its scopes may assume, and how many characters that adds."""
    for giver, scopes in roles.items():
        for scope in scopes:
            before, parameter, after = scope.partition("<..>")
            growth = len(before + after) - len(f"assume:{giver[:-1]}")
            takers = [role_id for role_id in roles if parameter and _rest(f"{before}*", role_id) is not None]
            yield from ((giver, taker, growth) for taker in takers)


def normalized(scopes: Iterable[str]) -> list[str]:
    """Return the scopes in order, without duplicates and without those that another one covers."""
    kept: list[str] = []
    for scope in sorted(set(scopes), key=_widest_first):
        if not (kept and satisfies(kept[-1:], scope)):
            kept.append(scope)
    return kept


def _widest_first(scope: str) -> tuple[str, bool]:
    return (scope[:-1], False) if scope.endswith("*") else (scope, True)
