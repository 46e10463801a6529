"""The errors of uploads and downloads, besides those of API calls (`taskqueue_client.errors`).

ArtifactError
├── StorageFailed          content could not be sent to storage, or read from it
│   ├── StorageRefused         the response is an error
│   └── RedirectRefused        a response leads to a URL that is not followed
├── NotOffered             the service's response has no URL to continue with
├── SourceChanged          the file was changed while it was read
├── UploadAlreadyBegun     an object artifact of this name exists, and cannot be finished
├── ChainOfTrustError      the origin or the content of an artifact cannot be proven
├── DownloadTooLarge       more bytes than `max_bytes` or the limit of gzip
├── DownloadCorrupt        the received content differs from the stored content
│   └── HashMismatch           its hashes differ from the known ones, or none is known
└── StreamInterrupted      the connection was lost, and the server cannot resume

Local errors, such as a full disk or a missing file, are raised as `OSError`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit, urlunsplit

from taskqueue_client._protocol.api_responses import retry_after, sender, text_of_page
from taskqueue_client.errors import TaskQueueError

_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_QUERY = re.compile(r"\?[^\s<>\"']+")


class ArtifactError(TaskQueueError):
    """Base class of errors of uploads and downloads."""


def without_query(url: str) -> str:
    """Return a URL without its secrets: the password, and the query, which may be a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a malformed URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class StorageFailed(ArtifactError):
    """Content could not be sent to a storage service, or read from it.

    Attributes:
        method: `PUT` or `GET`.
        url: The URL without its query.
        reason: A description of the failure.
        of_reference: Whether a download failed at the server of a reference, whose URL a task has chosen.
    """

    of_reference = False

    def __init__(self, method: str, url: str, reason: str) -> None:
        self.method = method
        self.url = without_query(url)
        self.reason = reason
        super().__init__(method, self.url, reason)

    def __str__(self) -> str:
        return f"{self.method} {self.url}: {self.reason}"

    @property
    def is_temporary(self) -> bool:
        """Whether a retry of the transfer may succeed."""
        return True


class StorageRefused(StorageFailed):
    """The response of the storage service is an error.

    Attributes:
        status: The HTTP status.
        code: S3's error code, such as `AccessDenied`; empty if the response has none.
        message: The text of the response.
        retry_after: Seconds to wait before a retry, from `Retry-After`.
    """

    def __init__(
        self, method: str, url: str, status: int, code: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(method, url, " ".join(filter(None, (f"HTTP {status}", code, message))))
        self.args = (method, self.url, status, code, message, retry_after)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after

    @property
    def is_temporary(self) -> bool:
        """Whether a retry may succeed: after 408, 429 and 5xx, and after S3's 400 for a slow upload."""
        is_delayed = self.status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
        return is_delayed or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR or self.code == "RequestTimeout"

    @property
    def is_absence(self) -> bool:
        """Whether storage does not have the content: S3 responds with 403 where nobody may list the bucket.

        A 403 without an error code of S3 is a proxy's.
        """
        return self.status == HTTPStatus.NOT_FOUND or (
            self.status == HTTPStatus.FORBIDDEN and bool(self.code)
        )

    @property
    def is_too_large(self) -> bool:
        """Whether storage refuses content of this size."""
        return self.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or self.code == "EntityTooLarge"


def storage_refused(
    method: str, url: str, status: int, headers: Mapping[str, str], response: str, proxy: str = ""
) -> StorageRefused:
    """Return the error for a response: S3's XML, or any other text, which a proxy may have sent."""
    code, message = _CODE.search(response), _MESSAGE.search(response)
    text = message[1] if message else "" if code else sender(proxy) + text_of_page(response)
    redacted = _QUERY.sub("?<redacted>", text)
    if method == "PUT" and (location := headers.get("Location")):
        redacted = f"redirected to {without_query(location)}, but uploads do not follow redirects"
    pause = retry_after(headers, time.time())
    return StorageRefused(method, url, status, code[1] if code else "", redacted, pause)


def is_expiry(error: StorageRefused, url_expires: float | None, now: float) -> bool:
    """Return whether only the URL has expired: S3 responds with 403 then, Google with 400.

    Args:
        error: The error for the response.
        url_expires: When the URL expires, in seconds since the epoch; None if unknown.
        now: The service's time.
    """
    if error.status not in {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN}:
        return False
    is_past = error.status == HTTPStatus.FORBIDDEN and url_expires is not None and now >= url_expires
    return is_past or "expired" in f"{error.code} {error.message}".lower()


class RedirectRefused(StorageFailed):
    """A response leads from HTTPS to another scheme, to one redirect too many, or to a URL that is not valid.

    Also raised if the Queue or the object service sends a malformed URL, such as that of a reference.
    """

    @property
    def is_temporary(self) -> bool:
        """False: the same redirect is expected again."""
        return False


class NotOffered(ArtifactError):
    """A service's response has no URL, or only methods that this version does not support.

    `storage_type` is that of the artifact in the response; empty if the response has none. `finding` says
    what is wrong with the response.
    """

    def __init__(self, endpoint: str, storage_type: str = "", finding: str = "") -> None:
        super().__init__(endpoint, storage_type, finding)
        self.endpoint = endpoint
        self.storage_type = storage_type
        self.finding = finding or "has no URL, or only methods that this version does not support"

    def __str__(self) -> str:
        found = f"; found storage type {self.storage_type}" if self.storage_type else ""
        return f"the response to {self.endpoint} {self.finding}{found}"


class SourceChanged(ArtifactError):
    """The source of an upload was changed while it was read. No artifact was created from it."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source

    def __str__(self) -> str:
        return f"{self.source}: the file changed while it was uploaded"


class UploadAlreadyBegun(ArtifactError):
    """The Queue has created an object artifact of this name, but its response was lost.

    Only that response says how to upload the content, so the name cannot be used again in this run: upload
    under another name, or in another run.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"the object artifact {self.name!r} was created, but the response that says how to upload it was "
            "lost, and the Queue gives it only once: use another name for the artifact in this run"
        )


class ChainOfTrustError(ArtifactError):
    """The chain of trust of a run is missing or not valid, or an artifact differs from the signed one.

    Attributes:
        task_id: The task.
        reason: A description of the problem.
    """

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(task_id, reason)
        self.task_id = task_id
        self.reason = reason

    def __str__(self) -> str:
        return f"chain of trust of task {self.task_id}: {self.reason}"


class DownloadTooLarge(ArtifactError):
    """An artifact is larger than the limit of the download.

    Attributes:
        received: The bytes received when the download was stopped, before decoding.
        size: The size of the decoded content in bytes, or a lower bound of it.
        max_bytes: The limit.
    """

    def __init__(self, name: str, received: int, size: int, max_bytes: int) -> None:
        super().__init__(name, received, size, max_bytes)
        self.name = name
        self.received = received
        self.size = size
        self.max_bytes = max_bytes

    def __str__(self) -> str:
        found = f"has {self.size} bytes or more"
        if self.size > self.received:
            found = f"{found}, unpacked from {self.received} bytes of gzip"
        return f"{self.name!r} {found}; the limit is max_bytes={self.max_bytes}"


class DownloadCorrupt(ArtifactError):
    """The received content differs from the stored content."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name!r}: {self.reason}"


class HashMismatch(DownloadCorrupt):
    """The hashes of the received content differ from the known hashes, or no known hash can be compared.

    Attributes:
        expected: The known hashes, in hex by algorithm.
        found: The hashes of the received content.
    """

    def __init__(self, name: str, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
        reason = f"hash mismatch: received {dict(found)}, stored {dict(expected)}"
        if not found:
            reason = f"cannot be verified: the object service has {dict(expected)}, neither sha256 nor sha512"
        super().__init__(name, reason)
        self.args = (name, expected, found)
        self.expected = expected
        self.found = found


class StreamInterrupted(ArtifactError):
    """A stream was interrupted after a part of the artifact, and the server cannot resume it."""

    def __init__(self, name: str, handed_out: int) -> None:
        super().__init__(name, handed_out)
        self.name = name
        self.handed_out = handed_out

    def __str__(self) -> str:
        return f"{self.name!r}: interrupted after {self.handed_out} bytes, and the server cannot resume"
