"""Where the local queue keeps artifacts: buckets that behave like S3, and the object service on them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp

from taskqueue_client.clock import Clock
from taskqueue_client.local.engine.store import MEMORY, Store

from .body_store import BodyStore
from .buckets import GRACE_SECONDS, PRIVATE, PUBLIC, Buckets, UrlSigner
from .objects import OBJECT_METHODS, ObjectService

_GET_SECONDS = 30 * 60
_PREFIX = "taskqueue-artifacts-"


class ArtifactStorage:
    """Makes URLs for artifacts, and keeps their data in the directory."""

    def __init__(
        self,
        store: Store,
        directory: Path,
        clock: Clock,
        base_url: Callable[[], str],
        *,
        sign_public: bool = False,
        object_methods: Collection[str] = OBJECT_METHODS,
    ) -> None:
        self._sign_public = sign_public
        bodies = BodyStore(store, directory)
        signer = UrlSigner("LOCALTASKQUEUE", store.secret("url_signer", "secret"))
        self.buckets = Buckets(bodies, signer, clock, base_url)
        self.objects = ObjectService(store, self.buckets, clock, object_methods)

    def put_url(self, key: str, seconds: int) -> str:
        """Return a URL to PUT an S3 artifact, which works for `seconds` and ten more.

        As with S3, another content type than the announced one is accepted.
        """
        return self.buckets.put_url(_bucket(key), key, seconds + GRACE_SECONDS)

    def get_url(self, key: str) -> str:
        """Return a URL to GET an S3 artifact: unsigned for names in `public/`, else signed for 30 minutes."""
        bucket = _bucket(key)
        if bucket == PUBLIC and not self._sign_public:
            return self.buckets.plain_url(bucket, key)
        return self.buckets.get_url(bucket, key, _GET_SECONDS)

    def delete(self, key: str) -> None:
        """Delete the data of an S3 artifact, if it exists."""
        self.buckets.remove(_bucket(key), key)


@contextmanager
def artifact_directory(store_path: str) -> Generator[Path]:
    """Return the directory for the data of a store.

    It is `<file>.artifacts/` beside a store in a file, readable for its owner only. For a store in memory, it
    is a temporary directory, which is locked while this process lives: other queues do not remove it. It is
    renamed once it is locked: a directory with the final name and without a lock was left by a killed queue.

    Raises:
        OSError: The directory cannot be made.
    """
    if store_path != MEMORY:
        directory = Path(f"{Path(store_path).resolve()}.artifacts")  # the same for each link to the file
        directory.mkdir(mode=0o700, exist_ok=True)
        yield directory
        return
    _remove_leftovers()
    with ExitStack() as stack:
        new = Path(mkdtemp(prefix=f".{_PREFIX}"))
        try:
            stack.enter_context(_locked(str(new)))
        except OSError as error:  # such as a network file system without locks
            new.rmdir()
            raise OSError(error.errno, f"cannot be locked: {error.strerror}", str(new)) from error
        path = new.rename(new.with_name(new.name.removeprefix(".")))
        stack.callback(rmtree, path, ignore_errors=True)
        yield path


def _remove_leftovers() -> None:
    """Remove temporary directories of queues that were killed."""
    for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), _locked(str(path)):  # it is in use, or another user's
            rmtree(path)


@contextmanager
def _locked(directory: str) -> Generator[None]:
    """Hold the lock of a directory; raises an OSError if another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _bucket(key: str) -> str:
    """Return the bucket for an S3 artifact. It depends on the name, which follows task id and run id."""
    (_task_id, _run_id, name) = key.split("/", 2)
    return PUBLIC if name.startswith("public/") else PRIVATE
