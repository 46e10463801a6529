"""Every error that this package raises.

TaskQueueError
├── InvalidArgument (ValueError)      refused before any request; names the argument
│   └── InvalidDefinition             a task definition, with every problem in it
├── ClientUnusable (RuntimeError)     a closed client, or one of another event loop
├── CallFailed                        a call failed; has the number of attempts
│   ├── ConnectionFailed              no response; the call may have taken effect
│   │   └── CallTimedOut              no response within the timeout
│   ├── UnreadableResponse            a response that is not what the endpoint returns
│   └── ApiError                      the service refused the call: below
├── artifacts.ArtifactError           an upload or download failed
├── BrokerRefused                     the broker refused: credentials, permissions, names
├── BrokerLost                        no connection to the broker; listeners reconnect
│   └── QueueDeleted                  the AMQP queue was deleted, with its messages
├── ReconcileFailed                   a listener's reconcile hook raised an error
├── WaitTimedOut (TimeoutError)       a task or task group was not resolved in time
├── graph.SubmissionFailed            a graph of tasks was created in part, or not at all
└── worker.Outcome                    raised by a handler to say how its run ended

ApiError
├── BadRequest              400
│   ├── MalformedRequestBody      code MalformedPayload: the body is not JSON
│   ├── InvalidRequestArguments   a URL or query parameter does not match its pattern
│   ├── InputValidationError      the body does not match its schema
│   ├── InputError                a value in the body is refused
│   └── NoMatchingBackend         the object service has no backend for the object
├── AuthenticationFailed    401
├── InsufficientScopes      403   with the missing scopes
├── NotFound                404   no such route
│   └── ResourceNotFound          no such task, run, artifact, …
├── NoMatchingMethod        406   no download method in common
├── RequestConflict         409   the state of the task does not allow the call
├── ResourceExpired         410   the artifact has expired
├── InputTooLarge           413
├── ErrorArtifact           424   an artifact of the storage type `error`
├── TooManyRequests         429
└── ServerError             5xx
    └── InternalServerError       500 of the service itself

Codes and statuses: the Queue's API reference, section errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import msgspec

from .scopes import ScopeExpression, in_words, leaves

__all__ = [
    "ApiError", "Attempted", "AuthenticationFailed", "BadRequest", "BrokerLost", "BrokerRefused",
    "CallFailed", "CallTimedOut", "ClientUnusable", "ConnectionFailed", "ErrorArtifact", "InputError",
    "InputTooLarge", "InputValidationError", "InsufficientScopes", "InternalServerError", "InvalidArgument",
    "InvalidDefinition", "InvalidRequestArguments", "MalformedRequestBody", "NoMatchingBackend",
    "NoMatchingMethod", "NotFound", "Problem", "QueueDeleted", "ReconcileFailed", "Refused",
    "RequestConflict", "ResourceExpired", "ResourceNotFound", "ServerError", "TaskQueueError",
    "TooManyRequests", "UnreadableResponse", "WaitTimedOut",
]  # fmt: skip


class TaskQueueError(Exception):
    """Base of every error that this package raises."""


class InvalidArgument(TaskQueueError, ValueError):
    """An argument that is not valid; nothing was sent.

    Attributes:
        argument: The argument's name.
        given: The value that was passed.
        allowed: What is allowed, as a phrase that follows "expected"; empty if `finding` says it.
        finding: What is wrong; empty if simply the value is not valid.
    """

    def __init__(self, argument: str, given: object, allowed: str, finding: str = "") -> None:
        super().__init__(argument, given, allowed, finding)
        self.argument = argument
        self.given = given
        self.allowed = allowed
        self.finding = finding

    def __str__(self) -> str:
        return _complaint(self.argument, self.given, self.allowed, self.finding)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"  # without the value, which may be secret or long

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...], dict[str, Any]]:
        """Replace a value that cannot be pickled: a process pool would raise the error of pickle instead."""
        given = _pickled(self.given)
        args = tuple(given if each is self.given else each for each in self.args)
        return type(self), args, {**vars(self), "given": given}


class _Shown:
    """Stands for a value that cannot be pickled, such as an open file, in the unpickled error."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _pickled(given: object) -> object:
    import pickle  # noqa: PLC0415 - few programs pickle errors, and they have imported it

    try:
        pickle.loads(pickle.dumps(given))  # noqa: S301 - its own bytes; a process pool breaks if this fails later
    except Exception:  # noqa: BLE001 - whatever the object's class raises
        return _Shown(_shown(given, repr))
    return given


def _complaint(
    where: str, given: object, allowed: str, finding: str, written: Callable[[object], str] = repr
) -> str:
    """Return a text such as `retries: 50 is not valid; expected a whole number, 0 to 49`."""
    expected = f"; expected {allowed}" if allowed else ""
    return f"{where}: {finding or f'{shortened(_shown(given, written))} is not valid'}{expected}"


def _shown(given: object, written: Callable[[object], str]) -> str:
    """Return a value as text; its type if this raises: the error has to say what is wrong anyway."""
    try:
        return written(given)
    except Exception:  # noqa: BLE001 - whatever the object's class raises; a deep list, a RecursionError
        return f"<{type(given).__name__}>"


def _as_in_json(given: object) -> str:
    """Return a value as JSON, without characters that control a terminal."""
    try:
        text = json.dumps(given, ensure_ascii=False)
        return text if text.isprintable() else json.dumps(given)
    except (TypeError, ValueError, RecursionError):  # JSON has no such value
        return repr(given)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a document.

    Attributes:
        path: The JSON path, such as `$.metadata.owner`.
        given: The value at the path; None if it is missing.
        allowed: What is allowed at the path, as a phrase that follows "expected"; empty if `finding` says it.
        finding: What is wrong, such as `missing`; empty if simply the value is not valid.
    """

    path: str
    given: object
    allowed: str
    finding: str = ""

    def __str__(self) -> str:
        return _complaint(self.path, self.given, self.allowed, self.finding, _as_in_json)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.path, _pickled(self.given), self.allowed, self.finding)


class InvalidDefinition(InvalidArgument):
    """A definition of a task or a graph that the Queue would refuse; nothing was sent.

    Attributes:
        problems: Every problem, in the order of the document.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("definition", None, "", f"{len(problems)} problems")
        self.args = (problems,)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        count = f"{len(self.problems)} problem" + ("s" if len(self.problems) != 1 else "")
        return "\n".join([f"the definition has {count}:", *(f"  {each}" for each in self.problems)])


class ClientUnusable(TaskQueueError, RuntimeError):
    """A client that made no request, because it is closed or belongs to another event loop."""


class Attempted(msgspec.Struct, frozen=True):
    """The attempts of a failed call.

    Attributes:
        endpoint: The name in the service's reference.
        method: The HTTP method.
        url: The URL; of a signed URL, without the signature.
        attempts: Number of attempts, also those that got no connection and sent nothing.
        elapsed: Seconds from the first attempt's start to the last one's end.
        outcome_unknown: An attempt was sent, and ended without a response that says whether it took effect.
    """

    endpoint: str
    method: str
    url: str
    attempts: int = 1
    elapsed: float = 0.0
    outcome_unknown: bool = False

    def __str__(self) -> str:
        tries = "once" if self.attempts == 1 else f"{self.attempts} times"
        return f"{self.endpoint} ({self.method} {self.url}, attempted {tries} in {self.elapsed:.1f} s)"


class CallFailed(TaskQueueError):
    """A call that failed.

    Attributes:
        attempted: Endpoint, URL, attempts and elapsed time.
    """

    @property
    def attempted(self) -> Attempted:
        """Endpoint, URL, attempts and elapsed time."""
        return cast("Attempted", self.args[0])

    @attempted.setter
    def attempted(self, attempted: Attempted) -> None:
        self.args = (attempted, *self.args[1:])

    @property
    def endpoint(self) -> str:
        """The name of the endpoint in the service's reference."""
        return self.attempted.endpoint

    @property
    def attempts(self) -> int:
        """Number of attempts at the call."""
        return self.attempted.attempts

    @property
    def elapsed(self) -> float:
        """Seconds from the first attempt's start to the last one's end."""
        return self.attempted.elapsed


class ConnectionFailed(CallFailed):
    """No response came. The call may or may not have taken effect; see `Attempted.outcome_unknown`."""

    def __init__(self, attempted: Attempted, reason: str) -> None:
        super().__init__(attempted, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.attempted}: no response: {self.reason}"


class CallTimedOut(ConnectionFailed):
    """No response came within the timeout. The call may or may not have taken effect."""


class UnreadableResponse(CallFailed):
    """A response with a success status that is not what the endpoint returns, such as a login page."""

    def __init__(self, attempted: Attempted, status: int, reason: str) -> None:
        super().__init__(attempted, status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.attempted}: HTTP {self.status} with an unreadable response: {self.reason}"


class Refused(msgspec.Struct, frozen=True):
    """The response of a service that refused a call.

    Attributes:
        status: The HTTP status.
        code: The service's error code; None if a proxy sent the response, and for an `ErrorArtifact`.
        message: The error message, without the trailer that repeats the request.
        request_info: The request as the service received it: `method`, `params`, `payload`, `time`.
        retry_after: Seconds to wait before a retry, from `Retry-After`.
        document: The whole response, if it was a JSON object.
    """

    status: int
    code: str | None = None
    message: str = ""
    request_info: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    retry_after: float | None = None
    document: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "document")
        return f"Refused({', '.join(shown)})"


class ApiError(CallFailed):
    """The service refused the call.

    Attributes:
        attempted: Endpoint, URL, attempts and elapsed time.
        refused: Status, code, message and request info as the service sent them.
    """

    def __init__(self, attempted: Attempted, refused: Refused) -> None:
        super().__init__(attempted, refused)
        self.refused = refused

    def __str__(self) -> str:
        return f"{self._summary()}: {self.message}"

    def _summary(self) -> str:
        return f"{self.attempted}: HTTP {self.status}{f' {self.code}' if self.code else ''}"

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.refused.status

    @property
    def code(self) -> str | None:
        """The service's error code; None if a proxy sent the response, and for an `ErrorArtifact`."""
        return self.refused.code

    @property
    def message(self) -> str:
        """The service's error message, without the trailer that repeats the request."""
        return self.refused.message

    @property
    def request_info(self) -> Mapping[str, Any]:
        """The request as the service received it."""
        return self.refused.request_info


class BadRequest(ApiError):
    """400: the service refused the request as not valid."""


class MalformedRequestBody(BadRequest):
    """400 `MalformedPayload`: the body was not JSON (not a worker's malformed-payload)."""


class InvalidRequestArguments(BadRequest):
    """400: a URL or query parameter does not match its pattern."""


class InputValidationError(BadRequest):
    """400: the body does not match its schema; the message lists every violation."""


class InputError(BadRequest):
    """400: a value in the body is refused, such as a deadline in the past."""


class NoMatchingBackend(BadRequest):
    """400: the object service has no backend for an object of this name."""


class AuthenticationFailed(ApiError):
    """401: the credentials are not accepted: unknown client, wrong token, or expired."""


class InsufficientScopes(ApiError):
    """403: the credentials do not have the scopes that the call needs, or no credentials were sent."""

    def __str__(self) -> str:
        missing = self.missing
        if missing is None:
            return super().__str__()
        return f"{self._summary()}: {caller_in(self.message)}missing {in_words(missing)}"

    @property
    def missing(self) -> ScopeExpression | None:
        """The scope expression that is not satisfied; `AnyOf` in it lists alternatives.

        None if the response does not name any scope.
        """
        return _expression_in(self.message)

    @property
    def missing_scopes(self) -> list[str]:
        """Every scope in `missing`, each once; of alternatives, all."""
        missing = self.missing
        return [] if missing is None else list(dict.fromkeys(leaves(missing)))


class NotFound(ApiError):
    """404: no such route."""


class ResourceNotFound(NotFound):
    """404: no such task, run, artifact, group or worker."""


class NoMatchingMethod(ApiError):
    """406: the object service and the caller have no download method in common."""


class RequestConflict(ApiError):
    """409: the state of the task, or something created before, does not allow the call."""


class ResourceExpired(ApiError):
    """410: the artifact has expired."""


class InputTooLarge(ApiError):
    """413: the body is larger than the service or a proxy accepts."""


class ErrorArtifact(ApiError):
    """424: the artifact has the storage type `error`: its message says why there is no file."""

    @property
    def reason(self) -> str:
        """The reason as a code, such as `file-missing-on-worker`."""
        return str(self.refused.document.get("reason", ""))

    def _summary(self) -> str:
        return f"{super()._summary()}{f', error artifact ({self.reason})' if self.reason else ''}"


class TooManyRequests(ApiError):
    """429: too many requests in a short time."""


class ServerError(ApiError):
    """5xx: the service, or a proxy in front of it, has failed."""


class InternalServerError(ServerError):
    """500 of the service itself; its message contains the incident's id."""


class BrokerRefused(TaskQueueError):
    """The broker refused the connection, a queue or a binding; the message contains the broker's reason."""


class BrokerLost(TaskQueueError):
    """The connection to the broker ended, could not be made, or does not respond."""


class QueueDeleted(BrokerLost):
    """The AMQP queue was deleted, and the messages in it are lost."""


class ReconcileFailed(TaskQueueError):
    """The reconcile hook of a listener raised an error, which is this error's cause."""


class WaitTimedOut(TaskQueueError, TimeoutError):
    """A task or task group was not resolved in time; the message contains its state."""


LONGEST = 500  # characters of a value, or of a proxy's page, that are worth reading in an error


def shortened(text: str) -> str:
    """Return a text, cut off after `LONGEST` characters."""
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


_BLOCK = re.compile(r"```\n?(.*?)\n?```", re.DOTALL)
_CLIENT_ID = re.compile(r"Client ID (\S+) does not have sufficient scopes")
_NO_CREDENTIALS = "This request requires Taskcluster credentials"


def caller_in(message: str) -> str:
    """Return the beginning of a sentence about missing scopes: which client made the request, if any."""
    if client_id := _CLIENT_ID.match(message):
        return f"client '{client_id[1]}' is "
    return "the request had no credentials; " if message.startswith(_NO_CREDENTIALS) else ""


def _expression_in(message: str) -> ScopeExpression | None:
    """Return the first scope expression in an error message: one scope as text, or an expression as JSON."""
    block = _BLOCK.search(message)
    if block is None:
        return None
    try:
        expression = msgspec.json.decode(block[1])
    except (msgspec.DecodeError, RecursionError):
        return block[1].strip()
    return cast("ScopeExpression", expression) if _is_expression(expression) else None


def _is_expression(given: object) -> bool:
    """Return whether a JSON value is a well-formed scope expression."""
    if not isinstance(given, dict):
        return isinstance(given, str)
    members = [*cast("dict[str, object]", given).items()]
    kind, parts = members[0] if len(members) == 1 else ("", None)
    return (
        kind in {"AllOf", "AnyOf"}
        and isinstance(parts, list)
        and all(map(_is_expression, cast("list[object]", parts)))
    )
