"""Answers of the auth service."""

from __future__ import annotations

from ._base import Model


class ScopeSet(Model, frozen=True):
    """The scopes that the credentials have, roles expanded."""

    scopes: list[str]


class Authentication(Model, frozen=True, kw_only=True):
    """Whom the auth service takes the caller for."""

    client_id: str
    scopes: list[str]
