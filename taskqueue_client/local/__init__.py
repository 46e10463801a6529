"""A Taskcluster Queue on this machine, for programs, tests and terminals.

It answers what the real Queue answers, keeps its state in SQLite, and runs on a clock that can be moved.
"""

from taskqueue_client.local.authentication.clients import ANONYMOUS_SCOPES as ANONYMOUS_SCOPES
from taskqueue_client.local.authentication.clients import Client as Client
from taskqueue_client.local.service import LocalQueue as LocalQueue
