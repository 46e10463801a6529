"""A canned queue for workers, in a process of its own: it hands out runs for ever, and takes all reports.

It parses no more of a request than it needs, so that what a benchmark measures is the worker.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from taskqueue_client import slugid

FAR_FUTURE = "2099-01-01T00:00:00.000Z"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def credentials(now: float, lease: float) -> dict[str, str]:
    certificate = {
        "version": 1,
        "scopes": ["queue:*"],
        "start": int(now * 1000),
        "expiry": int((now + lease) * 1000),
        "seed": "x" * 44,
        "signature": "y" * 44,
        "issuer": "static/taskcluster/queue",
    }
    return {"clientId": "task-client/x", "accessToken": "z" * 44, "certificate": json.dumps(certificate)}


def claim(task_id: str, lease: float) -> dict[str, Any]:
    now = time.time()
    names = {"provisionerId": "prov", "workerType": "wt", "taskQueueId": "prov/wt", "schedulerId": "-"}
    more = {"projectId": "none", "taskGroupId": task_id, "priority": "lowest"}
    times = {"deadline": FAR_FUTURE, "expires": FAR_FUTURE}
    run = {
        "runId": 0,
        "state": "running",
        "reasonCreated": "scheduled",
        "workerGroup": "wg",
        "workerId": "w1",
        "takenUntil": iso(now + lease),
        "scheduled": iso(now),
        "started": iso(now),
    }
    status = {
        "taskId": task_id,
        **names,
        **more,
        **times,
        "retriesLeft": 5,
        "state": "running",
        "runs": [run],
    }
    return {
        "status": status,
        "runId": 0,
        "workerGroup": "wg",
        "workerId": "w1",
        "takenUntil": iso(now + lease),
        "credentials": credentials(now, lease),
        "task": {
            **names,
            **more,
            **times,
            "created": iso(now),
            "dependencies": [],
            "requires": "all-completed",
            "routes": [],
            "retries": 5,
            "scopes": [],
            "payload": {},
            "metadata": {"name": "n", "description": "d", "owner": "o@example.com", "source": "https://e.x"},
            "tags": {},
            "extra": {},
        },
    }


class Canned(asyncio.Protocol):
    """Answers each request on a connection, as soon as it is whole."""

    def __init__(self, lease: float, left: list[int], port: list[int]) -> None:
        self._lease = lease
        self._left = left
        self._port = port
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head.split(b" ", 2)[1].decode(), body)

    def _answer(self, path: str, body: bytes) -> None:
        answer: Any = {}
        parts = path.split("/")
        if "claim-work" in parts:
            count = min(json.loads(body)["tasks"], self._left[0])
            if not count:
                return  # a long poll that nobody ends
            self._left[0] -= count
            answer = {"tasks": [claim(slugid(), self._lease) for _ in range(count)]}
        elif parts[-1] == "reclaim":
            answer = claim(parts[-4], self._lease)
        elif "artifacts" in parts:
            given = json.loads(body)
            url = f"http://127.0.0.1:{self._port[0]}/storage/x"
            answer = {**given, "putUrl": url} if given["storageType"] == "s3" else given
        elif "runs" in parts:
            answer = {"status": claim(parts[parts.index("task") + 1], self._lease)["status"]}
        elif parts[-1] == "status":
            answer = {"statuses": []}
        data = json.dumps(answer).encode()
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
        )
        self._transport.write(head % len(data) + data)


async def serve(lease: float, runs: int) -> None:
    left, port = [runs], [0]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Canned(lease, left, port), "127.0.0.1", 0, backlog=500)
    port[0] = server.sockets[0].getsockname()[1]
    print(port[0], flush=True)
    await server.serve_forever()


@contextmanager
def canned_queue(*, lease: float = 1200.0, runs: int = 10**9) -> Generator[str]:
    """The root URL of a canned queue that hands out so many runs, with leases of so many seconds."""
    command = [sys.executable, "-m", "benchmarks.worker_queue", str(lease), str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
