"""A listener notices that a binding of its queue was removed, and binds again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from taskqueue_client import events
from taskqueue_client.events import AsyncListener, BrokerRefused, Gap, PulseSettings, State
from taskqueue_client.slugid import slugid
from tests.events.conftest import States, WatchedClock
from tests.events.messages_published import Publisher, task_ids, task_of


@pytest.fixture
async def exchange(publisher: Publisher) -> AsyncIterator[str]:
    """The name of an exchange that no other test uses."""
    name = f"exchange/test/{slugid()}"
    await publisher.channel.exchange_declare(name, exchange_type="topic")
    yield name
    await publisher.channel.exchange_delete(name)


async def test_a_check_restores_a_binding_that_somebody_has_removed(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    clock, binding = WatchedClock(), events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        settings, [binding], queue=queue, on_state=states, clock=clock, check_interval=45
    ) as listener:
        await publisher.channel.queue_unbind(
            listener.queue or "", binding.exchange, binding.routing_key_pattern
        )
        await clock.move_a_sleeper(45)
        await clock.sleeper(30)
        await clock.sleeper(45)
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        assert task_of(await anext(listener)) == sent[0]
    assert states.names == [State.CONNECTING, State.LISTENING, State.CLOSED]


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_deleted_exchange_costs_only_its_own_messages_until_a_check_finds_a_new_one(
    settings: PulseSettings,
    publisher: Publisher,
    pool: str,
    queue: str,
    exchange: str,
    states: States,
    caplog: pytest.LogCaptureFixture,
    *,
    is_named: bool,
) -> None:
    clock, gaps = WatchedClock(), list[Gap]()

    async def reconcile(gap: Gap) -> None:
        gaps.append(gap)

    async with AsyncListener(
        settings,
        [events.Binding(exchange, "#"), events.task_completed(task_queue_id=pool)],
        queue=queue if is_named else None,
        on_state=states,
        clock=clock,
        check_interval=300,
        reconcile=reconcile,
    ) as listener:
        await publisher.channel.exchange_delete(exchange)
        await clock.move_a_sleeper(300)
        await clock.sleeper(30)
        await clock.sleeper(300)
        assert "messages may be lost, as the check could not bind the queue again" in caplog.text
        assert f"no exchange '{exchange}'" in caplog.text
        assert gaps == []
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        assert task_of(await anext(listener)) == sent[0]
        await publisher.channel.exchange_declare(exchange, exchange_type="topic")
        await clock.move_a_sleeper(300)
        await clock.sleeper(30)
        await clock.sleeper(300)
        await publisher.channel.basic_publish(b"new", exchange=exchange)
        assert (await anext(listener)).exchange == exchange
    assert [gap.queue_was_lost for gap in gaps] == [True]  # messages before the new binding were lost
    assert states.names == [State.CONNECTING, State.LISTENING, State.CLOSED]


async def test_a_missing_exchange_among_many_is_refused_at_the_start_by_its_name(
    settings: PulseSettings, exchange: str
) -> None:
    missing = events.Binding(f"{exchange}-missing", "#")
    with pytest.raises(BrokerRefused, match=missing.exchange):
        async with AsyncListener(
            settings, [missing, *(events.Binding(exchange, f"{n}.#") for n in range(50))]
        ):
            pass
