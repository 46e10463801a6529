"""A time limit on a clock that a test can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from taskqueue_client.clock import Clock

T = TypeVar("T")


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns.

    Raises:
        TimeoutError: It did not in that time, and was cancelled.
    """
    task, alarm = asyncio.create_task(work), asyncio.create_task(clock.sleep_async(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            message = f"not within {seconds:g} s"
            raise TimeoutError(message)
        return task.result()
    finally:
        task.cancel()
        alarm.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)
