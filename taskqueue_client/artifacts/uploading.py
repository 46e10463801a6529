"""The upload of one artifact, to S3 or to the object service."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from taskqueue_client import calls
from taskqueue_client._call import Call
from taskqueue_client.definitions import CreateArtifactRequest
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models import CreateArtifactResponse

from .compression import gzipped
from .content_types import content_type_of, is_compressed, is_text
from .errors import NotOffered
from .naming import checked_content_type, checked_name, clamped_expiry
from .object_service import Beginning, ObjectUpload
from .putting import Putting, Target
from .sources import Content, Source, open_source
from .steps import Collecting, Settings, Steps, StorageName, Work, releasing
from .storage import Progress

_WORTH_COMPRESSING = 1024
"""Fewer bytes fit into a network packet anyhow."""


@dataclass(frozen=True, slots=True)
class UploadResult:
    """An artifact that was uploaded.

    Attributes:
        name: Its name.
        storage_type: Where its content is.
        content_type: As the Queue has it.
        content_encoding: `gzip` if it was compressed, else None.
        size: Its bytes before compression.
        stored_size: The bytes that were sent.
        expires: Until when it is kept.
        hashes: Of what was sent, in hex by algorithm: its `sha256`. Empty where the kernel sent a file to
            S3 by itself, over plain HTTP.
    """

    name: str
    storage_type: StorageName
    content_type: str
    content_encoding: str | None
    size: int
    stored_size: int
    expires: str
    hashes: dict[str, str]


@dataclass(frozen=True, slots=True)
class Options:
    """How artifacts are uploaded; `upload_artifact` describes each of them."""

    expires: str
    storage: StorageName
    content_type: str | None
    compress: bool | None

    @classmethod
    def checked(
        cls,
        expires: datetime | str,
        task_expires: datetime | None,
        storage: StorageName,
        content_type: str | None,
        compress: bool | None,  # noqa: FBT001 - the callers' is a keyword
    ) -> Options:
        """The options, if they make sense.

        Raises:
            InvalidArgument: They don't.
        """
        if storage not in {"s3", "object"}:
            raise InvalidArgument("storage", storage, "'s3' or 'object'")
        if storage == "object" and compress:
            raise InvalidArgument(
                "compress", compress, "None or False: the object service stores what it gets"
            )
        given = None if content_type is None else checked_content_type(content_type)
        return cls(clamped_expiry(expires, task_expires), storage, given, compress)


@dataclass(frozen=True, slots=True)
class Artifact:
    """Which artifact of which run."""

    task_id: str
    run_id: int
    name: str

    def create(self, request: CreateArtifactRequest) -> Call[CreateArtifactResponse]:
        """The call that creates it."""
        return calls.create_artifact(self.task_id, self.run_id, self.name, request)


def uploading(
    settings: Settings, artifact: Artifact, content: Content | Source, options: Options, progress: Progress
) -> Steps[UploadResult]:
    """Upload one artifact.

    Raises:
        InvalidArgument: The name or the content is not allowed; nothing was sent.
        ArtifactError: The content did not arrive.
        CallFailed: The Queue or the object service refused, or did not answer.
        OSError: The content cannot be read, or there is no room for a temporary file.
    """
    checked_name(artifact.name)
    source = content if isinstance(content, Source) else (yield from _opened(content))
    return (yield from _closing(source, _Upload(settings, artifact, source, options, progress).steps()))


def _closing(source: Source, steps: Steps[UploadResult]) -> Steps[UploadResult]:
    """The steps, after which the source is closed; small ones need no closing."""
    return steps if source.content is not None else releasing(source.close, steps)


def _opened(content: Content) -> Steps[Source]:
    if isinstance(content, AsyncIterable):
        return (yield from Collecting(content))
    return (yield from Work(lambda _storage, _cancellation: open_source(content)))


class _Upload:
    def __init__(
        self, settings: Settings, artifact: Artifact, source: Source, options: Options, progress: Progress
    ) -> None:
        self._settings = settings
        self._artifact = artifact
        self._source = source
        self._options = options
        self._progress = progress
        self._content_type = options.content_type or content_type_of(artifact.name)

    def steps(self) -> Steps[UploadResult]:
        if self._options.storage == "object":
            return (yield from self._to_object_service())
        if not self._is_to_be_compressed():
            return (yield from self._to_s3(self._source, None))
        source = self._source
        compressed = yield from Work(lambda _, cancellation: gzipped(source, cancellation))
        return (yield from _closing(compressed, self._to_s3(compressed, "gzip")))

    def _is_to_be_compressed(self) -> bool:
        wanted = self._options.compress
        if wanted is None:
            wanted = is_text(self._content_type) and self._source.size >= _WORTH_COMPRESSING
        return wanted and not is_compressed(self._artifact.name, self._content_type)

    def _to_s3(self, body: Source, encoding: str | None) -> Steps[UploadResult]:
        renew = partial(self._s3_target, encoding)
        hashes = yield from Putting(self._settings, renew, body, self._progress).steps()
        return self._result(hashes, body.size, encoding)

    def _s3_target(self, encoding: str | None) -> Steps[Target]:
        """Repeating the call with the same values gives a fresh URL."""
        created = yield from self._artifact.create(
            {"storageType": "s3", "expires": self._options.expires, "contentType": self._content_type}
        )
        if created.put_url is None or created.expires is None or created.content_type is None:
            raise NotOffered("createArtifact")
        self._content_type = created.content_type
        headers = {"Content-Type": created.content_type}
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        return Target(created.put_url, headers, created.expires.timestamp())

    def _to_object_service(self) -> Steps[UploadResult]:
        """Without `contentLength`, which would make finishArtifact fail."""
        create = self._artifact.create(
            {"storageType": "object", "expires": self._options.expires, "contentType": self._content_type}
        )
        begun = yield from Beginning(self._settings, self._artifact.name, create).steps()
        upload = ObjectUpload(self._settings, begun, self._source, self._content_type, self._progress)
        hashes = yield from upload.steps()
        task_id, run_id, name = self._artifact.task_id, self._artifact.run_id, self._artifact.name
        yield from calls.finish_artifact(task_id, run_id, name, upload_id=begun.upload_id or "")
        return self._result(hashes, self._source.size, None)

    def _result(self, hashes: dict[str, str], stored_size: int, encoding: str | None) -> UploadResult:
        return UploadResult(
            name=self._artifact.name,
            storage_type=self._options.storage,
            content_type=self._content_type,
            content_encoding=encoding,
            size=self._source.size,
            stored_size=stored_size,
            expires=self._options.expires,
            hashes=hashes,
        )
