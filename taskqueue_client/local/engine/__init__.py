"""The engine of the local queue: the Queue's state machine on SQLite and a clock."""

from taskqueue_client.local.engine.artifact_reads import ErrorArtifact as ErrorArtifact
from taskqueue_client.local.engine.artifact_reads import Redirect as Redirect
from taskqueue_client.local.engine.core import Settings as Settings
from taskqueue_client.local.engine.facade import Engine as Engine
from taskqueue_client.local.engine.store import Store as Store
