"""The Queue's messages: typed, from RabbitMQ, for as long as it takes.

>>> from taskqueue_client import Queue, events, slugid
>>> from taskqueue_client.definitions import task_definition
>>> about = {"name": "tests", "owner": "me@example.com", "source": "https://example.com"}
>>> task_id = slugid()
>>> listener = events.BlockingListener(
...     events.PulseSettings.from_env(), [events.task_defined(task_id=task_id)]
... )
>>> with Queue.from_env() as queue, listener:
...     status = queue.create_task(task_id, task_definition("proj/linux", {}, **about)).status
...     for event in listener:
...         print(event.exchange, event.message.status.task_id == task_id)
...         break
task-defined True

`Listener` is the same for `async with` and `async for`. A listener needs the extra `events`; bindings,
messages and routing keys do not.
"""
# The example needs: rabbitmq

from __future__ import annotations

from .blocking import BlockingListener as BlockingListener
from .duplicates import DuplicateFilter as DuplicateFilter
from .errors import BrokerLost as BrokerLost
from .errors import BrokerRefused as BrokerRefused
from .errors import QueueDeleted as QueueDeleted
from .errors import ReconcileFailed as ReconcileFailed
from .errors import WaitTimedOut as WaitTimedOut
from .event import Event as Event
from .event import UnreadableMessage as UnreadableMessage
from .event import read_event as read_event
from .exchanges import EXCHANGES as EXCHANGES
from .exchanges import GROUP_EXCHANGES as GROUP_EXCHANGES
from .exchanges import TASK_EXCHANGES as TASK_EXCHANGES
from .exchanges import Binding as Binding
from .exchanges import Exchange as Exchange
from .exchanges import GroupExchange as GroupExchange
from .exchanges import TaskExchange as TaskExchange
from .exchanges import artifact_created as artifact_created
from .exchanges import for_group as for_group
from .exchanges import for_route as for_route
from .exchanges import for_task as for_task
from .exchanges import task_completed as task_completed
from .exchanges import task_defined as task_defined
from .exchanges import task_exception as task_exception
from .exchanges import task_failed as task_failed
from .exchanges import task_group_priority_changed as task_group_priority_changed
from .exchanges import task_group_resolved as task_group_resolved
from .exchanges import task_group_sealed as task_group_sealed
from .exchanges import task_pending as task_pending
from .exchanges import task_priority_changed as task_priority_changed
from .exchanges import task_running as task_running
from .listener import Listener as Listener
from .reconcile import reconcile_by_status as reconcile_by_status
from .routing import GroupRoutingKey as GroupRoutingKey
from .routing import TaskRoutingKey as TaskRoutingKey
from .settings import PulseSettings as PulseSettings
from .state import Counts as Counts
from .state import Gap as Gap
from .state import State as State
from .state import StateChange as StateChange
from .waiting import wait_for_group as wait_for_group
from .waiting import wait_for_task as wait_for_task
