"""`taskqueue listen`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import click
import msgspec

from taskqueue_client.events import (
    EXCHANGES,
    TASK_EXCHANGES,
    Binding,
    BlockingListener,
    BrokerLost,
    BrokerRefused,
    Event,
    PulseSettings,
    StateChange,
    UnreadableMessage,
    for_group,
    for_route,
    for_task,
)
from taskqueue_client.models.messages import TaskMessage

from .arguments import SlugId
from .failures import ExitStatus, Failure
from .output import json_option, print_either, printable


@click.command()
@click.option("--task", "tasks", type=SlugId(), multiple=True, help="About a task.")
@click.option("--group", "groups", type=SlugId(), multiple=True, help="About a task group and its tasks.")
@click.option("--task-queue", "task_queues", multiple=True, help="About tasks of a task queue.")
@click.option("--route", "routes", multiple=True, help="About tasks with a route; * is a word, # any words.")
@click.option(
    "--exchange",
    "exchanges",
    multiple=True,
    type=click.Choice([exchange.name for exchange in EXCHANGES]),
    help="Only from these exchanges.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many messages.")
@json_option
def command(
    *, count: int | None, as_json: bool, exchanges: tuple[str, ...], **chosen: tuple[str, ...]
) -> None:
    """Print the Queue's messages as they come, from the RabbitMQ that PULSE_URL names.

    Without an option, prints all messages. With --json, prints an object for each message, with `exchange`,
    `routes` and the `message`.
    """
    try:
        with BlockingListener(
            PulseSettings.from_env(), _bindings(exchanges, **chosen), on_state=_print_state
        ) as listener:
            for event in itertools.islice(listener, count):
                _print(event, as_json=as_json)
    except BrokerRefused as error:
        message = f"RabbitMQ refused: {error}: check PULSE_URL"
        raise Failure(message, ExitStatus.REFUSED) from error
    except BrokerLost as error:
        message = f"cannot reach RabbitMQ: {error}: check PULSE_URL"
        raise Failure(message, ExitStatus.NO_ANSWER) from error
    except ImportError as error:
        message = "needs aio-pika: pip install 'taskqueue_client[events]'"
        raise Failure(message) from error


def _bindings(
    exchanges: Sequence[str],
    *,
    tasks: Sequence[str],
    groups: Sequence[str],
    task_queues: Sequence[str],
    routes: Sequence[str],
) -> list[Binding]:
    """What to listen to: everything unless something is chosen."""
    every = [
        *_each(for_task, tasks),
        *_each(for_group, groups),
        *_each(_for_task_queue, task_queues),
        *_each(for_route, routes),
    ]
    if not (tasks or groups or task_queues or routes):
        every = [Binding(exchange.full_name, "#") for exchange in EXCHANGES]
    names = {exchange.full_name for exchange in EXCHANGES if not exchanges or exchange.name in exchanges}
    found = [binding for binding in every if binding.exchange in names]
    if not found:
        message = f"No messages about that are in {', '.join(exchanges)}: leave out --exchange, or widen it."
        raise click.UsageError(message)
    return found


def _each(bind: Callable[[str], Sequence[Binding]], chosen: Sequence[str]) -> list[Binding]:
    return [binding for each in chosen for binding in bind(each)]


def _for_task_queue(task_queue_id: str) -> list[Binding]:
    return [exchange(task_queue_id=task_queue_id) for exchange in TASK_EXCHANGES]


def _print_state(change: StateChange) -> None:
    reason = f": {change.reason}" if change.reason else ""
    click.echo(f"{change.state}{reason}", err=True)


def _print(event: Event, *, as_json: bool) -> None:
    message = {"exchange": event.exchange, "routes": event.routes, "message": _content(event)}
    print_either(message, _line(event), as_json=as_json)


def _content(event: Event) -> object:
    if isinstance(event.message, UnreadableMessage):
        return {"unreadable": event.message.reason}
    return msgspec.to_builtins(event.message)


def _line(event: Event) -> str:
    message = event.message
    if isinstance(message, UnreadableMessage):
        return printable(f"{event.exchange} unreadable: {message.reason}")
    if not isinstance(message, TaskMessage):
        return f"{event.exchange} group {message.task_group_id}"
    run = getattr(message, "run_id", None)
    which = message.status.task_id if run is None else f"{message.status.task_id}/{run}"
    return f"{event.exchange} {which} {message.status.task_queue_id}"
