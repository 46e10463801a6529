"""Refusals: errors that a request gets as its response."""

from __future__ import annotations

from typing import NoReturn, TypeVar

T = TypeVar("T")

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
    """A request that gets an error as its response; the HTTP layer adds method, code and time to it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return STATUS[self.code]


def refuse(code: str, message: str) -> NoReturn:
    """Raise a Refusal with one of the codes in `STATUS`."""
    raise Refusal(code, message)


def existing(value: T | None, message: str) -> T:
    """Return `value`; refuse the request (404) if it is None."""
    if value is None:
        refuse("ResourceNotFound", message)
    return value


def conflict(message: str) -> NoReturn:
    """Refuse a change (409): the state of the task, artifact, object or group does not allow it."""
    refuse("RequestConflict", message)
