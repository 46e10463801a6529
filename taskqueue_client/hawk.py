"""Hawk: the header that signs a request, and the `bewit` that signs a URL.

Written for speed, and proven equal to mohawk's by the tests: mohawk formats each payload for a debug
line, which takes most of a signature's time. The rules are those of Hawk 1 and of Taskcluster's
authentication documents.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from functools import cached_property
from hashlib import sha256
from random import getrandbits
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from .credentials import Credentials
from .errors import InvalidArgument

LONGEST = 4096
"""Characters of a header, and of a signed URL, that the Queue reads."""


class Origin(NamedTuple):
    """The part of a URL that is signed beside path and query.

    Attributes:
        host: In lower case, without port.
        port: As text; the scheme's own where the URL has none.
    """

    host: str
    port: str

    @classmethod
    def of(cls, url: str) -> Origin:
        """The origin of an http or https URL."""
        parts = urlsplit(url)
        return cls(parts.hostname or "", str(parts.port or (443 if parts.scheme == "https" else 80)))


def nonce() -> str:
    """A text that makes two signatures of the same second differ. It need not be hard to guess."""
    return f"{getrandbits(48):x}"  # of the process: that of the system costs a switch of threads


def payload_hash(content_type: str, body: bytes) -> str:
    """The base64 of SHA-256 over a request's content type, without parameters, and body."""
    return _payload_hash(content_type, body) if body or content_type else _HASH_OF_NOTHING


def _payload_hash(content_type: str, body: bytes) -> str:
    kind = content_type.partition(";")[0].strip().lower()
    digest = sha256(b"hawk.1.payload\n%b\n%b\n" % (kind.encode(), body)).digest()
    return b2a_base64(digest, newline=False).decode()


_HASH_OF_NOTHING = _payload_hash("", b"")


class Signer:
    """Signs on behalf of credentials. Never changes, so that it can be swapped while others use it."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._hmac = hmac.new(credentials.access_token.encode(), digestmod=sha256)

    @cached_property
    def ext(self) -> str:
        """The base64 of what goes with each request: certificate and authorized scopes."""
        ext: dict[str, object] = {}
        if self.credentials.certificate is not None:
            ext["certificate"] = msgspec.Raw(self.credentials.certificate.encode())
        if self.credentials.authorized_scopes is not None:
            ext["authorizedScopes"] = self.credentials.authorized_scopes
        return urlsafe_b64encode(msgspec.json.encode(ext)).decode() if ext else ""

    def header(
        self,
        method: str,
        origin: Origin,
        resource: str,
        *,
        timestamp: int,
        nonce: str,
        content_type: str = "",
        body: bytes = b"",
    ) -> str:
        """The `Authorization` header of a request.

        Args:
            method: In upper case.
            origin: Host and port that the request goes to.
            resource: Path and query exactly as they are sent.
            timestamp: The server's time, in seconds since the epoch.
            nonce: Any text without `"` and backslash.
            content_type: The header's value; empty without a body.
            body: What is sent.

        Raises:
            InvalidArgument: The header is longer than the server takes.
        """
        hashed = payload_hash(content_type, body)
        ext = self.ext
        host, port = origin
        mac = self._mac(
            f"hawk.1.header\n{timestamp}\n{nonce}\n{method}\n{resource}\n{host}\n{port}\n{hashed}\n{ext}\n"
        )
        carried = f', ext="{ext}"' if ext else ""
        header = (
            f'Hawk mac="{mac}", hash="{hashed}", id="{self.credentials.client_id}", '
            f'ts="{timestamp}", nonce="{nonce}"{carried}'
        )
        if len(header) > LONGEST:
            raise self._too_long("header", header)
        return header

    def bewit(self, origin: Origin, resource: str, *, expires: int) -> str:
        """The value of the `bewit` parameter that lets anybody GET a URL until it expires.

        Args:
            origin: Host and port of the URL.
            resource: Its path and query, without a bewit.
            expires: In seconds since the epoch, by the server's clock.
        """
        host, port = origin
        mac = self._mac(f"hawk.1.bewit\n{expires}\n\nGET\n{resource}\n{host}\n{port}\n\n{self.ext}\n")
        fields = "\\".join([self.credentials.client_id, str(expires), mac, self.ext])
        return urlsafe_b64encode(fields.encode()).decode().rstrip("=")

    def signed_url(self, url: str, *, expires: int) -> str:
        """`url` with the bewit that lets anybody GET it until it expires.

        Raises:
            InvalidArgument: The signed URL is longer than the server takes.
        """
        parts = urlsplit(url)
        resource = f"{parts.path}?{parts.query}" if parts.query else parts.path
        bewit = self.bewit(Origin.of(url), resource, expires=expires)
        signed = f"{url}{'&' if parts.query else '?'}bewit={bewit}"
        if len(signed) > LONGEST:
            raise self._too_long("URL", signed)
        return signed

    def _mac(self, normalized: str) -> str:
        mac = self._hmac.copy()
        mac.update(normalized.encode())
        return b2a_base64(mac.digest(), newline=False).decode()

    def _too_long(self, what: str, text: str) -> InvalidArgument:
        allowed = (
            f"a {what} of at most {LONGEST} characters, not {len(text)}: "
            f"certificate and authorized scopes take up {len(self.ext)}, leave some scopes out"
        )
        return InvalidArgument("credentials", self.credentials.client_id, allowed)
