"""When a call is tried again: the same policy for both clients.

tenacity decides; it is imported at the first failure, because it costs as much as the whole rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from ._call import Call
from .errors import ApiError, CallFailed, ConnectionFailed, InvalidArgument, ServerError, TooManyRequests

if TYPE_CHECKING:
    import tenacity

UNREPEATABLE = {
    "claimWork": "a lost answer leaves runs claimed that nobody knows of; a repeat would claim more",
    "rerunTask": "each repeat may add a run",
    "quarantineWorker": "each repeat adds an entry to the worker's history",
    "changeTaskPriority": "a repeat is a conflict, as the task has the priority then",
}
"""The endpoints that are never sent again by themselves, with the reason; all others are safe.

`createArtifact` of an `object` is the other one (`may_repeat`): the Queue refuses a second upload id.
A repeated `createTask` may be a conflict; `calls.create_task` then compares with what is stored.
"""


def may_repeat(call: Call[Any]) -> bool:
    """Whether a call may be sent again after a failure that does not tell if it took effect."""
    if call.endpoint == "createArtifact":
        return not (isinstance(call.body, dict) and call.body.get("storageType") == "object")  # pyright: ignore[reportUnknownMemberType] # any JSON
    return call.endpoint not in UNREPEATABLE


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often a call is tried. All times are seconds.

    Attributes:
        attempts: How often a call is sent at most.
        timeout: How long all attempts and the waits between them may take together.
        wait_initial: The wait after the first failure; it doubles with each further one.
        wait_max: The longest wait between two attempts.
        wait_jitter: The most that is added to a wait by chance.
        connect_timeout: How long an attempt may take to connect.
        read_timeout: How long an attempt may wait for the answer. `claim_work`, which the Queue lets
            wait for 20 s, waits for at least 45 s.
    """

    attempts: int = 6
    timeout: float = 300.0
    wait_initial: float = 0.1
    wait_max: float = 30.0
    wait_jitter: float = 0.1
    connect_timeout: float = 10.0
    read_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not _is(self.attempts, int) or self.attempts < 1:
            raise InvalidArgument("attempts", self.attempts, "a whole number, at least 1")
        for name in ("timeout", "connect_timeout", "read_timeout"):
            if not _is(getattr(self, name), int, float) or not getattr(self, name) > 0:
                raise InvalidArgument(name, getattr(self, name), "more than 0 seconds")
        for name in ("wait_initial", "wait_max", "wait_jitter"):
            if not _is(getattr(self, name), int, float) or not getattr(self, name) >= 0:
                raise InvalidArgument(name, getattr(self, name), "at least 0 seconds")

    def attempt_timeouts(self, call: Call[Any], elapsed: float) -> tuple[float, float]:
        """Seconds that the next attempt may take to connect and to wait for the answer."""
        if call.endpoint == "claimWork":
            return self.connect_timeout, max(self.read_timeout, LONG_POLL_TIMEOUT)
        left = max(self.timeout - elapsed, 0.001)
        return min(self.connect_timeout, left), min(self.read_timeout, left)


def _is(given: object, *kinds: type) -> bool:
    return isinstance(given, kinds)


LONG_POLL_TIMEOUT = 45.0
"""A claimWork that is given up before the Queue answers loses the runs that it claims: its long poll
takes 20 s, and a slow network and a busy service more."""


def is_ambiguous(error: CallFailed) -> bool:
    """Whether a failure leaves open if the call took effect."""
    return isinstance(error, (ConnectionFailed, ServerError))


def is_temporary(error: BaseException) -> bool:
    """Whether the same call may succeed a little later."""
    return isinstance(error, (ConnectionFailed, ServerError, TooManyRequests))


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a `Retry-After` header asks for (RFC 9110, 10.2.3), or None if it says nothing."""
    if value is None:
        return None
    if value.isdecimal():
        return float(value)
    try:
        return max(moment_of(value) - now, 0.0)
    except (ValueError, OverflowError):
        return None


def moment_of(date: str) -> float:
    """Seconds since the epoch of a header's date, which is GMT also without a word of it (asctime's form).

    Raises:
        ValueError: It is no date.
        OverflowError: It is none that can be reckoned with.
    """
    moment = parsedate_to_datetime(date)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def schedule(policy: RetryPolicy, call: Call[Any], elapsed: Callable[[], float]) -> dict[str, Any]:
    """The arguments of tenacity's `Retrying` and `AsyncRetrying` that follow the policy for a call."""
    import tenacity  # noqa: PLC0415 - costs 40 ms, and most programs never need it

    doubling = tenacity.wait_exponential(multiplier=policy.wait_initial, max=policy.wait_max)
    backoff = doubling + tenacity.wait_random(0, policy.wait_jitter)

    def wait(state: tenacity.RetryCallState) -> float:
        return max(backoff(state), _asked_for(state))

    def stop(state: tenacity.RetryCallState) -> bool:
        out_of_time = elapsed() + state.upcoming_sleep >= policy.timeout
        return state.attempt_number >= policy.attempts or out_of_time

    return {
        "wait": wait,
        "stop": stop,
        "retry": tenacity.retry_if_exception(lambda error: may_repeat(call) and is_temporary(error)),
        "reraise": True,
    }


def _asked_for(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return (error.refused.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
