"""Ctrl-C at each point of a transfer's threads at which Python looks for signals after a function in C."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import faulthandler, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from taskqueue_client import Queue
from taskqueue_client.local import LocalQueue
from tests.artifacts.conftest import make_run

OURS = ("storage.py", "sync_connections.py", "sources.py")

class Interruption:
    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, function):
        if event == "c_return" and is_ours(frame):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

def is_ours(frame):
    codes = [each.f_code for each in (frame, frame.f_back, frame.f_back.f_back) if each]
    if any(code is threading.Thread.start.__code__ for code in codes):
        return False  # CPython does not promise that a thread has started, or will not, after a Ctrl-C there
    return any(code.co_filename.endswith(OURS) for code in codes)

def upload():
    queue.upload_artifact(task_id, 0, "public/a", content, expires="1 hour")

def download():
    assert queue.download_artifact(task_id, "public/a").content == content

faulthandler.dump_traceback_later(100, exit=True)
transfer, content = globals()[sys.argv[1]], os.urandom(100_000)
with LocalQueue() as local, Queue(local.root_url, local.credentials) as queue:
    task_id = make_run(queue, local.clock).task_id
    upload()
    number, interruption = 0, Interruption(0)
    while interruption.left <= 0:
        number += 1
        interruption = Interruption(number)
        sys.setprofile(interruption)
        try:
            transfer()
        except (KeyboardInterrupt, RuntimeError):
            pass
        finally:
            sys.setprofile(None)
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
