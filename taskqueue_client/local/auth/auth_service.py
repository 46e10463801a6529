"""The auth service, as far as clients need it: lookup of clients, current scopes, checks of signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskqueue_client.local.refusal import refuse
from taskqueue_client.local.times import text as iso

from .known_clients import Client
from .presented_credentials import AuthenticationError
from .validator import ANONYMOUS, NEVER, SignatureValidator, SignedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .validator import RequestCaller

_TESTER = ("tester", "no-secret")
"""The client and access token that the service documents for trying out a signer."""

_TESTER_GET_NEEDS = ("test:authenticate-get",)


class AuthService:
    """The endpoints of the auth service; each method is named after its endpoint."""

    def __init__(
        self,
        validator: SignatureValidator,
        clients: Mapping[str, Client],
        expand: Callable[[Sequence[str]], list[str]],
    ) -> None:
        self._validator = validator
        self._clients = clients
        self._expand = expand

    def test_authenticate(self, caller: RequestCaller, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether a request signed as `tester` carries the `requiredScopes`."""
        caller.require(requiredScopes=body["requiredScopes"])
        return {"clientId": caller.client_id, "scopes": caller.scopes}

    def test_authenticate_get(self, caller: RequestCaller) -> dict[str, Any]:
        """Return the same for a GET, which can be a signed URL."""
        return self.test_authenticate(caller, {"requiredScopes": _TESTER_GET_NEEDS})

    def current_scopes(self, caller: RequestCaller) -> dict[str, Any]:
        """Return what the caller may do."""
        return {"scopes": caller.scopes}

    def client(self, client_id: str) -> dict[str, Any]:
        """Return what is known about a client, without its secret.

        Raises:
            Refusal: `ResourceNotFound`: no client has this id.
        """
        client = self._clients.get(client_id)
        if client is None:
            refuse("ResourceNotFound", f"Client with clientId `{client_id}` not found")
        return {
            "clientId": client.client_id,
            "description": "",
            "expires": iso(int(1000 * (client.expires or NEVER))),
            **dict.fromkeys(("created", "lastModified", "lastDateUsed", "lastRotated"), iso(0)),
            "deleteOnExpiration": False,
            "scopes": list(client.scopes),
            "expandedScopes": self._expand(client.scopes),
            "disabled": client.disabled,
        }

    def authenticate_hawk(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether a request that another service received is signed correctly, and the client's id."""
        request = SignedRequest(
            body["method"], body["resource"], body["host"], body["port"], body.get("authorization")
        )
        try:
            identity = self._validator.authenticate(request)
        except AuthenticationError as error:
            return {"status": "auth-failed", "message": str(error)}
        expires = iso(int(1000 * identity.expires))
        if identity.client_id is None:
            return {"status": "no-auth", "scheme": "none", "expires": expires, "scopes": identity.scopes}
        signed_hash = {} if identity.payload_hash is None else {"hash": identity.payload_hash}
        return {
            "status": "auth-success",
            "scheme": "hawk",
            "expires": expires,
            "scopes": identity.scopes,
            "clientId": identity.client_id,
            **signed_hash,
        }


def tester_validator(scopes: Sequence[str], now: Callable[[], float]) -> SignatureValidator:
    """Return a validator that knows only the client `tester`, with some scopes.

    Roles are not expanded: the scopes stay as given, after `assume:anonymous`.
    """
    tester = Client(*_TESTER, scopes=scopes)

    def find_client(client_id: str) -> Client | None:
        return tester if client_id == tester.client_id else None

    def expand(scopes: Sequence[str]) -> list[str]:
        return [ANONYMOUS, *(scope for scope in scopes if scope != ANONYMOUS)]

    return SignatureValidator(find_client, expand, now)
