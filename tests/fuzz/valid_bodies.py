"""Bodies that each endpoint of a local queue accepts, chosen by random numbers."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from taskqueue_client.local.times import text

_IDS = 6
"""Task ids in use at a time: with fewer, all would exist already; with more, few would be used again."""


class ValidBodies:
    """Makes bodies that match the schemas, and the ids in them.

    Args:
        random: Makes all choices.
        now: The queue's time, in seconds since the epoch.

    Attributes:
        ids: The ids of tasks and of task groups.
        seen: Upload ids and continuation tokens from responses.
    """

    def __init__(self, random: Random, now: Callable[[], float]) -> None:
        self._random = random
        self._now = now
        self.ids = deque((self._slugid() for _ in range(_IDS)), maxlen=_IDS)
        self.seen = deque([self._slugid()], maxlen=20)
        self._makers: Mapping[str, Callable[[], dict[str, Any]]] = {
            "queue/v1/create-task-request": self._definition,
            "queue/v1/tasks-request": lambda: {"taskIds": [*self.ids][:3]},
            "queue/v1/task-queue-counts-request": lambda: {"taskQueueIds": ["p/w", "p/x"]},
            "queue/v1/change-task-priority-request": lambda: {"newPriority": random.choice(("low", "high"))},
            "queue/v1/claim-work-request": lambda: {**self._worker(), "tasks": random.choice((1, 2, 32))},
            "queue/v1/task-claim-request": self._worker,
            "queue/v1/task-exception-request": self._exception,
            "queue/v1/post-artifact-request": self._artifact,
            "queue/v1/finish-artifact-request": lambda: {"uploadId": random.choice(self.seen)},
            "queue/v1/quarantine-worker-request": lambda: {"quarantineUntil": self._date(-1, -1, 1)},
            "queue/v1/update-worker-request": lambda: {"expires": self._date(1)},
            "object/v1/create-upload-request": self._upload,
            "object/v1/finish-upload-request": self._finished_upload,
            "object/v1/download-object-request": lambda: {"acceptDownloadMethods": {"getUrl": True}},
            "auth/v1/test-authenticate-request": lambda: {"clientScopes": ["a*"], "requiredScopes": ["ab"]},
            "auth/v1/authenticate-hawk-request": self._authenticate,
        }

    def make(self, schema: str) -> dict[str, Any]:
        """Return a body for a schema, which is a key of `REQUEST_SCHEMAS`."""
        return self._makers[schema]()

    def use_new_id(self) -> None:
        """Replace the oldest id by a new one."""
        self.ids.append(self._slugid())

    def _slugid(self) -> str:
        raw = bytearray(self._random.randbytes(16))
        raw[0] &= 0x7F
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        return urlsafe_b64encode(raw)[:22].decode()

    def _date(self, *hours: float) -> str:
        return text(int(1000 * (self._now() + 3600 * self._random.choice(hours))))

    def _definition(self) -> dict[str, Any]:
        random = self._random
        return {
            "taskQueueId": random.choice(("p/w", "p/w", "p/x")),
            "schedulerId": random.choice(("s", "s", "s", "t")),
            "projectId": "none",
            "taskGroupId": random.choice(self.ids),
            "dependencies": random.sample(self.ids, random.choice((0, 0, 0, 0, 1))),
            "requires": random.choice(("all-completed", "all-resolved")),
            "routes": random.choice(([], ["a.b"])),
            "priority": random.choice(("lowest", "high")),
            "retries": random.choice((0, 1, 5)),
            "created": self._date(0),
            "deadline": self._date(1, 24),
            "expires": self._date(48),
            "scopes": random.choice(([], ["a:b"])),
            "payload": {},
            "metadata": {
                "name": "n",
                "description": "d",
                "owner": "o@example.com",
                "source": "https://s.example",
            },
            "tags": random.choice(({}, {"a": "b"})),
            "extra": {},
        }

    def _worker(self) -> dict[str, Any]:
        return {"workerGroup": "g", "workerId": self._random.choice("ij")}

    def _exception(self) -> dict[str, Any]:
        return {"reason": self._random.choice(("worker-shutdown", "intermittent-task", "internal-error"))}

    def _artifact(self) -> dict[str, Any]:
        artifacts: tuple[dict[str, Any], ...] = (
            {"storageType": "s3", "contentType": "text/plain"},
            {"storageType": "object", "contentType": "text/plain"},
            {"storageType": "reference", "url": "https://e.example/x", "contentType": "text/plain"},
            {"storageType": "link", "artifact": self._random.choice(("public/x", "public/y"))},
            {"storageType": "error", "reason": "file-missing-on-worker", "message": "m"},
        )
        return {**self._random.choice(artifacts), "expires": self._date(1, 24)}

    def _upload(self) -> dict[str, Any]:
        methods: tuple[dict[str, Any], ...] = (
            {},
            {"dataInline": {"contentType": "a/b", "objectData": "eA=="}},
            {"putUrl": {"contentType": "a/b", "contentLength": 1}},
        )
        return {
            **self._finished_upload(),
            "expires": self._date(1, 24),
            "proposedUploadMethods": self._random.choice(methods),
        }

    def _finished_upload(self) -> dict[str, Any]:
        return {
            "projectId": "none",
            "uploadId": self._random.choice(self.seen),
            "hashes": {"sha256": "a" * 64},
        }

    def _authenticate(self) -> dict[str, Any]:
        request = {"method": "get", "resource": "/", "host": "h.example", "port": 80}
        return {**request, "authorization": 'Hawk id="local", ts="1", nonce="1", mac="x"'}
