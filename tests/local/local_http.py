"""Requests to a local queue, written out by hand, so that no library corrects them."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import time
import tracemalloc
from base64 import b64encode, urlsafe_b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from taskqueue_client.local import LocalQueue

Certificate = dict[str, Any]


@contextmanager
def little_memory() -> Generator[None]:
    """Assert that this process, with its local queue, needs less than 500 MB more at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 500_000_000
    finally:
        tracemalloc.stop()


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def words(self) -> str:
        """The message of an error, without its trailer."""
        message: str = self.json["message"]
        return message.split("\n\n---\n\n", maxsplit=1)[0]


@dataclass(frozen=True)
class Key:
    """The credentials that sign a request."""

    client_id: str
    access_token: str
    ext: Mapping[str, Any] | None = None

    def header(self, method: str, resource: str, host: str, **changes: str) -> str:
        """An `Authorization` header; `changes` replace or add attributes after signing."""
        attributes = {"id": self.client_id, "ts": str(int(time.time())), "nonce": os.urandom(4).hex()}
        if self.ext is not None:
            attributes["ext"] = b64encode(json.dumps(self.ext).encode()).decode()
        attributes |= {name: changes.pop(name) for name in ("ts", "hash") if name in changes}
        attributes["mac"] = self.mac("header", attributes, method, resource, host)
        return "Hawk " + ", ".join(f'{name}="{value}"' for name, value in (attributes | changes).items())

    def bewit(self, resource: str, host: str, expires: int) -> str:
        ext = "" if self.ext is None else b64encode(json.dumps(self.ext).encode()).decode()
        attributes = {"ts": str(expires), "nonce": "", "ext": ext}
        mac = self.mac("bewit", attributes, "GET", resource, host)
        return urlsafe_b64encode(f"{self.client_id}\\{expires}\\{mac}\\{ext}".encode()).rstrip(b"=").decode()

    def mac(self, kind: str, attributes: Mapping[str, str], method: str, resource: str, host: str) -> str:
        name, _, port = host.partition(":")
        lines = [
            f"hawk.1.{kind}",
            attributes["ts"],
            attributes["nonce"],
            method,
            resource,
            name,
            port or "80",
        ]
        lines += [attributes.get("hash", ""), attributes.get("ext", ""), ""]
        return _hmac(self.access_token, "\n".join(lines))

    def temporary(
        self,
        scopes: Sequence[Any],
        name: str | None = None,
        ext: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Key:
        """Temporary credentials; `changes` replace keys of the certificate before it is signed."""
        now = int(time.time() * 1000)
        certificate: Certificate = {
            "version": 1,
            "scopes": [*scopes],
            "start": now - 60_000,
            "expiry": now + 3_600_000,
            "seed": os.urandom(22).hex(),
            **({"issuer": self.client_id} if name else {}),
            **changes,
        }
        certificate.setdefault("signature", self._signature(certificate, name or self.client_id))
        token = hmac.digest(self.access_token.encode(), str(certificate["seed"]).encode(), "sha256")
        secret = urlsafe_b64encode(token).rstrip(b"=").decode()
        return Key(name or self.client_id, secret, {"certificate": certificate, **(ext or {})})

    def _signature(self, certificate: Certificate, client_id: str) -> str:
        issuer = certificate.get("issuer")
        named = [f"clientId:{client_id}", f"issuer:{issuer}"] if issuer else []
        dates = [f"{name}:{certificate[name]}" for name in ("seed", "start", "expiry")]
        return _hmac(
            self.access_token, "\n".join(["version:1", *named, *dates, "scopes:", *certificate["scopes"]])
        )


def payload_hash(content_type: str, body: bytes) -> str:
    return b64encode(
        hashlib.sha256(b"hawk.1.payload\n" + content_type.encode() + b"\n" + body + b"\n").digest()
    ).decode()


def _hmac(key: str, text: str) -> str:
    return b64encode(hmac.digest(key.encode(), text.encode(), "sha256")).decode()


class Wire:
    """Sends requests to a queue, each over a new connection."""

    def __init__(self, local: LocalQueue) -> None:
        self.local = local
        self.host = urlsplit(local.root_url).netloc
        self.root = Key(local.client_id, local.access_token)

    def send(
        self,
        method: str,
        resource: str,
        *,
        key: Key | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request, signed if there is a key; return the response."""
        lines = {"Host": self.host, "Connection": "close", **(headers or {})}
        if body is not None:
            lines["Content-Length"] = str(len(body))
        if key is not None:
            lines["Authorization"] = key.header(method, resource, self.host)
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return self.raw(
            f"{method} {resource} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogateescape") + (body or b""),
            method,
        )

    def json(
        self,
        method: str,
        resource: str,
        body: Any,
        *,
        key: Key | None = None,
        content_type: str = "application/json",
    ) -> Reply:
        """Send a request with a JSON body; a `body` that is a str is sent as it is."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        return self.send(method, resource, key=key, body=data, headers={"Content-Type": content_type})

    def raw(self, data: bytes, method: str = "GET") -> Reply:
        """Send any bytes; return the first response."""
        host, _, port = self.host.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(data)
            with HTTPResponse(connection, method=method) as response:
                response.begin()
                return Reply(
                    response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
                )


QUEUE = "/api/queue/v1"
"""Where the queue's routes begin."""

NO_SUCH_TASK = "A0000000QAC0000000000A"
"""A well-formed task id that no test uses."""
