"""Connections to storage: TLS, proxies and reuse."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sink import running
from taskqueue_client import Credentials, Queue, RetryPolicy, slugid
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client._transport.sync_connections import Cancellation, TransferCanceled
from taskqueue_client.artifacts import RedirectRefused, StorageFailed, StorageRefused
from taskqueue_client.artifacts.sources import open_source
from taskqueue_client.artifacts.storage import MOST_ORIGINS, Put, Storage, no_progress
from taskqueue_client.errors import InputTooLarge
from taskqueue_client.local import LocalQueue
from taskqueue_client.testing import TaskFactory
from tests.artifacts.conftest import EitherClient, Seen
from tests.artifacts.raw_server import RawResponse, RawServer, Request, json_response, responding_early
from tests.certificates import Authority
from tests.servers import listening, want_a_password

POLICY = RetryPolicy(connect_timeout=5, read_timeout=5)


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    return context


@pytest.fixture
def tls_server(tls: ssl.SSLContext) -> Iterator[RawServer]:
    with RawServer(tls) as server:
        yield server


@pytest.fixture
def trusting(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))


@pytest.fixture
def storage() -> Iterator[Storage]:
    storage = Storage(NetworkSettings())
    yield storage
    storage.close()


def put(storage: Storage, url: str, content: bytes = b"content") -> None:
    source = open_source(content)
    storage.put(Put(url, {}, source, (), no_progress, POLICY), Cancellation())


def get(storage: Storage, url: str) -> bytes:
    with storage.get(url, {}, POLICY, Cancellation()) as incoming:
        return b"".join(incoming.blocks())


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("size", [10, 1_000_000])
def test_uploads_and_downloads_go_through_tls(
    raw_client: EitherClient, server: RawServer, tls_server: RawServer, size: int, tmp_path: Path
) -> None:
    stored: dict[str, bytes] = {}

    def keep(request: Request) -> RawResponse:
        if request.method == "PUT":
            stored[request.path] = request.body
            return RawResponse()
        return RawResponse(body=stored[request.path])

    def queue(request: Request) -> RawResponse:
        url = f"{tls_server.url}/{request.path.rpartition('%2F')[2]}"
        if request.method == "GET":
            return json_response({"storageType": "s3", "url": url})
        expires = "2099-01-01T00:00:00.000Z"
        return json_response({"storageType": "s3", "contentType": "a/b", "expires": expires, "putUrl": url})

    tls_server.respond, server.respond = keep, queue
    contents = {f"public/{number}": bytes([number]) * size for number in range(6)}
    for name, content in contents.items():
        (tmp_path / Path(name).name).write_bytes(content)
    files = {name: tmp_path / Path(name).name for name in contents}
    report = raw_client.upload_many(files, concurrency=2)
    assert report.is_complete
    assert {each.name: each.result.hashes["sha256"] for each in report.outcomes} == {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }
    assert {name: raw_client.download(name).content for name in contents} == contents
    assert len({request.peer for request in tls_server.requests}) <= 5  # of 12: connections are used again


@pytest.mark.usefixtures("trusting")
def test_the_records_of_tls_that_have_arrived_are_read_together(
    storage: Storage, tls_server: RawServer
) -> None:
    """Reading the records one at a time, a download of 1 GiB takes 1.5 times the processor time."""
    body = os.urandom(60_000)
    tls_server.respond = lambda _: RawResponse(body=body, announced=100_000, hangs_up=True)
    blocks: list[bytes] = []
    with storage.get(tls_server.url, {}, POLICY, Cancellation()) as incoming:
        assert tls_server.hung_up.wait(10)
        with pytest.raises(StorageFailed, match="40000 bytes are missing"):
            blocks.extend(bytes(block) for block in incoming.blocks())
    assert b"".join(blocks) == body
    assert len(blocks) <= 2  # the first block came with the head


@pytest.mark.usefixtures("trusting")
def test_what_came_before_an_error_of_tls_is_kept(storage: Storage, authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    sent, body, blocks = threading.Event(), os.urandom(60_000), list[bytes]()

    def serve() -> None:
        with context.wrap_socket(server.accept()[0], server_side=True) as connection:
            connection.recv(10_000)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + body)
            socket.socket.sendall(connection, b"\x17\x03\x03\x00\x20" + bytes(32))  # an invalid TLS record
            sent.set()
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        threads.submit(serve)
        url = f"https://localhost:{server.getsockname()[1]}"
        with storage.get(url, {}, POLICY, Cancellation()) as incoming:
            assert sent.wait(10)
            words = "decryption failed or bad record mac|record layer failure"  # the latter by newer OpenSSL
            with pytest.raises(StorageFailed, match=f"failed: TLS: ({words})"):
                blocks.extend(bytes(block) for block in incoming.blocks())
    assert b"".join(blocks) == body


def test_a_certificate_that_nobody_vouches_for_is_refused(storage: Storage, tls_server: RawServer) -> None:
    with pytest.raises(StorageFailed, match="certificate verify failed"):
        put(storage, tls_server.url)


def test_the_error_about_a_server_of_another_protocol_is_one_line(
    storage: Storage, server: RawServer
) -> None:
    server.respond = lambda _: RawResponse(raw=b"SSH-2.0-server\r\n")
    with pytest.raises(StorageFailed, match="SSH") as failed:
        get(storage, f"{server.url}/x")
    assert "\n" not in str(failed.value)


def test_a_success_before_the_whole_body_was_sent_is_an_error(storage: Storage) -> None:
    with (
        responding_early(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as url,
        pytest.raises(StorageFailed, match="closed before the whole body was sent"),
    ):
        put(storage, url, bytes(10_000_000))


TOO_LARGE = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig"


@pytest.mark.usefixtures("trusting")
def test_an_early_refusal_over_tls_is_raised_instead_of_the_broken_connection(
    storage: Storage, tls: ssl.SSLContext
) -> None:
    with responding_early(TOO_LARGE, tls) as url, pytest.raises(StorageRefused, match="413 big"):
        put(storage, url, bytes(10_000_000))


@pytest.mark.usefixtures("trusting")
def test_an_early_refusal_of_a_call_over_tls_is_raised_as_well(tls: ssl.SSLContext) -> None:
    call = Call("createTask", "PUT", "/task/x", dict[str, Any], body={"large": "x" * 10_000_000})
    with (
        responding_early(TOO_LARGE, tls) as url,
        Queue(url.removesuffix("/key"), retry=RetryPolicy(attempts=1)) as queue,
        pytest.raises(InputTooLarge, match="413: big"),
    ):
        queue.send(call)


@pytest.mark.usefixtures("trusting")
def test_no_redirect_leads_out_of_tls(storage: Storage, server: RawServer, tls_server: RawServer) -> None:
    tls_server.respond = lambda _: RawResponse(302, (("Location", f"{server.url}/x"),))
    with pytest.raises(RedirectRefused, match="http URL"):
        get(storage, tls_server.url)
    assert server.requests == []


@pytest.fixture
def proxied(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    user = server.url.replace("://", "://me:p%40ss@")
    monkeypatch.setenv("http_proxy", user)
    monkeypatch.setenv("https_proxy", user)
    monkeypatch.setenv("no_proxy", "direct.test")


@pytest.mark.usefixtures("proxied")
def test_the_environment_s_proxy_is_used_and_only_it_gets_the_password(
    storage: Storage, server: RawServer
) -> None:
    put(storage, "http://storage.test:81/key?signature=1")
    (request,) = server.requests
    assert (request.path, request.headers["Host"]) == (
        "http://storage.test:81/key?signature=1",
        "storage.test:81",
    )
    assert request.headers["Proxy-Authorization"] == "Basic bWU6cEBzcw=="


@pytest.mark.usefixtures("proxied")
def test_tls_goes_through_a_tunnel_of_the_proxy(storage: Storage) -> None:
    with pytest.raises(StorageFailed, match=r"the proxy \S+ did not connect to storage\.test:443: 501 "):
        put(storage, "https://storage.test/key")


@pytest.mark.parametrize("way", ["PUT", "GET", "small PUT"])
def test_a_proxy_that_refuses_the_password_is_named_without_it_and_not_asked_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    url = "https://storage.test/key?signature"

    async def put_small() -> None:
        try:
            await storage.put_small(Put(url, {}, open_source(b"content"), (), no_progress, POLICY))
        finally:
            await storage.aclose()

    ways: dict[str, Callable[[], object]] = {
        "PUT": lambda: put(storage, url),
        "GET": lambda: get(storage, url),
        "small PUT": lambda: asyncio.run(put_small()),
    }
    with listening(want_a_password) as port:
        monkeypatch.setenv("https_proxy", f"http://me:hidden@127.0.0.1:{port}")
        with pytest.raises(StorageRefused) as failed:
            ways[way]()
    problem = f"the proxy http://127.0.0.1:{port} refuses the user and password in HTTPS_PROXY: correct them"
    assert str(failed.value) == f"{way[-3:]} https://storage.test/key: HTTP 407 {problem}"
    assert not failed.value.is_temporary


def test_a_proxy_that_refuses_is_named_as_it_was_when_the_client_read_the_environment(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(want_a_password) as port:
        for later in "", "http://me:hidden@another.test:3128":
            monkeypatch.setenv("https_proxy", later or f"http://127.0.0.1:{port}")
            with pytest.raises(StorageRefused, match=f"the proxy http://127.0.0.1:{port} wants a user"):
                put(storage, "https://storage.test/key")


@pytest.mark.usefixtures("proxied")
def test_the_environment_can_except_hosts_from_the_proxy(storage: Storage, server: RawServer) -> None:
    with pytest.raises(StorageFailed):
        put(storage, "http://direct.test:9/key")
    assert server.requests == []


def test_connections_are_used_again_after_small_large_and_refused_bodies(
    storage: Storage, server: RawServer
) -> None:
    put(storage, server.url)
    put(storage, server.url, bytes(1_000_000))
    server.respond = lambda _: RawResponse(403, (), b"no")
    with pytest.raises(StorageRefused):
        put(storage, server.url)
    server.respond = lambda _: RawResponse(body=bytes(1_000_000))
    assert get(storage, server.url) == bytes(1_000_000)
    assert get(storage, server.url) == bytes(1_000_000)
    assert len({request.peer for request in server.requests}) == 1


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(
    storage: Storage, server: RawServer
) -> None:
    server.respond = lambda _: RawResponse(headers=(("Keep-Alive", "timeout=0"),), hangs_up=True)
    put(storage, server.url)
    assert server.hung_up.wait(timeout=30)
    put(storage, server.url)
    assert len({request.peer for request in server.requests}) == 2


def test_a_transfer_that_was_cancelled_before_it_began_sends_nothing(
    storage: Storage, server: RawServer
) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    source = open_source(b"content")
    with pytest.raises(TransferCanceled):
        storage.put(Put(server.url, {}, source, (), no_progress, POLICY), cancellation)
    assert server.requests == []


def test_a_client_keeps_idle_connections_to_the_origins_that_it_used_last(storage: Storage) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(RawServer()) for _ in range(MOST_ORIGINS + 1)]
        first, second, *_, last = servers
        for server in [*servers[:-1], first, last, first, last, second]:
            put(storage, server.url)
        connections = [len({request.peer for request in server.requests}) for server in servers]
    assert connections == [1, 2, *[1] * (MOST_ORIGINS - 1)]


def test_a_client_that_nobody_closed_ends_in_silence(server: RawServer) -> None:
    storage = Storage(NetworkSettings())
    put(storage, server.url)
    storage.threads().submit(int).result()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del storage
        gc.collect()
    assert warned == []


def test_a_server_that_stands_still_is_given_up(storage: Storage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        source = open_source(b"content")
        waiting = Put(url, {}, source, (), no_progress, RetryPolicy(connect_timeout=5, read_timeout=0.05))
        with pytest.raises(StorageFailed, match="the response was not complete in time"):
            storage.put(waiting, Cancellation())


def test_a_file_whose_size_has_more_than_32_bits_arrives_whole(tmp_path: Path) -> None:
    """A sparse file. The server responds after the last byte."""
    size = 2**32 + 1
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", size)
    seen = Seen()
    with running() as url, Queue(url, Credentials("tester", "secret")) as queue:
        uploaded = queue.upload_artifact(
            slugid(), 0, "large", tmp_path / "large", expires="2099-01-01T00:00:00Z", progress=seen
        )
    assert uploaded.stored_size == size
    assert seen[-1] == (size, size)


def test_a_service_that_does_not_know_the_size_of_artifacts_gets_none(
    raw_client: EitherClient, server: RawServer
) -> None:
    asked: list[bytes] = []

    def respond(request: Request) -> RawResponse:
        if request.method == "PUT":
            return RawResponse()
        asked.append(request.body)
        if b"contentLength" in request.body:
            body = b'{"code": "InputValidationError", "message": "no schema matches", "requestInfo": {}}'
            return RawResponse(400, (("Content-Type", "application/json"),), body)
        expires, url = "2099-01-01T00:00:00.000Z", f"{server.url}/x"
        return json_response({"storageType": "s3", "contentType": "a/b", "expires": expires, "putUrl": url})

    server.respond = respond
    assert raw_client.upload("public/x", b"x").size == 1
    assert [b"contentLength" in each for each in asked] == [True, False]


def test_a_transfer_leaves_no_thread(local_queue: LocalQueue, task_factory: TaskFactory) -> None:
    def upload(name: str) -> None:
        queue.upload_artifact(task_id, 0, name, b"x" * 100_000, expires="1 hour")

    task_id = slugid()
    with Queue(local_queue.root_url, local_queue.credentials) as queue:
        queue.create_task(task_id, task_factory())
        queue.claim_task(task_id, 0, worker_group="tests", worker_id="one")
        before = set(threading.enumerate())
        upload("public/a")
        of_local_queue = {each for each in threading.enumerate() if each.name.startswith("asyncio_")}
        assert set(threading.enumerate()) <= before | of_local_queue
        queue.close()
        upload("public/b")  # a closed client may be used again
