"""Calls to the auth service that show who the caller is."""

from __future__ import annotations

from collections.abc import Collection

from taskqueue_client._call import Call
from taskqueue_client.models import Authentication, ScopeSet

from . import _arguments as arguments


def current_scopes() -> Call[ScopeSet]:
    """The scopes that the client's credentials have, roles expanded.

    Scopes: `auth:current-scopes`. Safe to repeat.
    """
    return Call("auth.currentScopes", "GET", "/scopes/current", ScopeSet, service="auth")


def test_authenticate(
    *, client_scopes: Collection[str], required_scopes: Collection[str]
) -> Call[Authentication]:
    """Try out how requests are signed, as the client `tester` with the access token `no-secret`.

    Safe to repeat.

    Args:
        client_scopes: The scopes that `tester` has for this call.
        required_scopes: The scopes that the call is to need.

    Raises:
        AuthenticationFailed: The request is not signed well.
        InsufficientScopes: The credentials do not have the required scopes.
    """
    body = {
        "clientScopes": arguments.texts("client_scopes", client_scopes),
        "requiredScopes": arguments.texts("required_scopes", required_scopes),
    }
    path = "/test-authenticate"
    return Call("auth.testAuthenticate", "POST", path, Authentication, body=body, service="auth")


def test_authenticate_get() -> Call[Authentication]:
    """`test_authenticate` as a GET, so that signed URLs can be tried out.

    Here `tester` has the scopes `test:*` and `auth:create-client:test:*`, and the call needs
    `test:authenticate-get`. Safe to repeat.

    Raises:
        AuthenticationFailed: The request is not signed well.
        InsufficientScopes: The credentials do not have the required scope.
    """
    path = "/test-authenticate-get/"
    return Call("auth.testAuthenticateGet", "GET", path, Authentication, service="auth")
