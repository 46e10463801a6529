"""What can go wrong between a listener and its broker.

TaskQueueError
├── BrokerRefused      the broker answered, and said no: credentials, permissions, names
├── BrokerLost         the connection ended or did not answer; a listener connects again by itself
│   └── QueueDeleted   the queue is gone, with the messages that were in it
├── ReconcileFailed    the reconcile hook raised; the listener connects again and calls it again
└── WaitTimedOut (TimeoutError)   what was waited for did not happen in time
"""

from __future__ import annotations

from taskqueue_client.errors import TaskQueueError


class BrokerRefused(TaskQueueError):
    """The broker answered, and said no, in its own words."""


class BrokerLost(TaskQueueError):
    """The connection to the broker ended, was never made, or does not answer."""


class QueueDeleted(BrokerLost):
    """Somebody deleted the queue: the messages that were waiting in it are lost."""


class ReconcileFailed(TaskQueueError):
    """The reconcile hook raised; its error is the cause of this one."""


class WaitTimedOut(TaskQueueError, TimeoutError):
    """What was waited for did not happen in time; the message says where it stands."""
