"""Many uploads from one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterator
from functools import partial

from taskqueue_client.errors import InvalidArgument

from .awaiting import Performer
from .direct import DirectSender
from .reporting import Listed, UploadOutcome
from .sources import Content, Source, open_source
from .steps import AsyncClient
from .uploading import Artifact, Options, uploading

_MOST_TOGETHER = 8
"""Contents that one visit to a thread opens at most: a visit costs as much as sending 4 kB."""

Opened = tuple[int, str, Content | Source | Exception]
"""A position in the list, a name, and its content, or why there is none."""


class _Share:
    """Contents that are opened together, for one of the workers. Those not taken out are closed."""

    def __init__(self, first: int, listed: list[Listed]) -> None:
        self._opened: list[Opened] = [
            (first + position, name, _opened(content)) for position, (name, content) in enumerate(listed)
        ]

    def __iter__(self) -> Iterator[Opened]:
        while self._opened:
            yield self._opened.pop(0)

    def close(self) -> None:
        """Close what nobody took."""
        for _, _, content in self:
            if isinstance(content, Source):
                content.close()


def _opened(content: Content | InvalidArgument) -> Content | Source | Exception:
    if isinstance(content, (InvalidArgument, AsyncIterable)):
        return content
    try:
        return open_source(content)
    except Exception as error:  # noqa: BLE001 - it is what the report is for
        return error


class ManyUploads:
    """Uploads a list; each worker takes shares of it, which get smaller towards its end.

    Args:
        client: Whom to upload with.
        task_id: The task.
        run_id: The run.
        every: Names and contents.
        options: How to upload.
        progress: Called in the event loop with a name, its bytes sent, and how many there are.
    """

    def __init__(
        self,
        client: AsyncClient,
        task_id: str,
        run_id: int,
        every: list[Listed],
        options: Options,
        progress: Callable[[str, int, int | None], object],
    ) -> None:
        self._client = client
        self._run = task_id, run_id
        self._every = every
        self._options = options
        self._progress = progress
        self._taken = 0
        self._outcomes: dict[int, UploadOutcome] = {}

    async def perform(self, concurrency: int) -> tuple[UploadOutcome, ...]:
        """Upload all of them, `concurrency` at a time; gives their outcomes in the list's order."""
        workers = min(concurrency, len(self._every))
        async with DirectSender(self._client.storage.connections) as sender, asyncio.TaskGroup() as group:
            performer = Performer(self._client, sender)
            for _ in range(workers):
                group.create_task(self._work(performer, workers))
        return tuple(self._outcomes[position] for position in range(len(self._every)))

    async def _work(self, performer: Performer, workers: int) -> None:
        while self._taken < len(self._every):
            share = await performer.on_thread(self._next_share(workers))
            try:
                for position, name, content in share:
                    self._outcomes[position] = await self._outcome(performer, name, content)
            finally:
                share.close()

    def _next_share(self, workers: int) -> Callable[[object], _Share]:
        first = self._taken
        count = max(1, min(_MOST_TOGETHER, (len(self._every) - first) // (2 * workers)))
        self._taken += count
        return lambda _: _Share(first, self._every[first : first + count])

    async def _outcome(
        self, performer: Performer, name: str, content: Content | Source | Exception
    ) -> UploadOutcome:
        if isinstance(content, Exception):
            return UploadOutcome(name, error=content)
        artifact, progress = Artifact(*self._run, name), partial(self._progress, name)
        settings = self._client.transfer_settings
        try:
            steps = uploading(settings, artifact, content, self._options, progress)
            return UploadOutcome(name, await performer.perform(steps))
        except Exception as error:  # noqa: BLE001 - it is what the report is for
            return UploadOutcome(name, error=error)
