"""The upload of an artifact's content to the object service.

The steps are those of the object service's upload documentation. All of them except the first can be
repeated after a lost response: the Queue sends the upload id and its credentials only once.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial

from taskqueue_client import calls
from taskqueue_client._protocol.conversation import Call, CallAs, Conversation
from taskqueue_client._protocol.retry import is_ambiguous
from taskqueue_client.definitions import ProposedUploadMethods
from taskqueue_client.errors import (
    CallFailed,
    InternalServerError,
    RequestConflict,
    UnreadableResponse,
)
from taskqueue_client.models import CreateArtifactResponse, CreateUploadResponse

from .artifact_errors import NotOffered, UploadAlreadyBegun
from .sources import Source
from .storage import UPLOADED, Progress, PutResponse, hexdigests
from .transfers import Putting, Target, Transfer

INLINE = 8192
"""Content of so many bytes or more is sent to a URL: the service accepts 10926 characters of base64."""

_PERHAPS = "the Queue also responds with this when the object artifact was created before"


class Beginning:
    """Creation of an object artifact.

    A lost response cannot be requested again. The call is retried nevertheless: usually it was the request
    that was lost, and otherwise the Queue refuses the second one without harm.

    Args:
        transfer: The transfer that the creation is a part of.
        name: The artifact's name.
        create: The call that creates the artifact.
    """

    def __init__(self, transfer: Transfer, name: str, create: Call[CreateArtifactResponse]) -> None:
        self._transfer = transfer
        self._name = name
        self._create = create
        self._is_response_lost = False

    def steps(self) -> Conversation[CreateArtifactResponse]:
        """Return the Queue's response, which says how to upload."""
        try:
            return (yield from self._transfer.retried(self._attempt, _is_lost))
        except (InternalServerError, RequestConflict) as error:
            if self._is_response_lost:
                raise UploadAlreadyBegun(self._name) from error
            if isinstance(error, InternalServerError):
                error.add_note(_PERHAPS)
            raise

    def _attempt(self) -> Conversation[CreateArtifactResponse]:
        try:
            return (yield from self._create)
        except CallFailed as error:
            self._is_response_lost |= _is_lost(error) and not isinstance(error, InternalServerError)
            raise


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, UnreadableResponse) or (isinstance(error, CallFailed) and is_ambiguous(error))


class ObjectUpload:
    """Upload to an object that the Queue has created.

    Args:
        transfer: The transfer that the upload is a part of.
        begun: The Queue's response to the creation.
        body: The content to upload.
        content_type: The content type.
        progress: Called with the bytes sent and the total.
    """

    def __init__(
        self,
        transfer: Transfer,
        begun: CreateArtifactResponse,
        body: Source,
        content_type: str,
        progress: Progress,
    ) -> None:
        if begun.name is None or begun.project_id is None or begun.upload_id is None or begun.expires is None:
            raise NotOffered("createArtifact")
        self._transfer = transfer
        self._body = body
        self._progress = progress
        self._credentials = begun.credentials
        self._create = calls.create_upload(
            begun.name,
            project_id=begun.project_id,
            upload_id=begun.upload_id,
            expires=begun.expires,
            proposed_upload_methods=_proposal(body, content_type),
        )
        self._finish = partial(
            calls.finish_upload, begun.name, project_id=begun.project_id, upload_id=begun.upload_id
        )

    def steps(self) -> Conversation[dict[str, str]]:
        """Upload the content, and return its hashes in hex by algorithm."""
        response = yield from CallAs(self._create, self._credentials)
        if response.upload_method.data_inline and self._body.content is not None:
            hashes = hexdigests(UPLOADED, self._body.content)
            self._progress(self._body.size, self._body.size)
        else:
            hashes = yield from self._putting(_target(response)).steps()
        yield from CallAs(self._finish(hashes=hashes), self._credentials)
        return hashes

    def _putting(self, target: Target) -> Putting:
        return Putting(self._transfer, self._renewed, self._body, self._progress, _has_etag, target)

    def _renewed(self) -> Conversation[Target]:
        return _target((yield from CallAs(self._create, self._credentials)))


def _has_etag(response: PutResponse) -> Conversation[bool]:
    """Return whether storage sent an ETag: the object cannot be read before the upload is finished."""
    yield from ()
    return "ETag" in response.headers


def _proposal(body: Source, content_type: str) -> ProposedUploadMethods:
    proposal: ProposedUploadMethods = {"putUrl": {"contentType": content_type, "contentLength": body.size}}
    if body.content is not None and body.size < INLINE:
        data = b64encode(body.content).decode()
        proposal["dataInline"] = {"contentType": content_type, "objectData": data}
    return proposal


def _target(response: CreateUploadResponse) -> Target:
    put_url = response.upload_method.put_url
    if put_url is None:
        raise NotOffered("object.createUpload")
    headers = {name: value for name, value in put_url.headers.items() if name.lower() != "content-length"}
    return Target(put_url.url, headers, put_url.expires.timestamp())
