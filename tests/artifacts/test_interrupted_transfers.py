"""Ctrl-C at each point of a transfer's threads at which Python looks for signals after a function in C."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from taskqueue_client import Queue
from taskqueue_client.local import LocalQueue
from tests.artifacts.conftest import make_run
from tests.interruptions import interrupted

OURS = ("storage.py", "sync_connections.py", "sources.py")

def is_ours(frame):
    codes = [each.f_code for each in (frame, frame.f_back, frame.f_back.f_back) if each]
    if any(code is threading.Thread.start.__code__ for code in codes):
        return False  # CPython does not promise that a thread has started, or will not, after a Ctrl-C there
    return any(code.co_filename.endswith(OURS) for code in codes)

def upload():
    queue.upload_artifact(task_id, 0, "public/a", content, expires="1 hour")

def download():
    assert queue.download_artifact(task_id, "public/a").content == content

transfer, content = globals()[sys.argv[1]], os.urandom(100_000)
with LocalQueue() as local, Queue(local.root_url, local.credentials) as queue:
    task_id = make_run(queue, local.clock).task_id
    upload()
    for number in interrupted(transfer, RuntimeError, counts=is_ours):
        with ThreadPoolExecutor(1) as other:
            other.submit(transfer).result()
for thread in threading.enumerate():
    if thread.name.startswith("artifact-"):
        thread.join()
print(number)
"""


@pytest.mark.parametrize("transfer", ["upload", "download"])
def test_transfers_of_other_threads_continue_and_no_thread_remains(transfer: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, transfer], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 10
