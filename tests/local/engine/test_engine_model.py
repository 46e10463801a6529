"""The engine and a small model of the Queue have the same states and messages after any events."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taskqueue_client.local.messages import EXCHANGE_PREFIX, Message
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import GROUP, QUEUE, WORKER, World
from tests.local.engine.queue_model import PRIORITIES, Conflict, Model, ModelTask, Sent

if TYPE_CHECKING:
    from collections.abc import Callable

CLAIM_TIMEOUT = 1200
MINUTE = 60
INDEX = st.integers(0, 50)


def summary(message: Message) -> Sent:
    exchange = message.exchange.removeprefix(EXCHANGE_PREFIX)
    body = message.body
    return exchange, body["status"]["taskId"] if "status" in body else body["taskGroupId"], body.get("runId")


def ascending(number: int) -> str:
    """A task id that sorts by its number."""
    return f"{number:08}Q0C0000000000A"


class EngineAndModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(claim_timeout=CLAIM_TIMEOUT)
        self.model = Model(self.world.clock.now(), CLAIM_TIMEOUT)
        self.groups = [slugid(), slugid()]
        self.numbers = count()

    def teardown(self) -> None:
        self.world.close()

    @initialize()
    def begin(self) -> None:
        self.create(0, "low", 5, 60, "all-completed", [])

    @rule(
        group=st.integers(0, 1),
        priority=st.sampled_from(PRIORITIES),
        retries=st.sampled_from([0, 1, 5, 49]),
        minutes=st.integers(0, 180),
        requires=st.sampled_from(["all-completed", "all-resolved"]),
        depends_on=st.lists(INDEX, max_size=3),
    )
    def create(
        self, group: int, priority: str, retries: int, minutes: int, requires: str, depends_on: list[int]
    ) -> None:
        known = list(self.model.tasks)
        dependencies = sorted({known[index % len(known)] for index in depends_on} if known else set[str]())
        deadline = self.model.now + minutes * MINUTE
        task = ModelTask(
            ascending(next(self.numbers)), self.groups[group], priority, retries, deadline, requires
        )
        definition = self.world.definition(
            taskGroupId=task.group,
            priority=priority,
            retries=retries,
            deadline=self.world.now(minutes * MINUTE),
            requires=requires,
            dependencies=dependencies,
        )
        self.both(
            lambda: self.model.create(task, dependencies),
            lambda: self.world.engine.create_task(self.world.caller, task.task_id, definition),
        )

    @rule(index=INDEX)
    def schedule(self, index: int) -> None:
        task = self.task(index)
        self.both(
            lambda: self.model.schedule(task),
            lambda: self.world.engine.schedule_task(self.world.caller, task.task_id),
        )

    @rule(index=INDEX)
    def rerun(self, index: int) -> None:
        task = self.task(index)
        self.both(lambda: self.model.rerun(task), lambda: self.world.rerun(task.task_id))

    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        task = self.task(index)
        self.both(lambda: self.model.cancel(task), lambda: self.world.cancel(task.task_id))

    @rule(index=INDEX, priority=st.sampled_from(PRIORITIES))
    def change_priority(self, index: int, priority: str) -> None:
        task = self.task(index)
        body = {"newPriority": priority}
        self.both(
            lambda: self.model.change_priority(task, priority),
            lambda: self.world.engine.change_task_priority(self.world.caller, task.task_id, body),
        )

    @precondition(lambda self: self.model.line)
    @rule(most=st.integers(1, 4))
    def claim(self, most: int) -> None:
        expected = self.model.claim(most)
        claims = asyncio.run(self.world.claim_work(most))
        assert [(claim["status"]["taskId"], claim["runId"]) for claim in claims] == expected
        self.compare_messages()

    @rule(index=INDEX)
    def reclaim(self, index: int) -> None:
        task = self.task(index)
        if task.state == "running":
            self.model.reclaim(task)
            self.world.engine.reclaim_task(self.world.caller, task.task_id, len(task.runs) - 1)
            self.compare_messages()

    @rule(index=INDEX, state=st.sampled_from(["completed", "failed"]))
    def report(self, index: int, state: str) -> None:
        task = self.task(index)
        if task.runs:
            run_id = len(task.runs) - 1
            body = {"success": state == "completed"}
            self.both(
                lambda: self.model.report(task, state),
                lambda: self.world.engine.report_completed(self.world.caller, task.task_id, run_id, body),
            )

    @rule(index=INDEX, reason=st.sampled_from(["worker-shutdown", "intermittent-task", "internal-error"]))
    def exception(self, index: int, reason: str) -> None:
        task = self.task(index)
        if task.runs and task.runs[-1].resolved != reason:  # the model does not know repeated reports
            run_id = len(task.runs) - 1
            self.both(
                lambda: self.model.exception(task, reason),
                lambda: self.world.fail(task.task_id, reason, run_id),
            )

    @rule(index=INDEX)
    def seal(self, index: int) -> None:
        group = self.task(index).group
        self.model.sealed.add(group)
        self.world.engine.seal_task_group(self.world.caller, group)
        assert [summary(message) for message in self.world.taken()] == [("task-group-sealed", group, None)]

    @rule(index=INDEX)
    def cancel_group(self, index: int) -> None:
        group = self.task(index).group
        self.both(
            lambda: self.model.cancel_group(group),
            lambda: self.world.engine.cancel_task_group(self.world.caller, group),
        )

    @rule(minutes=st.integers(1, 40))
    def advance(self, minutes: int) -> None:
        self.model.advance(minutes * MINUTE)
        self.world.clock.advance(minutes=minutes)
        self.compare_messages()

    @invariant()
    def every_task_is_the_same(self) -> None:
        for task in self.model.tasks.values():
            status = self.world.status(task.task_id)
            assert status["state"] == task.state
            assert status["priority"] == task.priority
            assert status["retriesLeft"] == task.left
            runs = [(run["state"], run["reasonCreated"], run.get("reasonResolved")) for run in status["runs"]]
            assert runs == [(run.state, run.created, run.resolved) for run in task.runs]

    @invariant()
    def the_line_is_the_same(self) -> None:
        listed = self.world.engine.list_pending_tasks(QUEUE, None, 1000)["tasks"]
        assert sorted((entry["taskId"], entry["runId"]) for entry in listed) == sorted(self.model.line)

    @invariant()
    def a_running_run_has_a_worker_and_an_end(self) -> None:
        for task in self.model.tasks.values():
            if task.state == "running":
                run = self.world.status(task.task_id)["runs"][-1]
                assert (run["workerGroup"], run["workerId"]) == (GROUP, WORKER)
                assert run["takenUntil"] == self.world.now((task.runs[-1].taken_until or 0) - self.model.now)

    def task(self, index: int) -> ModelTask:
        tasks = list(self.model.tasks.values())
        return tasks[index % len(tasks)]

    def both(self, model: Callable[[], Any], engine: Callable[[], Any]) -> None:
        """Perform an event in both; check that both refuse it or none, and send the same messages."""
        try:
            model()
        except Conflict:
            with pytest.raises(Refusal) as caught:
                engine()
            assert caught.value.status == 409
        else:
            engine()
        self.compare_messages()

    def compare_messages(self) -> None:
        ours = [summary(message) for message in self.world.taken()]
        theirs, self.model.messages = self.model.messages, []
        assert ours == theirs


TestEngineAndModel = EngineAndModel.TestCase
TestEngineAndModel.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
