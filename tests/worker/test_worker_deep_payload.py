"""A task whose payload is nested too deeply for Python to read ends as malformed; others are not harmed."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from taskqueue_client.local import LocalQueue
from tests.client.scripted import Received, Say, ScriptedServer
from tests.worker.queue_world import WAIT, World
from tests.worker.worker_world import Working, log_of, worker_for

PLACE = "the payload goes here"

# Near Python's recursion limit, finalizers of other tests' garbage would fail.
pytestmark = pytest.mark.usefixtures("no_collection")


def in_front_of(local: LocalQueue, levels: int) -> ScriptedServer:
    """Return a server that forwards to the local queue, and puts a deep payload into the responses.

    The local queue does not take such payloads.
    """
    value = b'{"a":[' * (levels // 2) + b"]}" * (levels // 2)

    def forward(request: Received) -> Say:
        headers = {name: value for name, value in request.headers.items() if name != "Accept-Encoding"}
        url = local.root_url + request.path
        response = requests.request(request.method, url, data=request.body, headers=headers, timeout=WAIT)
        return Say(response.status_code, response.content.replace(f'"{PLACE}"'.encode(), value))

    server = ScriptedServer()
    server.otherwise = forward
    return server


@pytest.mark.parametrize("schema", [None, {}], ids=["without a schema", "with one"])
@pytest.mark.parametrize("levels", [1000, 50_000])
def test_a_deeply_nested_payload_is_malformed_and_the_task_beside_it_is_completed(
    world: World, levels: int, schema: dict[str, Any] | None
) -> None:
    deep, plain = world.create({"deep": PLACE}), world.create({"deep": 1})
    with in_front_of(world.local, levels) as server:
        worker = worker_for(
            world, lambda _: None, schema=schema, root_url=server.root_url, concurrency=2, max_tasks=2
        )
        with Working(world, worker) as working:
            working.wait_for_end()
    assert [world.run(task_id).reason_resolved for task_id in (deep, plain)] == [
        "malformed-payload",
        "completed",
    ]
    assert "lists and objects are nested too deeply; expected at most 100 levels" in log_of(world, deep)
