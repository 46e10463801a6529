"""The synchronous listener does the same as the asynchronous one, with `with` and `for`."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import pytest

from taskqueue_client import events
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events import (
    BrokerRefused,
    Event,
    Gap,
    Listener,
    PulseSettings,
    State,
    StateChange,
)
from taskqueue_client.slugid import slugid
from tests.events.messages_published import Publisher, task_ids, task_of
from tests.worker.queue_world import until

FORKED = """
import os, signal, sys
from taskqueue_client import events
bindings = [events.task_completed(task_queue_id="test-forked/w")]
with events.Listener(events.PulseSettings.from_url(sys.argv[1]), bindings) as listener:
    if (child := os.fork()) == 0:
        signal.alarm(60)
        listener.stop()
        try:
            listener.get(timeout=1)
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(0)
    print(os.waitpid(child, 0)[1], listener.stopped, listener.get(timeout=0), listener.state)
"""

INTERRUPTED = """
import sys
from functools import partial
from taskqueue_client import events
from tests.interruptions import interrupted

bindings = [events.task_completed(task_queue_id="test-interrupted/w")]
with events.Listener(events.PulseSettings.from_url(sys.argv[1]), bindings) as listener:
    for number in interrupted(partial(listener.get, timeout=0)):
        listener.get(timeout=0)
print(number)
"""

Publish = Callable[[list[str], str], None]


def _at_the_broker(url: str, act: Callable[[Publisher], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        publisher = await Publisher.connect(url)
        await act(publisher)
        await publisher.close()

    asyncio.run(run())


@pytest.fixture
def publish(broker_url: str) -> Publish:
    """A synchronous function that publishes messages about completed tasks."""

    def publish(task_ids: list[str], pool: str) -> None:
        _at_the_broker(broker_url, lambda publisher: publisher.complete(task_ids, pool))

    publish([], "")  # declares the exchanges
    return publish


@pytest.fixture
def durable(broker_url: str, settings: PulseSettings) -> Iterator[str]:
    """The name of a durable queue, which is deleted after the test."""
    name = f"test-{slugid()}"
    yield name

    async def delete(publisher: Publisher) -> None:
        await publisher.channel.queue_delete(f"queue/{settings.user}/{name}")

    _at_the_broker(broker_url, delete)


def test_a_synchronous_listener_yields_events_in_order_and_requeues_the_rest(
    settings: PulseSettings, publish: Publish, pool: str, durable: str
) -> None:
    sent = task_ids(10)
    bindings = [events.task_completed(task_queue_id=pool)]
    seen: list[str] = []
    with Listener(settings, bindings, queue=durable) as listener:
        publish(sent, pool)
        for event in listener:
            seen.append(task_of(event))
            if len(seen) == 4:
                break
        assert repr(listener).startswith("<Listener amqp")
        assert (listener.state, listener.queue) == (State.LISTENING, f"queue/{settings.user}/{durable}")
    assert seen == sent[:4]
    with Listener(settings, bindings, queue=durable) as listener:
        assert sorted(task_of(next(listener)) for _ in range(6)) == sorted(sent[4:])
        assert listener.get(timeout=0) is None
        assert listener.get(timeout="0 seconds") is None
    assert listener.counts.acknowledged == 6


def test_an_exception_in_the_block_requeues_the_event(
    settings: PulseSettings, publish: Publish, pool: str, durable: str
) -> None:
    bindings = [events.task_completed(task_queue_id=pool)]
    (task_id,) = task_ids(1)

    def fail_at_the_first() -> None:
        with Listener(settings, bindings, queue=durable) as listener:
            publish([task_id], pool)
            next(listener)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_first()
    with Listener(settings, bindings, queue=durable) as listener:
        event = next(listener)
        assert (task_of(event), event.redeliveries) == (task_id, 1)


def test_a_failed_handler_is_called_again_and_other_events_are_processed(
    settings: PulseSettings, publish: Publish, pool: str, durable: str
) -> None:
    sent = task_ids(4)
    handled: list[str] = []

    def handler(event: Event) -> None:
        handled.append(task_of(event))
        if len(handled) == 5:
            listener.stop()
        if task_of(event) == sent[0]:
            message = "poison"
            raise ValueError(message)

    with Listener(settings, [events.task_completed(task_queue_id=pool)], queue=durable) as listener:
        publish(sent, pool)
        listener.run(handler)
    assert sorted(handled) == sorted([*sent, sent[0]])
    assert (listener.counts.returned, listener.counts.dropped) == (1, 1)
    assert listener.stopped


def test_a_handler_that_is_not_a_function_is_refused_and_rejects_nothing(
    settings: PulseSettings, publish: Publish, pool: str
) -> None:
    wrong: Any = None
    with Listener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        publish(sent := task_ids(2), pool)
        with pytest.raises(InvalidArgument, match="handler: None is not valid; expected a function"):
            listener.run(wrong)
        assert [task_of(next(listener)) for _ in range(2)] == sent


def test_an_event_whose_handler_is_interrupted_is_handled_again_although_the_program_goes_on(
    settings: PulseSettings, publish: Publish, pool: str, durable: str
) -> None:
    sent = task_ids(2)
    bindings = [events.task_completed(task_queue_id=pool)]

    def interrupted(_: Event) -> None:
        raise KeyboardInterrupt

    with Listener(settings, bindings, queue=durable) as listener:
        publish(sent, pool)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                listener.run(interrupted)
    with Listener(settings, bindings, queue=durable) as listener:
        assert sorted(task_of(next(listener)) for _ in sent) == sorted(sent)


def test_a_synchronous_listener_can_be_stopped_from_another_thread(
    settings: PulseSettings, publish: Publish, pool: str
) -> None:
    publish([], pool)
    with Listener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        threading.Thread(target=listener.stop).start()
        assert list(listener) == []
    listener.stop()  # a second stop has no effect


@pytest.mark.parametrize("seconds", [None, 30])
def test_the_end_of_the_block_ends_the_iteration_of_a_thread_that_waits(
    settings: PulseSettings, publish: Publish, pool: str, seconds: float | None
) -> None:
    publish([], pool)
    with ThreadPoolExecutor() as threads:
        with Listener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
            publish(task_ids(1), pool)
            assert listener.get() is not None
            reader = threads.submit(listener.get, seconds)
            until(lambda: listener.counts.acknowledged)  # `get` does so first, before it waits
        assert reader.result(30) is None


def test_a_refused_connection_raises_the_error_and_leaves_no_thread(settings: PulseSettings) -> None:
    threads = set(threading.enumerate())
    with (
        pytest.raises(BrokerRefused, match="no exchange"),
        Listener(settings, [events.Binding("exchange/nobody/x", "#")]),
    ):
        pytest.fail("it listens")
    assert set(threading.enumerate()) <= threads


def test_a_synchronous_reconcile_runs_in_a_separate_thread(
    settings: PulseSettings, broker_url: str, publish: Publish, pool: str, durable: str
) -> None:
    publish([], pool)
    called_on: list[threading.Thread] = []
    done = threading.Event()

    def reconcile(_: Gap) -> None:
        called_on.append(threading.current_thread())
        done.set()

    changes: list[StateChange] = []
    with Listener(
        settings,
        [events.task_completed(task_queue_id=pool)],
        queue=durable,
        reconcile=reconcile,
        on_state=changes.append,
        wait_initial=0.01,
    ) as listener:

        async def delete(publisher: Publisher) -> None:
            await publisher.channel.queue_delete(listener.queue or "")

        _at_the_broker(broker_url, delete)
        assert done.wait(60)
    assert called_on[0] is not threading.current_thread()
    assert called_on[0].name != "events listener"
    assert State.QUEUE_DELETED in {change.state for change in changes}


def test_using_a_listener_outside_of_its_block_raises_an_error_that_says_so() -> None:
    listener = Listener(PulseSettings(host="h", user="u", password="p"), [events.task_completed()])
    with pytest.raises(RuntimeError, match="not open: use it within `with`"):
        next(listener)


def test_a_second_block_raises_an_error_that_says_to_create_another_listener(
    settings: PulseSettings, publish: Publish, pool: str
) -> None:
    publish([], pool)
    listener = Listener(settings, [events.task_completed(task_queue_id=pool)])
    with listener:
        with pytest.raises(RuntimeError, match="opened before; create another one"), listener:
            pytest.fail("it is opened in its own block")
        publish(task_ids(1), pool)
        assert next(listener).exchange == "task-completed"
    with pytest.raises(RuntimeError, match="opened before; create another one"), listener:
        pytest.fail("it is opened again")


def test_a_refused_listener_may_be_opened_when_the_broker_accepts_it(
    settings: PulseSettings, broker_url: str
) -> None:
    exchange = f"exchange/test/{slugid()}"
    listener = Listener(settings, [events.Binding(exchange, "#")])
    with pytest.raises(BrokerRefused), listener:
        pytest.fail("it listens")

    async def declare(publisher: Publisher) -> None:
        await publisher.channel.exchange_declare(exchange, exchange_type="topic", auto_delete=True)

    _at_the_broker(broker_url, declare)
    with listener:
        assert listener.state is State.LISTENING


def test_a_listener_that_is_stopped_before_its_block_yields_nothing(
    settings: PulseSettings, publish: Publish, pool: str
) -> None:
    publish([], pool)
    listener = Listener(settings, [events.task_completed(task_queue_id=pool)])
    listener.stop()
    with listener:
        assert list(listener) == []


def test_a_listener_is_stopped_while_it_waits_for_a_broker(unused_tcp_port: int) -> None:
    nobody = PulseSettings(host="127.0.0.1", port=unused_tcp_port, user="u", password="p", tls=False)
    reconnecting = threading.Event()

    def on_state(change: StateChange) -> None:
        if change.state is State.DISCONNECTED:
            reconnecting.set()

    listener = Listener(nobody, [events.task_completed()], on_state=on_state, wait_initial=3600)

    def stop() -> None:
        reconnecting.wait()
        listener.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with listener:
        assert list(listener) == []
    stopper.join()


def test_a_forked_child_leaves_its_parent_s_listener_alone_and_gets_an_error_that_says_so(
    broker_url: str, publish: Publish
) -> None:
    publish([], "")
    output = subprocess.check_output([sys.executable, "-c", FORKED, broker_url], text=True, timeout=120)
    assert output.splitlines() == [
        "the listener belongs to the parent process: create another one in the forked child",
        "0 False None listening",
    ]


def test_reading_a_listener_in_its_state_callback_raises_an_error_that_says_so(
    settings: PulseSettings, publish: Publish, pool: str
) -> None:
    publish([], pool)

    def on_state(change: StateChange) -> None:
        if change.state is State.LISTENING:
            listener.get()

    listener = Listener(settings, [events.task_completed(task_queue_id=pool)], on_state=on_state)
    with pytest.raises(RuntimeError, match="cannot be read in `on_state`"), listener:
        listener.get()


def test_an_event_that_came_together_with_an_interrupt_is_not_acknowledged(
    settings: PulseSettings, publish: Publish, pool: str, durable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = [events.task_completed(task_queue_id=pool)]
    (task_id,) = task_ids(1)

    class InterruptedAtItsEnd(queue.SimpleQueue[Any]):
        def get(self, *_: object, **__: object) -> NoReturn:
            super().get()
            raise KeyboardInterrupt

    with Listener(settings, bindings, queue=durable) as listener:
        publish([task_id], pool)
        with monkeypatch.context() as patched:
            patched.setattr("taskqueue_client.events.listener.SimpleQueue", InterruptedAtItsEnd)
            with pytest.raises(KeyboardInterrupt):
                listener.get()
    with Listener(settings, bindings, queue=durable) as listener:
        event = listener.get(timeout=10)
        assert event is not None
        assert task_of(event) == task_id


@pytest.mark.parametrize("rejects", [False, True])
def test_an_event_is_not_dropped_if_a_signal_handler_raises_an_error_before_get_returns_it(
    settings: PulseSettings,
    publish: Publish,
    pool: str,
    durable: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    rejects: bool,
) -> None:
    sent, bindings = task_ids(1), [events.task_completed(task_queue_id=pool)]

    class InterruptedAtItsEnd(queue.SimpleQueue[Any]):
        def get(self, *arguments: Any, **options: Any) -> NoReturn:
            super().get(*arguments, **options)
            monkeypatch.undo()
            raise OSError("shut down")

    def read() -> None:
        with Listener(settings, bindings, queue=durable, redeliveries=0) as listener:
            publish(sent, pool)
            monkeypatch.setattr("taskqueue_client.events.listener.SimpleQueue", InterruptedAtItsEnd)
            try:
                listener.get()
            finally:
                if rejects:
                    listener.reject()

    with pytest.raises(OSError, match="shut down"):
        read()
    with Listener(settings, bindings, queue=durable) as listener:
        event = listener.get(timeout=10)
        assert event is not None
        assert task_of(event) == sent[0]


def test_a_listener_can_be_read_after_a_ctrl_c_as_it_begins_to_wait(
    settings: PulseSettings, publish: Publish, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = task_ids(1)

    class InterruptedAtItsStart(queue.SimpleQueue[Any]):
        def get(self, *_: object, **__: object) -> NoReturn:
            raise KeyboardInterrupt

    publish([], pool)
    with Listener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        with monkeypatch.context() as patched:
            patched.setattr("taskqueue_client.events.listener.SimpleQueue", InterruptedAtItsStart)
            with pytest.raises(KeyboardInterrupt):
                listener.get()
        assert listener.get(timeout=0) is None
        publish(sent, pool)
        event = listener.get(timeout=10)
        assert event is not None
        assert task_of(event) == sent[0]


def test_a_listener_can_be_read_after_a_ctrl_c_at_any_moment(broker_url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, broker_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 5


def test_a_second_thread_that_reads_a_listener_gets_an_error_and_the_first_its_event(
    settings: PulseSettings, publish: Publish, pool: str
) -> None:
    publish([], pool)
    sent = task_ids(1)
    outcomes: queue.SimpleQueue[Event | RuntimeError | None] = queue.SimpleQueue()
    with Listener(settings, [events.task_completed(task_queue_id=pool)]) as listener:

        def read() -> None:
            try:
                outcomes.put(listener.get())
            except RuntimeError as error:
                outcomes.put(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        assert "use it in one task or thread" in str(outcomes.get(timeout=60))
        publish(sent, pool)
        event = outcomes.get(timeout=60)
        for reader in readers:
            reader.join()
        assert isinstance(event, Event)
        assert task_of(event) == sent[0]
    assert listener.counts.acknowledged == 1


def test_an_asynchronous_handler_ends_a_synchronous_listener_with_an_error_and_loses_no_event(
    settings: PulseSettings, publish: Publish, pool: str, durable: str
) -> None:
    async def handler(_: Event) -> None:
        pytest.fail("it is awaited")

    def returns_a_coroutine(event: Event) -> object:
        return handler(event)

    bindings = [events.task_completed(task_queue_id=pool)]
    sent = task_ids(1)
    with Listener(settings, bindings, queue=durable):
        pass  # declares the durable queue, which stays
    publish(sent, pool)
    listener = Listener(settings, bindings, queue=durable)
    with (
        pytest.raises(TypeError, match="handler: returned a coroutine, which only an AsyncListener"),
        listener,
    ):
        listener.run(returns_a_coroutine)
    assert listener.counts.acknowledged == 0
    with Listener(settings, bindings, queue=durable) as listener:
        assert [task_of(next(listener))] == sent


def test_an_asynchronous_callback_is_refused_before_it_is_needed(settings: PulseSettings) -> None:
    async def callback(_: object) -> None:
        pytest.fail("it is awaited")

    bindings = [events.task_completed()]
    with pytest.raises(InvalidArgument, match=r"on_state: .*expected a function that is not asynchronous"):
        Listener(settings, bindings, on_state=callback)
    with pytest.raises(InvalidArgument, match=r"reconcile: .*expected a function that is not asynchronous"):
        Listener(settings, bindings, reconcile=callback)


def test_an_asynchronous_handler_is_refused_before_there_is_an_event(
    settings: PulseSettings, pool: str
) -> None:
    async def handler(_: Event) -> None:
        pytest.fail("it is awaited")

    with Listener(settings, [events.task_completed(task_queue_id=pool)]) as listener:
        listener.stop()
        with pytest.raises(InvalidArgument, match=r"handler: .*expected a function that is not asynchronous"):
            listener.run(handler)


def test_an_asynchronous_reconcile_hook_ends_a_synchronous_listener_with_an_error(
    settings: PulseSettings, broker_url: str, publish: Publish, pool: str, durable: str
) -> None:
    publish([], pool)

    async def reconcile(_: Gap) -> None:
        pytest.fail("it is awaited")

    def returns_a_coroutine(gap: Gap) -> object:
        return reconcile(gap)

    async def delete(publisher: Publisher) -> None:
        await publisher.channel.queue_delete(f"queue/{settings.user}/{durable}")

    def on_state(change: StateChange) -> None:
        if change.state is State.LISTENING:
            threading.Thread(target=_at_the_broker, args=(broker_url, delete)).start()

    listener = Listener(
        settings,
        [events.task_completed(task_queue_id=pool)],
        queue=durable,
        reconcile=returns_a_coroutine,
        on_state=on_state,
        wait_initial=0.01,
    )
    with pytest.raises(TypeError, match="reconcile: returned a coroutine"), listener:
        listener.run(lambda _: pytest.fail("there is an event"))


def test_run_ends_and_its_event_returns_if_the_block_is_left_while_a_handler_runs_on_another_thread(
    settings: PulseSettings, publish: Publish, pool: str, durable: str
) -> None:
    sent, bindings = task_ids(1), [events.task_completed(task_queue_id=pool)]
    at_work, end = threading.Event(), threading.Event()

    def handler(_: Event) -> None:
        at_work.set()
        end.wait(60)

    with ThreadPoolExecutor() as threads:
        with Listener(settings, bindings, queue=durable) as listener:
            publish(sent, pool)
            running = threads.submit(listener.run, handler)
            assert at_work.wait(60)
        end.set()
        running.result(60)
    with Listener(settings, bindings, queue=durable) as again:
        assert [task_of(next(again))] == sent
    assert listener.counts.acknowledged == 0


WITHOUT_DESCRIPTORS = """
import os, resource
from taskqueue_client import events

listener = events.Listener(events.PulseSettings.from_url("amqp://u:p@127.0.0.1:1/"), [events.task_pending()])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1 + max(map(int, os.listdir("/dev/fd"))), most))
try:
    listener.__enter__()
except OSError as error:
    print(error)
"""


def test_a_listener_without_a_free_file_descriptor_is_an_error() -> None:
    output = subprocess.check_output([sys.executable, "-c", WITHOUT_DESCRIPTORS], text=True, timeout=120)
    assert output == "[Errno 24] Too many open files\n"
