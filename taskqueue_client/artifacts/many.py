"""Many uploads from one event loop."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import closing
from functools import partial

from taskqueue_client.errors import InvalidArgument

from .awaiting import Performer
from .direct import DirectSender
from .reporting import Listed, UploadOutcome
from .sources import Content, Source, open_source
from .steps import AsyncClient
from .uploading import Artifact, Options, uploading

_TOGETHER = 64
"""Files that one visit to a thread opens: a visit costs as much as sending 4 kB. Small ones are read by
that, into 4 MB at most."""


class _Opened(deque[tuple[int, str, Content | Source | Exception]]):
    """Positions in the list, names, and contents, or why there is none."""

    def close(self) -> None:
        """Close what nobody took."""
        while self:
            _, _, content = self.popleft()
            if isinstance(content, Source):
                content.close()


class ManyUploads:
    """Uploads a list.

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
        self._settings = client.transfer_settings
        self._run = task_id, run_id
        self._every = every
        self._options = options
        self._progress = progress
        self._opening = asyncio.Lock()
        self._opened = _Opened()
        self._seen = 0
        self._outcomes: dict[int, UploadOutcome] = {}

    async def perform(self, concurrency: int) -> tuple[UploadOutcome, ...]:
        """Upload all of them, `concurrency` at a time; gives their outcomes in the list's order."""
        try:
            with closing(self._client.storage.exchanges()) as exchanges:
                performer = Performer(self._client, DirectSender(exchanges))
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(concurrency, len(self._every))):
                        group.create_task(self._work(performer))
        finally:
            self._opened.close()
        return tuple(self._outcomes[position] for position in range(len(self._every)))

    async def _work(self, performer: Performer) -> None:
        while await self._is_more_opened(performer):
            position, name, content = self._opened.popleft()
            self._outcomes[position] = await self._outcome(performer, name, content)

    async def _is_more_opened(self, performer: Performer) -> bool:
        if self._opened:
            return True
        async with self._opening:
            if not self._opened and self._seen < len(self._every):
                self._opened = await performer.on_thread(self._open_some)
                self._seen += len(self._opened)
        return bool(self._opened)

    def _open_some(self, _: object) -> _Opened:
        some = self._every[self._seen : self._seen + _TOGETHER]
        return _Opened(
            (self._seen + position, name, _opened(content)) for position, (name, content) in enumerate(some)
        )

    async def _outcome(
        self, performer: Performer, name: str, content: Content | Source | Exception
    ) -> UploadOutcome:
        if isinstance(content, Exception):
            return UploadOutcome(name, error=content)
        artifact, progress = Artifact(*self._run, name), partial(self._progress, name)
        steps = uploading(self._settings, artifact, content, self._options, progress)
        try:
            return UploadOutcome(name, await performer.perform(steps))
        except Exception as error:  # noqa: BLE001 - it is what the report is for
            return UploadOutcome(name, error=error)


def _opened(content: Content | InvalidArgument) -> Content | Source | Exception:
    """Only what is opened quickly."""
    if not isinstance(content, (str, os.PathLike, bytes, bytearray, memoryview)):
        return content
    try:
        return open_source(content)
    except Exception as error:  # noqa: BLE001 - it is what the report is for
        return error
