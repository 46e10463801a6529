"""What the engine asks of artifact storage: places to upload to, and places to download from."""

from __future__ import annotations

from typing import Protocol


class Storage(Protocol):
    """S3-like buckets and an object service; the engine itself holds records only, never bytes.

    `key` is `<taskId>/<runId>/<artifact name>`; the name of an object is `t/` and such a key.
    Times are milliseconds since the epoch.
    """

    def put_url(self, key: str, content_type: str, expires_ms: int) -> str:
        """Where to PUT an S3 artifact; `expires_ms` is when the caller is told that the URL ends."""
        ...

    def get_url(self, name: str, key: str, skip_cdn: bool = False) -> str:  # noqa: FBT001, FBT002 - the agreed signature
        """Where to GET an S3 artifact: unsigned for names in `public/`, else signed for 30 minutes."""
        ...

    def lock_upload(self, name: str, project_id: str, upload_id: str, expires_ms: int) -> None:
        """Fix an object's upload id, project and expiry before anybody uploads it.

        Raises:
            Refusal: `RequestConflict`: the object exists with other values.
        """
        ...

    def is_finished(self, name: str) -> bool:
        """Whether the object exists and its upload was finished."""
        ...

    def object_url(self, name: str) -> str:
        """Where to GET a finished object (download method `simple`)."""
        ...

    def delete(self, storage_type: str, key: str) -> None:
        """Forget an expired artifact's data; nothing happens if there is none.

        Args:
            storage_type: `s3` or `object`.
            key: The S3 key, or the object's name.
        """
        ...

    def expire(self) -> None:
        """Forget objects that have expired, and uploads that nobody finished: the object service's job."""
        ...
