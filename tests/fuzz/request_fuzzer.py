"""Send random requests to local queues; look for errors of the server, and changes by refused requests.

Each batch of requests has a separate queue, on a held clock. The requests are sent from the queue's event
loop, one after the other, so everything that has changed when a response arrives was changed by its request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlsplit

from taskqueue_client.clock import MovableClock
from taskqueue_client.local import LocalQueue
from tests.fuzz.random_requests import RandomRequests, Sent
from tests.local.local_http import Key

BATCH = 10_000
"""Requests to one queue: with more, listing all of its tasks would take most of the time."""

_START = 1_800_000_000.0
"""The time of the clock at the beginning, in seconds since the epoch."""

_LONG_POLL = 20.0
_TURNS = 200
"""Turns of the event loop that are enough for a response, unless the request waits for something."""

_GIVE_UP = 20.0
"""Seconds after which a response counts as missing."""

_STEPS = (1.0, 30.0, 700.0, 1300.0, 90_000.0)
"""Seconds by which the clock moves now and then: claims and deadlines pass, and artifacts expire."""

WRITTEN_BEFORE_A_REFUSAL = {
    "createTask": {"task_groups"},
    "claimTask": {"task_queues", "workers", "claims"},
    "reclaimTask": {"task_queues", "workers", "claims"},
}
"""The tables to which a call writes before it may be refused, as in the service."""


@dataclass
class Findings:
    """What the requests of a batch, or of several, have shown.

    Attributes:
        statuses: The number of responses with each status.
        without_response: The number of requests without a response, which only damaged requests may be.
        accepted: The number of requests that each endpoint has accepted.
        wrong: The errors, each with its request.
    """

    statuses: Counter[int] = field(default_factory=Counter[int])
    without_response: int = 0
    accepted: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        statuses = ", ".join(f"{count} with {status}" for status, count in sorted(self.statuses.items()))
        return f"{statuses}, {self.without_response} without a response: {len(self.wrong)} findings"

    def add(self, other: Findings) -> None:
        """Add the findings of another batch."""
        self.statuses += other.statuses
        self.without_response += other.without_response
        self.accepted += other.accepted
        self.wrong += other.wrong


def fuzz(seed: int, count: int) -> Findings:
    """Send `count` requests, chosen by a seed, to a new local queue."""
    clock = MovableClock(_START, held=True)
    with LocalQueue(clock=clock, access_token="t" * 44) as local, _logged_errors() as errors:
        loop = local.call(asyncio.get_running_loop)
        fuzzer = _Fuzzer(local, clock, Random(seed), errors)
        return asyncio.run_coroutine_threadsafe(fuzzer.run(count), loop).result()


@contextmanager
def _logged_errors() -> Generator[list[str]]:
    """Yield a list that collects what is logged as an error, with tracebacks."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    collector = Collector(logging.ERROR)
    logging.getLogger().addHandler(collector)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(collector)


class _Fuzzer:
    def __init__(self, local: LocalQueue, clock: MovableClock, random: Random, errors: list[str]) -> None:
        self._host = urlsplit(local.root_url).netloc
        self._clock = clock
        self._random = random
        self._errors = errors
        self._changed: set[str] = set()
        self._connection: _Connection | None = None
        self.findings = Findings()
        root = Key(local.client_id, local.access_token)
        self._requests = RandomRequests(random, self._host, root, clock.now)
        local.call(lambda: _watch(local, self._changed))

    async def run(self, count: int) -> Findings:
        for number in range(count):
            if self._random.random() < 0.002:
                self._clock.advance(self._random.choice(_STEPS))
            await self._exchange(self._requests.next(), number)
        if self._connection is not None:
            self._connection.close()
        return self.findings

    async def _exchange(self, sent: Sent, number: int) -> None:
        connection = await self._open(new=not sent.is_whole)
        self._changed.clear()
        connection.send(sent)
        await self._respond(sent, connection)
        responses = [*connection.responses()]
        for wrong in self._wrong(sent, responses):
            self.findings.wrong.append(f"request {number}: {wrong}\n{sent.data[:3000]!r}\n{responses[-1:]}")
        self.findings.statuses.update(each.status for each in responses)
        self.findings.without_response += not responses
        self.findings.accepted[sent.endpoint] += any(each.status < 400 for each in responses)
        for each in responses:
            self._requests.note(each.body)
        if not sent.is_whole:
            connection.close()

    async def _open(self, *, new: bool) -> _Connection:
        """Return the shared connection; a new one, not to be shared, for a request without a certain end."""
        if not new and self._connection is not None and self._connection.is_kept:
            return self._connection
        host, _, port = self._host.partition(":")
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, host, int(port))
        if not new:
            self._connection = connection
        return connection

    async def _respond(self, sent: Sent, connection: _Connection) -> None:
        """Wait for the response; if the request is not whole, only for some turns of the event loop."""
        for _ in range(_TURNS):
            if connection.done.is_set():
                return
            await asyncio.sleep(0)
        if sent.endpoint == "queue.claimWork":
            self._clock.advance(_LONG_POLL)
            self._changed.clear()  # moving the clock has changed these tables, not the request
        if sent.is_whole:
            with suppress(TimeoutError):
                await asyncio.wait_for(connection.done.wait(), _GIVE_UP)

    def _wrong(self, sent: Sent, responses: list[_Response]) -> Iterator[str]:
        if self._errors:
            yield "logged " + "\n".join(self._errors)
            self._errors.clear()
        if sent.is_whole and not responses:
            yield "no response"
        for each in responses:
            if each.status >= 500:
                yield f"status {each.status}"
            if b"Traceback" in each.body:
                yield "a traceback in the response"
            if sent.is_plain and not each.has_the_form_of_errors:
                yield "an error that has not the form of errors"
        if responses and all(each.is_refusal for each in responses):
            names = {sent.endpoint.rpartition(".")[2], *(each.refused_by for each in responses)}
            allowed = {table for name in names for table in WRITTEN_BEFORE_A_REFUSAL.get(name, ())}
            if self._changed - allowed:
                yield f"refused, and changed {', '.join(sorted(self._changed - allowed))}"


def _watch(local: LocalQueue, changed: set[str]) -> None:
    """From now on, add to `changed` the name of each table that is written to."""
    running: Any = local._running  # pyright: ignore[reportPrivateUsage] - to look at the database
    connection = running.core.store.connection
    connection.create_function("note_change", 1, changed.add)
    tables = connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for kind in ("INSERT", "UPDATE", "DELETE"):
            connection.execute(
                f"CREATE TEMP TRIGGER note_{kind}_{table} AFTER {kind} ON main.{table}"
                f" BEGIN SELECT note_change('{table}'); END"
            )


_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
_ERRORS_OF_OTHER_FORM = {404, 424}
"""404 for an unknown route or object, and 424 for the content of an error artifact."""


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes

    @property
    def is_refusal(self) -> bool:
        return self.status >= 400 and self.status != 424

    @property
    def refused_by(self) -> str:
        """The endpoint that an error response names; empty if there is none."""
        found = re.search(rb'"requestInfo": \{\s*"method": "(\w+)"', self.body)
        return found[1].decode() if found else ""

    @property
    def has_the_form_of_errors(self) -> bool:
        if (
            self.status < 400
            or self.status in _ERRORS_OF_OTHER_FORM
            or b"<pre>Bad Request</pre>" in self.body
        ):
            return True
        return [*json.loads(self.body)] == ["code", "message", "requestInfo"]


class _Connection(asyncio.Protocol):
    """A connection that sends requests as bytes, and parses the responses.

    Attributes:
        done: Set when there is a response, or the connection is closed.
    """

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self._received = bytearray()
        self._method = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if any(True for _ in self.responses()):
            self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.done.set()

    def send(self, sent: Sent) -> None:
        self.done.clear()
        self._received.clear()
        self._method = sent.method
        self._transport.write(sent.data)

    def close(self) -> None:
        self._transport.abort()

    @property
    def is_kept(self) -> bool:
        """Whether another request may be sent over this connection."""
        is_open = not self._transport.is_closing()
        return is_open and self._received.startswith(b"HTTP/1.1") and not _CLOSE.search(self._received)

    def responses(self) -> Iterator[_Response]:
        """Yield the responses that have arrived completely, except interim ones (1xx)."""
        rest = bytes(self._received)
        while b"\r\n\r\n" in rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            status = int(head[9:12])
            length = self._length(status, head + b"\r\n", rest)
            if length > len(rest):
                return
            body, rest = rest[:length], rest[length:]
            if status >= 200:
                yield _Response(status, body)

    def _length(self, status: int, head: bytes, rest: bytes) -> int:
        if self._method == "HEAD" or status < 200 or status in {204, 304}:
            return 0
        if _CHUNKED.search(head):
            end = rest.find(b"0\r\n\r\n")
            return end + 5 if end >= 0 else len(rest) + 1
        found = _LENGTH.search(head)
        return int(found[1]) if found else len(rest)
