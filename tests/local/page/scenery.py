"""A queue with something to look at: a group with every state, workers, artifacts, messages and requests."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from taskqueue_client import Queue, slugid
from taskqueue_client.credentials import temporary_credentials
from taskqueue_client.definitions import TaskDefinition, task_definition
from taskqueue_client.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskqueue_client import Credentials
    from taskqueue_client.local import LocalQueue

TASK_QUEUE = "proj-demo/linux"
End = Literal["completed", "failed", "intermittent-task", "worker-shutdown", "malformed-payload"]
EVIL = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=\'attacked\'"><script>1</script></svg>'
LOG = (
    "\x1b[1m[setup]\x1b[0m checking out 3f2a91c\n"
    "\x1b[32mok\x1b[0m   tests/test_words.py \x1b[2m(0.12 s)\x1b[0m\n"
    "downloading 10 %\rdownloading 100 %\n"
    "\x1b[31mFAILED\x1b[0m tests/test_cli.py::test_counts \x1b[38;5;208massert 3 == 4\x1b[0m\n"
    f"{EVIL}\n\x1b]0;title\x07\x1b[2Jcleared\n"
)


def png() -> bytes:
    """A picture: 64 by 64 pixels of blue."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\x2b\x59\xc3" * 64 for _ in range(64))
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@dataclass
class Scenery:
    """Makes tasks in a local queue and works on them.

    Args:
        local: The queue.
        group: The group of all tasks.
    """

    local: LocalQueue
    group: str = field(default_factory=slugid)

    def __post_init__(self) -> None:
        self.queue = self._client(self.local.credentials)

    def _client(self, credentials: Credentials) -> Queue:
        return Queue(self.local.root_url, credentials, clock=self.local.clock)

    def create(self, name: str, after: Sequence[str] = (), **changes: Any) -> str:
        """Create a task of the group; return its id."""
        task_id = slugid()
        definition = task_definition(
            changes.pop("task_queue_id", TASK_QUEUE),
            changes.pop("payload", {"command": ["make", name]}),
            name=name,
            owner="me@example.com",
            source="https://example.com/project",
            created=datetime.fromtimestamp(self.local.clock.now(), UTC),
        )
        more = {"taskGroupId": self.group, "dependencies": list(after), **changes}
        self.queue.create_task(task_id, cast("TaskDefinition", {**definition, **more}))
        return task_id

    def claim(self, worker_id: str = "w-1", tasks: int = 1, task_queue_id: str = TASK_QUEUE) -> list[Queue]:
        """Claim tasks for a worker; return a client with the credentials of each run."""
        claimed = self.queue.claim_work(
            task_queue_id, worker_group="rack-1", worker_id=worker_id, tasks=tasks
        )
        self.claimed = [(each.status.task_id, each.run_id) for each in claimed.tasks]
        return [self._client(each.credentials) for each in claimed.tasks]

    def work(self, *ends: End, worker_id: str = "w-1") -> None:
        """Claim a task for each end, and report it: `completed`, `failed` or the reason of an exception."""
        for end in ends:
            (client,) = self.claim(worker_id)
            task_id, run_id = self.claimed[0]
            with client:
                self.local.clock.advance(37)
                if end == "completed":
                    client.report_completed(task_id, run_id)
                elif end == "failed":
                    client.report_failed(task_id, run_id)
                else:
                    client.report_exception(task_id, run_id, end)

    def upload(self, client: Queue, name: str, content: str | bytes, content_type: str) -> None:
        task_id, run_id = self.claimed[0]
        data = content.encode() if isinstance(content, str) else content
        expires = datetime.fromtimestamp(self.local.clock.now(), UTC) + timedelta(hours=1)
        client.upload_artifact(
            task_id, run_id, name, data, expires=expires, content_type=content_type, compress=False
        )

    def refused(self, task_id: str) -> None:
        """Make a request without the scopes it needs."""
        scopes = ["queue:get-task:*"]
        start = datetime.fromtimestamp(self.local.clock.now(), UTC)
        poor = temporary_credentials(self.local.credentials, scopes, start=start, name="poor/reader")
        with self._client(poor) as client:
            try:
                client.cancel_task(task_id)
            except CallFailed:
                return
        raise AssertionError
