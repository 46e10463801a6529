"""Performs the steps of a transfer from an event loop: what blocks is done on threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from typing import Any, Protocol, TypeVar

from taskqueue_client._call import Call

from .buffers import AHEAD
from .cancellation import Cancellation
from .sources import Source, Spool
from .steps import AsyncClient, Authorized, Collecting, Pause, Sending, Step, Steps, Work
from .storage import Progress, Put

R = TypeVar("R")

_STOPPING = 5.0
"""Seconds that a cancelled transfer may take to stop its thread, before it is left to end by itself: it
may be in the middle of a connect, or inside an iterator of the caller's."""


class Sender(Protocol):
    """Another way to send what is small."""

    def takes(self, put: Put) -> bool:
        """Whether it sends this one."""
        ...

    async def send(self, put: Put) -> dict[str, str]:
        """Make one attempt; gives the hashes of what was sent."""
        ...


class Performer:
    """Performs steps for one client.

    Args:
        client: What calls are made with.
        sender: Sends what it takes; the rest is sent on a thread.
        threads: Where to let work block; the storage's own ones when left out.
    """

    def __init__(
        self, client: AsyncClient, sender: Sender | None = None, threads: Executor | None = None
    ) -> None:
        self._client = client
        self._sender = sender
        self._threads = threads

    async def perform(self, steps: Steps[R]) -> R:
        """The result of a transfer."""
        with closing(steps):
            try:
                step = next(steps)
                while True:
                    try:
                        result = await self._result(step)
                    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the transfer decides what to do about it
                        step = steps.throw(error)
                    else:
                        step = steps.send(result)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return] # StopIteration is not generic

    async def _result(self, step: Step) -> Any:
        match step:
            case Call():
                return await self._client.send(step)
            case Authorized():
                return await self._client.with_credentials(step.credentials).send(step.call)
            case Work():
                return await self.on_thread(partial(step.do, self._client.storage))
            case Sending():
                return await self._send(step.put)
            case Pause():
                return await self._client.transfer_settings.clock.sleep_async(step.seconds)
            case Collecting():
                return await self._collect(step)

    async def _send(self, put: Put) -> dict[str, str]:
        if self._sender is not None and self._sender.takes(put):
            return await self._sender.send(put)
        return await self.on_thread(partial(self._client.storage.put, put))

    async def _collect(self, step: Collecting) -> Source:
        spool = await self.on_thread(lambda _: Spool())
        try:
            async for block in step.blocks:
                await self.on_thread(lambda _, block=block: spool.write(block))  # type: ignore[misc] # mypy cannot infer a default's type
            return await self.on_thread(lambda _: spool.source())
        except BaseException:
            spool.close()
            raise

    async def on_thread(self, work: Callable[[Cancellation], R]) -> R:
        """What `work` gives; it is told when nobody waits for that any more."""
        cancellation = Cancellation()
        threads = self._threads or self._client.storage.threads
        future = asyncio.get_running_loop().run_in_executor(threads, work, cancellation)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            cancellation.cancel()
            future.add_done_callback(_forget)
            await asyncio.wait([future], timeout=_STOPPING)
            raise


def _forget(future: asyncio.Future[Any]) -> None:
    """Take what nobody waits for any more: an error, or something that has to be closed."""
    if future.cancelled() or future.exception():
        return
    if callable(close := getattr(future.result(), "close", None)):
        close()


def in_loop(progress: Progress) -> Progress:
    """Lets a thread report progress to a function that is called in the event loop's thread."""
    loop = asyncio.get_running_loop()

    def report(done: int, total: int | None) -> None:
        loop.call_soon_threadsafe(progress, done, total)

    return report


class BlocksOfThread:
    """Blocks on their way from a thread to the event loop, which reads them when it likes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
        self._is_given_up = False

    def put(self, block: bytes) -> None:
        """Hand a block over, from the thread; waits for room."""
        if not self._is_given_up:
            asyncio.run_coroutine_threadsafe(self._blocks.put(block), self._loop).result()

    async def end_with(self, work: Coroutine[Any, Any, object]) -> None:
        """Do the work that puts the blocks; there are no more when it ends."""
        try:
            await work
        finally:
            await self._blocks.put(None)

    async def get(self) -> bytes | None:
        """The next block; None at the end."""
        return await self._blocks.get()

    async def give_up(self, task: asyncio.Task[None]) -> None:
        """End the work, if it has not ended; nobody reads any more."""
        self._is_given_up = True
        while not self._blocks.empty():  # make room, so that the thread comes to its end
            self._blocks.get_nowait()
        task.cancel()
        await asyncio.wait([task])
        _forget(task)
