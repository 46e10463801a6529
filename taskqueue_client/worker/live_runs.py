"""The runs of a worker that have not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from taskqueue_client.clock import Clock

from .run.lifecycle import RunLifecycle


class LiveRuns:
    """The runs that have not ended, in the loop that this is made in.

    Attributes:
        unresolved: How many runs are neither resolved nor lost.
        left_behind: Done when the worker does not wait any longer for runs to clean up.
    """

    def __init__(self, on_resolved: Callable[[], None], clock: Clock) -> None:
        self.unresolved = 0
        self.left_behind: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_resolved = on_resolved
        self._clock = clock
        self._tasks: dict[RunLifecycle, asyncio.Task[None]] = {}
        self._idle_since = clock.monotonic()

    def __iter__(self) -> Iterator[RunLifecycle]:
        """Iterate over the runs of this moment; from any thread."""
        return iter(list(self._tasks))

    def begin(self, lifecycle: RunLifecycle) -> None:
        """Begin to take a run to its end."""
        self.unresolved += 1
        self._tasks[lifecycle] = task = asyncio.create_task(
            lifecycle.live(), context=lifecycle.run.trace.context.copy()
        )
        lifecycle.resolved.add_done_callback(self._note_resolved)
        task.add_done_callback(partial(self._note_end, lifecycle))

    def idle_for(self) -> float:
        """Return for how many seconds there has been no unresolved run."""
        return 0.0 if self.unresolved else self._clock.monotonic() - self._idle_since

    async def end(self, timed_out: asyncio.Future[str]) -> None:
        """End the tasks of runs: those with a handler that does not end, and those that were given up.

        Runs that clean up are waited for until `timed_out` is done.
        """
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            cleaned_up: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
            until: list[asyncio.Future[Any]] = [cleaned_up, timed_out]
            await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        self.left_behind.set_result(None)
        if any(not task.done() for task in tasks):
            await asyncio.wait(tasks)

    def _note_resolved(self, _: object) -> None:
        self.unresolved -= 1
        self._idle_since = self._clock.monotonic()
        self._on_resolved()

    def _note_end(self, lifecycle: RunLifecycle, task: asyncio.Task[None]) -> None:
        del self._tasks[lifecycle]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # a SystemExit has ended the loop, and must not end its cleaning up
            raise error
