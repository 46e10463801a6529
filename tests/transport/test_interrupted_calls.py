"""Ctrl-C at each point of a call of `Queue` at which Python looks for signals after a function in C."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from concurrent.futures import ThreadPoolExecutor
from taskqueue_client import Queue
from taskqueue_client.local import LocalQueue
from tests.interruptions import interrupted

with LocalQueue() as local, Queue(local.root_url) as queue:
    queue.ping()
    for number in interrupted(queue.ping):
        queue.ping()
        with ThreadPoolExecutor(1) as other:
            other.submit(queue.ping).result()
            queue.close()
            other.submit(queue.ping).result()
print(number)
"""


def test_the_next_call_and_closing_do_not_wait_for_ever() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 100
