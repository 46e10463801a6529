"""A Taskcluster Queue on this machine, for programs, tests and terminals.

It responds as the real Queue does, keeps its state in SQLite, and runs on a clock that can be moved.
"""

from taskqueue_client.local.auth.known_clients import ANONYMOUS_SCOPES, PUBLIC_SCOPES, Client
from taskqueue_client.local.messages import Message
from taskqueue_client.local.storage.objects import OBJECT_METHODS

from .service import LocalQueue

__all__ = ["ANONYMOUS_SCOPES", "OBJECT_METHODS", "PUBLIC_SCOPES", "Client", "LocalQueue", "Message"]
