"""When a transfer is tried again: tenacity decides, as it does for calls, and the waits are steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from taskqueue_client._retry import RetryPolicy

from .steps import Pause, Steps

R = TypeVar("R")


def repeated(
    attempt: Callable[[], Steps[R]], policy: RetryPolicy, may_repeat: Callable[[BaseException], bool]
) -> Steps[R]:
    """The result of the first attempt that succeeds.

    Args:
        attempt: Begins an attempt.
        policy: How often, and how long to wait between two. Its `timeout` does not count.
        may_repeat: Whether there may be another attempt after an error.

    Raises:
        Exception: What the last attempt raised.
    """
    try:
        return (yield from attempt())
    except Exception as error:
        if not may_repeat(error):
            raise
        first = error
    return (yield from _repeat(attempt, policy, may_repeat, first))


def _repeat(
    attempt: Callable[[], Steps[R]],
    policy: RetryPolicy,
    may_repeat: Callable[[BaseException], bool],
    first: Exception,
) -> Steps[R]:
    """Go on after the `first` failure."""
    import tenacity  # noqa: PLC0415 - costs 40 ms, and most programs never need it

    failures, waits = [first], list[float]()
    for each in tenacity.Retrying(
        sleep=waits.append,
        wait=tenacity.wait_exponential(policy.wait_initial, policy.wait_max)
        + tenacity.wait_random(0, policy.wait_jitter),
        stop=tenacity.stop_after_attempt(policy.attempts),
        retry=tenacity.retry_if_exception(may_repeat),
        reraise=True,
    ):
        if waits:
            yield from Pause(waits.pop())
        with each:
            if failures:
                raise failures.pop()
            return (yield from attempt())
    raise AssertionError  # tenacity goes on until there is a result or an error
