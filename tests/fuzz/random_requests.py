"""Random requests to a local queue: nearly valid ones to each endpoint, and changed addresses and bytes.

A seed repeats the requests: they follow from random numbers, and from ids in the queue's responses. They use
few task ids, so they reach tasks in each state.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from taskqueue_client.local.endpoints import Endpoint
from taskqueue_client.local.http.api import ENDPOINTS
from tests.fuzz.odd_values import BODIES, HEADERS, PIECES, QUERIES, SEGMENTS, VALUES
from tests.fuzz.valid_bodies import ValidBodies
from tests.local.local_http import Key

_LIFE_OF_AN_ID = 100
"""The number of requests after which a new task id replaces the oldest one."""

_WEIGHTS = {
    "createArtifact": 16,
    "createTask": 12,
    "claimTask": 12,
    "createUpload": 6,
    "finishArtifact": 6,
    "reclaimTask": 6,
    "claimWork": 4,
    "reportException": 4,
    "rerunTask": 4,
}
_CHOSEN = [each for each in ENDPOINTS for _ in range(_WEIGHTS.get(each.name, 2 if each.parameters else 1))]
"""The endpoints to choose from. Those that lead to further states are repeated, to be called more often."""

_ODDITIES: tuple[str, ...] = (
    "path",
    "query",
    "body",
    "body",
    "body",
    "bytes",
    "signature",
    "signature",
    "header",
    "method",
)
_FRAMING = {"Content-Length", "Transfer-Encoding", "Expect"}
"""Headers that say where a request ends: if one is changed, a server may rightly wait for more bytes."""

_PRINTABLE = string.digits + string.ascii_letters + string.punctuation
_REUSED = re.compile(rb'"(?:uploadId|continuationToken)": ?"([^"]+)"')

_PARAMETERS = {
    "taskQueueId": ("p%2Fw", "p/w", "p/x"),
    "runId": ("0", "0", "0", "0", "1", "2"),
    "name": ("public%2Fx", "public/y"),
    "provisionerId": ("p",),
    "workerType": ("w", "x"),
    "workerGroup": ("g",),
    "workerId": ("i", "j"),
    "clientId": ("local", "nobody"),
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A request.

    Attributes:
        data: The bytes that are sent.
        method: The HTTP method.
        is_whole: Whether the queue has to respond.
        is_plain: Whether an error response must have the form of the services' errors.
        endpoint: The endpoint that it is for, such as `queue.claimWork`; empty for others.
    """

    data: bytes
    method: str
    is_whole: bool = True
    is_plain: bool = False
    endpoint: str = ""


class RandomRequests:
    """An endless source of requests.

    Args:
        random: Makes all choices.
        host: The local queue's host and port.
        root: The key of a client with all scopes.
        now: The queue's time, in seconds since the epoch.
    """

    def __init__(self, random: Random, host: str, root: Key, now: Callable[[], float]) -> None:
        self._random = random
        self._host = host
        self._root = root
        self._now = now
        self._bodies = ValidBodies(random, now)
        self._count = 0

    def note(self, response: bytes) -> None:
        """Use upload ids and continuation tokens of a response in later requests."""
        self._bodies.seen.extend(found.decode() for found in _REUSED.findall(response))

    def next(self) -> Sent:
        """Return the next request."""
        self._count += 1
        if self._count % _LIFE_OF_AN_ID == 0:
            self._bodies.use_new_id()
        kind = self._random.random()
        if kind < 0.04:
            return self._to_storage()
        sent = self._to_endpoint()
        return Sent(self._damaged(sent.data), sent.method, is_whole=False) if kind < 0.12 else sent

    def _to_endpoint(self) -> Sent:
        random = self._random
        endpoint = random.choice(_CHOSEN)
        odd = random.choices(_ODDITIES, k=random.choice((0, 0, 0, 1, 1, 2)))
        method = (
            random.choice(("HEAD", "POST", "PUT", "OPTIONS", "X")) if "method" in odd else endpoint.method
        )
        path, body = self._path(endpoint, odd), self._body(endpoint, odd)
        headers = {"Host": self._host, "Content-Type": "application/json", "Content-Length": str(len(body))}
        headers |= self._signature(method, path, odd)
        name = random.choice([*HEADERS]) if "header" in odd else ""
        if name:
            headers[name] = random.choice((*HEADERS[name], self._text(), f'Hawk id="{self._text()}"'))
        return Sent(
            _request(method, path, headers, body),
            method,
            is_whole=name not in _FRAMING,
            is_plain=not {"header", "method"} & {*odd},
            endpoint=endpoint.full_name,
        )

    def _to_storage(self) -> Sent:
        random = self._random
        parts = (*SEGMENTS, "public-bucket", "private-bucket", "objects", *self._bodies.ids)
        path = "/storage/" + "/".join(random.choices(parts, k=random.randint(0, 4)))
        method = random.choice(("GET", "PUT", "HEAD", "DELETE", "POST"))
        headers = {"Host": self._host, "Content-Length": "1", "Range": random.choice(HEADERS["Range"])}
        return Sent(_request(method, path, headers, b"x"), method)

    def _damaged(self, data: bytes) -> bytes:
        """Return a request with some of its bytes replaced, removed, repeated or added."""
        random = self._random
        for _ in range(random.randint(1, 4)):
            start = random.randrange(len(data) + 1)
            end = min(len(data), start + random.choice((0, 0, 1, 5, 40)))
            data = data[:start] + random.choice((*PIECES, data[start:end] * 2)) + data[end:]
        return data

    def _path(self, endpoint: Endpoint, odd: list[str]) -> str:
        path = endpoint.base + endpoint.route
        changed = self._random.choice((*endpoint.parameters, "")) if "path" in odd else ""
        for name in endpoint.parameters:
            known = self._bodies.ids if name in {"taskId", "taskGroupId"} else _PARAMETERS[name]
            value = self._random.choice((*SEGMENTS, self._text()) if name == changed else known)
            path = path.replace(f"<{name}>", value)
        if "query" not in odd:
            return path
        token = f"continuationToken={self._random.choice(self._bodies.seen)}"
        return f"{path}?{self._random.choice((*QUERIES, token, f'limit=1&{token}'))}"

    def _text(self) -> str:
        return "".join(self._random.choices(_PRINTABLE, k=self._random.randrange(40)))

    def _body(self, endpoint: Endpoint, odd: list[str]) -> bytes:
        if "bytes" in odd:
            return self._random.choice(BODIES)
        if endpoint.schema is None:
            return self._random.choice((b"", b"{}"))
        value = self._bodies.make(endpoint.schema)
        for _ in range(odd.count("body")):
            value = self._changed(value)
        return json.dumps(value).encode()

    def _changed(self, value: Any) -> Any:
        """Return a JSON value in which one value has been replaced, removed or added."""
        random = self._random
        if not isinstance(value, dict) or random.random() < 0.05:
            return random.choice(VALUES)
        rest: dict[str, Any] = {**value}
        name = random.choice([*rest, "unknown"])
        if random.random() < 0.2:
            rest.pop(name, None)
        else:
            rest[name] = self._changed(rest.get(name))
        return rest

    def _signature(self, method: str, path: str, odd: list[str]) -> dict[str, str]:
        random, now = self._random, int(self._now())
        if "signature" not in odd:
            return {"Authorization": self._root.header(method, path, self._host, ts=str(now))}
        temporary = self._temporary(1000 * now)
        key = random.choice((temporary, self._root, None))
        if key is None:
            return {}
        stamp = {"ts": random.choice((str(now), str(now - 3600), "-1", "x", "9" * 30))}
        more = random.choice(({}, {"hash": "x"}, {"ext": "x"}, {"mac": "x"}, {"id": "nobody"}, {"nonce": ""}))
        return {"Authorization": key.header(method, path, self._host, **stamp, **more)}

    def _temporary(self, now_ms: int) -> Key:
        """Return temporary credentials; half have a changed certificate, which its signature does not fit."""
        scopes: list[str] = self._random.choice(([], ["queue:get-*"], ["queue:*"], ["*"], ["assume:*"]))
        key = self._root.temporary(scopes, start=now_ms, expiry=now_ms + 60_000)
        certificate = dict(key.ext or {})["certificate"]
        if self._random.random() < 0.5:
            certificate = self._changed(certificate)
        return Key(key.client_id, key.access_token, {"certificate": certificate})


def _request(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogateescape") + body
