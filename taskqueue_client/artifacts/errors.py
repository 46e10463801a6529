"""How an upload or a download can fail, apart from calls that fail (`taskqueue_client.errors`).

ArtifactError
├── StorageFailed          the storage service did not take, or not give, the bytes
│   ├── StorageRefused         it answered, and said no
│   └── RedirectRefused        it sent us where we do not go
├── NotOffered             the service's answer does not say where to go on
├── SourceChanged          the file was changed while it was read
├── UploadAlreadyBegun     an object artifact of this name was begun, and nobody can finish it
├── DownloadTooLarge       more bytes than the caller wants in memory
├── DownloadCorrupt        what came is not what was stored
│   └── HashMismatch           and its hashes prove it
└── StreamInterrupted      bytes were handed out already, and the rest cannot be had

Local trouble, such as a full disk or a missing file, is the `OSError` that it always is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from taskqueue_client.errors import TaskQueueError

_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_QUERY = re.compile(r"\?[^\s<>\"']+")
_LONGEST = 300
"""Characters of a storage service's answer that are worth reading in an error."""

_FORBIDDEN = 403
_BAD_REQUEST = 400
_SERVER_ERROR = 500


class ArtifactError(TaskQueueError):
    """An upload or a download that did not end well."""


def without_query(url: str) -> str:
    """A URL that can be shown: the query of a signed one is a secret, and so is a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class StorageFailed(ArtifactError):
    """The storage service did not take, or not give, the bytes.

    Attributes:
        method: `PUT` or `GET`.
        url: Without its query.
        reason: What happened, in words.
    """

    def __init__(self, method: str, url: str, reason: str) -> None:
        super().__init__(method, url, reason)
        self.method = method
        self.url = without_query(url)
        self.reason = reason
        self.args = (method, self.url, reason)

    def __str__(self) -> str:
        return f"{self.method} {self.url}: {self.reason}"

    @property
    def is_temporary(self) -> bool:
        """Whether the same transfer may succeed a little later."""
        return True


class StorageRefused(StorageFailed):
    """The storage service answered, and said no.

    Attributes:
        status: The HTTP status.
        code: S3's name for it, such as `AccessDenied`; empty where the answer has none.
        message: What else the answer says.
    """

    def __init__(self, method: str, url: str, status: int, code: str, message: str) -> None:
        super().__init__(method, url, " ".join(filter(None, (f"HTTP {status}", code, message))))
        self.args = (method, self.url, status, code, message)
        self.status = status
        self.code = code
        self.message = message

    @classmethod
    def of(cls, method: str, url: str, status: int, answer: str) -> StorageRefused:
        """The error that an answer stands for: S3's XML, or something else's page."""
        code, message = _CODE.search(answer), _MESSAGE.search(answer)
        words = message[1] if message else "" if code else answer[:_LONGEST]
        return cls(method, url, status, code[1] if code else "", _QUERY.sub("?<redacted>", words))

    @property
    def is_temporary(self) -> bool:
        """5xx, and S3's 400 for an upload that came too slowly; nothing else that says no."""
        return self.status >= _SERVER_ERROR or self.code == "RequestTimeout"

    def is_expiry(self, url_expires: float | None, now: float) -> bool:
        """Whether it was only the URL that is too old: S3 says 403 then, Google 400.

        Args:
            url_expires: When the URL expires, in seconds since the epoch, where that is known.
            now: The service's time.
        """
        if self.status not in {_BAD_REQUEST, _FORBIDDEN}:
            return False
        is_past = self.status == _FORBIDDEN and url_expires is not None and now >= url_expires
        return is_past or "expired" in f"{self.code} {self.message}".lower()


class RedirectRefused(StorageFailed):
    """A redirect to a place without TLS, of another kind than HTTP, or one too many."""

    @property
    def is_temporary(self) -> bool:
        """It is not."""
        return False


class NotOffered(ArtifactError):
    """A service's answer does not say where to go on, in a way that is known here."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.endpoint = endpoint

    def __str__(self) -> str:
        return f"the answer to {self.endpoint} does not say where to go on, in a way that is known here"


class SourceChanged(ArtifactError):
    """What is uploaded was changed while it was read. Nothing of it counts as an artifact."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source

    def __str__(self) -> str:
        return f"{self.source} was changed while it was uploaded"


class UploadAlreadyBegun(ArtifactError):
    """The Queue has begun an object artifact of this name, and only its first answer says how to go on.

    That answer was lost, or went to somebody else. The name cannot be used in this run any more;
    upload under another name, or in another run.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"the object artifact {self.name!r} was already begun, but the answer that said how to upload it "
            "was lost; the Queue gives it only once, so this run needs another name for the artifact"
        )


class DownloadTooLarge(ArtifactError):
    """An artifact has more bytes than the caller wants in memory.

    Attributes:
        max_bytes: The caller's limit.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        super().__init__(name, max_bytes)
        self.name = name
        self.max_bytes = max_bytes

    def __str__(self) -> str:
        return f"{self.name!r} has more than max_bytes={self.max_bytes} bytes; download it to a path"


class DownloadCorrupt(ArtifactError):
    """What came is not what was stored."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name!r}: {self.reason}"


class HashMismatch(DownloadCorrupt):
    """The hashes of what came are not those that were stored with the object, or none are known.

    Attributes:
        expected: Hash by algorithm, as the object service has them.
        found: The same of what came.
    """

    def __init__(self, name: str, expected: Mapping[str, str], found: Mapping[str, str]) -> None:
        reason = f"its hashes are {dict(found)}, and should be {dict(expected)}"
        if not found:
            reason = f"it cannot be verified: its hashes are {dict(expected)}, without sha256 and sha512"
        super().__init__(name, reason)
        self.args = (name, expected, found)
        self.expected = expected
        self.found = found


class StreamInterrupted(ArtifactError):
    """A part of the artifact was handed out, and the server cannot give just the rest."""

    def __init__(self, name: str, handed_out: int) -> None:
        super().__init__(name, handed_out)
        self.name = name
        self.handed_out = handed_out

    def __str__(self) -> str:
        return f"{self.name!r}: interrupted after {self.handed_out} bytes, and the server cannot resume"
