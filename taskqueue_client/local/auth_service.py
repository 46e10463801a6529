"""The auth service, as far as clients need it: who am I, what may I do, is this signature good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskqueue_client.local.answers import iso
from taskqueue_client.local.authentication.clients import Client, normalized
from taskqueue_client.local.authentication.headers import AuthenticationError
from taskqueue_client.local.authentication.validator import SignatureValidator, SignedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskqueue_client.local.authentication.caller import RequestCaller

_TESTER = ("tester", "no-secret")
"""The client and access token that the service documents for trying out a signer."""

_TESTER_GET_NEEDS = ("test:authenticate-get",)


class AuthService:
    """Answers the endpoints of the auth service; each method is named after its endpoint.

    Args:
        validator: Judges the signatures of real clients.
    """

    def __init__(self, validator: SignatureValidator) -> None:
        self._validator = validator

    def test_authenticate(self, caller: RequestCaller, body: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a request signed as `tester` carries the `requiredScopes`."""
        caller.require(requiredScopes=body["requiredScopes"])
        return {"clientId": caller.client_id, "scopes": caller.scopes}

    def test_authenticate_get(self, caller: RequestCaller) -> dict[str, Any]:
        """The same for a GET, which can be a signed URL."""
        return self.test_authenticate(caller, {"requiredScopes": _TESTER_GET_NEEDS})

    def current_scopes(self, caller: RequestCaller) -> dict[str, Any]:
        """What the caller may do."""
        return {"scopes": caller.scopes}

    def authenticate_hawk(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a request that somebody else received is signed well, and by whom."""
        request = SignedRequest(
            body["method"], body["resource"], body["host"], body["port"], body.get("authorization")
        )
        try:
            identity = self._validator.authenticate(request)
        except AuthenticationError as error:
            return {"status": "auth-failed", "message": str(error)}
        expires = iso(int(1000 * identity.expires))
        if identity.client_id is None:
            return {"status": "no-auth", "scheme": "none", "scopes": identity.scopes, "expires": expires}
        signed_hash = {} if identity.payload_hash is None else {"hash": identity.payload_hash}
        return {
            "status": "auth-success",
            "scheme": "hawk",
            "expires": expires,
            "scopes": identity.scopes,
            "clientId": identity.client_id,
            **signed_hash,
        }


TESTER_GET_SCOPES = ("test:*", "auth:create-client:test:*")
"""What the tester may do in a GET, which cannot say what it would like."""


def tester_validator(scopes: Sequence[str], now: Callable[[], float]) -> SignatureValidator:
    """A validator that knows only the client `tester`, with some scopes.

    Roles are not expanded: `assume:anonymous` shows up as itself.
    """
    tester = Client(*_TESTER, scopes=scopes)

    def find_client(client_id: str) -> Client | None:
        return tester if client_id == tester.client_id else None

    def expand(scopes: Sequence[str]) -> list[str]:
        return normalized(scopes)

    return SignatureValidator(find_client, expand, now)
