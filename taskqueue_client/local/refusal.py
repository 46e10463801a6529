"""The local services' way to say no, and the caller they say it to."""

from __future__ import annotations

from typing import Protocol

STATUS = {
    "MalformedPayload": 400,
    "InvalidRequestArguments": 400,
    "InputValidationError": 400,
    "InputError": 400,
    "NoMatchingBackend": 400,
    "AuthenticationFailed": 401,
    "InsufficientScopes": 403,
    "ResourceNotFound": 404,
    "NoMatchingMethod": 406,
    "RequestConflict": 409,
    "ResourceExpired": 410,
    "InputTooLarge": 413,
    "InternalServerError": 500,
}
"""The HTTP status that goes with each error code of the Queue and of the object service."""


class Refusal(Exception):
    """A request that gets an error for an answer.

    Args:
        code: One of the codes in `STATUS`.
        message: What is wrong, for the caller to read; the HTTP layer adds method, code and time.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return STATUS[self.code]


def conflict(message: str) -> Refusal:
    """The state of the task, run or group forbids it: 409 `RequestConflict`."""
    return Refusal("RequestConflict", message)


def not_found(message: str) -> Refusal:
    """There is no such thing: 404 `ResourceNotFound`."""
    return Refusal("ResourceNotFound", message)


def bad_input(message: str) -> Refusal:
    """The request is well-formed and makes no sense: 400 `InputError`."""
    return Refusal("InputError", message)


class Caller(Protocol):
    """Whoever sent the request; scopes are checked at the moment the endpoint's rules say."""

    @property
    def client_id(self) -> str:
        """The caller's client id, for records of who did what."""
        ...

    def require(self, **params: object) -> None:
        """Go on only if the caller's scopes satisfy the endpoint's scope expression.

        Args:
            **params: Values for the expression's parameters, beside those in the URL.

        Raises:
            Refusal: `AuthenticationFailed` or `InsufficientScopes`.
        """
        ...
