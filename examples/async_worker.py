r"""A worker with many tasks at a time in one event loop: each checks whether web pages exist.

taskqueue work examples.async_worker:LinkChecker --concurrency 32 \
        --task-queue-id proj/links --worker-group here --worker-id one
"""

from __future__ import annotations

import asyncio
import json

import aiohttp

from taskqueue_client import TaskFailed, TaskRun, WorkerLoop

PAYLOAD = {
    "type": "object",
    "required": ["urls"],
    "additionalProperties": False,
    "properties": {
        "urls": {"type": "array", "items": {"type": "string", "pattern": "^https?://"}, "minItems": 1}
    },
}


class LinkChecker(WorkerLoop):
    """Gets `payload.urls`; the task fails unless the status of each response is 200."""

    payload_schema = PAYLOAD

    async def run_task(self, task: TaskRun) -> None:
        """Get all pages at once, and report the status of each as an artifact."""
        urls = task.payload["urls"]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session:
            statuses = dict(
                zip(urls, await asyncio.gather(*(get(session, url) for url in urls)), strict=True)
            )
        for url, status in statuses.items():
            task.log.info("%s: %s", url, status)
        task.upload_artifact("public/links.json", json.dumps(statuses, indent=2).encode())
        broken = [url for url, status in statuses.items() if status != "200 OK"]
        if broken:
            message = f"{len(broken)} of {len(urls)} links are broken: {', '.join(broken)}"
            raise TaskFailed(message)


async def get(session: aiohttp.ClientSession, url: str) -> str:
    """Return the status of a page's response, or the error if there is no response."""
    try:
        async with session.get(url) as response:
            return f"{response.status} {response.reason}"
    except (aiohttp.ClientError, TimeoutError, UnicodeError) as error:  # the last one: a host such as `a..b`
        return f"{type(error).__name__}: {error}"
