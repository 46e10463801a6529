"""A worker that consumes messages notices a canceled run at once."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from typing import Any

import pytest

from taskqueue_client import LocalQueue, Queue, TaskRun, WorkerLoop, slugid, task_definition
from taskqueue_client.events import PulseSettings, _broker_session
from taskqueue_client.models import ReasonResolved
from taskqueue_client.worker import WorkerIdentity
from taskqueue_client.worker.claims.cancellation import consume_cancellations
from taskqueue_client.worker.claims.keeper import Keeper

from .messages_published import Publisher, body, task_ids
from .proxy import Proxy

FUSE = 60  # seconds after which a wait has failed


class Waiting(WorkerLoop):
    """Waits until its run is canceled."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.started = threading.Event()
        self.stopped = threading.Event()

    def run_task(self, task: TaskRun) -> None:
        self.started.set()
        if task.canceled.wait(FUSE):
            self.stopped.set()


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_message_about_cancellation_stops_the_run(
    local: LocalQueue, settings: PulseSettings, monkeypatch: pytest.MonkeyPatch, *, whole_group: bool
) -> None:
    hints: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    hint_canceled = Keeper.hint_canceled

    def hint(keeper: Keeper, task_id: str | None = None) -> None:
        hints.put(task_id)
        hint_canceled(keeper, task_id)

    monkeypatch.setattr(Keeper, "hint_canceled", hint)
    worker = Waiting(
        task_queue_id="prov/wt",
        worker_group="wg",
        worker_id=slugid(),
        root_url=local.root_url,
        credentials=local.credentials,
        pulse=settings,
        cancellation_poll_interval=10 * FUSE,  # polls would be too late
    )
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        with Queue(local.root_url, local.credentials) as client:
            task_id = slugid()
            made = task_definition("prov/wt", {}, name="n", owner="o", source="https://example.com")
            client.create_task(task_id, made)
            assert worker.started.wait(FUSE)
            assert hints.get(timeout=FUSE) is None  # consuming has begun
            if whole_group:
                client.seal_task_group(task_id)
                client.cancel_task_group(task_id)
            else:
                client.cancel_task(task_id)
            assert hints.get(timeout=FUSE) == task_id
            assert worker.stopped.wait(FUSE)
            assert client.status(task_id).status.runs[0].reason_resolved is ReasonResolved.CANCELED
    finally:
        worker.shutdown()
        worker.shutdown()  # the second call: don't wait for the end of a claim call
        thread.join()


async def test_a_worker_ends_when_its_connection_to_the_broker_is_closed(
    local: LocalQueue,
    through_wire: PulseSettings,
    wire: Proxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_broker_session, "CLOSING", 0.2)
    caplog.set_level(logging.INFO)
    listening = threading.Event()

    def hint(_: Keeper, __: str | None) -> None:
        listening.set()

    monkeypatch.setattr(Keeper, "hint_canceled", hint)
    worker = Waiting(
        task_queue_id="prov/wt",
        worker_group="wg",
        worker_id=slugid(),
        root_url=local.root_url,
        credentials=local.credentials,
        pulse=through_wire,
    )
    working = asyncio.create_task(asyncio.to_thread(worker.serve))
    async with asyncio.timeout(FUSE):
        await asyncio.to_thread(listening.wait)
        wire.silence()
        worker.shutdown()
        await working
    own = [each for each in caplog.records if each.name.startswith("taskqueue_client")]
    lines = [each.getMessage().partition(":")[0] for each in own]
    assert lines[-2:] == ["closed", "the worker has ended"]


async def test_a_message_without_its_run_in_the_status_or_without_a_run_id_does_not_end_the_consumer(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    odd, without_run_id, canceled = (body("task-exception", each, pool=pool) for each in task_ids(3))
    odd["status"]["runs"] = []
    del without_run_id["runId"]  # as older Queues send them
    hints: asyncio.Queue[str | None] = asyncio.Queue()
    identity = WorkerIdentity(pool, "wg", "w1")
    consuming = asyncio.create_task(consume_cancellations(settings, [identity], hints.put_nowait))
    async with asyncio.timeout(FUSE):
        assert await hints.get() is None  # consuming has begun
        for each in (odd, without_run_id, canceled):
            await publisher.publish("task-exception", each)
        assert await hints.get() == canceled["status"]["taskId"]
    consuming.cancel()
    await asyncio.wait([consuming])


async def test_a_broker_that_refuses_the_worker_is_one_line_of_its_log_with_the_reason(
    settings: PulseSettings, caplog: pytest.LogCaptureFixture
) -> None:
    port = settings.effective_port
    wrong = PulseSettings(host=settings.host, port=port, user=settings.user, password="wrong", tls=False)
    await consume_cancellations(wrong, [WorkerIdentity("proj/linux", "group", "worker")], lambda _: None)
    [record] = [each for each in caplog.records if each.name == "taskqueue_client.worker"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    assert "polling for canceled runs instead: amqp://" in record.getMessage()
    assert "ACCESS_REFUSED" in record.getMessage()


async def test_an_unreadable_file_of_authorities_is_one_line_of_the_worker_s_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = PulseSettings(host="127.0.0.1", user="user", password="secret", ca_file="/nowhere/ca.pem")
    await consume_cancellations(broker, [WorkerIdentity("proj/linux", "group", "worker")], lambda _: None)
    [record] = [each for each in caplog.records if each.name == "taskqueue_client.worker"]
    assert record.levelno == logging.ERROR
    assert "polling for canceled runs instead: [Errno 2]" in record.getMessage()
    assert "/nowhere/ca.pem" in record.getMessage()
