"""A listener survives broken connections, silent brokers and deleted queues, and raises other errors."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import aiormq
import pytest
from aiormq.abc import AbstractChannel, AbstractConnection
from pamqp.commands import Basic

from taskqueue_client import events, slugid
from taskqueue_client._protocol.threads_and_tasks import end_tasks
from taskqueue_client.events import (
    AsyncListener,
    BrokerLost,
    Gap,
    PulseSettings,
    QueueDeleted,
    ReconcileFailed,
    State,
    _broker_session,
)
from taskqueue_client.events._broker_session import BrokerSession, broker_errors
from tests.events.conftest import States, WatchedClock, until_buffered
from tests.events.messages_published import Publisher, task_ids, task_of
from tests.events.proxy import Proxy


class Gaps(list[Gap]):
    """The gaps that a listener reconciles."""

    async def note(self, gap: Gap) -> None:
        self.append(gap)


def durable(
    settings: PulseSettings,
    pool: str,
    queue: str,
    states: States,
    reconcile: Callable[[Gap], Awaitable[None]],
) -> AsyncListener:
    """Return a listener with a durable queue, which outlives its connection."""
    return AsyncListener(
        settings,
        [events.task_completed(task_queue_id=pool)],
        queue=queue,
        on_state=states,
        wait_initial=0.01,
        wait_max=0.01,
        reconcile=reconcile,
    )


async def test_an_address_of_the_broker_that_does_not_respond_is_not_waited_for(
    through_wire: PulseSettings, wire: Proxy, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an IPv6 address to which there is no route."""
    resolve = socket.getaddrinfo

    def two_addresses(host: str, *others: Any, **options: Any) -> Any:
        hosts = ["127.0.0.2", "127.0.0.1"] if host == "broker.test" else [host]
        return [each for address in hosts for each in resolve(address, *others, **options)]

    with ExitStack() as sockets:
        silent = sockets.enter_context(socket.socket())
        silent.bind(("127.0.0.2", wire.port))
        silent.listen(0)
        for _ in range(4):  # they fill the backlog of `silent`, which accepts no more
            waiting = sockets.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(silent.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        settings = replace(through_wire, host="broker.test")
        bindings = [events.task_completed(task_queue_id=pool)]
        async with asyncio.timeout(25), AsyncListener(settings, bindings) as listener:
            assert listener.state is State.LISTENING


async def test_no_message_of_4000_is_lost_when_connections_break(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, queue: str
) -> None:
    prefetch, cuts = 100, 3
    sent = task_ids(4_000)
    seen: Counter[str] = Counter()
    acknowledged_at_cut = 0
    bindings = [events.task_completed(task_queue_id=pool)]

    async def publish() -> None:
        for start in range(0, len(sent), 400):
            await publisher.complete(sent[start : start + 400], pool)

    async with AsyncListener(
        through_wire, bindings, queue=queue, prefetch=prefetch, wait_initial=0.01
    ) as listener:
        publishing = asyncio.create_task(publish())
        async for event in listener:
            seen[task_of(event)] += 1
            if listener.counts.received in {1_000, 2_000, 3_000}:
                acknowledged_at_cut = listener.counts.acknowledged
                wire.cut()
            if len(seen) == len(sent):
                break
        await publishing
    assert seen.keys() == set(sent)
    assert acknowledged_at_cut > 2_800
    assert listener.counts.connections == 1 + cuts
    queue_left = await publisher.channel.queue_declare(listener.queue or "", passive=True)
    again = seen.total() - len(sent) + (queue_left.message_count or 0)
    assert again <= cuts * prefetch  # unacknowledged messages were, or will be, redelivered


async def test_the_reason_for_a_lost_acknowledgment_is_in_plain_words(
    settings: PulseSettings,
    publisher: Publisher,
    pool: str,
    states: States,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def closed(channel: aiormq.Channel, *_: Any, **__: Any) -> None:
        message = f"{channel!r} closed"
        raise aiormq.ChannelInvalidStateError(message)  # as the channel does before its owner is notified

    monkeypatch.setattr(aiormq.Channel, "basic_ack", closed)
    async with AsyncListener(
        settings, [events.task_completed(task_queue_id=pool)], on_state=states
    ) as listener:
        await publisher.complete(task_ids(1), pool)
        await anext(listener)
        acknowledging = asyncio.create_task(anext(listener))
        await states.until(lambda names: State.DISCONNECTED in names)
        await end_tasks(acknowledging)
    reason = next(each.reason for each in states.changes if each.state is State.DISCONNECTED)
    assert str(reason) == "a message could not be acknowledged: the channel was closed"


async def test_messages_published_during_a_network_outage_are_received_after_it(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    sent = task_ids(6)
    bindings = [events.task_completed(task_queue_id=pool)]
    async with AsyncListener(
        through_wire, bindings, queue=queue, on_state=states, wait_initial=0.01, wait_max=0.01
    ) as listener:
        await publisher.complete(sent[:3], pool)
        first = await anext(listener)
        await wire.shut()
        await publisher.complete(sent[3:], pool)
        await states.until(lambda names: names.count(State.DISCONNECTED) >= 3)
        await wire.open()
        rest = [await anext(listener) for _ in range(6)]
    assert task_of(first) == sent[0]
    assert {*map(task_of, rest)} == set(sent)  # the first, too: its acknowledgment was not sent
    assert isinstance(states.changes[2].reason, BrokerLost)


async def test_a_listener_reconnects_when_the_broker_stops_responding(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, states: States
) -> None:
    clock = WatchedClock()
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire, [binding], on_state=states, clock=clock, check_interval=45, wait_initial=1
    ) as listener:
        wire.silence()
        await clock.move_a_sleeper(45)  # the check is due
        await clock.move_a_sleeper(30)  # the time for the response is over
        await states.until(lambda names: State.DISCONNECTED in names)
        assert "the broker did not respond within 30 s" in str(states.changes[-1].reason)
        wire.speak()
        await clock.move_a_sleeper()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        assert task_of(await anext(listener)) == sent[0]


async def test_a_broker_that_does_not_bind_the_queue_again_has_lost_the_connection(
    settings: PulseSettings,
    pool: str,
    publisher: Publisher,
    states: States,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, binding = WatchedClock(), events.task_completed(task_queue_id=pool)
    bind_again, has_begun = BrokerSession.bind_again, asyncio.Event()

    async def hang_once(_: BrokerSession) -> None:
        monkeypatch.setattr(BrokerSession, "bind_again", bind_again)
        has_begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(BrokerSession, "bind_again", hang_once)
    async with AsyncListener(
        settings, [binding], on_state=states, clock=clock, check_interval=45, wait_initial=1
    ) as listener:
        await clock.move_a_sleeper(45)
        await has_begun.wait()
        await clock.move_a_sleeper(30)
        await states.until(lambda names: State.DISCONNECTED in names)
        assert str(states.changes[-1].reason) == "the broker did not bind within 30 s"
        await clock.move_a_sleeper()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        assert task_of(await anext(listener)) == sent[0]


async def test_a_call_that_aiormq_cancels_has_lost_the_connection() -> None:
    """It cancels the calls that wait when a connection ends."""
    with pytest.raises(BrokerLost, match=r"^the connection ended$"), broker_errors(None):
        raise asyncio.CancelledError


async def test_a_connection_without_heartbeats_ends_with_a_reason_that_says_so(
    settings: PulseSettings, pool: str, states: States
) -> None:
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(settings, [binding], on_state=states, wait_initial=0.01) as listener:
        session: Any = listener._supervisor._session  # pyright: ignore[reportPrivateUsage]
        session._connection._reader_task.cancel()  # as aiormq does if no heartbeat came for a while
        await states.until(lambda names: State.DISCONNECTED in names)
        reason = next(change.reason for change in states.changes if change.state is State.DISCONNECTED)
        await states.until(lambda names: names.count(State.LISTENING) == 2)
    assert str(reason) == "the connection ended: the broker sent no heartbeat"


async def test_a_broker_that_accepts_a_connection_and_never_responds_is_given_up_and_tried_again(
    through_wire: PulseSettings, wire: Proxy, pool: str, states: States
) -> None:
    clock = WatchedClock()
    wire.silence()
    listener = AsyncListener(
        through_wire,
        [events.task_completed(task_queue_id=pool)],
        on_state=states,
        clock=clock,
        wait_initial=2,
    )
    entering = asyncio.create_task(listener.__aenter__())
    await wire.connected.wait()
    await clock.move_a_sleeper(30)
    await states.until(lambda names: State.DISCONNECTED in names)
    assert wire.accepted == 1
    assert "30 s" in str(states.changes[-1].reason)
    wire.speak()
    await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
    await entering
    assert states.names[-1] is State.LISTENING
    await listener.__aexit__(None, None, None)


async def test_a_listener_with_many_bindings_has_a_second_for_each_of_them(
    through_wire: PulseSettings, wire: Proxy, states: States
) -> None:
    clock = WatchedClock()
    wire.silence()
    bindings = [events.for_task(slugid()) for _ in range(50)]
    listener = AsyncListener(through_wire, bindings, on_state=states, clock=clock)
    entering = asyncio.create_task(listener.__aenter__())
    count = sum(len(each) for each in bindings)
    await clock.move_a_sleeper(count)
    await states.until(lambda names: State.DISCONNECTED in names)
    assert f"not connected within {count} s" in str(states.changes[-1].reason)
    await end_tasks(entering)


async def test_a_listener_keeps_its_connection_while_the_broker_responds(
    settings: PulseSettings, pool: str, states: States
) -> None:
    clock = WatchedClock()
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(settings, [binding], on_state=states, clock=clock, check_interval=45):
        for _ in range(3):
            await clock.move_a_sleeper(45)
            await clock.sleeper(30)  # the check has sent its request, with a time limit
            await clock.sleeper(45)  # the check has its response; the next one is scheduled
        assert states.names == [State.CONNECTING, State.LISTENING]


async def test_a_check_finds_that_the_broker_has_lost_the_consumer(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    """As happens if a durable queue has no leader: the connection stays open, but nothing is delivered."""
    clock = WatchedClock()
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        settings, [binding], queue=queue, on_state=states, clock=clock, check_interval=300
    ) as listener:
        session: Any = listener._supervisor._session  # pyright: ignore[reportPrivateUsage]
        await session._channel.basic_cancel(*session._channel.consumers)
        await publisher.complete(sent := task_ids(1), pool)
        await clock.move_a_sleeper(300)
        await states.until(lambda names: State.DISCONNECTED in names)
        reason = str(states.changes[-1].reason)
        await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        assert task_of(await anext(listener)) == sent[0]
    assert reason == f"{listener.queue} delivers nothing: the broker has lost its consumers"


async def test_attempts_to_connect_back_off_with_jitter_until_a_broker_responds(
    through_wire: PulseSettings, wire: Proxy, pool: str, states: States
) -> None:
    clock = WatchedClock()
    await wire.shut()
    binding = events.task_completed(task_queue_id=pool)
    listener = AsyncListener(
        through_wire, [binding], on_state=states, clock=clock, wait_initial=2, wait_max=10
    )
    entering = asyncio.create_task(listener.__aenter__())
    for attempt in range(1, 7):
        await states.until(lambda names, n=attempt: names.count(State.DISCONNECTED) == n)  # type: ignore[misc] # n is bound here
        await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
    await states.until(lambda names: names.count(State.DISCONNECTED) == 7)
    waits = [change.retry_in for change in states.changes if change.retry_in is not None]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, [2, 4, 8, 10, 10, 10, 10], strict=True))
    assert len(set(waits)) == 7
    await wire.open()
    await clock.move_a_sleeper(waits[-1])
    await entering
    assert states.names[-1] is State.LISTENING
    await listener.__aexit__(None, None, None)


async def test_waits_grow_while_connections_end_before_a_message_or_a_check(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, states: States
) -> None:
    """Such as if the AMQP library cannot decode a message, which the broker redelivers each time."""

    async def cut() -> None:
        await wire.shut()
        await states.until(lambda names: names[-1] is State.DISCONNECTED)
        await wire.open()
        await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        await states.until(lambda names: names[-1] is State.LISTENING)

    clock = WatchedClock()
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire, [binding], on_state=states, clock=clock, wait_initial=2, check_interval=300
    ) as listener:
        await cut()
        await cut()
        await publisher.complete(task_ids(1), pool)
        await anext(listener)
        await cut()
        await cut()
        await clock.move_a_sleeper(300)  # the check of the connection
        await clock.sleeper(30)
        await clock.sleeper(300)
        await cut()
    waits = [change.retry_in for change in states.changes if change.retry_in is not None]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, [2, 4, 2, 4, 2], strict=True))


async def test_a_connection_that_ends_right_after_a_burst_of_messages_during_a_check_is_opened_again(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, states: States
) -> None:
    """aiormq takes the end for a regular one then, and raises an `Exception` without text for the check."""
    clock = WatchedClock()
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire, [binding], on_state=states, clock=clock, wait_initial=2, check_interval=300
    ):
        wire.silence()
        await publisher.complete(task_ids(40), pool)
        await clock.move_a_sleeper(300)
        await clock.sleeper(30)  # the check waits for its response
        wire.speak()
        await asyncio.sleep(0)  # the wire writes the messages; the listener has read none of them
        wire.cut()
        await states.until(lambda names: names[-1] is State.DISCONNECTED)
        await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        await states.until(lambda names: names.count(State.LISTENING) == 2)


async def test_a_deleted_queue_is_declared_again_at_once(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    sent = task_ids(2)
    gaps = Gaps()
    async with durable(settings, pool, queue, states, gaps.note) as listener:
        await publisher.channel.queue_delete(listener.queue or "")
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        deleted = next(change for change in states.changes if change.state is State.QUEUE_DELETED)
        assert isinstance(deleted.reason, QueueDeleted)
        await publisher.complete(sent, pool)
        assert [task_of(await anext(listener)) for _ in sent] == sent
    assert [gap.queue_was_lost for gap in gaps] == [True]


async def test_buffered_events_are_yielded_when_the_queue_was_deleted_during_an_outage(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    sent = task_ids(5)
    gaps = Gaps()
    async with durable(through_wire, pool, queue, states, gaps.note) as listener:
        await publisher.complete(sent[:4], pool)
        await until_buffered(listener, 4)
        await wire.shut()
        await states.until(lambda names: State.DISCONNECTED in names)
        await publisher.channel.queue_delete(listener.queue or "")
        await wire.open()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        await publisher.complete(sent[4:], pool)
        assert [task_of(await anext(listener)) for _ in sent] == sent
    assert State.QUEUE_DELETED in states.names
    assert [gap.queue_was_lost for gap in gaps] == [True]


async def test_a_queue_deleted_while_the_listener_connects_again_counts_as_lost(
    through_wire: PulseSettings,
    wire: Proxy,
    publisher: Publisher,
    pool: str,
    queue: str,
    states: States,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exists, gaps, sent = getattr(_broker_session, "_exists"), Gaps(), task_ids(1)  # noqa: B009 - it is private

    async def delete_after_the_response(connection: AbstractConnection, name: str) -> bool:
        response: bool = await exists(connection, name)
        await publisher.channel.queue_delete(name)
        monkeypatch.setattr(_broker_session, "_exists", exists)
        return response

    async with durable(through_wire, pool, queue, states, gaps.note) as listener:
        monkeypatch.setattr(_broker_session, "_exists", delete_after_the_response)
        wire.cut()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        await publisher.complete(sent, pool)
        assert task_of(await anext(listener)) == sent[0]
    assert State.QUEUE_DELETED in states.names
    assert [gap.queue_was_lost for gap in gaps] == [True]


async def test_a_deleted_queue_counts_as_lost_although_the_session_that_declares_it_fails(
    through_wire: PulseSettings,
    wire: Proxy,
    publisher: Publisher,
    pool: str,
    queue: str,
    states: States,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next session finds the queue that this one has declared."""
    bind, gaps, sent = getattr(BrokerSession, "_bind"), Gaps(), task_ids(2)  # noqa: B009 - it is private

    async def cut_before_binding(session: BrokerSession, channel: AbstractChannel) -> None:
        monkeypatch.setattr(BrokerSession, "_bind", bind)
        wire.cut()
        await bind(session, channel)

    async with durable(through_wire, pool, queue, states, gaps.note) as listener:
        await publisher.complete(sent, pool)
        await until_buffered(listener, 2)
        await wire.shut()
        await publisher.channel.queue_delete(listener.queue or "")
        monkeypatch.setattr(BrokerSession, "_bind", cut_before_binding)
        await wire.open()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        assert listener.buffered == len(sent)
        assert [task_of(await anext(listener)) for _ in sent] == sent
    assert State.QUEUE_DELETED in states.names
    assert [gap.queue_was_lost for gap in gaps] == [True]


async def test_a_queue_deleted_while_reconcile_runs_counts_as_lost_although_reconcile_fails(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    gaps, name, sent = Gaps(), f"queue/{through_wire.user}/{queue}", task_ids(2)

    async def reconcile(gap: Gap) -> None:
        gaps.append(gap)
        if len(gaps) == 1:
            await until_buffered(listener, 2)
            await _delete_and_declare(publisher, name, listener)
            raise OSError

    async with durable(through_wire, pool, queue, states, reconcile) as listener:
        await publisher.complete(sent, pool)
        await until_buffered(listener, 2)
        wire.cut()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        assert listener.buffered == len(sent)
        assert [task_of(await anext(listener)) for _ in sent] == sent
    assert State.QUEUE_DELETED in states.names
    assert [gap.queue_was_lost for gap in gaps] == [False, True]


async def test_a_queue_that_is_deleted_and_declared_by_somebody_as_a_check_begins_counts_as_lost(
    settings: PulseSettings,
    publisher: Publisher,
    pool: str,
    queue: str,
    states: States,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check only finds that the new queue has no consumer."""
    clock, check, gaps, sent = WatchedClock(), BrokerSession.check, Gaps(), task_ids(2)

    async def delete_before_the_check(session: BrokerSession) -> int:
        monkeypatch.setattr(BrokerSession, "check", check)
        await _delete_and_declare(publisher, session.queue, listener)
        return await check(session)

    monkeypatch.setattr(BrokerSession, "check", delete_before_the_check)
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        settings, [binding], queue=queue, on_state=states, clock=clock, wait_initial=8, reconcile=gaps.note
    ) as listener:
        await publisher.complete(sent, pool)
        await until_buffered(listener, 2)
        await clock.move_a_sleeper(60)
        await states.until(lambda names: State.DISCONNECTED in names)
        await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        assert listener.buffered == len(sent)
        assert [task_of(await anext(listener)) for _ in sent] == sent
    assert State.QUEUE_DELETED in states.names
    assert [gap.queue_was_lost for gap in gaps] == [True]


async def _delete_and_declare(publisher: Publisher, queue: str, listener: AsyncListener) -> None:
    """Delete a durable queue, and declare it anew after the broker's notice to the listener."""
    session = listener._supervisor._session  # pyright: ignore[reportPrivateUsage]
    assert session is not None
    await publisher.channel.queue_delete(queue)
    await asyncio.wait_for(asyncio.shield(session.ended), 60)
    await publisher.channel.queue_declare(queue, durable=True)


async def test_buffered_events_are_yielded_when_another_listener_declares_the_deleted_queue_first(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    sent, clock = task_ids(3), WatchedClock()
    binding, gaps = events.task_completed(task_queue_id=pool), Gaps()
    async with AsyncListener(
        settings, [binding], queue=queue, on_state=states, clock=clock, wait_initial=8, reconcile=gaps.note
    ) as listener:
        await publisher.complete(sent, pool)
        await until_buffered(listener, 3)
        await publisher.channel.queue_delete(listener.queue or "")
        await states.until(lambda names: State.QUEUE_DELETED in names)
        async with AsyncListener(settings, [binding], queue=queue):
            await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
            await states.until(lambda names: names.count(State.LISTENING) == 2)
            assert listener.buffered == len(sent)
            assert [task_of(await anext(listener)) for _ in sent] == sent
    assert [gap.queue_was_lost for gap in gaps] == [True]


async def test_buffered_events_are_yielded_once_when_the_queue_redelivers_them(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    sent = task_ids(4)
    gaps = Gaps()
    async with durable(through_wire, pool, queue, states, gaps.note) as listener:
        await publisher.complete(sent[:3], pool)
        await until_buffered(listener, 3)
        wire.cut()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        await publisher.complete(sent[3:], pool)
        got = [await anext(listener) for _ in sent]
        assert sorted(map(task_of, got)) == sorted(sent)
        assert sum(event.redeliveries for event in got) == 3
    assert listener.counts.received == 4
    assert [gap.queue_was_lost for gap in gaps] == [False]


async def test_buffered_events_are_yielded_when_the_queue_was_deleted_with_the_connection(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, states: States
) -> None:
    sent = task_ids(6)
    binding = events.task_completed(task_queue_id=pool)
    names: set[str | None] = set()
    async with AsyncListener(through_wire, [binding], on_state=states, wait_initial=0.01) as listener:
        for connection, batch in enumerate((sent[:2], sent[2:4], sent[4:]), start=1):
            await states.until(lambda names, n=connection: names.count(State.LISTENING) == n)  # type: ignore[misc] # n is bound here
            names.add(listener.queue)
            await publisher.complete(batch, pool)
            await until_buffered(listener, 2 * connection)
            wire.cut()
        assert [task_of(await anext(listener)) for _ in sent] == sent
    assert len(names) == 3


async def test_an_event_that_fails_after_its_queue_ended_is_yielded_again_and_then_dropped(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, states: States
) -> None:
    poison, good = task_ids(2)
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(through_wire, [binding], on_state=states, wait_initial=0.01) as listener:
        await publisher.complete([poison, good], pool)
        await until_buffered(listener, 2)
        wire.cut()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        for redeliveries in (0, 1):
            event = await anext(listener)
            assert (task_of(event), event.redeliveries) == (poison, redeliveries)
            listener.reject()
        assert task_of(await anext(listener)) == good
    assert (listener.counts.returned, listener.counts.dropped) == (1, 1)


async def test_an_event_that_fails_after_its_queue_was_deleted_is_yielded_again(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    (sent,) = task_ids(1)
    async with durable(settings, pool, queue, states, Gaps().note) as listener:
        await publisher.complete([sent], pool)
        await anext(listener)
        await publisher.channel.queue_delete(listener.queue or "")
        await states.until(lambda names: State.QUEUE_DELETED in names)
        listener.reject()
        event = await anext(listener)
        assert (task_of(event), event.redeliveries) == (sent, 1)


@pytest.mark.parametrize("is_connected", [True, False])
async def test_an_event_that_fails_after_its_queue_was_deleted_in_an_outage_is_yielded_again(
    through_wire: PulseSettings,
    wire: Proxy,
    publisher: Publisher,
    pool: str,
    queue: str,
    states: States,
    *,
    is_connected: bool,
) -> None:
    (sent,) = task_ids(1)
    async with durable(through_wire, pool, queue, states, Gaps().note) as listener:
        await publisher.complete([sent], pool)
        await anext(listener)
        await wire.shut()
        await publisher.channel.queue_delete(listener.queue or "")
        if not is_connected:
            await states.until(lambda names: State.DISCONNECTED in names)
            listener.reject()
        await wire.open()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        if is_connected:
            listener.reject()
        event = await anext(listener)
        assert (task_of(event), event.redeliveries) == (sent, 1)


async def test_an_event_of_a_queue_without_a_name_is_dropped_after_its_redeliveries(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    """The broker counts no deliveries of such a queue: the listener counts them."""
    poison, good = task_ids(2)
    failed: list[int] = []

    async def handler(event: events.Event) -> None:
        if task_of(event) == good:
            listener.stop()
        else:
            failed.append(event.redeliveries)
            raise ZeroDivisionError

    async with AsyncListener(
        settings, [events.task_completed(task_queue_id=pool)], redeliveries=3
    ) as listener:
        await publisher.complete([poison, good], pool)
        await listener.run(handler)
    assert failed == [0, 1, 2, 3]
    assert (listener.counts.returned, listener.counts.dropped) == (3, 1)


async def test_an_event_whose_handler_is_canceled_is_handled_again_although_the_program_goes_on(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    (sent,) = task_ids(1)
    at_work = asyncio.Event()

    async def handler(_: events.Event) -> None:
        at_work.set()
        await asyncio.Event().wait()

    async with durable(settings, pool, queue, states, Gaps().note) as listener:
        await publisher.complete([sent], pool)
        running = asyncio.create_task(listener.run(handler))
        await at_work.wait()
        await end_tasks(running)
    async with durable(settings, pool, queue, states, Gaps().note) as listener:
        event = await anext(listener)
        assert (task_of(event), event.redeliveries) == (sent, 1)


@pytest.mark.parametrize("leaving", [None, ZeroDivisionError()])
async def test_an_event_whose_handler_runs_when_the_block_is_left_returns_to_the_queue(
    settings: PulseSettings,
    publisher: Publisher,
    pool: str,
    queue: str,
    states: States,
    leaving: Exception | None,
) -> None:
    (sent,) = task_ids(1)
    at_work, end = asyncio.Event(), asyncio.Event()

    async def handler(_: events.Event) -> None:
        at_work.set()
        await end.wait()
        raise ZeroDivisionError

    for redeliveries in (0, 1, 2):
        listener = durable(settings, pool, queue, states, Gaps().note)
        await listener.__aenter__()
        if not redeliveries:
            await publisher.complete([sent], pool)
        at_work.clear()
        end.clear()
        running = asyncio.create_task(listener.run(handler))
        await at_work.wait()
        await listener.__aexit__(type(leaving) if leaving else None, leaving, None)
        end.set()
        await running
        assert listener.counts.acknowledged == 0


@pytest.mark.parametrize(
    "error",
    [
        OSError("the Queue is away, too"),
        asyncio.CancelledError("a task of the hook"),  # nobody has canceled the listener
    ],
)
async def test_reconcile_is_called_with_the_gap_and_retried_until_it_succeeds(
    through_wire: PulseSettings, wire: Proxy, pool: str, states: States, error: BaseException
) -> None:
    clock = WatchedClock()
    gaps: list[Gap] = []

    async def reconcile(gap: Gap) -> None:
        gaps.append(gap)
        if len(gaps) == 1:
            raise error

    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire, [binding], on_state=states, clock=clock, wait_initial=8, reconcile=reconcile
    ):
        assert gaps == []
        cut_at = clock.now()
        wire.cut()
        for failures in (1, 2):
            await states.until(lambda names, n=failures: names.count(State.DISCONNECTED) == n)  # type: ignore[misc] # n is bound here
            await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        await states.until(lambda names: names.count(State.LISTENING) == 2)
    failed = [change.reason for change in states.changes if isinstance(change.reason, ReconcileFailed)]
    assert [str(each) for each in failed] == [f"the reconcile hook failed: {error!r}"]
    assert [gap.began for gap in gaps] == pytest.approx([cut_at, cut_at])
    assert gaps[1].ended - gaps[0].ended >= 8  # the second wait: 16, shortened by up to half


@pytest.mark.parametrize("step", [-3600, 3600])
async def test_a_gap_begins_no_later_than_it_did_although_the_clock_is_set_meanwhile(
    through_wire: PulseSettings,
    wire: Proxy,
    pool: str,
    states: States,
    monkeypatch: pytest.MonkeyPatch,
    step: float,
) -> None:
    """A hook that asks for all changes since a moment in the future would miss them."""
    clock, gaps = WatchedClock(), list[Gap]()

    async def reconcile(gap: Gap) -> None:
        gaps.append(gap)

    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire, [binding], on_state=states, clock=clock, wait_initial=8, reconcile=reconcile
    ):
        cut_at, wrong = clock.now(), clock.now
        wire.cut()
        await states.until(lambda names: names.count(State.DISCONNECTED) == 1)
        monkeypatch.setattr(clock, "now", lambda: wrong() + step)
        await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        await states.until(lambda names: names.count(State.LISTENING) == 2)
    (gap,) = gaps
    assert gap.began == pytest.approx(cut_at + min(step, 0), abs=1)
    assert gap.ended == pytest.approx(wrong() + step)


async def test_a_gap_begins_when_the_connection_ends_although_reconcile_still_runs(
    through_wire: PulseSettings, wire: Proxy, pool: str, states: States
) -> None:
    """A hook that asks for all changes since the begin would miss those from the time of the hook before."""
    clock, gaps, ends, hook = WatchedClock(), list[Gap](), list[float](), 300.0

    async def reconcile(gap: Gap) -> None:
        gaps.append(gap)
        if len(gaps) == 1:
            session = listener._supervisor._session  # pyright: ignore[reportPrivateUsage]
            assert session is not None
            wire.cut()
            await asyncio.wait_for(asyncio.shield(session.ended), 60)
            ends.append(clock.now())
            clock.advance(hook)

    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire, [binding], on_state=states, clock=clock, wait_initial=8, reconcile=reconcile
    ) as listener:
        wire.cut()
        for losses in (1, 2):
            await states.until(lambda names, n=losses: names.count(State.DISCONNECTED) == n)  # type: ignore[misc] # n is bound here
            await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        await states.until(lambda names: names.count(State.LISTENING) == 3)
    assert gaps[1].began == pytest.approx(ends[0], abs=1)
    assert gaps[1].ended >= ends[0] + hook


async def test_waits_grow_while_reconcile_fails_although_messages_arrive(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    clock = WatchedClock()
    listeners: list[AsyncListener] = []

    async def reconcile(_: Gap) -> None:
        await until_buffered(listeners[0], 1)
        raise OSError

    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire,
        [binding],
        queue=queue,
        on_state=states,
        clock=clock,
        wait_initial=2,
        reconcile=reconcile,
    ) as listener:
        listeners.append(listener)
        await publisher.complete(task_ids(1), pool)
        await until_buffered(listener, 1)
        wire.cut()
        for failures in (1, 2, 3):
            await states.until(lambda names, n=failures: names.count(State.DISCONNECTED) == n)  # type: ignore[misc] # n is bound here
            await clock.move_a_sleeper(states.changes[-1].retry_in or 0)
        await states.until(lambda names: names.count(State.DISCONNECTED) == 4)
    waits = [change.retry_in for change in states.changes if change.retry_in is not None]
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, [2, 4, 8, 16], strict=True))


async def test_reconcile_is_not_called_at_the_start_although_the_broker_was_away(
    through_wire: PulseSettings, wire: Proxy, pool: str, queue: str, states: States
) -> None:
    gaps = Gaps()
    await wire.shut()
    listener = durable(through_wire, pool, queue, states, gaps.note)
    entering = asyncio.create_task(listener.__aenter__())
    await states.until(lambda names: State.DISCONNECTED in names)
    await wire.open()
    await entering
    await listener.__aexit__(None, None, None)
    assert gaps == []


async def test_a_failed_reconcile_is_called_again_with_the_information_about_the_lost_queue(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    gaps: list[Gap] = []

    async def reconcile(gap: Gap) -> None:
        gaps.append(gap)
        if len(gaps) == 1:
            raise OSError

    async with durable(settings, pool, queue, states, reconcile) as listener:
        await publisher.channel.queue_delete(listener.queue or "")
        await states.until(lambda names: names.count(State.LISTENING) == 2)
    assert [gap.queue_was_lost for gap in gaps] == [True, True]


async def test_messages_are_received_while_reconcile_runs(
    through_wire: PulseSettings, wire: Proxy, publisher: Publisher, pool: str, states: States
) -> None:
    began, end = asyncio.Event(), asyncio.Event()

    async def reconcile(_: Gap) -> None:
        began.set()
        await end.wait()

    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(
        through_wire, [binding], on_state=states, wait_initial=0.01, reconcile=reconcile
    ) as listener:
        wire.cut()
        await began.wait()
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        assert task_of(await anext(listener)) == sent[0]
        assert states.names[-1] is State.CONNECTING
        end.set()
        await states.until(lambda names: names.count(State.LISTENING) == 2)


async def test_a_listener_leaves_no_connection_to_a_broker_that_did_not_respond_when_it_was_closed(
    through_wire: PulseSettings, wire: Proxy, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_broker_session, "CLOSING", 0.1)
    async with AsyncListener(through_wire, [events.task_completed(task_queue_id=pool)]):
        wire.silence()
    wire.speak()
    await wire.ended()


async def test_a_listener_that_is_canceled_right_after_it_has_connected_leaves_no_consumer(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = asyncio.Event()

    async def open_session(*arguments: Any, **options: Any) -> BrokerSession:
        session = await original(*arguments, **options)
        opened.set()
        return session

    original = BrokerSession.open
    monkeypatch.setattr(BrokerSession, "open", open_session)
    for steps in range(8):
        opened.clear()
        listener = AsyncListener(settings, [events.task_completed(task_queue_id=pool)], queue=queue)
        entering = asyncio.create_task(listener.__aenter__())
        await opened.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait([entering])
        if not entering.cancelled():
            await listener.__aexit__(None, None, None)
        async with asyncio.timeout(60):
            await _no_consumers(publisher, f"queue/{settings.user}/{queue}")


async def test_a_listener_that_is_canceled_while_it_connects_leaves_no_connection(
    settings: PulseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[aiormq.Connection] = []

    async def connect(connection: aiormq.Connection) -> None:
        await original(connection)
        connections.append(connection)
        entering.cancel()  # comes after aiormq's own task has connected, and before its result is seen
        await asyncio.Event().wait()

    original: Callable[[aiormq.Connection], Awaitable[bool]] = vars(aiormq.Connection)["connect"]
    monkeypatch.setattr(aiormq.Connection, "connect", connect)
    entering = asyncio.create_task(AsyncListener(settings, [events.task_completed()]).__aenter__())
    await asyncio.wait([entering])
    assert entering.cancelled()
    assert [each.is_opened for each in connections] == [False]


async def _no_consumers(publisher: Publisher, queue: str) -> None:
    """Wait until the broker has noticed the end of all connections with a consumer of the queue."""
    while (await publisher.channel.queue_declare(queue, passive=True)).consumer_count:
        pass


class Latin(str):
    """A str that is sent in Latin-1, although AMQP prescribes UTF-8."""

    __slots__ = ()

    def encode(self, encoding: str = "latin-1", errors: str = "strict") -> bytes:
        return super().encode("latin-1" if encoding == "utf-8" else encoding, errors)


@pytest.mark.parametrize("part", ["routing key", "header"])
async def test_a_message_that_cannot_be_decoded_is_removed_by_deleting_the_queue_that_the_reason_names(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States, part: str
) -> None:
    good, gaps = task_ids(1), Gaps()
    async with durable(settings, pool, queue, states, gaps.note) as listener:
        properties = Basic.Properties(headers={Latin("é"): "x"} if part == "header" else {})
        key = f"primary._._._._.{pool.replace('/', '.')}.{Latin('é') if part == 'routing key' else '_'}._._"
        await publisher.channel.basic_publish(
            b"{}",
            exchange="exchange/taskcluster-queue/v1/task-completed",
            routing_key=Latin(key),
            properties=properties,
        )
        await states.until(lambda names: State.DISCONNECTED in names)
        reason = next(each.reason for each in states.changes if each.state is State.DISCONNECTED)
        assert f"; {listener.queue} has a message that cannot be decoded: delete the queue" in str(reason)
        await publisher.channel.queue_delete(f"queue/{settings.user}/{queue}")
        await states.until(lambda names: State.QUEUE_DELETED in names and names[-1] is State.LISTENING)
        await publisher.complete(good, pool)
        assert task_of(await anext(listener)) == good[0]
    assert gaps[-1].queue_was_lost
