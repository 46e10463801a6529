"""The errors of connections that fail: in plain words, and the same over each of the transports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.client import BadStatusLine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from taskqueue_client import AsyncQueue, Queue, RetryPolicy
from taskqueue_client._protocol.api_responses import TransportFailed
from taskqueue_client._protocol.threads_and_tasks import end_tasks
from taskqueue_client._transport.connection_errors import failure_of_urllib3
from taskqueue_client.artifacts.artifact_errors import StorageFailed, StorageRefused
from taskqueue_client.cli.failures import failure_of
from taskqueue_client.errors import CallFailed, CallTimedOut, ConnectionFailed, UnreadableResponse
from taskqueue_client.events import AsyncListener, PulseSettings, StateChange, task_completed
from tests.certificates import make_authority
from tests.servers import listening

from .every_transport import BODY, CALL, only_variables, respond

FAILED = (ConnectionFailed, StorageFailed)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_down_is_named(
    put: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    proxy = f"http://127.0.0.1:{_unused_port()}"
    only_variables(monkeypatch, **{f"{scheme}_proxy": proxy.replace("://", "://me:hidden@")})
    with pytest.raises(FAILED, match=rf": the connection to the proxy {proxy} failed: Connection refused$"):
        put(f"{scheme}://tc.example.com")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_trusted_is_named(
    put: Callable[..., Any], api: str, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Through a proxy, the error of TLS does not say whose certificate is not trusted: proxy or server."""
    only_variables(monkeypatch, **{f"{scheme}_proxy": api.replace("://", "://me:hidden@")})
    place = f"the proxy {api}" if scheme == "http" else f"tc.example.com:443 through the proxy {api}"
    with pytest.raises(FAILED, match=rf": the connection to {place} failed: certificate verify failed"):
        put(f"{scheme}://tc.example.com")


def test_a_server_whose_name_is_unknown_is_named(
    put: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_variables(monkeypatch)
    with pytest.raises(
        FAILED, match=r": the connection to no-such-host\.invalid:8080 failed: \w.*$"
    ) as failed:
        put("http://no-such-host.invalid:8080")
    assert "Error" not in str(failed.value)


def test_a_server_that_is_down_is_named(put: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    only_variables(monkeypatch)
    address = f"127.0.0.1:{_unused_port()}"
    with pytest.raises(FAILED, match=rf": the connection to {address} failed: Connection refused$"):
        put(f"http://{address}")


def test_a_server_that_closes_the_connection_is_an_error_without_names_of_classes(
    put: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(BODY))
        writer.close()

    why = "the connection was closed before the response was complete"
    with listening(close) as port:
        only_variables(monkeypatch)
        with pytest.raises(FAILED, match=rf": {why}$"):
            put(f"http://127.0.0.1:{port}")
        only_variables(monkeypatch, HTTP_PROXY=f"http://127.0.0.1:{port}")
        with pytest.raises(FAILED, match=rf": {why} \(through the proxy http://127\.0\.0\.1:{port}\)$"):
            put("http://tc.example.com")


@pytest.mark.parametrize(
    ("host", "age", "why"),
    [
        ("localhost", timedelta(days=3), "certificate has expired"),
        ("tc.example.com", timedelta(days=1), "Hostname mismatch, certificate is not valid for 'localhost'"),
    ],
)
def test_a_certificate_that_is_not_valid_is_explained(
    put: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    age: timedelta,
    why: str,
) -> None:
    authority = make_authority(tmp_path, host=host, age=age)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    only_variables(monkeypatch, REQUESTS_CA_BUNDLE=str(authority.certificate))
    with listening(respond, context) as port:
        text = rf": the connection to localhost:{port} failed: certificate verify failed: {why}$"
        with pytest.raises(FAILED, match=text):
            put(f"https://localhost:{port}")


@pytest.fixture(params=["refused tunnel", "refused connection", "unknown name"])
def not_connected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The root URL of a deployment to which no connection can be made."""

    async def forbid(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    with listening(forbid) as port:
        proxy = {"HTTPS_PROXY": f"http://127.0.0.1:{port}"} if request.param == "refused tunnel" else {}
        only_variables(monkeypatch, **proxy)
        unknown = "http://no-such-host.invalid"
        refused = f"http://127.0.0.1:{_unused_port()}"
        yield {"refused connection": refused, "unknown name": unknown}.get(request.param, "https://h")


def test_a_call_that_was_never_sent_has_no_effect(put: Callable[..., Any], not_connected: str) -> None:
    with pytest.raises(FAILED) as failed:
        put(not_connected, 2)
    if isinstance(failed.value, ConnectionFailed):
        assert failed.value.attempts == 2
        assert not failed.value.attempted.outcome_unknown
        assert "may have taken effect" not in str(failure_of(failed.value))


@pytest.fixture
def sent_once() -> Iterator[str]:
    """The root URL of a server that reads one request, and is down from then on."""

    def serve() -> None:
        with server:
            connection, _ = server.accept()
        with connection:
            received = b""
            while not received.endswith(BODY):
                received += connection.recv(2**16)

    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    thread.join()


def test_a_call_that_the_retries_of_an_injected_session_have_sent_may_have_an_effect(sent_once: str) -> None:
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=Retry(1, backoff_factor=0)))
        queue = Queue(sent_once, session=session, retry=RetryPolicy(attempts=1))
        with pytest.raises(ConnectionFailed, match="Connection refused") as failed:
            queue.send(CALL)
    assert failed.value.attempted.outcome_unknown


async def test_a_call_that_a_middleware_of_an_injected_session_has_sent_may_have_an_effect(
    sent_once: str,
) -> None:
    async def again(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        with contextlib.suppress(aiohttp.ClientError):
            return await handler(request)
        return await handler(request)

    async with aiohttp.ClientSession(middlewares=[again]) as session:
        queue = AsyncQueue(sent_once, session=session, retry=RetryPolicy(attempts=1))
        with pytest.raises(ConnectionFailed, match="Connection refused") as failed:
            await queue.send(CALL)
    assert failed.value.attempted.outcome_unknown


PAGE = b"<html><title>ERROR</title><body>Access <b>denied</b></body></html>"


@pytest.mark.parametrize("status", [401, 403, 502])
def test_a_proxy_that_may_have_responded_in_place_of_the_service_is_named(
    put: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async def deny(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(BODY))
                head = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\n\r\n"
                )
                writer.write(head.encode() + PAGE)
        writer.close()

    with listening(deny) as port:
        only_variables(monkeypatch, HTTP_PROXY=f"http://me:hidden@127.0.0.1:{port}")
        proxy = rf"the proxy http://127\.0\.0\.1:{port}"
        said = rf"HTTP {status}:? {proxy} may have responded, and not the service: "
        with pytest.raises((CallFailed, StorageRefused), match=f"{said}ERROR Access denied$"):
            put("http://tc.example.com")


def test_a_success_that_is_not_the_services_names_the_proxy_that_may_have_responded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def log_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>")
        writer.close()

    with listening(log_in) as port:
        only_variables(monkeypatch, HTTP_PROXY=f"http://127.0.0.1:{port}")
        with (
            Queue("http://tc.example.com") as queue,
            pytest.raises(UnreadableResponse, match="may have responded"),
        ):
            queue.ping()


def test_the_error_of_a_connection_that_takes_too_long_says_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of `ConnectorTransport` check the same for `AsyncQueue`."""

    def time_out(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("urllib3.util.connection.create_connection", time_out)
    for proxy, through in ("", ""), ("http://h:3128", " through the proxy http://h:3128"):
        only_variables(monkeypatch, HTTPS_PROXY=proxy)
        with (
            Queue("https://tc.example.com", retry=RetryPolicy(attempts=1)) as queue,
            pytest.raises(
                CallTimedOut, match=rf": could not connect to tc\.example\.com:443 in time{through}$"
            ),
        ):
            queue.send(CALL)


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ssl.SSLCertVerificationError("unknown"), "certificate verify failed: unknown"),
        (ssl.SSLError("no shared cipher"), "no shared cipher"),
        (socket.gaierror("no name"), "no name"),
    ],
)
def test_errors_that_an_adapter_of_an_injected_session_has_made_are_explained(
    error: OSError, why: str
) -> None:
    """Such errors lack attributes that those of Python have."""
    failure = failure_of_urllib3(error, "https://tc.example.com/x", None)
    assert isinstance(failure, TransportFailed)
    assert failure.reason == f"the connection to tc.example.com:443 failed: {why}"


def test_what_a_server_sends_in_place_of_http_is_cut_off() -> None:
    failure = failure_of_urllib3(BadStatusLine(f"220: {'x' * 10_000}"), "http://tc.example.com", None)
    assert isinstance(failure, TransportFailed)
    assert failure.reason.startswith("the response is not HTTP: 220: xxx")
    assert len(failure.reason) == 200


class TestBroker:
    """Errors of listeners have the same texts after the URL of the broker."""

    async def test_a_broker_that_is_down_is_an_error_without_names_of_classes(self) -> None:
        port = _unused_port()
        assert await _reason(port) == f"amqp://me:***@127.0.0.1:{port}/%2F: Connection refused"

    async def test_a_server_that_closes_the_connection_is_an_error_without_names_of_classes(self) -> None:
        async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(8)
            writer.close()

        with listening(close) as port:
            assert (await _reason(port)).endswith(": the broker closed the connection")


async def _reason(port: int) -> str:
    """Return the reason why a listener is not connected."""
    settings = PulseSettings(host="127.0.0.1", port=port, tls=False, user="me", password="hidden")
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def note(change: StateChange) -> None:
        if change.reason is not None and not lost.done():
            lost.set_result(str(change.reason))

    listener = AsyncListener(settings, [task_completed()], on_state=note, wait_initial=3600)
    entering = asyncio.create_task(listener.__aenter__())
    try:
        return await lost
    finally:
        await end_tasks(entering)
        await listener.__aexit__(None, None, None)
