"""Connections are reused, shared by threads, and closed by their owner."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from io import BytesIO
from typing import Any

import aiohttp
import pytest
import requests
import responses
from requests.adapters import BaseAdapter

from taskqueue_client import AsyncQueue, Credentials, Queue, calls
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport import synchronous
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client._transport.sync_connections import add_deadline
from taskqueue_client._transport.synchronous import SyncTransport
from taskqueue_client.definitions import task_definition
from taskqueue_client.errors import ClientUnusable, InvalidArgument, InvalidDefinition, UnreadableResponse
from taskqueue_client.local import LocalQueue
from tests.client.scripted import Received, Say, ScriptedServer, say

TASK = "Y9IplizWTj-eOJfHEC71Rw"
PING = Call("ping", "GET", "/ping", dict[str, Any])
CREDENTIALS = Credentials("tester/one", "a-secret-of-the-tests")


def test_a_thousand_calls_use_one_connection(client: Any, server: ScriptedServer) -> None:
    for _ in range(1000):
        client.send(PING)
    assert len(server.received) == 1000
    assert server.connections == 1


@pytest.mark.parametrize("session", [None, requests.Session()])
@pytest.mark.parametrize(("size", "sends"), [(0, 1), (1, 1), (64 * 1024, 1), (64 * 1024 + 1, 2)])
def test_a_request_is_sent_together_with_its_body_unless_that_is_large(
    session: requests.Session | None,
    size: int,
    sends: int,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[bytes] = []
    send_all = socket.socket.sendall

    def note_and_send(self: socket.socket, data: bytes) -> None:
        sent.append(data)
        send_all(self, data)

    monkeypatch.setattr(socket.socket, "sendall", note_and_send)
    transport, body = SyncTransport(session, server.root_url, NetworkSettings()), b"x" * size
    for _ in range(2):  # over the same connection
        transport.request(Request("PUT", f"{server.root_url}/x", {}, body), Timeouts(5, 5, 5))
    transport.close()
    assert len(sent) == 2 * sends
    assert b"".join(sent).count(b"\r\n\r\n" + body) == 2
    assert [each.body for each in server.received] == [body, body]


def test_one_client_serves_many_threads(server: ScriptedServer) -> None:
    with Queue(server.root_url, CREDENTIALS) as queue, ThreadPoolExecutor(16) as threads:
        responses = list(threads.map(queue.send, [PING] * 200))
    assert responses == [{}] * 200
    assert server.connections <= 16


def test_connections_of_more_threads_than_are_kept_are_closed(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_arrived = [threading.Event(), threading.Event()]

    def answer(_: Received) -> Say:
        turn, number = divmod(len(server.received) - 1, 3)
        if number == 2:
            have_arrived[turn].set()
        return Say(wait_for=have_arrived[turn])

    server.otherwise = answer
    monkeypatch.setattr(synchronous, "POOL_SIZE", 2)
    with Queue(server.root_url, CREDENTIALS) as queue, ThreadPoolExecutor(3) as threads:
        for _ in range(2):
            assert list(threads.map(queue.send, [PING] * 3)) == [{}] * 3
    assert server.connections == 4


class RecordedAdapter(BaseAdapter):
    """Responds without a connection, as adapters for tests and recordings do."""

    def send(self, request: requests.PreparedRequest, **_: object) -> requests.Response:  # type: ignore[override] # its options by name
        response = requests.Response()
        response.status_code, response.request = 200, request
        response.raw = BytesIO(b'{"a": 1}')
        return response

    def close(self) -> None:
        """Close nothing."""


def test_an_adapter_of_a_session_may_respond_without_urllib3() -> None:
    session = requests.Session()
    session.mount("https://", RecordedAdapter())
    with Queue("https://tc.example.com", CREDENTIALS, session=session) as queue:
        assert queue.send(PING) == {"a": 1}


def test_threads_that_make_the_first_calls_together_share_the_connections(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, have_arrived = threading.Barrier(2, timeout=60), threading.Event()

    def add_deadline_together(pool: Any) -> None:
        together.wait()
        add_deadline(pool)

    def answer(_: Received) -> Say:
        if len(server.received) == 4:
            have_arrived.set()
        return Say(wait_for=have_arrived if len(server.received) > 2 else None)

    server.otherwise = answer
    monkeypatch.setattr(synchronous, "add_deadline", add_deadline_together)
    with Queue(server.root_url, CREDENTIALS) as queue, ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            assert list(threads.map(queue.send, [PING] * 2)) == [{}] * 2
    assert server.connections == 2


def test_a_closed_client_opens_new_connections(server: ScriptedServer) -> None:
    queue = Queue(server.root_url, CREDENTIALS)
    for _ in range(2):
        assert queue.send(PING) == {}
        queue.close()
    assert server.connections == 2


def test_a_client_may_be_closed_while_a_call_opens_its_connections(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_before(pool: Any) -> None:
        queue.close()  # as another thread may do
        add_deadline(pool)

    monkeypatch.setattr(synchronous, "add_deadline", close_before)  # called before the call uses its new pool
    with Queue(server.root_url) as queue:
        assert queue.send(PING) == {}


def test_an_injected_session_is_used_and_not_closed(server: ScriptedServer) -> None:
    with requests.Session() as session:
        session.headers["X-Mine"] = "yes"
        with Queue(server.root_url, session=session) as queue:
            queue.send(PING)
        assert session.get(server.root_url).ok
    assert server.received[0].headers["X-Mine"] == "yes"
    assert server.connections == 1


async def test_a_closed_async_client_sends_nothing_and_says_so(server: ScriptedServer) -> None:
    async with AsyncQueue(server.root_url, CREDENTIALS) as queue:
        await queue.send(PING)
    never_used = AsyncQueue(server.root_url)
    await never_used.close()
    for closed in (queue, queue.with_options(attempts=2), queue.with_credentials(None), never_used):
        with pytest.raises(ClientUnusable, match="closed: make a new one"):
            await closed.send(PING)
    assert len(server.received) == 1


def test_an_asynchronous_client_says_that_it_needs_asyncio() -> None:
    """As under trio, which sends None into a coroutine without an event loop of asyncio."""
    call = AsyncQueue("https://tc.example.com").ping()
    with pytest.raises(ClientUnusable, match="needs an event loop of asyncio"):
        call.send(None)


@pytest.mark.parametrize("kind", ["own", "injected"])
def test_an_async_client_that_was_used_needs_asyncio_as_well(kind: str, server: ScriptedServer) -> None:
    """As in a child that an `async def` has forked: there, no event loop runs."""

    async def used() -> AsyncQueue:
        queue = AsyncQueue(server.root_url, session=session if kind == "injected" else None)
        await queue.send(PING)
        return queue

    async def opened() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    with asyncio.Runner() as runner:
        session = runner.run(opened())
        queue = runner.run(used())
        with pytest.raises(ClientUnusable, match="needs an event loop of asyncio"):
            queue.send(PING).send(None)
        runner.run(queue.close())
        runner.run(session.close())


def test_an_async_client_in_another_event_loop_sends_nothing_and_says_so(server: ScriptedServer) -> None:
    queue = AsyncQueue(server.root_url, CREDENTIALS)
    with asyncio.Runner() as runner:
        runner.run(queue.send(PING))
        with asyncio.Runner() as another, pytest.raises(ClientUnusable, match="one for each loop"):
            another.run(queue.send(PING))
        runner.run(queue.send(PING))
        runner.run(queue.close())
    assert len(server.received) == 2


def test_an_async_client_can_be_closed_in_another_event_loop(server: ScriptedServer) -> None:
    """As by a fixture of pytest-asyncio whose event loop is not that of the test."""
    queue = AsyncQueue(server.root_url, CREDENTIALS)
    with asyncio.Runner() as runner, asyncio.Runner() as another:
        runner.run(queue.send(PING))
        another.run(queue.close())
        another.run(queue.close())
        with pytest.raises(ClientUnusable, match="closed: make a new one"):
            runner.run(queue.send(PING))


async def test_a_closed_injected_async_session_is_named(server: ScriptedServer) -> None:
    async with aiohttp.ClientSession() as session:
        queue = AsyncQueue(server.root_url, session=session)
    with pytest.raises(ClientUnusable, match="session of this AsyncQueue is closed"):
        await queue.send(PING)


def test_an_injected_async_session_of_another_event_loop_is_named(server: ScriptedServer) -> None:
    async def opened() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    with asyncio.Runner() as runner:
        session = runner.run(opened())
        queue = AsyncQueue(server.root_url, session=session)
        with (
            asyncio.Runner() as another,
            pytest.raises(ClientUnusable, match="belongs to another event loop"),
        ):
            another.run(queue.send(PING))
        runner.run(session.close())
    assert server.received == []


async def test_an_injected_asynchronous_session_is_used_and_not_closed(server: ScriptedServer) -> None:
    async with aiohttp.ClientSession(headers={"X-Mine": "yes"}) as session:
        async with AsyncQueue(server.root_url, session=session) as queue:
            await queue.send(PING)
        assert not session.closed
        await queue.send(PING)
        assert (await session.get(server.root_url)).status == 200
    assert server.received[0].headers["X-Mine"] == "yes"


@pytest.mark.parametrize("auto_decompress", [True, False])
async def test_a_compressed_response_is_read_whole_over_an_injected_session(
    server: ScriptedServer, *, auto_decompress: bool
) -> None:
    packed = gzip.compress(b'{"a": 1}')
    server.script.append(Say(200, packed[:-9], {"Content-Encoding": "gzip"}))
    server.otherwise = Say(200, packed, {"Content-Encoding": "gzip"})
    async with aiohttp.ClientSession(auto_decompress=auto_decompress) as session:
        assert await AsyncQueue(server.root_url, session=session).send(PING) == {"a": 1}
    assert len(server.received) == 2


@responses.activate
def test_a_users_mock_of_requests_is_respected() -> None:
    responses.get("https://tc.example.com/api/queue/v1/ping", json={"alive": True, "uptime": 1.5})
    with Queue("https://tc.example.com") as queue:
        assert queue.ping().alive


def test_the_environment_is_read_once(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue(server.root_url) as queue:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        assert queue.send(PING) == {}


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_the_proxy_of_the_environment_is_used(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, kind: type[Queue | AsyncQueue]
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.root_url)
    monkeypatch.setenv("NO_PROXY", "elsewhere.example.com")
    result: Any = _closed_after(kind("http://tc.example.com"), PING)
    assert result == {}
    assert "tc.example.com" in server.received[0].headers["Host"]


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_no_proxy_is_used_where_the_environment_says_so(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, kind: type[Queue | AsyncQueue]
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert _closed_after(kind(server.root_url), PING) == {}


def test_the_queue_of_a_test_is_reached_past_the_proxy_of_the_environment(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "elsewhere.example.com")
    monkeypatch.delenv("no_proxy", raising=False)
    local: LocalQueue = request.getfixturevalue("local_queue")
    with Queue(local.root_url) as queue:
        assert queue.ping().alive


def _closed_after(queue: Queue | AsyncQueue, call: Call[Any]) -> Any:
    if isinstance(queue, Queue):
        with queue:
            return queue.send(call)

    async def main() -> Any:
        async with queue:
            return await queue.send(call)

    return asyncio.run(main())


def test_new_credentials_count_from_the_next_attempt_on(client: Any, server: ScriptedServer) -> None:
    def swapping(_: Any) -> Say:
        client.queue.credentials = Credentials("tester/two", "another-secret")
        return say({}, 500)

    server.otherwise = swapping
    with pytest.raises(Exception, match="500"):
        client.with_options(attempts=2, wait_initial=0).send(PING)
    ids = [each.headers["Authorization"].partition('id="')[2].partition('"')[0] for each in server.received]
    assert ids == ["tester/one", "tester/two"]


def test_credentials_can_be_replaced_while_a_slow_call_is_under_way(server: ScriptedServer) -> None:
    arrived, responded = threading.Event(), threading.Event()

    def at_first_slowly(_: Any) -> Say:
        is_first = not arrived.is_set()
        arrived.set()
        return Say(wait_for=responded if is_first else None)

    server.otherwise = at_first_slowly
    with Queue(server.root_url, CREDENTIALS) as queue, ThreadPoolExecutor(1) as thread:
        slow = thread.submit(queue.send, PING)
        arrived.wait()
        queue.credentials = Credentials("tester/two", "another-secret")
        assert not slow.done()
        queue.send(PING)
        responded.set()
        slow.result()


def test_a_client_for_somebody_else_shares_the_connections(client: Any, server: ScriptedServer) -> None:
    client.send(PING)
    other = client.with_credentials(Credentials("other", "secret"))
    other.send(PING)
    assert 'id="other"' in server.received[1].headers["Authorization"]
    assert client.queue.credentials == CREDENTIALS
    assert server.connections == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
def test_a_call_without_a_body_has_no_content_type(client: Any, server: ScriptedServer, method: str) -> None:
    """The payload hash of the signature covers the content type, and is computed without one."""
    client.send(Call("x", method, "/x", dict[str, Any]))
    assert "Content-Type" not in server.received[0].headers
    assert server.received[0].body == b""


def test_without_credentials_nothing_is_signed(make_client: Any, server: ScriptedServer) -> None:
    make_client(credentials=None).send(PING)
    assert "Authorization" not in server.received[0].headers


@pytest.mark.parametrize("name", ["..", ".", "public/../x", "a b", "%41?#;"])
def test_a_name_arrives_as_it_was_signed(client: Any, server: ScriptedServer, name: str) -> None:
    call = calls.get_artifact(TASK, 0, name)
    client.send(Call("x", "GET", call.path, dict[str, Any]))
    assert server.received[0].path == f"/api/queue/v1{call.path}"


def test_a_redirect_of_the_object_service_is_read_from_its_header(
    client: Any, server: ScriptedServer
) -> None:
    server.otherwise = Say(303, b"See Other", {"Location": "http://storage.example.com/x"})
    assert client.download_object("t/x").url == "http://storage.example.com/x"


def test_the_first_definition_is_not_measured_by_a_clock_that_may_be_wrong(
    make_client: Any, server: ScriptedServer, clock: Any
) -> None:
    metadata: Any = {"name": "n", "owner": "o", "source": "https://example.com"}
    server.otherwise = say({}, Date=formatdate(clock.now() + 3600, usegmt=True))
    client = make_client(clock=clock)
    when = datetime.fromtimestamp(clock.now() + 3600, UTC)
    definition = task_definition("a/b", {}, created=when, **metadata)
    with pytest.raises(UnreadableResponse):
        client.create_task(TASK, definition)
    wrong = task_definition("a/b", {}, created=when - timedelta(hours=1), **metadata)
    with pytest.raises(InvalidDefinition, match="created"):
        client.create_task(TASK, wrong)
    assert len(server.received) == 1
    assert client.queue.now() == pytest.approx(when, abs=timedelta(seconds=2))


def test_checking_can_be_switched_off(make_client: Any, server: ScriptedServer) -> None:
    client = make_client(check_definitions=False)
    with pytest.raises(UnreadableResponse):
        client.create_task(TASK, {"payload": 1})
    assert len(server.received) == 1


def test_a_root_url_may_have_a_path(make_client: Any, server: ScriptedServer) -> None:
    make_client(f"{server.root_url}/behind/a/proxy/").send(PING)
    assert server.received[0].path == "/behind/a/proxy/api/queue/v1/ping"


def test_no_log_and_no_repr_shows_a_secret(
    make_client: Any, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    secret = Credentials("tester/one", "s3cret-token", '{"signature":"s3cret-signature"}')
    with caplog.at_level(logging.DEBUG):
        client = make_client(credentials=secret)
        server.script.append(say({}, 500))
        client.send(PING)
        shown = repr(client.queue) + str(client.queue) + caplog.text
        server.script.append(say({}, 404))
        with pytest.raises(Exception, match="HTTP 404") as caught:
            client.send(PING)
    assert "s3cret" not in shown + repr(caught.value) + str(caught.value) + repr(vars(caught.value))


def test_only_a_get_can_be_a_signed_url(client: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        client.queue.signed_url(calls.claim_work("a/b", worker_group="g", worker_id="w"))
    found = "claimWork is a POST request, for which there are no signed URLs"
    assert str(caught.value) == f"call: {found}; expected a GET request"


def test_a_signed_url_needs_credentials_and_a_lifetime(make_client: Any) -> None:
    with pytest.raises(InvalidArgument, match="credentials"):
        make_client(credentials=None).queue.signed_url(calls.status(TASK))
    for lifetime in (timedelta(0), 5):
        with pytest.raises(InvalidArgument, match="lifetime"):
            make_client().queue.signed_url(calls.status(TASK), lifetime=lifetime)


SILENT = {
    "a client that nobody closes": """
        queue = AsyncQueue(url)
        await queue.ping()
    """,
    "a client that nobody closes, and that outlives its event loop": """
        global queue
        queue = AsyncQueue(url)
        await asyncio.gather(queue.ping(), queue.ping())
        asyncio.create_task(queue.status("Y9IplizWTj-eOJfHEC71Rw"))
        async with AsyncQueue(url) as other:
            await other.heartbeat()
    """,
    "a call under way when the loop ends": """
        queue = AsyncQueue(url)
        asyncio.create_task(queue.status("Y9IplizWTj-eOJfHEC71Rw"))
        async with AsyncQueue(url) as other:
            await other.heartbeat()
    """,
    "a call under way in a client that is closed": """
        async with AsyncQueue(url) as queue:
            task = asyncio.create_task(queue.status("Y9IplizWTj-eOJfHEC71Rw"))
            await queue.heartbeat()
        try:
            await task
        except Exception as error:
            print(type(error).__name__)
    """,
    "clients that are used and made when the event loop has ended its generators": """
        async with AsyncQueue(url) as queue, AsyncQueue(url) as other:
            await queue.ping()
            await asyncio.get_running_loop().shutdown_asyncgens()
            await asyncio.gather(queue.ping(), other.ping())
    """,
    "an iteration that is left half-way": """
        async with AsyncQueue(url) as queue:
            async for _ in queue.iter_task_queues():
                break
    """,
    "a client that is garbage in a circle, and whose connector comes first there": """
        held = [AsyncQueue(url)]
        await held[0].ping()
        (connector,) = (each for each in gc.get_objects() if isinstance(each, aiohttp.TCPConnector))
        gc.collect()
        held.append(held)
        del held, connector
        gc.collect()
    """,
    "a blocking client that nobody closes": """
        Queue(url).ping()
    """,
}


@pytest.mark.parametrize("filtered", ["error", "always"])
@pytest.mark.parametrize("what", SILENT)
def test_nothing_is_said_under_warnings_as_errors(server: ScriptedServer, what: str, filtered: str) -> None:
    never, under_way = threading.Event(), threading.Event()
    fine: dict[str, Any] = {"alive": True, "uptime": 1.0, "taskQueues": [], "continuationToken": ""}

    def answer(received: Received) -> Say:
        if received.path.endswith("/status"):
            under_way.set()
            return Say(wait_for=never)
        return Say(wait_for=under_way) if received.path.endswith("/__heartbeat__") else say(fine)

    server.otherwise = answer
    program = (
        "import aiohttp, asyncio, gc, sys\n"
        "from taskqueue_client import AsyncQueue, Queue\n"
        "url = sys.argv[1]\n"
        f"async def main():{SILENT[what]}\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", filtered, "-c", program, server.root_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    never.set()
    assert ran.stderr == ""
    assert ran.returncode == 0
