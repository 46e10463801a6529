"""The caller of one request: authenticated when first asked about, and held against scope expressions."""

from __future__ import annotations

import hmac
import json
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

from mohawk.util import parse_content_type

from taskqueue_client.local.authentication.headers import AuthenticationError
from taskqueue_client.local.refuse import refuse
from taskqueue_client.scopes import ScopeExpression, holds, render, unsatisfied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskqueue_client.local.authentication.validator import Identity


class RequestCaller:
    """Whoever sent a request. Credentials are looked at when something is first asked about them.

    Args:
        identify: Says who it is.
        expression: The endpoint's scope expression.
        params: The request's URL parameters.
    """

    def __init__(
        self, identify: Callable[[], Identity], expression: ScopeExpression | None, params: Mapping[str, str]
    ) -> None:
        self._identify = identify
        self._expression = expression
        self._params = params
        self._known: Identity | None = None

    @property
    def client_id(self) -> str:
        """The caller's client id.

        Raises:
            Refusal: The credentials are not good.
        """
        return self._identity().client_id or "auth-failed:no-auth"

    @property
    def scopes(self) -> Sequence[str]:
        """All scopes the caller has, expanded.

        Raises:
            Refusal: The credentials are not good.
        """
        return self._identity().scopes

    def require(self, **params: object) -> None:
        """Go on only if the endpoint's scope expression holds for the URL's and these parameters.

        Raises:
            Refusal: The credentials are not good, or not enough.
        """
        identity = self._identity()
        if self._expression is None:
            return
        values = {**self._params, **params}
        if holds(self._expression, values, identity.scopes):
            return
        expression = render(self._expression, values)
        missing = unsatisfied(expression, identity.scopes)
        if missing is not None:
            refuse("InsufficientScopes", _explain(identity.client_id, missing, expression))

    def _identity(self) -> Identity:
        if self._known is None:
            try:
                self._known = self._identify()
            except AuthenticationError as error:
                refuse("AuthenticationFailed", str(error))
        return self._known


def _explain(client_id: str | None, missing: ScopeExpression, needed: ScopeExpression) -> str:
    if client_id is None:
        return (
            "This request requires Taskcluster credentials that satisfy the following scope expression:"
            f"\n\n{_block(needed)}"
        )
    return (
        f"Client ID {client_id} does not have sufficient scopes and is missing the following scopes:"
        f"\n\n{_block(missing)}"
        f"\n\nThis request requires the client to satisfy the following scope expression:\n\n{_block(needed)}"
    )


def _block(expression: ScopeExpression) -> str:
    text = expression if isinstance(expression, str) else json.dumps(expression, indent=2, ensure_ascii=False)
    return f"```\n{text}\n```"


def check_payload_hash(identity: Identity, body: bytes, content_type: str | None) -> None:
    """Hold the body against the hash that the caller signed, if there is one.

    Raises:
        AuthenticationError: They differ.
    """
    if identity.payload_hash is None:
        return
    kind = parse_content_type(content_type or "").encode(errors="replace")
    ours = b64encode(sha256(b"hawk.1.payload\n%b\n%b\n" % (kind, body)).digest())
    if not hmac.compare_digest(ours, identity.payload_hash.encode(errors="replace")):
        message = (
            "Invalid payload hash: {{hash}}\n"
            f"Computed payload hash: {ours.decode()}\n"
            "The body that arrived is not the one whose hash the request's signature covers."
        )
        raise AuthenticationError(message)
