"""Listeners for the Queue's messages from RabbitMQ: typed events, with automatic reconnects.

>>> from taskqueue_client import Queue, events, slugid
>>> from taskqueue_client.definitions import task_definition
>>> about = {"name": "tests", "owner": "me@example.com", "source": "https://example.com"}
>>> task_id = slugid()
>>> listener = events.Listener(
...     events.PulseSettings.from_env(), [events.task_defined(task_id=task_id)]
... )
>>> with Queue.from_env() as queue, listener:
...     status = queue.create_task(task_id, task_definition("proj/linux", {}, **about)).status
...     for event in listener:
...         print(event.exchange, event.message.status.task_id == task_id)
...         break
task-defined True

`AsyncListener` is the same for `async with` and `async for`. A listener needs the extra `events`; bindings,
messages and routing keys do not.
"""
# The example needs: rabbitmq

from __future__ import annotations

from taskqueue_client.errors import BrokerLost, BrokerRefused, QueueDeleted, ReconcileFailed, WaitTimedOut

from .event import Counts, DuplicateFilter, Event, Gap, State, StateChange, UnreadableMessage
from .exchanges import *
from .listener import AsyncListener, Listener
from .settings import PulseSettings
from .waiting_for_tasks import (
    reconcile_by_status,
    reconcile_by_status_async,
    wait_for_group,
    wait_for_group_async,
    wait_for_task,
    wait_for_task_async,
)

__all__ = [
    "EXCHANGES", "GROUP_EXCHANGES", "TASK_EXCHANGES", "AsyncListener", "Binding", "BrokerLost",
    "BrokerRefused", "Counts", "DuplicateFilter", "Event", "Exchange", "Gap", "GroupExchange",
    "GroupRoutingKey", "Listener", "PulseSettings", "QueueDeleted", "ReconcileFailed", "State",
    "StateChange", "TaskExchange", "TaskRoutingKey", "UnreadableMessage", "WaitTimedOut",
    "artifact_created", "for_group", "for_route", "for_task", "reconcile_by_status",
    "reconcile_by_status_async", "task_completed", "task_defined", "task_exception", "task_failed",
    "task_group_priority_changed", "task_group_resolved", "task_group_sealed", "task_pending",
    "task_priority_changed", "task_running", "wait_for_group", "wait_for_group_async", "wait_for_task",
    "wait_for_task_async",
]  # fmt: skip
