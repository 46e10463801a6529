"""A child is forked while an event loop on another thread has connections."""

from __future__ import annotations

import subprocess
import sys
import threading

from tests.client.scripted import Say, ScriptedServer

SCRIPT = """
import asyncio, os, sys, threading
from taskqueue_client import AsyncQueue, RetryPolicy

async def call():
    task = asyncio.create_task(queue.ping())
    while not queue._transport._connections:
        await asyncio.sleep(0)
    return task

async def wait_for(task):
    await task

queue = AsyncQueue(sys.argv[1], retry=RetryPolicy(attempts=1, read_timeout=5.0))
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
task = asyncio.run_coroutine_threadsafe(call(), loop).result()
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print("forked", flush=True)
asyncio.run_coroutine_threadsafe(wait_for(task), loop).result()
"""


def test_a_call_receives_its_response_after_a_child_has_ended() -> None:
    forked, pipe = threading.Event(), subprocess.PIPE
    with ScriptedServer() as server:
        server.otherwise = Say(body=b'{"alive": true, "uptime": 1}', wait_for=forked)
        program = [sys.executable, "-c", SCRIPT, server.root_url]
        with subprocess.Popen(program, stdout=pipe, stderr=pipe, text=True) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "forked\n"
            forked.set()
            _, errors = running.communicate()
        assert running.returncode == 0, errors
