"""Where the local queue keeps artifacts: the engine's `Storage`, on buckets and the object service."""

from __future__ import annotations

import math
import secrets
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from taskqueue_client.local.bodies import BodyStore
from taskqueue_client.local.buckets import GRACE_SECONDS, PRIVATE, PUBLIC, Buckets
from taskqueue_client.local.objects import ObjectService
from taskqueue_client.local.sigv4 import Signer

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from taskqueue_client.clock import Clock

_GET_SECONDS = 30 * 60
_TABLE = (
    "CREATE TABLE IF NOT EXISTS url_signer (only INTEGER PRIMARY KEY CHECK (only = 1), secret TEXT NOT NULL)"
)


class ArtifactStorage:
    """Makes URLs for artifacts and keeps their data; `close` it when the server has stopped.

    Data of a store in memory lies in a temporary directory; data of a store in a file lies in
    `<file>.artifacts/` beside it, which is made readable for its owner only.

    Args:
        connection: Of the store, in autocommit mode; transactions of the engine take part.
        store_path: `:memory:`, or the store's file.
        clock: What URLs and uploads expire on.
        base_url: The server's `http://host:port`, asked for each URL.

    Raises:
        OSError: The directory cannot be made or read.
    """

    def __init__(
        self, connection: sqlite3.Connection, store_path: str, clock: Clock, base_url: Callable[[], str]
    ) -> None:
        self._clock = clock
        self._on_close = ExitStack()
        self.directory = self._open_directory(store_path)
        bodies = BodyStore(connection, self.directory)
        self.buckets = Buckets(bodies, _signer(connection), clock, base_url)
        self.objects = ObjectService(connection, self.buckets, clock)

    def close(self) -> None:
        """Remove what lies in a temporary directory."""
        self._on_close.close()

    def put_url(self, key: str, content_type: str, expires_ms: int) -> str:  # noqa: ARG002  as with S3, the type is not enforced
        """Where to PUT an S3 artifact; works ten seconds longer than `expires_ms`."""
        seconds = math.ceil(expires_ms / 1000 - self._clock.now()) + GRACE_SECONDS
        return self.buckets.put_url(_bucket(key), key, seconds)

    def get_url(self, name: str, key: str, skip_cdn: bool = False) -> str:  # noqa: ARG002, FBT001, FBT002  no CDN here
        """Where to GET an S3 artifact: unsigned for names in `public/`, else signed for 30 minutes."""
        if name.startswith("public/"):
            return self.buckets.plain_url(PUBLIC, key)
        return self.buckets.get_url(PRIVATE, key, _GET_SECONDS)

    def lock_upload(self, name: str, project_id: str, upload_id: str, expires_ms: int) -> None:
        """Fix an object's terms before anybody uploads it.

        Raises:
            Refusal: 409, the object exists on other terms.
        """
        self.objects.lock_upload(name, project_id, upload_id, expires_ms)

    def is_finished(self, name: str) -> bool:
        """Whether the object exists and its upload was finished."""
        return self.objects.is_finished(name)

    def object_url(self, name: str) -> str:
        """Where to GET a finished object; works for 30 minutes.

        Raises:
            Refusal: 404, there is no such object.
        """
        return self.objects.download(name)

    def delete(self, storage_type: str, key: str) -> None:
        """Forget the data of an `s3` or `object` artifact, if there is any."""
        if storage_type == "object":
            self.objects.remove(key)
        else:
            self.buckets.remove(_bucket(key), key)

    def expire(self) -> None:
        """Forget objects that have expired, and uploads that were not finished within a day."""
        self.objects.expire()

    def _open_directory(self, store_path: str) -> Path:
        if store_path == ":memory:":
            return Path(self._on_close.enter_context(TemporaryDirectory(prefix="taskqueue-artifacts-")))
        directory = Path(f"{store_path}.artifacts")
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory


def _bucket(key: str) -> str:
    """The bucket for an S3 artifact, by its name: what comes after task id and run id."""
    (_task_id, _run_id, name) = key.split("/", 2)
    return PUBLIC if name.startswith("public/") else PRIVATE


def _signer(connection: sqlite3.Connection) -> Signer:
    """The store's own signer, made at its first start, so that URLs outlive a restart."""
    connection.execute(_TABLE)
    connection.execute("INSERT OR IGNORE INTO url_signer VALUES (1, ?)", (secrets.token_urlsafe(30),))
    (secret,) = connection.execute("SELECT secret FROM url_signer").fetchone()
    return Signer("LOCALTASKQUEUE", secret)
