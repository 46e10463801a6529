"""The parsers of input from other programs or people, and the errors with which they may refuse it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from taskqueue_client import Credentials, calls, errors
from taskqueue_client._protocol.api_responses import Response, ResponseRefused, TransportFailed, unpacked
from taskqueue_client._protocol.wire import Wire
from taskqueue_client.artifacts.content import BadGzip, Gunzip
from taskqueue_client.cli.documents import read_document
from taskqueue_client.cli.failures import Failure
from taskqueue_client.clock import SystemClock
from taskqueue_client.credentials import checked
from taskqueue_client.events.event import DuplicateFilter, UnreadableMessage, read_event
from taskqueue_client.events.exchanges import EXCHANGES
from taskqueue_client.graph import plan_graph
from taskqueue_client.local.auth.known_clients import Client
from taskqueue_client.local.auth.presented_credentials import (
    BEWIT,
    AuthenticationError,
    check_certificate,
    parse_bewit,
    parse_ext,
    parse_header,
)
from taskqueue_client.worker import load_config

Target = Callable[[bytes], bool]
"""Reads bytes; returns whether they were accepted. Any exception is a bug."""

_MOST = 1_000_000
"""The largest number of bytes to which a compressed response may expand."""

_WIRE = Wire("https://tc.example.com", None, SystemClock())
_TASK = "fN1SbArXTPSVFNUvaOlinQ"
_CALLS: tuple[Any, ...] = (
    calls.status(_TASK),
    calls.task(_TASK),
    calls.claim_work("prov/wt", worker_group="group", worker_id="worker"),
    calls.reclaim_task(_TASK, 0),
    calls.list_artifacts(_TASK, 0),
)


def hawk_header(data: bytes) -> bool:
    return _accepted(lambda: parse_header(data.decode("latin-1")), AuthenticationError)


def bewit(data: bytes) -> bool:
    found = BEWIT.fullmatch(data.decode("latin-1"))
    return found is not None and _accepted(lambda: parse_bewit(found), AuthenticationError)


def ext(data: bytes) -> bool:
    return _accepted(lambda: parse_ext(data.decode("latin-1")), AuthenticationError)


def certificate(data: bytes) -> bool:
    """Read a certificate as the local queue reads a caller's, and as a client reads its own."""
    text = data.decode("latin-1")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = text
    own = _accepted(lambda: checked(Credentials("client", "token", text)), errors.InvalidArgument)
    issuer = Client("issuer", "token-of-the-issuer", ["*"])
    presented = _accepted(
        lambda: check_certificate(document, "client", issuer, time.time()), AuthenticationError
    )
    return own or presented


def json_response(data: bytes) -> bool:
    """Decode a response: the first byte chooses the status, the rest is the body."""
    status = (200, 400, 401, 404, 409, 500)[data[0] % 6] if data else 200
    response = Response(status, {"content-type": "application/json"}, data[1:])
    decoded = [_accepted(partial(_WIRE.decode, each, response), errors.CallFailed) for each in _CALLS]
    return any(decoded)


def amqp_message(data: bytes) -> bool:
    """Read a message; the first line is the routing key. It must raise nothing: that would end a listener."""
    key, _, body = data.partition(b"\n")
    known = DuplicateFilter()
    readable = False
    for exchange in EXCHANGES:
        event = read_event(
            exchange.full_name, key.decode("latin-1"), body, {"CC": [key.decode("latin-1")]}, redelivered=True
        )
        known.remember(event)
        assert str(event)
        readable |= not isinstance(event.message, UnreadableMessage)
    return readable


def gzip_response(data: bytes) -> bool:
    def read() -> None:
        assert len(unpacked(200, {"content-encoding": "gzip"}, data, _MOST)) <= _MOST

    return _accepted(read, ResponseRefused, TransportFailed)


def gzip_artifact(data: bytes) -> bool:
    def read() -> None:
        gunzip, size = Gunzip(), 0
        for start in range(0, len(data), 7):
            for piece in gunzip.decode(data[start : start + 7]):
                size += len(piece)
                if size > _MOST:
                    return

    return _accepted(read, BadGzip)


def toml_config(data: bytes) -> bool:
    return _config(data, "worker.toml")


def yaml_config(data: bytes) -> bool:
    return _config(data, "worker.yml")


def yaml_graph(data: bytes) -> bool:
    return _graph(data, "graph.yml")


def json_graph(data: bytes) -> bool:
    return _graph(data, "graph.json")


def _config(data: bytes, name: str) -> bool:
    given = {"task_queue_id": "prov/wt", "worker_group": "group", "worker_id": "worker"}
    return _of_file(
        data, name, lambda path: load_config(given, file=path, environ={}), errors.InvalidArgument
    )


def _graph(data: bytes, name: str) -> bool:
    return _of_file(
        data, name, lambda path: plan_graph(read_document(path)), Failure, errors.InvalidDefinition
    )


def _of_file(data: bytes, name: str, read: Callable[[Path], object], *refusals: type[Exception]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        return _accepted(lambda: read(path), *refusals)


def _accepted(read: Callable[[], object], *refusals: type[Exception]) -> bool:
    try:
        read()
    except refusals as refusal:
        if not str(refusal):
            raise
        return False
    return True


TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (
        hawk_header,
        bewit,
        ext,
        certificate,
        json_response,
        amqp_message,
        gzip_response,
        gzip_artifact,
        toml_config,
        yaml_config,
        yaml_graph,
        json_graph,
    )
}
CORPUS = Path(__file__).parent / "corpus"


def corpus(target: str) -> list[bytes]:
    """Return the inputs to try for a target, which accepts those in files with names like `good…`."""
    return [each.read_bytes() for each in sorted((CORPUS / target).iterdir())]
