"""The messages in the storage queues of one task queue, read with the account's key."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.legacy.azurite import Azurite


class StorageView:
    """The storage queues of a task queue: `7` (highest priority) to `1`, and `all` of the first draft."""

    def __init__(self, azurite: Azurite, task_queue_id: str) -> None:
        from azure.storage.queue import QueueServiceClient

        from taskqueue_client.local.legacy_messages import queue_names

        self.service = QueueServiceClient.from_connection_string(azurite.connection_string)
        self.names = dict(zip("7654321", queue_names(task_queue_id, [*"7654321"]), strict=True))
        (self.names["all"],) = queue_names(task_queue_id, ["all"])

    def visible(self, suffix: str = "1") -> list[dict[str, Any]]:
        """Return the decoded texts of the messages that polls would return."""
        from azure.core.exceptions import ResourceNotFoundError

        try:
            found = self.service.get_queue_client(self.names[suffix]).peek_messages(max_messages=32)
        except ResourceNotFoundError:
            return []  # an emulator that was killed has lost its latest queues
        return [json.loads(base64.b64decode(each.content)) for each in found]

    def runs(self, suffix: str = "1") -> list[tuple[str, int]]:
        """Return the tasks and runs of the messages that polls would return."""
        return sorted((each["taskId"], each["runId"]) for each in self.visible(suffix))

    def count(self, suffix: str = "1") -> int:
        """Return the number of messages, including hidden ones."""
        properties: Any = self.service.get_queue_client(self.names[suffix]).get_queue_properties()
        return int(properties.approximate_message_count)

    def put(self, text: str, suffix: str = "1") -> None:
        self.service.get_queue_client(self.names[suffix]).send_message(text)

    def poll_and_show(self, times: int, suffix: str = "1") -> None:
        """Poll a message several times, and make it visible again each time."""
        client = self.service.get_queue_client(self.names[suffix])
        for _ in range(times):
            message: Any = client.receive_message(visibility_timeout=30)
            client.update_message(message, content=message.content, visibility_timeout=0)

    def close(self) -> None:
        self.service.close()
