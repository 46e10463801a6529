"""Everything that can go wrong.

TaskQueueError
├── InvalidArgument (ValueError)      refused before any request; names the argument
│   └── InvalidDefinition             a task definition, with every problem it has
├── ClientUnusable (RuntimeError)     refused before any request; the client is closed, or not this loop's
├── CallFailed                        a call did not give its answer; tells of all its attempts
│   ├── ConnectionFailed              no answer came; the call may or may not have taken effect
│   │   └── CallTimedOut              not even in time
│   ├── UnreadableAnswer              an answer that is not what the endpoint returns
│   └── ApiError                      the service answered, and said no: below
├── artifacts.ArtifactError           an upload or download that did not end well
├── events.BrokerRefused, …           what a listener and its broker get into
├── graph.SubmissionFailed            a graph of tasks that is not whole
└── worker.Outcome                    what a handler raises to say how its run ended

ApiError
├── BadRequest              400
│   ├── MalformedRequestBody      code MalformedPayload: the body is not JSON
│   ├── InvalidRequestArguments   a URL or query parameter is off its pattern
│   ├── InputValidationError      the body is off its schema
│   ├── InputError                the body is refused for what it says
│   └── NoMatchingBackend         the object service has no place for the object
├── AuthenticationFailed    401
├── InsufficientScopes      403   with the missing scopes
├── NotFound                404   no such route
│   └── ResourceNotFound          no such task, run, artifact, …
├── NoMatchingMethod        406   no download method in common
├── RequestConflict         409   the state of the task does not allow it
├── ResourceExpired         410   an expired artifact
├── InputTooLarge           413
├── ErrorArtifact           424   the artifact says why there is none
├── TooManyRequests         429
└── ServerError             5xx
    └── InternalServerError       the service's own

Codes and statuses: the Queue's API reference, section errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec


class TaskQueueError(Exception):
    """Base of every error that this package raises."""


class InvalidArgument(TaskQueueError, ValueError):
    """An argument that no request was made with, because the Queue would refuse it.

    Attributes:
        argument: Its name.
        given: What was passed.
        allowed: What is allowed, in words.
    """

    def __init__(self, argument: str, given: object, allowed: str) -> None:
        super().__init__(argument, given, allowed)
        self.argument = argument
        self.given = given
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.argument}={_shortened(repr(self.given))} is not allowed: {self.allowed}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a document.

    Attributes:
        path: Where, as a JSON path: `$.metadata.owner`.
        given: What stands there.
        allowed: What is allowed there, in words.
    """

    path: str
    given: object
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {_shortened(repr(self.given))}: {self.allowed}"


class InvalidDefinition(InvalidArgument):
    """A task definition that the Queue would refuse.

    Attributes:
        problems: Every problem found, in the order of the document.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("definition", None, f"{len(problems)} problems")
        self.args = (problems,)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        count = f"{len(self.problems)} problem" + ("s" if len(self.problems) != 1 else "")
        return "\n".join([f"the task definition has {count}:", *(f"  {each}" for each in self.problems)])


class ClientUnusable(TaskQueueError, RuntimeError):
    """A client that made no request, because it is closed or belongs to another event loop."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """What a failed call had done until it failed.

    Attributes:
        endpoint: The name in the service's reference.
        method: The HTTP method.
        url: Without the signature of a signed URL.
        attempts: How often it was sent.
        elapsed: Seconds from the first attempt's start to the last one's end.
        outcome_unknown: An attempt ended without an answer that says whether it took effect.
    """

    endpoint: str
    method: str
    url: str
    attempts: int = 1
    elapsed: float = 0.0
    outcome_unknown: bool = False

    def __str__(self) -> str:
        tries = "once" if self.attempts == 1 else f"{self.attempts} times"
        return f"{self.endpoint} ({self.method} {self.url}, sent {tries} in {self.elapsed:.1f} s)"


class CallFailed(TaskQueueError):
    """A call that did not give its answer.

    Attributes:
        attempted: Endpoint, URL, attempts and elapsed time.
    """

    attempted: Attempted

    def __reduce__(self) -> tuple[type[CallFailed], tuple[object, ...]]:
        """Pickle with the attempts as they are counted now."""
        return type(self), (self.attempted, *self.args[1:])

    @property
    def endpoint(self) -> str:
        """The name of the endpoint in the service's reference."""
        return self.attempted.endpoint

    @property
    def attempts(self) -> int:
        """How often the call was sent."""
        return self.attempted.attempts

    @property
    def elapsed(self) -> float:
        """Seconds from the first attempt's start to the last one's end."""
        return self.attempted.elapsed


class ConnectionFailed(CallFailed):
    """No answer came. The call may or may not have taken effect."""

    def __init__(self, attempted: Attempted, reason: str) -> None:
        super().__init__(attempted, reason)
        self.attempted = attempted
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.attempted}: no answer: {self.reason}"


class CallTimedOut(ConnectionFailed):
    """No answer came in time. The call may or may not have taken effect."""


class UnreadableAnswer(CallFailed):
    """An answer of success that is not what the endpoint returns, such as a login page."""

    def __init__(self, attempted: Attempted, status: int, reason: str) -> None:
        super().__init__(attempted, status, reason)
        self.attempted = attempted
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.attempted}: HTTP {self.status} with an unreadable answer: {self.reason}"


@dataclass(frozen=True, slots=True)
class Refused:
    """What a service's answer says about a refusal.

    Attributes:
        status: The HTTP status.
        code: The service's name for it, or None where a proxy answered.
        message: In words, without the trailer that repeats the request.
        request_info: The service's view of the request: `method`, `params`, `payload`, `time`.
        retry_after: Seconds that the service asks to wait for.
        document: The whole JSON answer, where it was a JSON object.
    """

    status: int
    code: str | None = None
    message: str = ""
    request_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    retry_after: float | None = None
    document: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


class ApiError(CallFailed):
    """The service answered, and said no.

    Attributes:
        attempted: Endpoint, URL, attempts and elapsed time.
        refused: Status, code, message and request info as the service sent them.
    """

    def __init__(self, attempted: Attempted, refused: Refused) -> None:
        super().__init__(attempted, refused)
        self.attempted = attempted
        self.refused = refused

    def __str__(self) -> str:
        code = f" {self.code}" if self.code else ""
        return f"{self.attempted}: HTTP {self.status}{code}: {self.message}"

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.refused.status

    @property
    def code(self) -> str | None:
        """The service's name for the refusal; None where something in between answered."""
        return self.refused.code

    @property
    def message(self) -> str:
        """The service's words, without the trailer that repeats the request."""
        return self.refused.message

    @property
    def request_info(self) -> Mapping[str, Any]:
        """The service's view of the request."""
        return self.refused.request_info


class BadRequest(ApiError):
    """400."""


class MalformedRequestBody(BadRequest):
    """400 `MalformedPayload`: the body was not JSON (not a worker's malformed-payload)."""


class InvalidRequestArguments(BadRequest):
    """400: a URL or query parameter is off its pattern."""


class InputValidationError(BadRequest):
    """400: the body is off its schema; the message lists every violation."""


class InputError(BadRequest):
    """400: the body was refused for what it says, such as a deadline in the past."""


class NoMatchingBackend(BadRequest):
    """400: the object service has no place for an object of this name."""


class AuthenticationFailed(ApiError):
    """401: credentials were given and are not good."""


class InsufficientScopes(ApiError):
    """403: the credentials, or no credentials, do not hold the scopes that the call needs."""

    @property
    def missing_scopes(self) -> list[str]:
        """The scopes that would have to be added (of alternatives, all of them)."""
        return _scopes_in(self.message)


class NotFound(ApiError):
    """404: no such route."""


class ResourceNotFound(NotFound):
    """404: no such task, run, artifact, group or worker."""


class NoMatchingMethod(ApiError):
    """406: the object service and the caller have no download method in common."""


class RequestConflict(ApiError):
    """409: the state of the task, or something created before, does not allow this."""


class ResourceExpired(ApiError):
    """410: the artifact has expired."""


class InputTooLarge(ApiError):
    """413: the body is larger than a service or proxy takes."""


class ErrorArtifact(ApiError):
    """424: the artifact exists to say why there is no file."""

    @property
    def reason(self) -> str:
        """Why, in one word, such as `file-missing-on-worker`."""
        return str(self.refused.document.get("reason", ""))


class TooManyRequests(ApiError):
    """429: slow down."""


class ServerError(ApiError):
    """5xx: the service, or a proxy before it, is in trouble."""


class InternalServerError(ServerError):
    """500 of the service itself; its message holds the incident's id."""


_BY_CODE: dict[str, type[ApiError]] = {
    "MalformedPayload": MalformedRequestBody,
    "InvalidRequestArguments": InvalidRequestArguments,
    "InputValidationError": InputValidationError,
    "InputError": InputError,
    "NoMatchingBackend": NoMatchingBackend,
    "AuthenticationFailed": AuthenticationFailed,
    "InsufficientScopes": InsufficientScopes,
    "ResourceNotFound": ResourceNotFound,
    "NoMatchingMethod": NoMatchingMethod,
    "RequestConflict": RequestConflict,
    "ResourceExpired": ResourceExpired,
    "InputTooLarge": InputTooLarge,
    "InternalServerError": InternalServerError,
}

_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: AuthenticationFailed,
    403: InsufficientScopes,
    404: NotFound,
    406: NoMatchingMethod,
    409: RequestConflict,
    410: ResourceExpired,
    413: InputTooLarge,
    424: ErrorArtifact,
    429: TooManyRequests,
}


def of_answer(attempted: Attempted, status: int, body: bytes, retry_after: float | None = None) -> ApiError:
    """The error that an answer stands for, whoever sent it: a service, a proxy, nobody in particular."""
    document = _json_object(body)
    code, info = document.get("code"), document.get("requestInfo")
    refused = Refused(
        status=status,
        code=code if isinstance(code, str) else None,
        message=_message(status, document, body),
        request_info=cast("dict[str, Any]", info) if isinstance(info, dict) else {},
        retry_after=retry_after,
        document=document,
    )
    return _kind(status, refused.code)(attempted, refused)


def _kind(status: int, code: str | None) -> type[ApiError]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    server_error = 500  # and above
    return _BY_STATUS.get(status, ServerError if status >= server_error else ApiError)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


_TRAILER = re.compile(r"\n\n---\n\n\* method: ")
_TAG = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_WHITE = re.compile(r"\s+")
_LONGEST = 500  # characters of somebody's page that are worth reading in an error


def _message(status: int, document: Mapping[str, Any], body: bytes) -> str:
    words = document.get("message") or document.get("error")
    if isinstance(words, str):
        return _TRAILER.split(words, maxsplit=1)[0]
    text = _WHITE.sub(" ", _TAG.sub(" ", body[: 20 * _LONGEST].decode(errors="replace"))).strip()
    return _shortened(text) or f"an empty answer with status {status}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


_BLOCK = re.compile(r"```\n?(.*?)\n?```", re.DOTALL)


def _scopes_in(message: str) -> list[str]:
    """The scopes of the first expression in a refusal: one scope as text, or an expression as JSON."""
    block = _BLOCK.search(message)
    if block is None:
        return []
    try:
        expression = msgspec.json.decode(block[1])
    except msgspec.DecodeError:
        return [block[1].strip()]
    return list(dict.fromkeys(_leaves(expression)))


def _leaves(expression: object) -> list[str]:
    if isinstance(expression, str):
        return [expression]
    parts: list[Any] = []
    if isinstance(expression, dict):
        parts = [*cast("dict[str, Any]", expression).values()]
    elif isinstance(expression, list):
        parts = [*cast("Sequence[Any]", expression)]
    return [leaf for part in parts for leaf in _leaves(part)]
