"""Messages are stored in the transaction of the change that they are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskqueue_client.local.amqp import Outbox
from taskqueue_client.local.messages import Message
from taskqueue_client.local.refusal import Refusal
from tests.local.engine.engine_world import QUEUE, World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def outbox(world: World) -> Outbox:
    outbox = Outbox(world.store)
    world.audience.stores.append(outbox.add)
    return outbox


def exchanges(outbox: Outbox) -> list[str]:
    return [each.exchange.rpartition("/")[2] for each in outbox.oldest(100)]


def test_a_change_and_its_messages_are_stored_together(world: World, outbox: Outbox) -> None:
    world.claim(world.create())
    assert exchanges(outbox) == ["task-defined", "task-pending", "task-running"]
    assert len(outbox) == 3


def test_a_change_whose_messages_cannot_be_stored_is_undone(world: World) -> None:
    task_id = world.create()

    def fail(_: Message) -> None:
        message = "disk I/O error"
        raise OSError(message)

    world.audience.stores.append(fail)
    with pytest.raises(OSError, match="disk I/O error"):
        world.claim(task_id)
    assert world.status(task_id)["state"] == "pending"
    world.audience.stores.clear()
    world.claim(task_id)
    assert world.engine.get_task_queue(QUEUE)["lastDateActive"] == world.now()


def test_a_refused_call_leaves_no_message(world: World, outbox: Outbox) -> None:
    task_id = world.create()
    with pytest.raises(Refusal):
        world.claim(task_id, run_id=1)
    assert exchanges(outbox) == ["task-defined", "task-pending"]


def test_delivered_messages_are_removed_and_the_order_stays(world: World, outbox: Outbox) -> None:
    world.claim(world.create())
    outbox.remove_until(outbox.oldest(2)[-1].seq)
    assert exchanges(outbox) == ["task-running"]
    world.create()
    assert exchanges(outbox) == ["task-running", "task-defined", "task-pending"]
    assert len(outbox) == 3
