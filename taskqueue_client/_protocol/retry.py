"""Retries of calls and transfers: which failures are retried, when, and until when. No I/O.

tenacity decides about retries; it is imported at the first failure, because its import takes 40 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, TypeVar

import msgspec

from taskqueue_client import errors

from .conversation import Call

if TYPE_CHECKING:
    import tenacity

R = TypeVar("R")

UNREPEATABLE = {
    "claimWork": "a lost response leaves runs claimed that nobody knows of; a retry would claim more",
    "rerunTask": "each retry may add a run",
    "quarantineWorker": "each retry adds an entry to the worker's history",
    "changeTaskPriority": "a retry is a conflict, because the task has the priority already",
}
"""The endpoints that are never retried automatically, with the reason.

`createArtifact` with the storage type `object` is not retried either (`may_repeat`): the Queue refuses a
second upload id. A retried `createTask` may be a conflict; `calls.create_task` then compares the stored
definition.
"""


def may_repeat(call: Call[Any]) -> bool:
    """Return whether a call may be sent again after a failure that leaves its outcome unknown."""
    if call.endpoint == "createArtifact":
        return not (isinstance(call.body, dict) and call.body.get("storageType") == "object")  # pyright: ignore[reportUnknownMemberType] # any JSON
    return call.endpoint not in UNREPEATABLE


Schedule = Mapping[str, Any]
"""The arguments of `tenacity.Retrying`: which errors are retried, when, and until when."""


class Timeouts(NamedTuple):
    """Seconds that one attempt may take.

    Attributes:
        connect: Until there is a connection.
        read: Until the response begins, and from one part of it to the next.
        total: Until the response is complete.
    """

    connect: float
    read: float
    total: float


class Retries(Protocol):
    """Decides how a client retries failures: by its `RetryPolicy`, or as a worker retries its uploads."""

    def attempt_timeouts(self, call: Call[Any], elapsed: float) -> Timeouts:
        """Return the timeouts of an attempt that begins `elapsed` seconds after the first one."""
        ...

    def may_retry(self, call: Call[Any], error: BaseException) -> bool:
        """Return whether a call is retried after this error."""
        ...

    def of_call(self, call: Call[Any], elapsed: Callable[[], float]) -> Schedule:
        """Return how a call is retried; `elapsed` returns the seconds since its first attempt began."""
        ...

    def of_transfer(self, may_retry: Callable[[BaseException], bool]) -> Schedule:
        """Return how a transfer is retried after the errors for which `may_retry` returns True."""
        ...


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and for how long, calls are attempted. All times are in seconds.

    Attributes:
        attempts: The most attempts at a call.
        timeout: The longest time that all attempts and the waits between them may take together.
        wait_initial: The wait after the first failure; it doubles with each further failure.
        wait_max: The longest wait between two attempts.
        wait_jitter: The largest random addition to a wait.
        connect_timeout: The longest time that an attempt may take to connect; in `Queue` to each address of
            the host.
        read_timeout: The longest time that an attempt may take to send the request, and may wait for the
            response. `claim_work`, a long poll of 20 s, waits for at least 45 s.
        min_rate: The least bytes per second of an upload's or download's content; 0 for any rate.
            `timeout` does not bound the transfer of content, only a wait that storage asks for.
        min_rate_window: The time over which that rate is measured.
    """

    attempts: int = 6
    timeout: float = 300.0
    wait_initial: float = 0.1
    wait_max: float = 30.0
    wait_jitter: float = 0.1
    connect_timeout: float = 10.0
    read_timeout: float = 30.0
    min_rate: float = 1000.0
    min_rate_window: float = 60.0

    def __post_init__(self) -> None:
        if not _is(self.attempts, int) or self.attempts < 1:
            raise errors.InvalidArgument("attempts", self.attempts, "a whole number, at least 1")
        for name in ("timeout", "connect_timeout", "read_timeout", "min_rate_window"):
            given = getattr(self, name)
            if not _is(given, int, float) or not 0 < given <= _LONGEST:
                allowed = "a number of seconds, more than 0 and at most 1,000,000"
                raise errors.InvalidArgument(name, given, allowed)
        if not _is(self.min_rate, int, float) or not self.min_rate >= 0:
            raise errors.InvalidArgument(
                "min_rate", self.min_rate, "a number of bytes per second, at least 0"
            )
        for name in ("wait_initial", "wait_max", "wait_jitter"):
            given = getattr(self, name)
            if not _is(given, int, float) or not given >= 0:
                raise errors.InvalidArgument(name, given, "a number of seconds, at least 0")


_LONGEST = 1_000_000
"""The longest timeout in seconds, more than 11 days: the system call `poll` takes at most 2,147,483."""


def _is(given: object, *kinds: type) -> bool:
    return isinstance(given, kinds) and not isinstance(given, bool)


LONG_POLL_TIMEOUT = 45.0
"""The least read timeout of claimWork, in seconds: an attempt that ends before the Queue responds loses the
runs that it claims. The long poll takes 20 s; a slow network and a busy service add to that."""


class PolicyRetries(msgspec.Struct, frozen=True):
    """Decides by a `RetryPolicy`; see `Retries`."""

    policy: RetryPolicy

    def attempt_timeouts(self, call: Call[Any], elapsed: float) -> Timeouts:
        policy = self.policy
        if call.endpoint == "claimWork":
            left = max(policy.timeout + LONG_POLL_TIMEOUT - elapsed, 0.001)
            return Timeouts(policy.connect_timeout, max(policy.read_timeout, LONG_POLL_TIMEOUT), left)
        left = max(policy.timeout - elapsed, 0.001)
        return Timeouts(min(policy.connect_timeout, left), min(policy.read_timeout, left), left)

    def may_retry(self, call: Call[Any], error: BaseException) -> bool:
        return may_repeat(call) and is_temporary(error)

    def of_call(self, call: Call[Any], elapsed: Callable[[], float]) -> Schedule:
        policy = self.policy

        def stop(state: tenacity.RetryCallState) -> bool:
            out_of_time = elapsed() + state.upcoming_sleep >= policy.timeout
            return state.attempt_number >= policy.attempts or out_of_time

        return self._schedule(partial(self.may_retry, call), stop)

    def of_transfer(self, may_retry: Callable[[BaseException], bool]) -> Schedule:
        """See `Retries`. A transfer may take hours: `timeout` bounds only a wait that storage asks for."""
        policy = self.policy

        def stop(state: tenacity.RetryCallState) -> bool:
            is_too_long = asked_to_wait(error_of(state)) >= policy.timeout
            return state.attempt_number >= policy.attempts or is_too_long

        return self._schedule(may_retry, stop)

    def _schedule(
        self, may_retry: Callable[[BaseException], bool], stop: Callable[[tenacity.RetryCallState], bool]
    ) -> Schedule:
        import tenacity  # noqa: PLC0415 - costs 40 ms, and most programs never need it

        policy = self.policy
        doubling = tenacity.wait_exponential(multiplier=policy.wait_initial, max=policy.wait_max)
        backoff = doubling + tenacity.wait_random(0, policy.wait_jitter)

        def wait(state: tenacity.RetryCallState) -> float:
            return max(backoff(state), asked_to_wait(error_of(state)))

        return {"wait": wait, "stop": stop, "retry": tenacity.retry_if_exception(may_retry)}


def is_temporary(error: BaseException) -> bool:
    """Return whether the same call may succeed later; a 408 comes from a load balancer."""
    is_timeout = isinstance(error, errors.ApiError) and error.status == HTTPStatus.REQUEST_TIMEOUT
    temporary = (errors.ConnectionFailed, errors.ServerError, errors.TooManyRequests)
    return is_timeout or isinstance(error, temporary)


def is_foreign(error: BaseException) -> bool:
    """Return whether another server responded in the service's place, such as a load balancer.

    The Queue's own response about an error artifact has no code.
    """
    if isinstance(error, errors.ApiError):
        return error.code is None and not isinstance(error, errors.ErrorArtifact)
    return isinstance(error, errors.UnreadableResponse)


def is_conflict(error: BaseException) -> TypeGuard[errors.RequestConflict]:
    """Return whether the Queue refused a change (409). A 409 without an error code is another server's."""
    return isinstance(error, errors.RequestConflict) and not is_foreign(error)


def is_outage(error: BaseException) -> bool:
    """Return whether the service fails temporarily, or another server responds in its place."""
    return is_foreign(error) or is_temporary(error)


def error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def asked_to_wait(error: BaseException | None) -> float:
    """Return the seconds that the `Retry-After` header of a refusal asks to wait; 0 without one."""
    refusal = error.refused if isinstance(error, errors.ApiError) else error
    return getattr(refusal, "retry_after", None) or 0.0  # `StorageRefused` has it, too


def retried(
    attempt: Callable[[], Generator[Any, Any, R]],
    failures: list[Exception],
    pause: Callable[[float], Generator[Any]],
    schedule: Schedule,
) -> Generator[Any, Any, R]:
    """Repeat a call or transfer that has failed once, for as long as tenacity says.

    The error of the first attempt is taken from the list `failures`: a frame that keeps an error is a
    reference cycle.
    """
    import tenacity  # noqa: PLC0415 - costs 40 ms, and most programs never need it

    waits: list[float] = []
    for each in tenacity.Retrying(sleep=waits.append, reraise=True, **schedule):
        while waits:
            yield from pause(waits.pop())
        if not failures:
            try:
                return (yield from attempt())
            except Exception as error:  # noqa: BLE001 - the schedule decides about it
                failures.append(error)
        with each:  # tenacity swallows what is raised here, so this generator must not end here
            raise failures.pop()
    raise AssertionError  # tenacity raises the last error
