"""`taskqueue listen`: prints messages as they arrive."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from datetime import datetime

import click

from taskqueue_client import events
from taskqueue_client._arguments import printable
from taskqueue_client._dates import machine_time
from taskqueue_client.models import Run
from taskqueue_client.models.messages import (
    TaskCompletedMessage,
    TaskExceptionMessage,
    TaskFailedMessage,
    TaskGroupSealedMessage,
    TaskMessage,
    TaskPendingMessage,
    TaskRunningMessage,
)

from .arguments import slug_id
from .failures import ExitStatus, Failure, in_one_line
from .output import in_utc, json_option, print_either, reason_of


@click.command()
@click.option("--task", "tasks", metavar="ID", type=slug_id, multiple=True, help="Messages about a task.")
@click.option(
    "--group", "groups", metavar="ID", type=slug_id, multiple=True, help="Messages about a task group."
)
@click.option("--task-queue", "task_queues", multiple=True, help="Messages about tasks of a task queue.")
@click.option(
    "--route",
    "routes",
    multiple=True,
    help="Messages about tasks with a route; wildcards: * a word, # any words.",
)
@click.option(
    "--exchange",
    "exchanges",
    multiple=True,
    type=click.Choice([exchange.name for exchange in events.EXCHANGES]),
    help="Only messages of these exchanges.",
)
@click.option("--count", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--wait", is_flag=True, help="Retry until RabbitMQ is reachable.")
@json_option
def command(
    *, count: int | None, wait: bool, as_json: bool, exchanges: tuple[str, ...], **chosen: tuple[str, ...]
) -> None:
    """Print the Queue's messages as they are published, from the RabbitMQ that PULSE_URL names.

    Without an option, prints all messages. Options that name subjects may be repeated. A line begins with the
    time of the event, or of the receipt if the message has none, and ends with the reason of an exception. A
    lost connection is made again. With --json, prints an object for each message, with `exchange`, `routes`
    and the `message`.
    """
    leave_logging_to_on_state()
    until_connected = UntilConnected()

    def on_state(change: events.StateChange) -> None:
        reason = f": {in_one_line(change.reason)}" if change.reason else ""
        click.echo(f"{change.state}{reason}", err=True)
        if not wait:
            until_connected(change)

    try:
        with events.Listener(
            events.PulseSettings.from_env(), _bindings(exchanges, **chosen), on_state=on_state
        ) as listener:
            for event in itertools.islice(listener, count):
                document = {"exchange": event.exchange, "routes": event.routes, "message": _content(event)}
                print_either(document, printable(line_of(event, machine_time())), as_json=as_json)
    except events.BrokerRefused as error:
        reason = str(error).removesuffix(".")  # some texts of RabbitMQ end with a full stop
        raise Failure(f"RabbitMQ refused: {reason}: check PULSE_URL", ExitStatus.REFUSED) from error
    except events.BrokerLost as error:
        raise Failure(f"cannot reach RabbitMQ: {error}: check PULSE_URL", ExitStatus.NO_RESPONSE) from error
    except ImportError as error:
        raise Failure(str(error)) from error  # names the extra


def _bindings(
    exchanges: Sequence[str],
    *,
    tasks: Sequence[str],
    groups: Sequence[str],
    task_queues: Sequence[str],
    routes: Sequence[str],
) -> list[events.Binding]:
    """Return the bindings for what was chosen; by default, for all messages."""
    every = [
        *(binding for task_id in tasks for binding in events.for_task(task_id)),
        *(binding for group in groups for binding in events.for_group(group)),
        *(exchange(task_queue_id=each) for each in task_queues for exchange in events.TASK_EXCHANGES),
        *(binding for route in routes for binding in events.for_route(route)),
    ]
    if not (tasks or groups or task_queues or routes):
        every = [events.Binding(exchange.full_name, "#") for exchange in events.EXCHANGES]
    names = {each.full_name for each in events.EXCHANGES if not exchanges or each.name in exchanges}
    found = [binding for binding in every if binding.exchange in names]
    if not found:
        raise click.UsageError(
            f"{', '.join(exchanges)} has no messages about these subjects; choose other exchanges."
        )
    return found


def leave_logging_to_on_state() -> None:
    """Keep the warnings of a listener and its library from standard error: `on_state` gets the same."""
    for name in ("taskqueue_client.events", "aiormq"):
        logging.getLogger(name).addHandler(logging.NullHandler())


class UntilConnected:
    """An `on_state` hook that ends a listener whose first connection fails."""

    def __init__(self) -> None:
        self._connected = False

    def __call__(self, change: events.StateChange) -> None:
        """Raise the reason if the listener has never been connected."""
        self._connected |= change.state is events.State.LISTENING
        if change.reason is not None and not self._connected:
            raise change.reason


def _content(event: events.Event) -> object:
    if isinstance(event.message, events.UnreadableMessage):
        return {"unreadable": event.message.reason, "routingKey": event.message.routing_key}
    return event.message.to_dict()


def line_of(event: events.Event, received: datetime) -> str:
    """Return the line about an event. It begins with the event's time or, if it has none, `received`."""
    message = event.message
    if isinstance(message, events.UnreadableMessage):
        return f"{in_utc(received)} {event} unreadable: {message.reason}"
    if not isinstance(message, TaskMessage):
        sealed = message.sealed if isinstance(message, TaskGroupSealedMessage) else None
        return f"{in_utc(sealed or received)} {event.exchange} group {message.task_group_id}"
    run_id = getattr(message, "run_id", None)
    which = message.status.task_id if run_id is None else f"{message.status.task_id}/{run_id}"
    run = next((each for each in message.status.runs if each.run_id == run_id), None)
    time = None if run is None else _time(message, run)
    line = f"{in_utc(time or received)} {event.exchange} {which} {message.status.task_queue_id}"
    is_exception = isinstance(message, TaskExceptionMessage)
    return f"{line} {reason_of(run)}".rstrip() if is_exception else line


def _time(message: TaskMessage, run: Run) -> datetime | None:
    """Return when the run got the state that the message is about; None if it is about something else."""
    match message:
        case TaskPendingMessage():
            return run.scheduled
        case TaskRunningMessage():
            return run.started
        case TaskCompletedMessage() | TaskFailedMessage() | TaskExceptionMessage():
            return run.resolved
        case _:
            return None
