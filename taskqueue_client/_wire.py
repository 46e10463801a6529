"""Bytes out, bytes in: encode and sign a call, decode its answer. No I/O.

What is known about the service (its address, the credentials, the difference of the clocks) lives
here, and is shared by a client and the copies that `with_options` makes of it. Each field is replaced
whole, so that threads need no lock.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from . import errors
from ._call import Call
from ._retry import is_ambiguous, moment_of, retry_after
from .clock import Clock
from .credentials import Credentials, checked, checked_root_url
from .hawk import Origin, Signer, nonce
from .models import ClaimWorkResponse, Redirect, TaskClaim
from .models.nesting import cut

R = TypeVar("R")

log = logging.getLogger("taskqueue_client")

_JSON = "application/json"
_UNAUTHORIZED = 401
_CLAIMS: frozenset[type] = frozenset({ClaimWorkResponse, TaskClaim})
"""Answers that are read even if a task in them is nested too deep: its run, and the others, are claimed."""

_SKEW_NOTICED = 5.0
"""Seconds: a `Date` header has whole seconds and travels, so less than this is no skew."""
_SKEW_WARNED = 60.0


class Request(NamedTuple):
    """What a transport sends."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None


class Answer(NamedTuple):
    """What a transport received: headers are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Wire:
    """What clients know about a service, and how they talk to it.

    Args:
        root_url: The deployment's root URL.
        credentials: What calls are signed with; None to sign nothing.
        clock: Where time comes from.

    Raises:
        InvalidArgument: The URL or the credentials are malformed.
    """

    def __init__(self, root_url: str, credentials: Credentials | None, clock: Clock) -> None:
        self.root_url = checked_root_url(root_url)
        parts = urlsplit(self.root_url)
        self._origin_url = f"{parts.scheme}://{parts.netloc}"
        self._prefix = f"{parts.path}/api/"
        self._origin = Origin.of(self.root_url)
        self.clock = clock
        self._signer: Signer | None = None
        self.credentials = credentials
        self.clock_offset = 0.0
        self._offset_known = False
        self._warned = False

    @property
    def credentials(self) -> Credentials | None:
        """What calls are signed with from the next attempt on."""
        signer = self._signer
        return None if signer is None else signer.credentials

    @credentials.setter
    def credentials(self, credentials: Credentials | None) -> None:
        self._signer = None if credentials is None else Signer(checked(credentials))

    def url(self, call: Call[Any]) -> str:
        """Where a call goes."""
        return self._origin_url + self._resource(call)

    def _resource(self, call: Call[Any]) -> str:
        query = f"?{urlencode(call.query)}" if call.query else ""
        return f"{self._prefix}{call.service}/v1{call.path}{query}"

    def encode(self, call: Call[Any]) -> Request:
        """The request of one attempt at a call, freshly signed.

        Raises:
            InvalidArgument: The body cannot be written as JSON, or the header would be too long.
        """
        resource = self._resource(call)
        body = None if call.body is None else _encoded(call.body)
        headers = {} if body is None else {"Content-Type": _JSON}
        signer = self._signer
        if signer is not None:
            headers["Authorization"] = signer.header(
                call.method,
                self._origin,
                resource,
                timestamp=int(self.server_time()),
                nonce=nonce(),
                content_type="" if body is None else _JSON,
                body=body or b"",
            )
        return Request(call.method, self._origin_url + resource, headers, body)

    def decode(self, call: Call[R], answer: Answer) -> R:
        """What an answer says.

        Raises:
            ApiError: It says no.
            UnreadableAnswer: It is not what the endpoint returns.
        """
        if not self._offset_known or answer.status == _UNAUTHORIZED:
            self._learn_offset(answer)
        if answer.status not in call.accepts:
            pause = retry_after(answer.headers.get("retry-after"), self.server_time())
            raise errors.of_answer(self.attempted(call), answer.status, answer.body, pause)
        if call.returns is NoneType:
            return None  # type: ignore[return-value] # R is NoneType
        if call.returns is Redirect:
            return Redirect(answer.headers.get("location", ""))  # type: ignore[return-value] # R is Redirect
        try:
            return msgspec.json.decode(answer.body, type=call.returns)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise errors.UnreadableAnswer(self.attempted(call), answer.status, str(error)) from error
        except RecursionError as error:
            if call.returns in _CLAIMS and (body := cut(answer.body)) != answer.body:
                return self.decode(call, answer._replace(body=body))
            why = f"nested deeper than this Python can read: {error}"
            raise errors.UnreadableAnswer(self.attempted(call), answer.status, why) from error

    def server_time(self) -> float:
        """Seconds since the epoch by the service's clock, as far as it is known."""
        return self.clock.now() + self.clock_offset

    def known_server_time(self) -> float:
        """The service's time, or NaN until it has answered once: this machine's may be far off."""
        return self.server_time() if self._offset_known else math.nan

    def attempted(self, call: Call[Any]) -> errors.Attempted:
        """A first attempt at a call, for an error about it."""
        return errors.Attempted(call.endpoint, call.method, self.url(call))

    def is_stale(self, error: errors.CallFailed, attempts: Attempts) -> bool:
        """Whether a call was refused for its time alone, and can be signed once more with a better one."""
        stale = isinstance(error, errors.AuthenticationFailed) and "Stale timestamp" in error.message
        return stale and self._offset_known and attempts.sign_again()

    def signed_url(self, call: Call[Any], lifetime: float) -> str:
        """The URL of a GET call with a signature in it.

        Raises:
            InvalidArgument: The call is no GET, there are no credentials, or the lifetime is not positive.
        """
        if call.method != "GET":
            raise errors.InvalidArgument("call", call.endpoint, "an endpoint that is a GET")
        if not lifetime > 0:
            raise errors.InvalidArgument("lifetime", lifetime, "more than 0 seconds")
        signer = self._signer
        if signer is None:
            raise errors.InvalidArgument("credentials", None, "credentials, which sign the URL")
        return signer.signed_url(self.url(call), expires=int(self.server_time() + lifetime))

    def _learn_offset(self, answer: Answer) -> None:
        """Compare the clocks; at the first answer, and whenever credentials are refused."""
        date = _date(answer.headers)
        if date is None:
            return
        difference = date - self.clock.now()
        self._offset_known = True
        self.clock_offset = difference if abs(difference) > _SKEW_NOTICED else 0.0
        if abs(difference) > _SKEW_WARNED and not self._warned:
            self._warned = True
            log.warning(
                "this machine's clock is %.0f s %s that of %s; calls are signed with the service's time",
                abs(difference),
                "behind" if difference > 0 else "ahead of",
                self.root_url,
            )


def _encoded(body: object) -> bytes:
    try:
        encoded = msgspec.json.encode(body)
        if b"null" in encoded:  # which is also what msgspec makes of NaN and infinity
            json.dumps(body, allow_nan=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.InvalidArgument("body", type(body), f"what JSON can hold: {error}") from error
    return encoded


def _date(headers: Mapping[str, str]) -> float | None:
    try:
        return moment_of(headers["date"])
    except (KeyError, ValueError, OverflowError):
        return None


class Attempts:
    """Counts the attempts at one call, for the timeouts of the next and the error of the last.

    Args:
        clock: Where time comes from.
        started: When the first attempt began, on the monotonic clock.
    """

    def __init__(self, clock: Clock, started: float) -> None:
        self._clock = clock
        self._started = started
        self._made = 0
        self._outcome_unknown = False
        self._signed_again = False

    def elapsed(self) -> float:
        """Seconds since the first attempt began."""
        return self._clock.monotonic() - self._started

    def sign_again(self) -> bool:
        """Whether the call may be signed once more for its time alone: true the first time only."""
        first, self._signed_again = not self._signed_again, True
        return first

    def failed(self, error: errors.CallFailed) -> None:
        """Note a failed attempt, also in its error."""
        self._made += 1
        self._outcome_unknown = self._outcome_unknown or is_ambiguous(error)
        error.attempted = replace(
            error.attempted,
            attempts=self._made,
            elapsed=self.elapsed(),
            outcome_unknown=self._outcome_unknown,
        )
