"""Programs that run on uvloop, whose timers and transports differ from asyncio's."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import uvloop

from taskqueue_client._protocol.api_responses import Response, TransportFailed
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport.async_connections import ConnectorTransport
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client.local import LocalQueue

PROGRAM = """
import uvloop
from taskqueue_client import Queue, slugid, task_definition
from taskqueue_client.local import LocalQueue

uvloop.install()
with LocalQueue() as local, Queue(local.root_url, local.credentials) as queue:
    definition = task_definition(
        "a/b", {}, name="n", owner="me@example.com", source="https://example.com", deadline="1 hour"
    )
    task_id = slugid()
    queue.create_task(task_id, definition)
    queue.claim_task(task_id, 0, worker_group="g", worker_id="w")
    queue.upload_artifact(task_id, 0, "public/x", b"x" * 5000, expires="1 hour")
    print(len(queue.download_artifact(task_id, "public/x").content))
"""


def test_a_local_queue_serves_artifacts_where_uvloop_is_installed() -> None:
    """uvloop cannot send files."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("5000\n", "")


def test_several_calls_that_are_out_of_time_at_once_fail() -> None:
    """On uvloop, a timer that is due at once does not know when it is due."""

    async def calls(root_url: str) -> list[Response | BaseException]:
        transport = ConnectorTransport(NetworkSettings())
        ping = Request("GET", f"{root_url}/api/queue/v1/ping", {}, None)
        await transport.request(ping, Timeouts(60, 60, 60))
        late = (transport.request(ping, Timeouts(60, 0, 60)) for _ in range(4))
        found = await asyncio.gather(*late, return_exceptions=True)
        await transport.aclose()
        return found

    with LocalQueue() as local, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(calls(local.root_url))
    assert {type(each) for each in found} <= {Response, TransportFailed}  # some may be in time
