"""Ctrl-C at each point of a call of `Queue` at which Python looks for signals after a function in C."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import faulthandler, sys
from concurrent.futures import ThreadPoolExecutor
from taskqueue_client import Queue
from taskqueue_client.local import LocalQueue

class Interruption:
    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, function):
        if event == "c_return":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

faulthandler.dump_traceback_later(100, exit=True)
with LocalQueue() as local, Queue(local.root_url) as queue:
    queue.ping()
    number, interruption = 0, Interruption(0)
    while interruption.left <= 0:
        number += 1
        interruption = Interruption(number)
        sys.setprofile(interruption)
        try:
            queue.ping()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
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
