"""The download of one artifact, from wherever it is, compared with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from taskqueue_client import calls
from taskqueue_client._call import Call
from taskqueue_client.errors import Attempted, AuthenticationFailed, ErrorArtifact, Refused
from taskqueue_client.models import ArtifactContent, StorageType

from .destinations import Destination
from .errors import HashMismatch, NotOffered, StorageFailed, StorageRefused
from .hashing import VERIFIABLE
from .receiving import Receiver
from .repeating import repeated
from .steps import Authorized, Settings, Steps, Work, releasing
from .storage import Progress

DEFAULT_CONTENT_TYPE = "application/binary"
"""What the official clients say where the storage says nothing."""


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A download that is complete and right.

    Attributes:
        name: The artifact's name, as it was asked for.
        storage_type: Where the content was; links were followed.
        content_type: As the storage has it.
        size: Bytes after decoding.
        hashes: The hashes that were compared, in hex by algorithm; empty for `s3` and `reference`, of
            which none are known.
        path: The file that has the content, or None.
        content: The content where it went to memory; else empty.
    """

    name: str
    storage_type: StorageType
    content_type: str
    size: int
    hashes: dict[str, str]
    path: Path | None = None
    content: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Location:
    """Where the content is for now.

    Attributes:
        expires: When the URL does, in seconds since the epoch, where that is known.
        hashes: What is known of the content; None where nothing can be known.
    """

    url: str = field(repr=False)
    expires: float | None = None
    hashes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which artifact to download; the latest run's without a run id."""

    task_id: str
    run_id: int | None
    name: str

    def call(self) -> Call[ArtifactContent]:
        """The call that says where it is."""
        if self.run_id is None:
            return calls.latest_artifact(self.task_id, self.name)
        return calls.artifact(self.task_id, self.run_id, self.name)


def downloading(
    settings: Settings, wanted: Wanted, destination: Destination, progress: Progress
) -> Steps[DownloadResult]:
    """Download one artifact.

    Raises:
        ErrorArtifact: The artifact says why there is none.
        ArtifactError: It did not arrive, or is not what was stored.
        CallFailed: The Queue or the object service refused, or did not answer.
        OSError: It cannot be written.
    """
    return releasing(destination.discard, _Download(settings, wanted, destination, progress).steps())


class _Download:
    def __init__(
        self, settings: Settings, wanted: Wanted, destination: Destination, progress: Progress
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._destination = destination
        self._progress = progress
        self._location: Location | None = None

    def steps(self) -> Steps[DownloadResult]:
        content = yield from self._content()
        self._location = location = yield from _located(content)
        algorithms = VERIFIABLE & set(location.hashes or ())
        receiver = Receiver(self._wanted.name, algorithms, self._destination, self._progress)
        attempt = partial(self._attempt, content, receiver)
        yield from repeated(attempt, self._settings.retry, self._may_repeat)
        return (yield from Work(lambda _storage, _cancellation: self._complete(content, location, receiver)))

    def _content(self) -> Steps[ArtifactContent]:
        call = self._wanted.call()
        content = yield from call
        if content.storage_type == StorageType.ERROR:
            raise _error_artifact(call, content)
        return content

    def _attempt(self, content: ArtifactContent, receiver: Receiver) -> Steps[None]:
        location = yield from self._fresh_location(content)
        fetch = partial(receiver.fetch, location.url, self._settings.timeouts)
        try:
            yield from Work(fetch)
        except StorageRefused as error:
            if error.is_expiry(location.expires, self._settings.server_time()):
                self._location = None
            raise

    def _fresh_location(self, content: ArtifactContent) -> Steps[Location]:
        now = self._settings.server_time()
        location = self._location
        if location is None or (location.expires is not None and now >= location.expires):
            if content.storage_type != StorageType.OBJECT:
                content = yield from self._content()
            location = self._location = yield from self._located_again(content)
        return location

    def _located_again(self, content: ArtifactContent) -> Steps[Location]:
        """An object's credentials work for an hour: less than its download may take."""
        try:
            return (yield from _located(content))
        except AuthenticationFailed:
            return (yield from _located((yield from self._content())))

    def _may_repeat(self, error: BaseException) -> bool:
        return isinstance(error, StorageFailed) and (error.is_temporary or self._location is None)

    def _complete(self, content: ArtifactContent, location: Location, receiver: Receiver) -> DownloadResult:
        """Verify what came, and let it appear."""
        if location.hashes is not None:
            _verify(self._wanted.name, location.hashes, receiver.hashes)
        self._destination.commit()
        return DownloadResult(
            name=self._wanted.name,
            storage_type=content.storage_type,
            content_type=receiver.content_type or DEFAULT_CONTENT_TYPE,
            size=receiver.size,
            hashes=receiver.hashes,
        )


def _located(content: ArtifactContent) -> Steps[Location]:
    """Where the content is; URLs are not meant to last."""
    if content.storage_type == StorageType.OBJECT and content.name is not None:
        call = calls.start_download(content.name, accept_download_methods={"getUrl": True})
        start = yield from Authorized(call, content.credentials)
        expires = None if start.expires is None else start.expires.timestamp()
        return Location(start.url, expires, start.hashes)
    if content.url is not None:
        return Location(content.url)
    raise NotOffered("artifact")


def _error_artifact(call: Call[ArtifactContent], content: ArtifactContent) -> ErrorArtifact:
    """What getArtifact would have answered."""
    said = {"reason": content.reason, "message": content.message}
    refused = Refused(status=424, message=content.message or "", document=said)
    return ErrorArtifact(Attempted(call.endpoint, call.method, call.path), refused)


def _verify(name: str, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    if not found or any(expected[algorithm] != value for algorithm, value in found.items()):
        raise HashMismatch(name, expected, found)
