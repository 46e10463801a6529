"""Unusual input, responses and sessions, with both clients."""

from __future__ import annotations

import copy
import inspect
import math
import os
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import formatdate
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
import requests

from taskqueue_client import AsyncQueue, Credentials, Queue, RetryPolicy, calls, task_definition
from taskqueue_client._client_base import ClientOptions
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.credentials import temporary_credentials
from taskqueue_client.errors import (
    CallTimedOut,
    InvalidArgument,
    ResourceNotFound,
    ServerError,
    UnreadableResponse,
)
from tests.artifacts.raw_server import RawServer, json_response
from tests.client.scripted import Received, Say, ScriptedServer, say

TASK = "Y9IplizWTj-eOJfHEC71Rw"
PING = Call("ping", "GET", "/ping", dict[str, Any])
CREDENTIALS = Credentials("tester/one", "a-secret-of-the-tests")
ONCE = RetryPolicy(attempts=1)
HOUR = 3600.0
UNREADABLE_DATES = [
    "1 Jan 99999999999999999999 00:00:00 GMT",
    "Wed, 21 Oct 2015 99999999999999:28:00 GMT",
    "Wed, 21 Oct 2015 07:28:00 +99999999999999",
    "Wed, 99 Oct 2015 07:28:00 GMT",
]


def _listener(settings: Any) -> object:
    pytest.importorskip("aio_pika", reason="the extra `events` is not installed")
    from taskqueue_client.events import Listener

    return Listener(settings, [])


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("not yet initialized")


def test_an_error_about_a_value_that_cannot_be_shown_names_its_type() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    values: list[tuple[Any, str]] = [(Unprintable(), "<Unprintable>"), (deep, "<list>")]
    for given, shown in values:
        with pytest.raises(InvalidArgument) as caught:
            calls.task(given)
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            assert f"task_id: {shown} is not valid; expected a slugid" in str(error)


@pytest.mark.parametrize("environ", [[], "TASKCLUSTER_ROOT_URL", os.environ.items()])
def test_an_environment_that_is_not_a_dict_is_refused_without_its_values(environ: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"environ: <class .* expected a dict of environment variables"):
        Queue.from_env(environ)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue, _listener])
def test_the_traceback_of_a_refused_argument_can_be_shown_with_its_local_variables(
    kind: Callable[[Any], object],
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kind("tc.example.com")
    shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "self = <taskqueue_client." in shown


@pytest.mark.parametrize("copy_it", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_client_that_is_pickled_or_copied_says_what_to_do_instead(
    kind: Any, copy_it: Callable[[Any], object]
) -> None:
    name = kind.__name__
    with pytest.raises(TypeError, match=rf"{name} cannot be pickled or copied, .* {name}.from_env\(\)"):
        copy_it(kind("http://127.0.0.1:1"))


class TestArguments:
    @pytest.mark.parametrize(
        "root_url",
        [None, b"https://h", "https://[bad", "https://h\n", " https://h", "https://h/ä", "https://hä",
         "https://h?", "https://h#", "https://" + 70 * "a" + ".test"],
    )  # fmt: skip
    @pytest.mark.parametrize("kind", [Queue, AsyncQueue])
    def test_a_root_url_that_no_call_could_go_to_is_refused(self, kind: Any, root_url: Any) -> None:
        with pytest.raises(InvalidArgument, match="root_url"):
            kind(root_url)

    @pytest.mark.parametrize(
        ("credentials", "named"),
        [
            ({"clientId": "a"}, "credentials"),
            (Credentials(None, "t"), "client_id"),  # type: ignore[arg-type] # what the test is about
            (Credentials("a", None), "access_token"),  # type: ignore[arg-type] # what the test is about
            (Credentials("a", "t", {"version": 1}), "certificate"),  # type: ignore[arg-type] # the same
            (Credentials("a", "t", None, "scope"), "authorized_scopes"),  # type: ignore[arg-type] # the same
            (Credentials("a", "t", None, (1,)), "authorized_scopes"),  # type: ignore[arg-type] # the same
        ],
    )
    def test_credentials_of_the_wrong_type_are_refused_by_name(
        self, make_client: Any, credentials: Any, named: str
    ) -> None:
        with pytest.raises(InvalidArgument) as refused:
            make_client(credentials=credentials)
        assert refused.value.argument == named

    @pytest.mark.parametrize("options", [{"attempts": "3"}, {"attempts": math.nan}, {"timeout": "5"},
                                         {"read_timeout": None}, {"wait_max": [1]}])  # fmt: skip
    def test_an_option_of_the_wrong_type_is_refused_by_name(
        self, client: Any, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument) as refused:
            client.with_options(**options)
        assert refused.value.argument in options

    @pytest.mark.parametrize(
        ("option", "given"),
        [("session", "x"), ("session", requests), ("session", False), ("retry", {"attempts": 3}),
         ("check_definitions", "no"), ("check_definitions", 0), ("artifact_storage", ["s3"]),
         ("artifact_storage", ""), ("clock", "x"), ("clock", False), ("tracing", "no")],
    )  # fmt: skip
    def test_an_option_of_the_constructor_of_another_type_is_refused(
        self, make_client: Any, option: str, given: Any
    ) -> None:
        with pytest.raises(InvalidArgument) as refused:
            make_client(**{option: given})
        assert refused.value.argument == option

    async def test_the_session_of_the_other_client_is_refused(self) -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(InvalidArgument, match=r"session: .* expected Session or None"):
                Queue("https://h", session=session)  # type: ignore[arg-type] # what is tested
        with pytest.raises(InvalidArgument, match=r"session: .* expected ClientSession or None"):
            AsyncQueue("https://h", session=requests.Session())  # type: ignore[arg-type] # what is tested

    @pytest.mark.parametrize(
        "call", [None, "ping", calls.create_task(TASK, {}), calls.iter_task_group(TASK)],  # type: ignore[typeddict-item] # pyright: ignore[reportArgumentType] # never sent
        ids=lambda call: type(call).__name__,
    )  # fmt: skip
    def test_an_object_that_is_not_a_call_is_neither_sent_nor_signed(self, client: Any, call: Any) -> None:
        for method in (client.send, client.signed_url):
            with pytest.raises(InvalidArgument, match=r"^call: .* expected a Call; create_task and iter_"):
                method(call)

    def test_tracing_is_not_turned_on_by_text(self, client: Any) -> None:
        with pytest.raises(InvalidArgument, match="tracing: 'no' is not valid; expected bool or None"):
            client.with_options(tracing="no")

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_a_number_that_json_does_not_have_is_refused_and_not_sent_as_null(
        self, client: Any, server: ScriptedServer, number: float
    ) -> None:
        with pytest.raises(InvalidArgument, match="JSON"):
            client.send(Call("x", "POST", "/x", dict[str, Any], body={"deep": [{"down": number}]}))
        assert server.received == []

    def test_null_may_be_sent(self, client: Any, server: ScriptedServer) -> None:
        client.send(Call("x", "POST", "/x", dict[str, Any], body={"a": None}))
        assert server.received[0].body == b'{"a":null}'

    def test_a_token_of_a_page_that_is_not_a_text_of_a_url_is_refused(self, client: Any) -> None:
        with pytest.raises(InvalidArgument, match="continuation_token"):
            client.list_task_group(TASK, continuation_token="\ud800")

    def test_no_pickled_error_contains_a_token_or_certificate(self, make_client: Any) -> None:
        secret = Credentials("a", "hidden-token", f'{{"c":"hidden-certificate{4096 * "x"}"}}')
        client = make_client(credentials=secret)
        for refused_call in (
            lambda: client.status(TASK),
            lambda: client.signed_url(calls.get_latest_artifact(TASK, "x")),
            lambda: temporary_credentials(secret, ["x"]),
        ):
            with pytest.raises(InvalidArgument) as refused:
                refused_call()
            assert b"hidden-" not in pickle.dumps(refused.value)


class TestResponses:
    @pytest.mark.parametrize("body", [b'{"a":"\xff"}', 5000 * b'{"a":', b"", b"null"])
    def test_a_success_without_the_json_of_the_endpoint_is_unreadable(
        self, client: Any, server: ScriptedServer, body: bytes
    ) -> None:
        server.otherwise = Say(200, body)
        with pytest.raises(UnreadableResponse):
            client.send(PING)

    @pytest.mark.parametrize("body", [b'{"a":"\xff"}', 100_000 * b"[", b'{"requestInfo":["odd"]}'])
    def test_a_failure_of_any_body_is_the_failure_of_its_status(
        self, make_client: Any, server: ScriptedServer, body: bytes
    ) -> None:
        server.otherwise = Say(500, body)
        with pytest.raises(ServerError) as failed:
            make_client(retry=ONCE).send(PING)
        assert failed.value.request_info == {}

    @pytest.mark.parametrize("date", UNREADABLE_DATES)
    def test_a_date_that_cannot_be_read_is_as_good_as_none(
        self, client: Any, server: ScriptedServer, date: str
    ) -> None:
        server.script.append(say({}, 503, Retry_After=date, Date=date))
        server.otherwise = say({}, Date=date)
        assert client.send(PING) == {}
        assert len(server.received) == 2

    def test_a_body_that_stops_coming_is_a_timeout(self, make_client: Any) -> None:
        with stalling_server() as root_url:
            client = make_client(root_url, retry=RetryPolicy(attempts=1, read_timeout=0.2))
            with pytest.raises(CallTimedOut):
                client.send(PING)

    def test_a_clock_that_is_put_right_later_is_noticed(
        self, client: Any, server: ScriptedServer, clock: Any
    ) -> None:
        """The offset measured before is wrong then, and the right one is 0."""
        server.script.append(say({}, Date=formatdate(clock.now() + HOUR, usegmt=True)))
        client.send(PING)
        stale = {"code": "AuthenticationFailed", "message": "Unauthorized: Stale timestamp"}
        server.script.append(say(stale, 401, Date=formatdate(clock.now(), usegmt=True)))
        assert client.send(PING) == {}
        assert f'ts="{int(clock.now())}"' in server.received[-1].headers["Authorization"]


@contextmanager
def stalling_server() -> Generator[str]:
    """A server that sends only the beginning of a response until the test ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        over = threading.Event()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                over.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        thread.join()


class TestInjectedSessions:
    """The request is sent as it was signed, whatever the session would add."""

    async def test_raise_for_status_of_a_session_is_not_used(self, server: ScriptedServer) -> None:
        server.otherwise = say({"code": "ResourceNotFound", "message": "no such task"}, 404)
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            with pytest.raises(ResourceNotFound):
                await AsyncQueue(server.root_url, CREDENTIALS, session=session).send(PING)
        assert len(server.received) == 1

    async def test_netrc_does_not_replace_the_signature_of_an_injected_async_session(
        self, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_netrc(tmp_path, monkeypatch)
        async with aiohttp.ClientSession(trust_env=True) as session:
            await AsyncQueue(server.root_url, CREDENTIALS, session=session).send(PING)
        assert is_signed(server.received[0])

    def test_netrc_does_not_replace_the_signature(
        self, make_client: Any, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_netrc(tmp_path, monkeypatch)
        make_client().send(PING)
        assert is_signed(server.received[0])

    async def test_headers_of_an_async_session_do_not_break_the_signature(
        self, server: ScriptedServer
    ) -> None:
        async with aiohttp.ClientSession(headers=ODD_HEADERS) as session:
            await AsyncQueue(server.root_url, CREDENTIALS, session=session).send(PING)
        assert is_signed(server.received[0])

    def test_headers_of_a_session_do_not_break_the_signature(self, server: ScriptedServer) -> None:
        with requests.Session() as session:
            odd: Any = {**ODD_HEADERS, "User-Agent": None}  # None as requests documents it
            session.headers.update(odd)
            session.auth = ("user", "password")
            Queue(server.root_url, CREDENTIALS, session=session).send(PING)
        assert is_signed(server.received[0])
        assert "requests" not in server.received[0].headers.get("User-Agent", "")


ODD_HEADERS = {"content-type": "application/json", "authorization": "Bearer x"}


def is_signed(received: Received) -> bool:
    """Whether a request without a body has the client's signature, and no content type."""
    return received.headers["Authorization"].startswith("Hawk ") and "Content-Type" not in received.headers


def write_netrc(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = folder / "netrc"
    netrc.write_text("default login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))


class TestEnvironment:
    def test_a_proxy_may_be_named_without_its_scheme(
        self, make_client: Any, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", server.root_url.removeprefix("http://"))
        make_client("http://tc.example.test").send(PING)
        assert server.received[0].path.startswith("http://tc.example.test/")

    @pytest.mark.parametrize("variable", ["HTTP_PROXY", "all_proxy"])
    @pytest.mark.parametrize(
        "proxy",
        ["socks5://h:1", "socks5h://me:hidden@h:1", "ftp://h", "http://", "http://h:hidden", "http://[h"],
    )
    def test_a_proxy_that_cannot_be_used_is_named_when_the_client_is_made(
        self, make_client: Any, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str
    ) -> None:
        monkeypatch.setitem(sys.modules, "socks", None)  # PySocks is not installed
        monkeypatch.setattr(os, "environ", {variable: proxy})
        with pytest.raises(InvalidArgument) as refused:
            make_client("http://tc.example.test")
        assert refused.value.argument == variable.upper()
        assert proxy.replace("me:hidden@", "").replace("hidden", "…") in str(refused.value)

    @pytest.mark.parametrize("others", [{"HTTPS_PROXY": "socks5://h:1"},
                                        {"ALL_PROXY": "socks5://h:1", "NO_PROXY": "127.0.0.1"}])  # fmt: skip
    def test_a_proxy_for_others_is_not_looked_at(
        self, make_client: Any, monkeypatch: pytest.MonkeyPatch, others: dict[str, str]
    ) -> None:
        monkeypatch.setattr(os, "environ", others)
        assert make_client().send(PING) == {}

    def test_a_socks_proxy_may_be_used_where_requests_can(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pysocks = ModuleType("socks")
        pysocks.__spec__ = ModuleSpec("socks", None)
        monkeypatch.setitem(sys.modules, "socks", pysocks)
        monkeypatch.setenv("HTTPS_PROXY", "socks5h://h:1")
        assert Queue("https://tc.example.test").root_url == "https://tc.example.test"

    def test_the_ca_bundle_may_be_a_folder(
        self, make_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path))
        assert make_client("https://tc.example.test").queue.root_url == "https://tc.example.test"

    @pytest.mark.parametrize("kind", [Queue, AsyncQueue])
    def test_a_ca_bundle_that_is_missing_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Queue | AsyncQueue]
    ) -> None:
        missing = str(tmp_path / "missing")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", missing)
        with pytest.raises(InvalidArgument, match=missing):
            kind("https://tc.example.test")

    @pytest.mark.parametrize("source", ["session.verify", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
    def test_a_ca_bundle_of_a_session_that_is_missing_is_named_with_its_source(
        self, monkeypatch: pytest.MonkeyPatch, source: str
    ) -> None:
        session = requests.Session()
        monkeypatch.setattr(os, "environ", {} if source == "session.verify" else {source: "/missing"})
        session.verify = "/missing" if source == "session.verify" else True
        with pytest.raises(InvalidArgument) as refused:
            Queue("https://tc.example.test", session=session)
        assert str(refused.value) == (
            f"{source}: '/missing' is not valid; expected a file or folder of certificates"
        )


class TestOptions:
    def test_from_env_takes_every_option_of_the_constructor(self) -> None:
        constructor = inspect.signature(Queue).parameters
        named = {name for name, each in constructor.items() if each.kind is each.KEYWORD_ONLY}
        assert named == set(ClientOptions.__annotations__)

    def test_from_env_passes_its_options_on(self, make_client: Any, server: ScriptedServer) -> None:
        server.otherwise = Say(503)
        client = make_client()
        queue = client.queue.from_env(
            {"TASKCLUSTER_ROOT_URL": server.root_url},
            check_definitions=False,
            retry=RetryPolicy(attempts=2, wait_max=0),
        )
        with pytest.raises(ServerError) as caught:
            client.result(queue.create_task(TASK, {"no": "definition"}))
        client.result(queue.close())
        assert caught.value.attempts == len(server.received) == 2

    @pytest.mark.parametrize("kind", [Queue, AsyncQueue])
    def test_from_env_refuses_an_unknown_option(self, kind: type[Queue | AsyncQueue]) -> None:
        with pytest.raises(TypeError, match="unknown"):
            kind.from_env({"TASKCLUSTER_ROOT_URL": "http://tc.example.test"}, unknown=1)  # type: ignore[call-arg]


def error_of_a_large_task(wait: float, *, has_session: bool, is_new: bool, **timeouts: float) -> object:
    """Create a large task at a server that stops receiving it for `wait` seconds; return the error.

    The definition is larger than all buffers. The server's response is no status of a task: an error, too.
    """
    definition = task_definition(
        "p/w", {"x": "x" * 10**7}, name="large", owner="me@example.com", source="https://example.com"
    )
    retry = RetryPolicy(attempts=1, **timeouts)
    with RawServer() as server, requests.Session() as session, ThreadPoolExecutor(1) as threads:
        server.respond = lambda _: json_response({"alive": True, "uptime": 1})
        with Queue(server.url, CREDENTIALS, session=session if has_session else None, retry=retry) as queue:
            if not is_new:
                queue.ping()
            ended = threading.Event()
            server.while_receiving = lambda: ended.wait(wait)
            creating = threads.submit(queue.create_task, TASK, definition)
            creating.add_done_callback(lambda _: ended.set())
            return creating.exception(60)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("has_session", [False, True])
def test_a_large_body_may_take_longer_to_send_than_a_connection_to_open(
    *, has_session: bool, is_new: bool
) -> None:
    error = error_of_a_large_task(0.8, has_session=has_session, is_new=is_new, connect_timeout=0.5)
    assert isinstance(error, UnreadableResponse)  # the server has received the whole body


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("has_session", [False, True])
def test_a_large_body_is_given_up_when_the_server_receives_no_more(
    *, has_session: bool, is_new: bool
) -> None:
    error = error_of_a_large_task(30, has_session=has_session, is_new=is_new, read_timeout=0.5)
    assert isinstance(error, CallTimedOut)
