"""The two clients with the methods of artifacts."""

from __future__ import annotations

from typing import Any

import taskqueue_client
from taskqueue_client._call import awaited as awaited_call
from taskqueue_client._call import blocking as blocking_call
from taskqueue_client.artifacts import Settings, Storage, awaited, blocking, records


class Queue(taskqueue_client.Queue):
    upload_artifact = blocking.upload_artifact
    upload_artifacts = blocking.upload_artifacts
    download_artifact = blocking.download_artifact
    stream_artifact = blocking.stream_artifact
    create_reference_artifact = blocking_call(records.create_reference_artifact)
    create_link_artifact = blocking_call(records.create_link_artifact)
    create_error_artifact = blocking_call(records.create_error_artifact)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.storage = Storage()

    @property
    def transfer_settings(self) -> Settings:
        return Settings(self._policy, self._clock, self._wire.server_time)

    def close(self) -> None:
        super().close()
        self.storage.close()


class AsyncQueue(taskqueue_client.AsyncQueue):
    upload_artifact = awaited.upload_artifact
    upload_artifacts = awaited.upload_artifacts
    download_artifact = awaited.download_artifact
    stream_artifact = awaited.stream_artifact
    create_reference_artifact = awaited_call(records.create_reference_artifact)
    create_link_artifact = awaited_call(records.create_link_artifact)
    create_error_artifact = awaited_call(records.create_error_artifact)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.storage = Storage()

    @property
    def transfer_settings(self) -> Settings:
        return Settings(self._policy, self._clock, self._wire.server_time)

    async def close(self) -> None:
        await super().close()
        self.storage.close()
