"""The upload of an artifact's content to the object service.

The steps are those of the object service's upload documentation. All of them but the first can be
repeated after a lost answer: the Queue gives the upload id and its credentials only once.
"""

from __future__ import annotations

from base64 import b64encode
from functools import partial

from taskqueue_client import calls
from taskqueue_client._call import Call
from taskqueue_client._retry import is_ambiguous
from taskqueue_client.definitions import ProposedUploadMethods
from taskqueue_client.errors import (
    CallFailed,
    InternalServerError,
    RequestConflict,
    UnreadableAnswer,
)
from taskqueue_client.models import CreateArtifactResponse, CreateUploadResponse

from .errors import NotOffered, UploadAlreadyBegun
from .hashing import UPLOADED, hexdigests
from .putting import Putting, Target
from .repeating import repeated
from .sources import Source
from .steps import Authorized, Settings, Steps
from .storage import Progress

INLINE = 8192
"""Bytes from which on content is sent to a URL: the service takes 10926 characters of base64 inline."""

_PERHAPS = "the Queue also answers this when an object artifact of this name was begun before"


class Beginning:
    """Creates an object artifact.

    A lost answer cannot be had again. It is tried again nevertheless: mostly the request was lost
    already, and if it was not, the Queue refuses the second one without harm.

    Args:
        settings: Those of the client.
        name: The artifact's.
        create: The call.
    """

    def __init__(self, settings: Settings, name: str, create: Call[CreateArtifactResponse]) -> None:
        self._settings = settings
        self._name = name
        self._create = create
        self._is_answer_lost = False

    def steps(self) -> Steps[CreateArtifactResponse]:
        """Gives how to upload."""
        try:
            return (yield from repeated(self._attempt, self._settings.retry, _is_lost))
        except (InternalServerError, RequestConflict) as error:
            if self._is_answer_lost:
                raise UploadAlreadyBegun(self._name) from error
            if isinstance(error, InternalServerError):
                error.add_note(_PERHAPS)
            raise

    def _attempt(self) -> Steps[CreateArtifactResponse]:
        try:
            return (yield from self._create)
        except CallFailed as error:
            self._is_answer_lost |= _is_lost(error) and not isinstance(error, InternalServerError)
            raise


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, UnreadableAnswer) or (isinstance(error, CallFailed) and is_ambiguous(error))


class ObjectUpload:
    """Uploads to an object that the Queue has begun.

    Args:
        settings: Those of the client.
        begun: The Queue's answer.
        body: What to upload.
        content_type: Its type.
        progress: Told how far it is.
    """

    def __init__(
        self,
        settings: Settings,
        begun: CreateArtifactResponse,
        body: Source,
        content_type: str,
        progress: Progress,
    ) -> None:
        if begun.name is None or begun.project_id is None or begun.upload_id is None or begun.expires is None:
            raise NotOffered("createArtifact")
        self._settings = settings
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

    def steps(self) -> Steps[dict[str, str]]:
        """Gives the hashes of what was uploaded."""
        answer = yield from Authorized(self._create, self._credentials)
        if answer.upload_method.data_inline and self._body.content is not None:
            hashes = hexdigests(UPLOADED, self._body.content)
            self._progress(self._body.size, self._body.size)
        else:
            hashes = yield from self._putting(_target(answer)).steps()
        yield from Authorized(self._finish(hashes=hashes), self._credentials)
        return hashes

    def _putting(self, target: Target) -> Putting:
        return Putting(
            self._settings,
            self._renewed,
            self._body,
            self._progress,
            needs_hashes=True,
            target=target,
        )

    def _renewed(self) -> Steps[Target]:
        return _target((yield from Authorized(self._create, self._credentials)))


def _proposal(body: Source, content_type: str) -> ProposedUploadMethods:
    proposal: ProposedUploadMethods = {"putUrl": {"contentType": content_type, "contentLength": body.size}}
    if body.content is not None and body.size < INLINE:
        data = b64encode(body.content).decode()
        proposal["dataInline"] = {"contentType": content_type, "objectData": data}
    return proposal


def _target(answer: CreateUploadResponse) -> Target:
    put_url = answer.upload_method.put_url
    if put_url is None:
        raise NotOffered("object.createUpload")
    headers = {name: value for name, value in put_url.headers.items() if name.lower() != "content-length"}
    return Target(put_url.url, headers, put_url.expires.timestamp())
