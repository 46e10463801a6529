"""Every client over a real TLS server with a private authority, and through a real CONNECT proxy.

The same cases for all of them: `docs/how-to/client.md` has the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

from taskqueue_client import AsyncQueue, Queue, RetryPolicy
from taskqueue_client.artifacts.artifact_errors import StorageFailed, StorageRefused
from taskqueue_client.errors import (
    ApiError,
    CallTimedOut,
    ConnectionFailed,
)
from tests.certificates import Authority
from tests.servers import listening, want_a_password

from .every_transport import CALL, only_variables, put_to_storage

FAILED = (ConnectionFailed, StorageFailed)


class ConnectProxy:
    """A proxy that opens tunnels, and records the heads of the CONNECT requests."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            host, _, port = head.split()[1].partition(":")
            there, back = await asyncio.open_connection(
                "127.0.0.1" if host == "localhost" else host, int(port)
            )
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
            finally:
                back.transport.abort()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.fixture
def hashed(authority: Authority, tmp_path: Path) -> Path:
    """A folder with the authority's certificate, under the name that OpenSSL looks for."""
    (tmp_path / "ca.pem").write_bytes(authority.certificate.read_bytes())
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_authority_in_a_file_is_trusted(
    put: Callable[[str], Any], api: str, authority: Authority, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    only_variables(monkeypatch, **{variable: str(authority.certificate)})
    assert put(api) == {}


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR"])
def test_an_authority_in_a_folder_is_trusted(
    put: Callable[[str], Any], api: str, hashed: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    only_variables(monkeypatch, **{variable: str(hashed)})
    assert put(api) == {}


def test_an_authority_in_the_systems_store_is_trusted(
    put: Callable[[str], Any], api: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(context: ssl.SSLContext, *_: object) -> None:
        context.load_verify_locations(authority.certificate)

    only_variables(monkeypatch)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    assert put(api) == {}


def test_the_first_variable_that_names_a_bundle_is_the_only_one_that_counts(
    put: Callable[[str], Any], api: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    import certifi

    only_variables(monkeypatch, REQUESTS_CA_BUNDLE=certifi.where(), SSL_CERT_FILE=str(authority.certificate))
    with pytest.raises(FAILED, match="certificate verify failed"):
        put(api)


def test_an_unknown_authority_is_not_trusted(
    put: Callable[[str], Any], api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_variables(monkeypatch)
    with pytest.raises(FAILED, match="certificate verify failed"):
        put(api)


@pytest.fixture
def proxy() -> Iterator[tuple[ConnectProxy, str]]:
    made = ConnectProxy()
    with listening(made.serve) as port:
        yield made, f"127.0.0.1:{port}"


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("user", ["", "me:hid%20den@"])
def test_calls_go_through_the_proxy_of_the_environment(
    put: Callable[[str], Any],
    api: str,
    authority: Authority,
    proxy: tuple[ConnectProxy, str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    user: str,
) -> None:
    tunnels, address = proxy
    trust = str(authority.certificate)
    only_variables(monkeypatch, **{variable: f"http://{user}{address}", "REQUESTS_CA_BUNDLE": trust})
    assert put(api) == {}
    (head,) = tunnels.heads
    assert head.startswith(f"CONNECT {api.removeprefix('https://')} HTTP/1.")
    assert ("Proxy-Authorization: Basic bWU6aGlkIGRlbg==" in head) == bool(user)
    assert "Authorization: Hawk" not in head


def test_the_authority_is_trusted_for_an_https_proxy_of_an_http_root_url(
    put: Callable[[str], Any], api: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server behind `api` responds as a proxy would."""
    only_variables(monkeypatch, HTTP_PROXY=api, REQUESTS_CA_BUNDLE=str(authority.certificate))
    assert put("http://tc.example.com") == {}


@pytest.mark.parametrize("exception", ["localhost", "localhost:PORT", ".localhost", "*"])
def test_calls_go_past_the_proxy_where_no_proxy_says_so(
    put: Callable[[str], Any],
    api: str,
    authority: Authority,
    proxy: tuple[ConnectProxy, str],
    monkeypatch: pytest.MonkeyPatch,
    exception: str,
) -> None:
    tunnels, address = proxy
    exception = exception.replace("PORT", api.rpartition(":")[2])
    trust = str(authority.certificate)
    only_variables(monkeypatch, HTTPS_PROXY=f"http://{address}", NO_PROXY=exception, REQUESTS_CA_BUNDLE=trust)
    assert put(api) == {}
    assert tunnels.heads == []


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("me:hidden@", "refuses the user and password in {}: correct them"),
        ("", "wants a user and password: add them to the URL in {}"),
    ],
)
def test_a_proxy_that_wants_another_password_is_named_without_it_and_not_asked_again(
    put: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, scheme: str, user: str, said: str
) -> None:
    variable = f"{scheme.upper()}_PROXY"
    with listening(want_a_password) as port:
        only_variables(monkeypatch, **{variable: f"http://{user}127.0.0.1:{port}"})
        with pytest.raises((ApiError, StorageRefused)) as failed:
            put(f"{scheme}://tc.example.com", 3)
    error = failed.value
    assert isinstance(error, (ApiError, StorageRefused))
    assert error.message == f"the proxy http://127.0.0.1:{port} {said.format(variable)}"
    assert error.status == 407
    if isinstance(error, ApiError):
        assert error.attempts == 1
        assert not error.attempted.outcome_unknown


def test_the_proxy_of_an_injected_session_that_wants_a_password_is_not_asked_again() -> None:
    def put_async(proxy: str) -> None:
        async def put() -> None:
            async with (
                aiohttp.ClientSession(proxy=proxy) as session,
                AsyncQueue("https://tc.example.com", session=session) as queue,
            ):
                await queue.send(CALL)

        asyncio.run(put())

    def put_sync(proxy: str) -> None:
        with requests.Session() as session:
            session.proxies["https"] = proxy
            Queue("https://tc.example.com", session=session).send(CALL)

    with listening(want_a_password) as port:
        for put in put_sync, put_async:
            with pytest.raises(ApiError, match="a proxy wants a user and password, or refuses") as failed:
                put(f"http://me:hidden@127.0.0.1:{port}")
            assert (failed.value.status, failed.value.attempts) == (407, 1)
            assert "hidden" not in str(failed.value)


def test_a_proxy_that_does_not_respond_is_waited_for_as_long_as_a_connection(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of `ConnectorTransport` check the same for `AsyncQueue`."""

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    patient = RetryPolicy(attempts=1, connect_timeout=0.1, read_timeout=3600, timeout=3600)
    with listening(wait) as port:
        only_variables(monkeypatch, HTTPS_PROXY=f"http://127.0.0.1:{port}")
        with Queue(api, retry=patient) as queue, pytest.raises(CallTimedOut):
            queue.send(CALL)


def test_a_proxy_that_trickles_its_response_is_not_waited_for(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of `ConnectorTransport` check the same for `AsyncQueue`."""

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            writer.write(b"HTTP/1.1 200 OK\r\nX-Filler: ")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)

    with listening(trickle) as port:
        only_variables(monkeypatch, HTTPS_PROXY=f"http://127.0.0.1:{port}")
        with Queue(api, retry=RetryPolicy(attempts=1, timeout=0.3)) as queue, pytest.raises(CallTimedOut):
            queue.send(CALL)
        with pytest.raises(StorageFailed, match=r"the response did not come within 0\.3 s"):
            put_to_storage(api, RetryPolicy(connect_timeout=1, read_timeout=0.3, min_rate_window=0.3))


@pytest.mark.parametrize(
    "reply", [b"\x05\xff", b"\x05\x02\x01\x01"], ids=["wants a user", "refuses the password"]
)
def test_a_socks_proxy_that_wants_another_password_is_named_without_it_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, reply: bytes
) -> None:
    """Only the synchronous client and its storage use SOCKS proxies."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(reply)
        await reader.read()

    with listening(refuse) as port:
        only_variables(monkeypatch, HTTPS_PROXY=f"socks5h://me:hidden@127.0.0.1:{port}")
        said = (
            f"the proxy socks5h://127.0.0.1:{port} refuses the user and password in HTTPS_PROXY: correct them"
        )
        with Queue("https://tc.example.com") as queue, pytest.raises(ApiError, match=said) as failed:
            queue.send(CALL)
        with pytest.raises(StorageRefused, match=said) as refused:
            put_to_storage("https://tc.example.com")
    assert (failed.value.status, failed.value.attempts) == (407, 1)
    assert not refused.value.is_temporary
