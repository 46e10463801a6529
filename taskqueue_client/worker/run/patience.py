"""How long the uploads of a run are retried: storage or the Queue may be out of order for minutes."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from datetime import datetime
from random import random
from typing import TypeVar

from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.lease import retry_in
from taskqueue_client._protocol.retry import asked_to_wait, is_temporary, may_repeat
from taskqueue_client.aio import AsyncQueue
from taskqueue_client.artifacts.storage import Storage
from taskqueue_client.artifacts.transfers import TransferSettings
from taskqueue_client.clock import Clock
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import CallFailed, InternalServerError

log = logging.getLogger("taskqueue_client.worker")

R = TypeVar("R")

BEFORE_DEADLINE = 30.0
"""Seconds before the task's deadline at which uploads are given up, so that the run can still be reported."""

QUIET = 10.0
"""Seconds after which retries of an upload are logged: most failures have ended by then."""

HURRIED_LEAST = 1.0
"""Seconds between two attempts shortly before the end of the worker."""

MOST_500 = 4
"""Attempts at creating and at finishing an object artifact that the Queue may refuse with 500. If it created
the artifact and the response was lost, or has a content length of it, it refuses each further attempt."""


class RetryClock:
    """The clock of the waits between attempts to upload or report, which the end of the worker makes shorter.

    A worker that is shut down just after an outage reports what it has, instead of waiting for too long.

    Args:
        clock: The source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends = math.inf
        self._hurried = asyncio.Event()
        self.now, self.monotonic, self.sleep = clock.now, clock.monotonic, clock.sleep

    def hurry(self, left: float) -> None:
        """End all waits now, in this clock's loop; each later one takes at most a third of the time left.

        Args:
            left: Seconds until the end of the worker.
        """
        self._ends = self.monotonic() + left
        self._hurried.set()
        self._hurried = asyncio.Event()

    async def sleep_async(self, seconds: float) -> None:
        """Wait for so many seconds at most."""
        seconds = min(seconds, max((self._ends - self.monotonic()) / 3, HURRIED_LEAST))
        sleeping = asyncio.create_task(self._clock.sleep_async(seconds))
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            ended, _ = await asyncio.wait([sleeping, hurried], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            hurried.cancel()
        for each in ended:
            each.result()


class Patience:
    """How long the uploads of one run are retried. Each has `timeout` seconds from its first failure.

    When one upload was given up for that, the others are not retried until one has succeeded. Otherwise a run
    with a thousand artifacts would wait for all of them, one after the other.

    Args:
        run: The run's name in the log.
        queue: A client with the run's credentials.
        timeout: Seconds.
        deadline: The task's deadline; uploads are given up a little earlier.
        clock: The source of time.
    """

    def __init__(
        self, run: object, queue: AsyncQueue, timeout: float, deadline: datetime, clock: Clock
    ) -> None:
        self._run = run
        self._queue = queue.with_options(attempts=1)  # retried here
        self._timeout = timeout
        self._deadline: datetime | None = deadline
        self._has_given_up = False
        self._has_warned = False
        self.clock = clock

    def client(self, name: str) -> PatientQueue:
        """Return the client for the upload of one artifact, `name` in the log."""
        return PatientQueue(self._queue, _Upload(self, name))

    def left(self) -> float:
        """Return for how many seconds an upload that fails now is retried."""
        left = 0.0 if self._has_given_up else self._timeout
        if self._deadline is not None:
            until_deadline = (self._deadline - self._queue.now()).total_seconds()
            left = min(left, until_deadline - BEFORE_DEADLINE)
        return max(left, 0.0)

    def give_up(self) -> None:
        """Note that an upload was retried for as long as allowed, and failed."""
        self._has_given_up = True

    def warn(self, name: str, seconds: float, error: BaseException | None) -> None:
        """Log that an upload is retried; only the first one of those that fail at the same time."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "cannot upload %s of %s, retrying for up to %.0f s: %s", name, self._run, seconds, error
            )

    def succeeded(self) -> None:
        """Note that an upload has succeeded."""
        self._has_given_up = self._has_warned = False

    def reported(self) -> None:
        """Begin anew after the report: the deadline does not matter any more."""
        self._has_given_up = self._has_warned = False
        self._deadline = None


class _Upload:
    """The failures of one upload."""

    def __init__(self, patience: Patience, name: str) -> None:
        self._patience = patience
        self._name = name
        self._ends: float | None = None
        self._quiet_until = 0.0

    def left(self) -> float:
        """Note a failure; return for how many more seconds the upload is retried."""
        now = self._patience.clock.monotonic()
        if self._ends is None:
            self._ends, self._quiet_until = now + self._patience.left(), now + QUIET
        return self._ends - now

    def gives_up(self, error: BaseException | None, wait: float) -> bool:
        """Note a failure; return whether an attempt after `wait` seconds would come too late."""
        left = self.left()
        if wait >= left:
            self._patience.give_up()
            return True
        if self._patience.clock.monotonic() >= self._quiet_until:
            self._patience.warn(self._name, left, error)
        return False

    async def sleep(self, seconds: float) -> None:
        """Wait before the next attempt."""
        await self._patience.clock.sleep_async(seconds)


class PatientQueue:
    """A client for one upload, whose calls and transfers are retried as long as the upload may be.

    Args:
        queue: A client that makes one attempt per call.
        upload: Counts the failures.
    """

    def __init__(self, queue: AsyncQueue, upload: _Upload) -> None:
        self._queue = queue
        self._upload = upload
        self._refused = 0

    @property
    def storage(self) -> Storage:
        """The connections to storage."""
        return self._queue.storage

    @property
    def transfer_settings(self) -> TransferSettings:
        """The client's settings."""
        return replace(self._queue.transfer_settings, gives_up=self._gives_up)

    def with_credentials(self, credentials: Credentials | None) -> PatientQueue:
        """Return a client with other credentials, over the same connections."""
        return PatientQueue(self._queue.with_credentials(credentials), self._upload)

    async def send(self, call: Call[R], /) -> R:
        """Make a call, and retry it."""
        failures = 0
        while True:
            try:
                return await self._queue.send(call)
            except CallFailed as error:
                failures += 1
                grown = retry_in(failures, self._upload.left(), random())  # noqa: S311 - spreads calls, keeps no secret
                wait = max(grown, asked_to_wait(error))
                is_final = not (may_repeat(call) and is_temporary(error))
                gives_up = self._gives_up if call.endpoint == "finishArtifact" else self._upload.gives_up
                if is_final or gives_up(error, wait):
                    raise
            await self._upload.sleep(wait)

    def _gives_up(self, error: BaseException | None, wait: float) -> bool:
        """Return whether a transfer, or a call about an object artifact, is retried no more."""
        self._refused += isinstance(error, InternalServerError)
        return self._refused >= MOST_500 or self._upload.gives_up(error, wait)
