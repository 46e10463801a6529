"""A listener yields typed events, and acknowledges or rejects their messages."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import Any

import pytest

from taskqueue_client import events
from taskqueue_client.clock import MovableClock
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events import (
    AsyncListener,
    BrokerRefused,
    DuplicateFilter,
    Event,
    PulseSettings,
    State,
    TaskRoutingKey,
    UnreadableMessage,
)
from taskqueue_client.models.messages import TaskCompletedMessage
from tests.events.conftest import States, WatchedClock, until_buffered
from tests.events.messages_published import Publisher, body, key_of, task_ids, task_of
from tests.events.proxy import Proxy


async def take(listener: AsyncListener, count: int) -> list[str]:
    """Read `count` events, the last of which stays unacknowledged; return their tasks."""
    taken = [await anext(listener) for _ in range(count)]
    return [task_of(event) for event in taken]


async def test_a_listener_yields_typed_events_in_the_order_of_the_queue(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    sent = task_ids(20)
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        await publisher.complete(sent, pool)
        first = await anext(listener)
        assert isinstance(first.message, TaskCompletedMessage)
        assert isinstance(first.routing_key, TaskRoutingKey)
        assert (first.exchange, first.routing_key.task_queue_id) == ("task-completed", pool)
        assert [task_of(first), *await take(listener, 19)] == sent


async def test_a_message_that_matches_several_bindings_is_received_once(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    (task_id,) = task_ids(1)
    route = pool.replace("/", ".")
    message = body("task-pending", task_id, pool=pool)
    async with AsyncListener(
        settings, [events.for_route(f"{route}.#"), events.task_pending(task_queue_id=pool)]
    ) as listener:
        await publisher.publish("task-pending", message, routes=[f"{route}.x"])
        await publisher.publish("task-completed", body("task-completed", task_id, pool=pool))  # unwanted
        await publisher.publish("task-pending", message)
        assert [(await anext(listener)).routes for _ in range(2)] == [(f"{route}.x",), ()]


async def test_a_listener_receives_messages_of_each_exchange(
    settings: PulseSettings, publisher: Publisher
) -> None:
    (task_id,) = task_ids(1)
    about_task = [each.name for each in events.TASK_EXCHANGES if each is not events.task_priority_changed]
    group = {"version": 1, "taskGroupId": task_id, "schedulerId": "-"}
    status = {"version": 1, "status": body("task-pending", task_id)["status"]}
    async with AsyncListener(settings, events.for_group(task_id)) as listener:
        for name in about_task:
            await publisher.publish(name, body(name, task_id))
        await publisher.publish(
            "task-priority-changed", status | {"oldPriority": "low", "newPriority": "high"}
        )
        for name in ("task-group-resolved", "task-group-sealed"):
            await publisher.publish(name, group, f"primary.{task_id}.-._")
        changed = group | {"newPriority": "high", "tasksAffected": 1}
        await publisher.publish("task-group-priority-changed", changed, f"primary.{task_id}.-._")
        for exchange in events.EXCHANGES:
            event = await anext(listener)
            assert (event.exchange, type(event.message)) == (exchange.name, exchange.message_type)


async def test_a_durable_queue_keeps_unacknowledged_and_new_messages_until_the_next_listener(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    sent = task_ids(8)
    bindings = [events.task_completed(task_queue_id=pool)]
    async with AsyncListener(settings, bindings, queue=queue) as listener:
        assert listener.queue == f"queue/{settings.user}/{queue}"
        await publisher.complete(sent[:6], pool)
        assert await take(listener, 3) == sent[:3]
    await publisher.complete(sent[6:], pool)
    async with AsyncListener(settings, bindings, queue=queue) as listener:
        assert sorted(await take(listener, 5)) == sorted(sent[3:])


async def test_an_event_whose_processing_fails_is_redelivered_once_and_then_dropped(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    poison, good = task_ids(2)
    bindings = [events.task_completed(task_queue_id=pool)]
    await _declare(settings, bindings, queue)
    await publisher.complete([poison], pool)
    for redeliveries in (0, 1):
        listener = AsyncListener(settings, bindings, queue=queue)
        with pytest.raises(ZeroDivisionError):
            await _fail_at_the_first(listener, poison, redeliveries)
        assert (listener.counts.returned, listener.counts.dropped) == (1 - redeliveries, redeliveries)
    await publisher.complete([good], pool)
    async with AsyncListener(settings, bindings, queue=queue) as listener:
        assert await take(listener, 1) == [good]


async def _fail_at_the_first(listener: AsyncListener, task_id: str, redeliveries: int) -> None:
    async with listener:
        event = await anext(listener)
        assert (task_of(event), event.redeliveries) == (task_id, redeliveries)
        raise ZeroDivisionError


async def _declare(settings: PulseSettings, bindings: list[events.Binding], queue: str) -> None:
    async with AsyncListener(settings, bindings, queue=queue):
        pass


async def test_an_event_whose_processing_is_canceled_is_always_redelivered(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    (task_id,) = task_ids(1)
    bindings = [events.task_completed(task_queue_id=pool)]
    at_work = asyncio.Event()

    async def work() -> None:
        async with AsyncListener(settings, bindings, queue=queue) as listener:
            async for _ in listener:
                at_work.set()
                await asyncio.Event().wait()

    await _declare(settings, bindings, queue)
    await publisher.complete([task_id], pool)
    for _ in range(3):
        at_work.clear()
        worker = asyncio.create_task(work())
        await at_work.wait()
        worker.cancel()
        await asyncio.wait([worker])
        assert worker.cancelled()
    async with AsyncListener(settings, bindings, queue=queue) as listener:
        assert await take(listener, 1) == [task_id]


async def test_a_failing_handler_does_not_stop_other_handlers_and_its_message_is_retried_once(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = task_ids(5)
    handled: list[str] = []

    async def handler(event: Event) -> None:
        handled.append(task_of(event))
        if len(handled) == 6:
            listener.stop()
        if task_of(event) == sent[1]:
            message = "poison"
            raise ValueError(message)

    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)], queue=queue) as listener:
        await publisher.complete(sent, pool)
        await asyncio.wait_for(listener.run(handler), 60)
    assert sorted(handled) == sorted([*sent, sent[1]])
    assert (listener.counts.returned, listener.counts.dropped) == (1, 1)
    assert sum("ValueError: poison" in (record.exc_text or "") for record in caplog.records) == 2


async def test_an_unreadable_message_is_yielded_counted_and_does_not_stop_the_listener(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    before, after = task_ids(2)
    key = key_of(body("task-completed", before, pool=pool))
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        await publisher.complete([before], pool)
        for unreadable in (b"\xff not json", b'{"version": 1}'):
            await publisher.publish("task-completed", unreadable, key)
        await publisher.complete([after], pool)
        got = [await anext(listener) for _ in range(4)]
    assert [isinstance(event.message, UnreadableMessage) for event in got] == [False, True, True, False]
    assert listener.counts.unreadable == 2
    assert listener.counts.acknowledged == 4


async def test_messages_of_an_exchange_of_another_service_are_yielded_with_their_body_and_acknowledged(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    exchange, (task_id,) = f"exchange/test-{queue}/push", task_ids(1)
    await publisher.channel.exchange_declare(exchange, exchange_type="topic", auto_delete=True)
    bindings = [events.Binding(exchange, "primary.somebody.#"), events.task_completed(task_queue_id=pool)]
    async with AsyncListener(settings, bindings, queue=queue, duplicates=DuplicateFilter()) as listener:
        for _ in range(2):
            await publisher.channel.basic_publish(
                b'{"ref": "main"}', exchange=exchange, routing_key="primary.somebody.x"
            )
        await publisher.complete([task_id], pool)
        got = [await anext(listener) for _ in range(3)]
    assert [event.exchange for event in got] == [exchange, exchange, "task-completed"]
    assert isinstance(got[1].message, UnreadableMessage)
    assert (got[1].message.body, got[1].message.routing_key) == (b'{"ref": "main"}', "primary.somebody.x")
    assert listener.counts.acknowledged == 3


async def test_a_slow_consumer_receives_at_most_its_prefetch_and_reports_lagging(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str, states: States
) -> None:
    sent = task_ids(40)
    clock = WatchedClock()
    bindings = [events.task_completed(task_queue_id=pool)]
    async with AsyncListener(
        settings, bindings, queue=queue, prefetch=10, on_state=states, clock=clock, check_interval=60
    ) as listener:
        await publisher.complete(sent, pool)
        assert await take(listener, 1) == sent[:1]
        await until_buffered(listener, 9)
        await clock.move_a_sleeper(60)
        await states.until(lambda names: names[-1] is State.LAGGING)
        assert states.changes[-1].backlog == 30
        assert listener.buffered == 9
        assert await take(listener, 39) == sent[1:]
        await clock.move_a_sleeper(60)
        await states.until(lambda names: names[-1] is State.LISTENING)
        assert states.changes[-1].backlog == 0


async def test_two_listeners_to_one_queue_share_its_messages(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    sent = task_ids(200)
    bindings = [events.task_completed(task_queue_id=pool)]
    got: list[list[str]] = [[], []]
    listeners = [AsyncListener(settings, bindings, queue=queue, prefetch=5) for _ in range(2)]

    async def consume(listener: AsyncListener, into: list[str]) -> None:
        async for event in listener:
            into.append(task_of(event))
            if sum(map(len, got)) == len(sent):
                for each in listeners:
                    each.stop()

    async with listeners[0], listeners[1]:
        consumers = [consume(*each) for each in zip(listeners, got, strict=True)]
        await asyncio.gather(*consumers, publisher.complete(sent, pool))
    assert sorted(got[0] + got[1]) == sorted(sent)
    assert all(got)


async def test_a_duplicate_filter_drops_processed_messages_but_not_failed_ones(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    failing, done, last = task_ids(3)
    bindings = [events.task_completed(task_queue_id=pool)]
    filter_ = DuplicateFilter()
    await _declare(settings, bindings, queue)
    await publisher.complete([failing, done, done, last], pool)
    with pytest.raises(ZeroDivisionError):
        await _fail_at_the_first(
            AsyncListener(settings, bindings, queue=queue, duplicates=filter_), failing, 0
        )
    async with AsyncListener(settings, bindings, queue=queue, duplicates=filter_) as listener:
        assert set(await take(listener, 3)) == {failing, done, last}
    assert listener.counts.duplicates == 1


async def test_stopping_a_listener_ends_the_iteration_and_requeues_the_remaining_messages(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    sent = task_ids(5)
    bindings = [events.task_completed(task_queue_id=pool)]
    seen: list[str] = []
    async with AsyncListener(settings, bindings, queue=queue) as listener:
        await publisher.complete(sent, pool)
        async for event in listener:
            seen.append(task_of(event))
            if len(seen) == 2:
                listener.stop()
    assert seen == sent[:2]
    async with AsyncListener(settings, bindings, queue=queue) as listener:
        assert sorted(await take(listener, 3)) == sorted(sent[2:])


@pytest.mark.parametrize("seconds", [None, 30])
async def test_the_end_of_the_block_ends_the_iteration_of_a_task_that_waits(
    settings: PulseSettings, publisher: Publisher, pool: str, seconds: float | None
) -> None:
    del publisher  # the fixture has declared the exchanges
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        reader = asyncio.create_task(listener.get(seconds))
        for _ in range(5):  # until `get` waits
            await asyncio.sleep(0)
    assert await reader is None


async def test_get_with_a_timeout_returns_in_time_and_loses_no_event(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    clock = MovableClock(held=True)
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)], clock=clock) as listener:
        waiting = asyncio.create_task(listener.get(30))
        while not waiting.done():
            clock.advance(30)
            await asyncio.sleep(0)
        assert waiting.result() is None
        waiting = asyncio.create_task(listener.get())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        assert await take(listener, 1) == sent


@pytest.mark.usefixtures("publisher")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"password": "wrong-secret"}, "ACCESS_REFUSED"),
        ({"vhost": "there-is-none"}, "virtual host does not exist, .* or has too many connections"),
    ],
)
async def test_a_refused_first_connection_raises_an_error_without_the_password(
    settings: PulseSettings, change: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    parts = {"host": settings.host, "user": settings.user, "password": settings.password} | change
    wrong = PulseSettings(**parts, port=settings.effective_port, tls=False)  # type: ignore[arg-type] # all are text
    with pytest.raises(BrokerRefused, match=words) as caught:
        async with AsyncListener(wrong, [events.task_completed()]):
            pytest.fail("it listens")
    assert "wrong-secret" not in caplog.text + repr(caught.value) + str(caught.value)


async def test_a_missing_exchange_raises_an_error_that_names_it(settings: PulseSettings) -> None:
    with pytest.raises(BrokerRefused, match="no exchange 'exchange/nobody/x'"):
        async with AsyncListener(settings, [events.Binding("exchange/nobody/x", "#")]):
            pytest.fail("it listens")


async def test_the_password_is_not_logged(
    through_wire: PulseSettings, pool: str, caplog: pytest.LogCaptureFixture, wire: Proxy, states: States
) -> None:
    caplog.set_level(logging.DEBUG)
    binding = events.task_completed(task_queue_id=pool)
    async with AsyncListener(through_wire, [binding], on_state=states, wait_initial=0.01) as listener:
        wire.cut()
        await states.until(lambda names: names.count(State.LISTENING) == 2)
        shown = f"{listener} {listener!r} {states.changes}"
    assert f":{through_wire.password}@" not in shown + caplog.text
    assert ":***@" in shown


async def test_a_queue_that_another_connection_owns_raises_an_error(
    settings: PulseSettings, publisher: Publisher
) -> None:
    await publisher.channel.queue_declare(f"queue/{settings.user}/test-exclusive", exclusive=True)
    with pytest.raises(BrokerRefused, match="RESOURCE_LOCKED"):
        async with AsyncListener(settings, [events.task_completed()], queue="test-exclusive"):
            pytest.fail("it listens")


@pytest.mark.parametrize("auto_delete", [False, True])
async def test_a_queue_that_another_library_has_declared_raises_an_error_that_says_what_to_do(
    settings: PulseSettings, publisher: Publisher, queue: str, *, auto_delete: bool
) -> None:
    await publisher.channel.queue_declare(
        f"queue/{settings.user}/{queue}", durable=True, auto_delete=auto_delete
    )
    with pytest.raises(BrokerRefused, match=f"{queue}.*; use another name for the queue, or delete it first"):
        async with AsyncListener(settings, [events.task_completed()], queue=queue):
            pytest.fail("it listens")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bindings": []}, "bindings: "),
        ({"prefetch": 0}, "prefetch: 0"),
        ({"prefetch": 65_536}, "1 to 65535"),
        ({"queue": "x" * 250}, "255 bytes"),
        ({"check_interval": 0}, "check_interval: 0"),
        ({"wait_initial": -1}, "wait_initial: -1"),
        ({"wait_max": float("nan")}, "wait_max: nan"),
        ({"redeliveries": -1}, "redeliveries: -1"),
        ({"queue": ""}, "queue: ''"),
        ({"queue": "queue/guest/x"}, "the part after queue/u/"),
        ({"queue": 5}, "queue: 5 is not valid"),
        ({"queue": "ünïcode"}, "queue: 'ünïcode' is not valid; expected .* of a-z A-Z"),
        ({"bindings": events.task_completed()}, r"bindings: Binding\(.* expected a list of bindings"),
        ({"bindings": [events.task_completed]}, "bindings: <TaskExchange task-completed> is not valid"),
        ({"bindings": "task-completed"}, "bindings: 'task-completed' is not valid"),
        ({"bindings": ["task-completed"]}, "bindings: 'task-completed' is not valid"),
        ({"bindings": [["task-completed"]]}, "bindings: 'task-completed' is not valid"),
        ({"prefetch": "5"}, "prefetch: '5' is not valid; expected a whole number, 1 to 65535"),
        ({"prefetch": 2.5}, "prefetch: 2.5"),
        ({"redeliveries": 1.5}, "redeliveries: 1.5 is not valid; expected a whole number, 0 or more"),
        ({"duplicates": True}, "duplicates: True is not valid; expected a DuplicateFilter"),
        ({"wait_initial": "1 s"}, "wait_initial: '1 s' is not valid; expected a number of seconds"),
        ({"reconcile": "task"}, "reconcile: 'task' is not valid; expected a function"),
    ],
)
def test_invalid_arguments_of_a_listener_are_refused_before_connecting(
    arguments: dict[str, object], words: str
) -> None:
    settings = PulseSettings(host="h", user="u", password="p")
    with pytest.raises(InvalidArgument, match=words):
        AsyncListener(settings, **{"bindings": [events.task_completed()], **arguments})  # type: ignore[arg-type] # wrong on purpose


def test_a_url_instead_of_settings_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidArgument, match=r"settings: .* expected PulseSettings") as caught:
        AsyncListener("amqp://u:secret@h/", [events.task_completed()])  # type: ignore[arg-type] # wrong on purpose
    assert "secret" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("given", ["5", float("nan")])
async def test_an_invalid_timeout_is_refused(settings: PulseSettings, pool: str, given: Any) -> None:
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        with pytest.raises(InvalidArgument, match="timeout: "):
            await listener.get(given)


async def test_a_handler_that_is_not_a_function_is_refused_and_rejects_nothing(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    wrong: Any = None
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        await publisher.complete(sent := task_ids(2), pool)
        with pytest.raises(InvalidArgument, match="handler: None is not valid; expected a function"):
            await listener.run(wrong)
        assert await take(listener, 2) == sent


async def test_an_invalid_timeout_acknowledges_nothing(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    wrong: Any = "5"
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        await publisher.complete(task_ids(1), pool)
        event = await anext(listener)
        with pytest.raises(InvalidArgument, match="timeout: "):
            await listener.get(wrong)
        assert listener.counts.acknowledged == 0
        listener.reject()
        assert task_of(await anext(listener)) == task_of(event)


async def test_using_a_listener_outside_of_its_block_raises_an_error_that_says_so() -> None:
    listener = AsyncListener(PulseSettings(host="h", user="u", password="p"), [events.task_completed()])
    with pytest.raises(RuntimeError, match="within `async with`"):
        await anext(listener)


def test_a_listener_that_another_event_loop_has_opened_says_so(settings: PulseSettings) -> None:
    listener = AsyncListener(settings, [events.task_completed()])
    with asyncio.Runner() as first:
        first.run(listener.__aenter__())
    with asyncio.Runner() as second:
        with pytest.raises(RuntimeError, match="opened in another event loop"):
            second.run(listener.get())
        second.run(listener.__aexit__(None, None, None))


def test_an_open_listener_that_another_event_loop_closes_says_so(settings: PulseSettings) -> None:
    listener = AsyncListener(settings, [events.task_completed()])
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(listener.__aenter__())
        with pytest.raises(RuntimeError, match="opened in another event loop"):
            second.run(listener.__aexit__(None, None, None))
        first.run(listener.__aexit__(None, None, None))


async def test_a_second_asynchronous_block_raises_an_error_that_says_to_create_another_listener(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    listener = AsyncListener(settings, [events.task_completed(task_queue_id=pool)])
    async with listener:
        with pytest.raises(RuntimeError, match="opened before; create another one"):
            await listener.__aenter__()
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        assert await take(listener, 1) == sent
    with pytest.raises(RuntimeError, match="opened before; create another one"):
        await listener.__aenter__()


async def test_an_exception_of_the_state_callback_is_raised(settings: PulseSettings, pool: str) -> None:
    def on_state(change: events.StateChange) -> None:
        if change.state is State.LISTENING:
            message = "my bug"
            raise LookupError(message)

    with pytest.raises(LookupError, match="my bug"):
        async with AsyncListener(
            settings, [events.task_completed(task_queue_id=pool)], on_state=on_state
        ) as listener:
            await anext(listener)


async def test_a_timeout_error_of_the_state_callback_is_not_taken_for_the_timeout_of_get(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    def on_state(change: events.StateChange) -> None:
        if change.state is State.QUEUE_DELETED:
            message = "my statistics"
            raise TimeoutError(message)

    binding = events.task_completed(task_queue_id=pool)
    listener = AsyncListener(settings, [binding], queue=queue, on_state=on_state)
    await listener.__aenter__()
    await publisher.channel.queue_delete(listener.queue or "")
    with pytest.raises(TimeoutError, match="my statistics"):
        await listener.get(timeout=600)
    with pytest.raises(TimeoutError, match="my statistics"):
        await listener.__aexit__(None, None, None)


async def test_a_second_task_that_reads_a_listener_gets_an_error_and_the_first_its_event(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    async with AsyncListener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        first = asyncio.create_task(listener.get())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="use it in one task or thread"):
            await anext(listener)
        first.cancel()
        again = asyncio.create_task(listener.get())  # the first task has not ended yet
        await asyncio.sleep(0)
        sent = task_ids(1)
        await publisher.complete(sent, pool)
        event = await again
        assert event is not None
        assert task_of(event) == sent[0]


async def test_a_synchronous_handler_ends_an_asynchronous_listener_with_an_error(
    settings: PulseSettings, publisher: Publisher, pool: str
) -> None:
    handled: list[Event] = []
    listener = AsyncListener(settings, [events.task_completed(task_queue_id=pool)])
    await listener.__aenter__()
    await publisher.complete(task_ids(2), pool)
    with pytest.raises(TypeError, match="handler: returned NoneType; an AsyncListener needs an asynchronous"):
        await listener.run(handled.append)  # type: ignore[arg-type] # wrong on purpose
    await listener.__aexit__(None, None, None)
    assert len(handled) == 1


async def test_a_synchronous_reconcile_hook_ends_an_asynchronous_listener_with_an_error(
    settings: PulseSettings, publisher: Publisher, pool: str, queue: str
) -> None:
    gaps: list[events.Gap] = []
    listener = AsyncListener(
        settings,
        [events.task_completed(task_queue_id=pool)],
        queue=queue,
        reconcile=gaps.append,  # type: ignore[arg-type] # wrong on purpose
        wait_initial=0.01,
    )
    await listener.__aenter__()
    await publisher.channel.queue_delete(listener.queue or "")
    with pytest.raises(TypeError, match="reconcile: returned NoneType; an AsyncListener needs"):
        await listener.get()
    with pytest.raises(TypeError):
        await listener.__aexit__(None, None, None)
    assert len(gaps) == 1


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "taskqueue_client.events._broker_session", raising=False)
    for name in ("aiormq", "aio_pika", "pamqp"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_the_extra")
def test_creating_a_listener_without_the_extra_raises_an_error_that_names_the_extra() -> None:
    settings = PulseSettings(host="h", user="u", password="p")
    binding = events.task_completed(task_queue_id="p/w")
    with pytest.raises(ImportError, match=r'pip install "taskqueue_client\[events\]"'):
        AsyncListener(settings, [binding])
    with pytest.raises(ImportError, match=r'pip install "taskqueue_client\[events\]"'):
        events.Listener(settings, [binding])


def test_importing_the_package_does_not_import_the_extra() -> None:
    code = "import sys, taskqueue_client.events; print({'aiormq', 'aio_pika', 'yarl'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
