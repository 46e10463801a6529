"""A child that is forked uses no connection and no thread of its parent."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from taskqueue_client import Queue
from taskqueue_client.local import LocalQueue
from tests.artifacts.conftest import Run
from tests.client.scripted import ScriptedServer, say

CALLS = """
import os, sys
from taskqueue_client import Queue

queue = Queue(sys.argv[1])
queue.ping()
if (child := os.fork()) == 0:
    queue.ping()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
queue.ping()
"""

UPLOADS = """
import os, sys
from taskqueue_client import Credentials, Queue

root_url, client_id, access_token, task_id, number = sys.argv[1:]
content = os.urandom(200_000)
queue = Queue(root_url, Credentials(client_id, access_token))

def upload(tag):
    names = (f"public/{tag}/{each}" for each in range(int(number)))
    report = queue.upload_artifacts(task_id, 0, {name: content for name in names}, expires="1 hour")
    assert report.is_complete, report.failed

upload("before")
if (child := os.fork()) == 0:
    upload("child")
    os._exit(0)
upload("parent")
assert os.waitpid(child, 0)[1] == 0
"""


def _run(script: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-c", script, *arguments], timeout=60, check=True)


def test_a_call_of_the_child_goes_over_a_connection_of_its_own() -> None:
    with ScriptedServer() as server:
        server.otherwise = say({"alive": True, "uptime": 1.0})
        _run(CALLS, server.root_url)
        connections = [each.connection for each in server.received]
    parents, childs = connections[0], connections[1]
    assert Counter(connections) == {parents: 2, childs: 1}


@pytest.mark.parametrize("number", [20, 250])  # 20 are uploaded in threads, 250 in an event loop
def test_parent_and_child_upload_at_the_same_time(local: LocalQueue, run: Run, number: int) -> None:
    credentials = local.credentials
    arguments = (local.root_url, credentials.client_id, credentials.access_token, run.task_id, str(number))
    _run(UPLOADS, *arguments)
    with Queue(local.root_url, credentials) as queue:
        names = Counter(each.name.split("/")[1] for each in queue.iter_artifacts(run.task_id, run.run_id))
    assert names == {"before": number, "child": number, "parent": number}
