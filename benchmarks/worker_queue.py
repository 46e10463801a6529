"""A canned queue for workers, in a separate process: it hands out runs for ever, and takes all reports.

It parses no more of a request than it needs, so that what a benchmark measures is the worker.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import md5
from typing import Any

from benchmarks.inputs import FIXED, Inputs
from taskqueue_client import slugid
from taskqueue_client.definitions import TaskDefinition

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


def claim(task_id: str, lease: float, definition: TaskDefinition) -> dict[str, Any]:
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
            **definition,
            "payload": {**definition["payload"], "script": "x = y + z;\n" * 110},
            **names,
            **more,
            **times,
            "created": iso(now),
            "requires": "all-completed",
        },
    }


class Canned(asyncio.Protocol):
    """Responds to each request on a connection, as soon as it is whole."""

    def __init__(
        self, claim: Callable[[str], dict[str, Any]], left: list[int], storage: Callable[[], str]
    ) -> None:
        self._claim = claim
        self._left = left
        self._storage = storage
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
            method, path, _ = head.split(b" ", 2)
            self._respond(method, path.decode(), body)

    def _respond(self, method: bytes, path: str, body: bytes) -> None:
        status = b"200 OK"
        response: Any = {}
        parts = path.split("/")
        if method == b"GET":  # of an artifact, to compare its length: storage that discards has none
            status, response = b"403 Forbidden", {"code": "InsufficientScopes", "message": ""}
        elif "claim-work" in parts:
            count = min(json.loads(body)["tasks"], self._left[0])
            if not count:
                print("waiting", flush=True)
                return  # a long poll that nobody ends
            self._left[0] -= count
            response = {"tasks": [self._claim(slugid()) for _ in range(count)]}
        elif parts[-1] == "reclaim":
            response = self._claim(parts[-4])
        elif "artifacts" in parts:
            given = json.loads(body)
            response = {**given, "putUrl": self._storage()} if given["storageType"] == "s3" else given
        elif "runs" in parts:
            response = {"status": self._claim(parts[parts.index("task") + 1])["status"]}
        elif parts[-1] == "status":
            response = {"statuses": []}
        data = json.dumps(response).encode()
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json; charset=utf-8\r\n" % status
        if "storage" in parts:  # as S3 does
            head += b'ETag: "%s"\r\n' % md5(body, usedforsecurity=False).hexdigest().encode()
        self._transport.write(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)


async def serve(lease: float, runs: int, storage: str, inputs: Inputs) -> None:
    left, port = [runs], [0]
    (definition,) = inputs.definitions(1)
    new_claim = partial(claim, lease=lease, definition=definition)
    loop = asyncio.get_running_loop()

    def put_url() -> str:
        return f"{storage}/put/x" if storage else f"http://127.0.0.1:{port[0]}/storage/x"

    server = await loop.create_server(lambda: Canned(new_claim, left, put_url), "127.0.0.1", 0, backlog=500)
    port[0] = server.sockets[0].getsockname()[1]
    print(port[0], flush=True)
    await server.serve_forever()


@contextmanager
def canned_queue(
    inputs: Inputs = FIXED, *, lease: float = 1200.0, runs: int = 10**9, storage: str = ""
) -> Generator[str]:
    """Yield the root URL of a canned queue that hands out `runs` runs with leases of `lease` seconds.

    `storage` is the root URL of a sink for large uploads; by default the queue takes them itself.
    """
    with emptied_queue(inputs, lease=lease, runs=runs, storage=storage) as (root_url, _):
        yield root_url


@contextmanager
def emptied_queue(
    inputs: Inputs = FIXED, *, lease: float = 1200.0, runs: int = 10**9, storage: str = ""
) -> Generator[tuple[str, Callable[[], object]]]:
    """Yield the same URL, and a function that waits until a claim request finds no more runs."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.worker_queue",
        str(lease),
        str(runs),
        storage,
        str(inputs.seed),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield f"http://127.0.0.1:{port}", process.stdout.readline
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Inputs(int(sys.argv[4]))))
