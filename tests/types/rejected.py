"""Mistakes that the type checkers must reject: every line that ends in `# no`. Checked, never run."""

from __future__ import annotations

import taskqueue_client
from taskqueue_client import AsyncQueue, Credentials, Queue, RetryPolicy, TaskRun
from taskqueue_client.events import AsyncListener, wait_for_task
from taskqueue_client.models import ReasonResolved


def blocking(queue: Queue) -> None:
    queue.create_task("abc")  # no: the definition is missing
    queue.create_task("abc", {"taskQueueId": 1})  # no: a number, and most keys are missing
    queue.claim_work("p/w", "g", "w")  # no: these are keyword arguments
    queue.claim_work("p/w", worker_group="g", worker_id="w", task=4)  # no: it is called tasks
    queue.create_taks("abc", {})  # no: a typing error
    queue.reclaim_task("abc", "0")  # no: a run id is a number
    _ = queue.status("abc").status.taskId  # no: snake_case
    queue.report_exception("abc", 0, "because")  # no: one of the Queue's reasons
    queue.report_exception("abc", 0, ReasonResolved.COMPLETED)  # no: not a reason of an exception
    queue.report_exception("abc", 0, ReasonResolved.CLAIM_EXPIRED)  # no: one that only the Queue gives
    queue.with_options(attempt=1)  # no: it is called attempts
    queue.credentials = {"clientId": "a", "accessToken": "b"}  # no: it takes Credentials
    for claim in queue.claim_work("p/w", worker_group="g", worker_id="w").tasks:
        claim.run_id = 3  # no: frozen
    Credentials("a", "b").access_token = "c"  # no: frozen
    RetryPolicy(attempts="3")  # no: a number
    taskqueue_client.Qeue("https://tc.example.com")  # no: it is called Queue


def in_a_handler(task: TaskRun) -> None:
    task.describe_environment({"imageHash": 1})  # no: it takes a str
    task.proxy(host=5)  # no: it takes a str


def waiting(queue: Queue, listener: AsyncListener) -> None:
    wait_for_task(queue, "abc", listener=listener)  # no: it takes a Listener


async def awaited(queue: AsyncQueue) -> None:
    _ = queue.claim_work("p/w", worker_group="g", worker_id="w").tasks  # no: not awaited
    queue.report_completed("abc", 0)  # no: not awaited
    for _ in queue.iter_artifacts("abc", 0):  # no: async for
        pass
