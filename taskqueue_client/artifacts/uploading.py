"""The upload of one artifact, to S3 or to the object service."""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from taskqueue_client import _arguments as arguments
from taskqueue_client import calls, errors
from taskqueue_client._protocol.conversation import Call, CallAs, Conversation, on_thread
from taskqueue_client._protocol.retry import is_foreign
from taskqueue_client.definitions import (
    CreateArtifactRequest,
    ProposedUploadMethods,
    S3ArtifactRequest,
    StorageName,
)
from taskqueue_client.models import ArtifactLocation, CreateArtifactResponse, CreateUploadResponse

from .artifact_errors import NotOffered, StorageRefused, UploadAlreadyBegun
from .content import content_type_of, gzipped, gzipped_content, is_compressed, is_text
from .sources import Content, Source, Spool, TemporaryFileFailed, hexdigests, open_source, warn_if_at_end
from .storage import UPLOADED, Progress, PutResponse
from .transfers import SKIP_CDN, Target, Transfer, TransferClient, putting, reporter

_WORTH_COMPRESSING = 1024  # smaller content is not compressed by default: it fits into a network packet

_UNREADABLE_ON_S3 = re.compile(r"[%\[\]|\\]|//")
_LOOKS_PUBLIC = re.compile(r"[/\\]*public[/\\]", re.IGNORECASE)
_UNREADABLE_AS_OBJECT = re.compile(r"[^A-Za-z0-9!@/:.+|_-]")

_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d{1,18})")

_NO_CACHE = "private, no-store"
"""Both directives (RFC 9111, 5.2.2), because some CDNs obey only one of them."""

_INLINE = 8192
"""Content of so many bytes or more is sent to a URL: the service accepts 10926 characters of base64."""

_PERHAPS = "the Queue also responds with this when the object artifact was created before"

_log = logging.getLogger("taskqueue_client.artifacts")


@dataclass(frozen=True, slots=True)
class UploadResult:
    """An artifact that was uploaded.

    Attributes:
        name: The artifact's name.
        storage_type: The storage type of the content.
        content_type: The content type that the Queue has.
        content_encoding: `gzip` if the content was compressed, else None.
        size: The size in bytes before compression.
        stored_size: The bytes that were sent.
        expires: When the artifact expires.
        hashes: The hashes of the bytes that were sent, in hex by algorithm: `sha256`.
    """

    name: str
    storage_type: StorageName
    content_type: str
    content_encoding: str | None
    size: int
    stored_size: int
    expires: datetime
    hashes: dict[str, str]


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """Options of an upload; `upload_artifact` describes each of them except the last.

    Attributes:
        is_final: The content will not be replaced. Otherwise no cache may store it: a CDN would show an
            incomplete log for hours.
    """

    expires: str
    storage: StorageName
    content_type: str | None
    compress: bool | None
    is_final: bool = True

    @classmethod
    def checked(
        cls,
        expires: datetime | str,
        task_expires: datetime | None,
        storage: StorageName,
        content_type: str | None,
        compress: bool | None,  # noqa: FBT001 - callers have it as a keyword
        now: Callable[[], datetime],
    ) -> UploadOptions:
        """Return the options after checking them. A distance such as `14 days` is measured from `now()`."""
        arguments.one_of("storage", storage, ["s3", "object"])
        arguments.check_kind("compress", compress, bool | None)
        if storage == "object" and compress:
            raise errors.InvalidArgument(
                "compress",
                compress,
                "None or False: artifacts of the storage type 'object' are not compressed",
            )
        given = None if content_type is None else arguments.content_type(content_type)
        if storage == "object" and given is not None:
            arguments.media_type(given)
        return cls(arguments.artifact_expires(expires, task_expires, now), storage, given, compress)


@dataclass(frozen=True, slots=True)
class RunArtifact:
    """An artifact of a run."""

    task_id: str
    run_id: int
    name: str

    def create(self, request: CreateArtifactRequest) -> Call[CreateArtifactResponse]:
        """Return the call that creates the artifact."""
        return calls.create_artifact(self.task_id, self.run_id, self.name, request)

    def stored(self) -> Call[ArtifactLocation]:
        """Return the call that gets a URL of storage, not of a CDN, which may have an old copy."""
        call = calls.get_artifact(self.task_id, self.run_id, self.name)
        return replace(call, headers=SKIP_CDN)


def upload_artifact(
    client: TransferClient,
    /,
    task_id: str,
    run_id: int,
    name: str,
    source: Content,
    *,
    expires: datetime | str,
    content_type: str | None = None,
    storage: StorageName | None = None,
    compress: bool | None = None,
    task_expires: datetime | None = None,
    progress: Progress | None = None,
) -> Conversation[UploadResult]:
    """Upload one artifact.

    A failed attempt is retried from the start, with a fresh URL if necessary. When the method returns, the
    artifact is complete, and the stored content was compared with the content sent.

    Scopes: `queue:create-artifact:<task_id>/<run_id>`, which the run's credentials have.

    Args:
        client: The client.
        task_id: The task.
        run_id: The run, running or resolved as an exception in the last 25 minutes.
        name: Printable ASCII. Everybody may read names that begin with `public/`.
        source: A path (also as a `str`), bytes, a file opened in binary mode (read from its current
            position), or an iterable of bytes, for `AsyncQueue` also an asynchronous one. Content that cannot
            be read twice is written to a temporary file first.
        expires: When the artifact expires: not later than its task.
        content_type: The content type; default: by the extension of the name. The object service accepts
            only well-formed types such as `text/plain; charset=utf-8`.
        storage: `s3`, or `object` for the object service, which also stores hashes; default: the client's
            `artifact_storage`.
        compress: Whether to store gzip, which downloads decode. True compresses all content that is not
            compressed already, None only text of 1 kB and more. The object service does not accept gzip.
        task_expires: The task's `expires`. A later `expires` of the artifact is reduced to it.
        progress: Called with the bytes sent and the total, in the event loop of `AsyncQueue`. Each attempt
            starts from zero.

    Raises:
        InvalidArgument: A value is not allowed; nothing was sent.
        ArtifactError: The content could not be stored, or was changed while it was read.
        CallFailed: The Queue or the object service refused, or did not respond.
        OSError: The content cannot be read, or a temporary file cannot be written.
    """
    report = yield from reporter(progress)
    transfer = Transfer(client)
    storage = transfer.settings.storage_type if storage is None else storage
    options = UploadOptions.checked(expires, task_expires, storage, content_type, compress, client.now)
    warn_of_name(arguments.new_name(name), storage)
    return (yield from uploading(transfer, RunArtifact(task_id, run_id, name), source, options, report))


def uploading(
    transfer: Transfer,
    artifact: RunArtifact,
    content: Content | Source,
    options: UploadOptions,
    progress: Progress,
) -> Conversation[UploadResult]:
    """Upload one artifact."""
    arguments.new_name(artifact.name)
    content_type = options.content_type or content_type_of(artifact.name)
    if not isinstance(content, Source):
        given, content = content, (yield from _opened(transfer, content))
        warn_if_at_end(artifact.name, given, content.size, _log)
    upload = _Upload(transfer, artifact, content, options, progress, content_type)
    if content.content is not None:  # in memory: there is nothing to close
        return (yield from upload.steps())
    return (yield from transfer.releasing(content.close, upload.steps()))


def warn_of_name(name: str, storage: str) -> None:
    """Log a warning if readers will fail; see `trouble_of_readers`."""
    if trouble := trouble_of_readers(name, storage):
        _log.warning("%s", trouble)


def trouble_of_readers(name: str, storage: str) -> str:
    """Return why readers will fail although the upload succeeds, as seen on the service; "" if they won't."""
    if storage == "object" and (found := _UNREADABLE_AS_OBJECT.search(name)):
        return (
            f"artifact {name!r} can be downloaded by this client only: for names that contain {found[0]!r}, "
            "the Queue issues invalid credentials for the object service"
        )
    is_public = name.startswith("public/")
    if storage == "s3" and is_public and (found := _UNREADABLE_ON_S3.search(name)):
        return (
            f"artifact {name!r} can be uploaded but not downloaded: S3 does not find names that contain "
            f"{found[0]!r}"
        )
    if _LOOKS_PUBLIC.match(name) and not is_public:
        return f"artifact {name!r} is not public: the names of public artifacts begin with 'public/'"
    return ""


def _opened(transfer: Transfer, content: Content) -> Conversation[Source]:
    """Open the content, without a thread if it is small and in memory."""
    if isinstance(content, (bytes, bytearray, memoryview)):
        return open_source(content)
    if not isinstance(content, AsyncIterable):
        return (yield from transfer.work(lambda: open_source(content)))
    allowed = "a path, bytes, a file or an iterable; asynchronous iterables are for AsyncQueue"
    refusal = errors.InvalidArgument("source", content, allowed)
    return (yield from transfer.work(partial(_refuse, refusal), lambda: _collected(transfer, content)))


def _refuse(refusal: errors.InvalidArgument) -> Source:
    raise refusal


async def _collected(transfer: Transfer, blocks: AsyncIterable[bytes]) -> Source:
    with await on_thread(transfer.work(Spool)) as spool:
        async for block in blocks:
            await on_thread(transfer.work(partial(spool.write, block)))
        return await on_thread(transfer.work(spool.source))


@dataclass(eq=False, repr=False)
class _Upload:
    transfer: Transfer
    artifact: RunArtifact
    source: Source
    options: UploadOptions
    progress: Progress
    content_type: str
    is_response_lost: bool = False

    @property
    def _compresses(self) -> bool:
        is_wanted = self.options.compress
        if is_wanted is None:
            is_wanted = self.source.size >= _WORTH_COMPRESSING and is_text(self.content_type)
        return is_wanted and not is_compressed(self.artifact.name, self.content_type)

    def steps(self) -> Conversation[UploadResult]:
        if self.options.storage == "object":
            return self._to_object_service()
        if self.source.is_gzip:
            return self._to_s3(self.source, "gzip")
        if not self._compresses:
            return self._to_s3(self.source, None)
        if self.source.content is not None:
            return self._to_s3(gzipped_content(self.source.content), "gzip")
        return self._compressed_to_s3()

    def _compressed_to_s3(self) -> Conversation[UploadResult]:
        source, check = self.source, self.transfer.cancellation.check
        try:
            compressed = yield from self.transfer.work(lambda: gzipped(source, check))
        except TemporaryFileFailed:
            if self.options.compress:
                raise
            return (yield from self._to_s3(source, None))  # without compression, on a full disk
        return (yield from self.transfer.releasing(compressed.close, self._to_s3(compressed, "gzip")))

    def _to_s3(self, body: Source, encoding: str | None) -> Conversation[UploadResult]:
        renew, target = partial(self._s3_target, encoding), (yield from self._s3_target(encoding))
        has_arrived = partial(self._has_arrived, body.size, encoding)
        hashes = yield from putting(self.transfer, target, renew, body, self.progress, has_arrived)
        return self._result(hashes, body.size, encoding)

    def _s3_target(self, encoding: str | None) -> Conversation[Target]:
        """Request a URL. Each call with the same values returns a fresh one."""
        created = yield from self._created_on_s3()
        if created.put_url is None or created.expires is None or created.content_type is None:
            raise NotOffered("createArtifact", created.storage_type)
        self.content_type = created.content_type
        headers = {"Content-Type": created.content_type}
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        if not self.options.is_final:
            headers["Cache-Control"] = _NO_CACHE
        return Target(created.put_url, headers, created.expires.timestamp())

    def _created_on_s3(self) -> Conversation[CreateArtifactResponse]:
        """Create the artifact with its size before compression; services before v96.7 refuse the size."""
        request: S3ArtifactRequest = {
            "storageType": "s3",
            "expires": self.options.expires,
            "contentType": self.content_type,
        }
        if self.source.is_gzip:  # its size before compression is not known
            return (yield from self.artifact.create(request))
        try:
            return (yield from self.artifact.create({**request, "contentLength": self.source.size}))
        except errors.InputValidationError:
            return (yield from self.artifact.create(request))

    def _has_arrived(self, size: int, encoding: str | None, response: PutResponse) -> Conversation[bool]:
        """Compare the stored length. If the credentials may not read the artifact, any ETag is accepted."""
        artifact, transfer = self.artifact, self.transfer
        try:
            found = yield from artifact.stored()
        except errors.CallFailed:
            return "ETag" in response.headers
        length = yield from transfer.work(lambda: _stored_length(transfer, found.url, encoding))
        return length == size

    def _to_object_service(self) -> Conversation[UploadResult]:
        """Upload to the object service. No `contentLength` is sent: finishArtifact would fail with it."""
        begun = yield from self._created_as_object()
        hashes = yield from self._uploaded_object(begun)
        task_id, run_id, name = self.artifact.task_id, self.artifact.run_id, self.artifact.name
        yield from calls.finish_artifact(task_id, run_id, name, upload_id=begun.upload_id or "")
        return self._result(hashes, self.source.size, None)

    def _uploaded_object(self, begun: CreateArtifactResponse) -> Conversation[dict[str, str]]:
        """Upload to an object that the Queue has created, and return the hashes in hex by algorithm.

        The steps are those of the object service's upload documentation. They can be repeated after a lost
        response, unlike the creation: the Queue sends the upload id and its credentials only once.
        """
        if begun.name is None or begun.project_id is None or begun.upload_id is None or begun.expires is None:
            raise NotOffered("createArtifact", begun.storage_type)
        try:
            call = calls.create_upload(
                begun.name,
                project_id=begun.project_id,
                upload_id=begun.upload_id,
                expires=begun.expires,
                proposed_upload_methods=_proposal(self.source, self.content_type),
            )
        except errors.InvalidArgument as error:  # which the Queue has sent, and not the caller
            raise NotOffered("createArtifact", begun.storage_type, f"is not valid: {error}") from error
        create = CallAs(call, begun.credentials)
        response = yield from create
        if response.upload_method.data_inline and self.source.content is not None:
            hashes = hexdigests(UPLOADED, self.source.content)
            self.progress(self.source.size, self.source.size)
        else:
            renew, target = partial(_renewed, create), _target(response)
            hashes = yield from putting(self.transfer, target, renew, self.source, self.progress, _has_etag)
        finish = calls.finish_upload(
            begun.name, project_id=begun.project_id, upload_id=begun.upload_id, hashes=hashes
        )
        yield from CallAs(finish, begun.credentials)
        return hashes

    def _created_as_object(self) -> Conversation[CreateArtifactResponse]:
        """Create the artifact; the response says how to upload, and cannot be requested again if it is lost.

        The call is retried nevertheless: usually the request was lost, and not the response. Otherwise the
        Queue refuses the second request without harm.
        """
        create = self.artifact.create(
            {"storageType": "object", "expires": self.options.expires, "contentType": self.content_type}
        )
        try:
            return (yield from self.transfer.retried(partial(self._attempt, create), _is_lost))
        except (errors.InternalServerError, errors.RequestConflict) as error:
            if self.is_response_lost:
                raise UploadAlreadyBegun(self.artifact.name) from error
            if isinstance(error, errors.InternalServerError):
                error.add_note(_PERHAPS)
            raise

    def _attempt(self, create: Call[CreateArtifactResponse]) -> Conversation[CreateArtifactResponse]:
        try:
            return (yield from create)
        except errors.CallFailed as error:
            self.is_response_lost |= _is_lost(error) and not isinstance(error, errors.InternalServerError)
            raise

    def _result(self, hashes: dict[str, str], stored_size: int, encoding: str | None) -> UploadResult:
        return UploadResult(
            name=self.artifact.name,
            storage_type=self.options.storage,
            content_type=self.content_type,
            content_encoding=encoding,
            size=self.source.size,
            stored_size=stored_size,
            expires=datetime.fromisoformat(self.options.expires),
            hashes=hashes,
        )


def _stored_length(transfer: Transfer, url: str, encoding: str | None) -> int | None:
    """Return the stored length, by requesting the first byte; None if nothing is stored.

    Google's storage and caching proxies decompress stored gzip for clients that do not accept gzip, and may
    compress other content for clients that do. Caching proxies may have a copy of the last upload.
    """
    headers = {"Range": "bytes=0-0", "Accept-Encoding": encoding or "identity", "Cache-Control": "no-cache"}
    try:
        with transfer.get(url, headers) as incoming:
            found = _CONTENT_RANGE.fullmatch(incoming.header("Content-Range") or "")
            return int(found[1]) if found else incoming.length
    except StorageRefused as error:
        return 0 if error.status == 416 else None  # noqa: PLR2004 - no first byte: 0 bytes are stored


def _is_lost(error: BaseException) -> bool:
    return is_foreign(error) or isinstance(error, (errors.ConnectionFailed, errors.ServerError))


def _renewed(create: CallAs[CreateUploadResponse]) -> Conversation[Target]:
    return _target((yield from create))


def _has_etag(response: PutResponse) -> Conversation[bool]:
    """Return whether storage sent an ETag: the object cannot be read before the upload is finished."""
    yield from ()
    return "ETag" in response.headers


def _proposal(body: Source, content_type: str) -> ProposedUploadMethods:
    proposal: ProposedUploadMethods = {"putUrl": {"contentType": content_type, "contentLength": body.size}}
    if body.content is not None and body.size < _INLINE:
        data = b64encode(body.content).decode()
        proposal["dataInline"] = {"contentType": content_type, "objectData": data}
    return proposal


def _target(response: CreateUploadResponse) -> Target:
    put_url = response.upload_method.put_url
    if put_url is None:
        raise NotOffered("object.createUpload")
    headers = {name: value for name, value in put_url.headers.items() if name.lower() != "content-length"}
    return Target(put_url.url, headers, put_url.expires.timestamp())
