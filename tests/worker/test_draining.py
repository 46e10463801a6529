"""Several workers that shut down at once: each run uses at most one of its retries."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from taskqueue_client.errors import ConnectionFailed
from taskqueue_client.local.faults import Respond
from taskqueue_client.worker.claims.keeper import Keeper
from taskqueue_client.worker.loop import WorkerLoop
from taskqueue_client.worker.run.task_run import TaskRun
from taskqueue_client.worker.worker_log import log
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.worker_world import Working, work, worker_for

TASKS = 4


def until_canceled(task: TaskRun) -> None:
    assert task.canceled.wait(2 * WAIT)
    task.canceled.check()


def fleet(world: World, size: int, handler: Callable[[TaskRun], None]) -> list[WorkerLoop]:
    """Return workers with one slot more than there are tasks, so each always has a claim request open."""
    workers = [
        worker_for(
            world,
            handler,
            worker_id=f"worker-{number}",
            concurrency=TASKS + 1,
            cancellation_poll_interval=3600.0,
        )
        for number in range(size)
    ]
    for worker in workers:
        worker.clock = world.local.clock
    return workers


def advance_until_left(world: World, working: list[Working]) -> None:
    """Advance the clock in small steps until all workers have ended: within a step, they act in any order."""

    def have_left() -> bool:
        world.local.clock.advance(seconds=0.25)
        return not any(each.is_alive(0.03) for each in working)  # gives a slow machine time for each step

    until(have_left)


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("grace", [0, 1, 10, 19, 21])
def test_workers_that_drain_at_once_use_one_retry_per_run(world: World, grace: float, signals: int) -> None:
    created = [world.create(retries=5) for _ in range(TASKS)]
    begun: list[str] = []

    def handler(task: TaskRun) -> None:
        begun.append(task.task_id)
        until_canceled(task)

    with ExitStack() as stack:
        working = [stack.enter_context(Working(world, worker)) for worker in fleet(world, 3, handler)]
        until(lambda: len(begun) == TASKS)  # so no claim is on its way
        world.local.clock.hold()
        for _ in range(signals):
            for each in working:
                each.worker.shutdown(within=grace)
        advance_until_left(world, working)
    for task_id in created:
        status = world.status(task_id)
        assert [str(run.reason_resolved) for run in status.runs] == ["worker-shutdown", "None"]
        assert status.retries_left == 4


def test_a_worker_does_not_claim_the_run_again_that_it_gave_up(world: World) -> None:
    task_id = world.create(retries=1)
    worker = worker_for(world, until_canceled, concurrency=2)
    with Working(world, worker) as working:
        until(lambda: world.status(task_id).state == "running")
        worker.shutdown(within=0)
        working.wait_for_end()
    status = world.status(task_id)
    assert (status.state, status.retries_left) == ("pending", 0)
    assert len(status.runs) == 2


def test_an_idle_worker_does_not_wait_for_its_claim_request(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The request would wait for 20 s; the worker ends although the clock is advanced by 2 s only.

    Its log says that it has closed a request: the Queue may have claimed a run for it a moment before.
    """
    caplog.set_level("INFO")
    worker = worker_for(world, lambda _: None)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)
        world.local.clock.hold()
        worker.shutdown()
        for _ in range(8):
            world.local.clock.advance(seconds=0.25)
        working.wait_for_end()
    assert "closing the open claim request, which has waited for " in caplog.text


def test_a_worker_ends_after_max_idle_and_not_at_the_end_of_the_claim_request(
    world: World,
) -> None:
    clock = world.local.clock
    worker = worker_for(world, lambda _: None, max_idle=4.0)
    worker.clock = clock
    with Working(world, worker) as working:
        until(lambda: world.queue.list_workers(TASK_QUEUE_ID).workers)
        clock.hold()
        start = clock.monotonic()
        advance_until_left(world, [working])
        assert clock.monotonic() - start < 15  # the claim request would end after 20 s


def test_a_short_max_idle_is_long_enough_to_turn_to_each_task_queue(world: World) -> None:
    task_id = world.create()
    queues = ["proj/before", "proj/other", TASK_QUEUE_ID]
    work(world, lambda _: None, task_queue_id=queues, max_idle=0.01)
    assert world.status(task_id).state == "completed"


def test_a_worker_that_cannot_reach_the_queue_ends_after_max_idle_with_the_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, the machines of a fleet without a network would end as if there were no work."""
    worker = worker_for(world, lambda _: None, root_url="http://127.0.0.1:1", max_idle=0.01)
    with pytest.raises(ConnectionFailed, match="claimWork"):
        worker.serve()
    assert "without a task (max_idle): claimWork" in caplog.text


def test_no_claim_request_begins_while_the_error_at_max_idle_is_logged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logging may take seconds; the runs of such a request would end as `worker-shutdown`."""
    steps, stop_claiming = list[str](), Keeper.stop_claiming

    def stop(keeper: Keeper) -> None:
        steps.append("stop claiming")
        stop_claiming(keeper)

    def look(record: logging.LogRecord) -> bool:
        if "(max_idle)" in record.msg:
            steps.append("log")
        return True

    monkeypatch.setattr(Keeper, "stop_claiming", stop)
    worker = worker_for(world, lambda _: None, root_url="http://127.0.0.1:1", max_idle=0.01)
    log.addFilter(look)
    try:
        with pytest.raises(ConnectionFailed):
            worker.serve()
    finally:
        log.removeFilter(look)
    assert steps == ["stop claiming", "log"]


def test_a_worker_that_has_had_no_response_from_the_queue_has_not_been_idle(world: World) -> None:
    """As with a firewall that drops packets: the first claim request fails later than a short `max_idle`."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        root_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        worker = worker_for(world, lambda _: None, root_url=root_url, max_idle=2.0)
        worker.clock = clock = world.local.clock
        with Working(world, worker) as working:
            with silent.accept()[0]:
                for _ in range(5):
                    clock.advance(seconds=1)
                    assert working.is_alive(within=0.1)
                silent.close()
            until(working.has_ended)
            with pytest.raises(ConnectionFailed, match="claimWork"):
                working.wait_for_end()


def test_a_failed_claim_request_before_the_last_one_is_not_an_error_at_max_idle(world: World) -> None:
    task_id = world.create()
    world.local.faults.add(Respond(endpoint="queue.claimWork", status=503))
    worker = worker_for(world, lambda _: None, max_idle=60.0)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        advance_until_left(world, [working])
    assert world.status(task_id).state == "completed"


def test_a_worker_with_a_claim_request_open_after_a_failure_waits_for_its_result_at_max_idle(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.local.faults.add(Respond(endpoint="queue.claimWork", status=503))
    worker = worker_for(world, lambda _: None, max_idle=8.0)
    worker.clock = clock = world.local.clock
    started = clock.monotonic()
    with caplog.at_level("INFO"), Working(world, worker) as working:
        advance_until_left(world, [working])
    assert "without work (max_idle)" in caplog.text
    assert clock.monotonic() - started > 20  # the Queue waits so long for work


def test_the_log_says_that_a_worker_ends_because_of_max_tasks(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.create()
    with caplog.at_level("INFO"):
        work(world, lambda _: None, max_tasks=1)
    assert "no more claims: max_tasks is reached" in caplog.text
