"""Transfers after the main thread has ended: in `atexit` functions, `__del__` and threads still running."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from taskqueue_client.local import LocalQueue
from tests.artifacts.conftest import Run

PROGRAM = """
import asyncio, atexit, os, sys, threading
from taskqueue_client import AsyncQueue, Queue

few = {f"few/{each}": b"x" for each in range(5)}
many = {f"many/{each}": b"x" for each in range(200)}
large = bytes(3_000_000)
options = {"expires": os.environ["EXPIRES"]}
run = os.environ["TASK_ID"], 0

def transfer():
    with Queue.from_env() as queue:
        for artifacts in few, many:
            assert queue.upload_artifacts(*run, artifacts, **options).is_complete
        queue.upload_artifact(*run, "large", large, **options)
    asyncio.run(transfer_async())
    print("done", flush=True)

async def transfer_async():
    async with AsyncQueue.from_env() as queue:
        assert (await queue.upload_artifacts(*run, few, **options)).is_complete
        blocks = (large[:1000] for _ in range(1000))
        await queue.upload_artifact(*run, "blocks", blocks, **options)
        assert (await queue.download_artifact(run[0], "large")).content == large

def after_main():
    threading.main_thread().join()
    transfer()

"""


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2),
    reason="these versions of Python start no threads then: https://github.com/python/cpython/issues/113964",
)
@pytest.mark.parametrize(
    "when",
    [
        "atexit.register(transfer)",
        "threading.Thread(target=after_main).start()",
        "cycle = type('Cycle', (), {'__del__': lambda _: transfer()})(); cycle.itself = cycle; del cycle",
    ],
)
def test_transfers_work_when_the_main_thread_has_ended(local: LocalQueue, run: Run, when: str) -> None:
    environment = {
        **os.environ,
        "TASKCLUSTER_ROOT_URL": local.root_url,
        "TASKCLUSTER_CLIENT_ID": local.client_id,
        "TASKCLUSTER_ACCESS_TOKEN": local.access_token,
        "TASK_ID": run.task_id,
        "EXPIRES": run.expires.isoformat(),
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + when],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
