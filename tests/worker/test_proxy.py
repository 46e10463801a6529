"""The proxy that signs API calls for a task's commands."""

from __future__ import annotations

import errno
import gc
import gzip
import http.client
import json
import logging
import queue
import random
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
import psutil
import pytest
import requests
import taskcluster
from aiohttp import web

from taskqueue_client import Credentials, Queue, slugid
from taskqueue_client.errors import InsufficientScopes, InvalidArgument
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.claims.claimed_run import RECLAIM_BETWEEN
from taskqueue_client.worker.features import bounded_server
from taskqueue_client.worker.features import proxy as proxy_module
from taskqueue_client.worker.features.proxy import TaskProxy
from taskqueue_client.worker.outcomes import InternalError
from taskqueue_client.worker.run.lifecycle import TaskEnd
from taskqueue_client.worker.run.task_run import TaskRun
from tests.certificates import make_authority
from tests.servers import file_limit, get_when_descriptors_are_free_again
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.worker_world import Working, work, worker_for

MIB = 1024 * 1024


@pytest.fixture
def claim(world: World) -> TaskClaim:
    create_task = "queue:create-task:lowest:test-provisioner/test-worker"
    world.create(scopes=[create_task, "queue:create-task:project:none", "queue:scheduler-id:-"])
    claims = world.queue.claim_work(TASK_QUEUE_ID, worker_group="group", worker_id="worker").tasks
    return claims[0]


@contextmanager
def proxy_of(world: World, claim: TaskClaim, **options: Any) -> Generator[TaskProxy]:
    allowed = (*claim.task["scopes"], f"queue:create-artifact:{claim.status.task_id}/{claim.run_id}")
    proxy = TaskProxy(world.local.root_url, claim.credentials, allowed, world.local.clock.now, **options)
    with proxy:
        yield proxy


@pytest.fixture
def proxy(world: World, claim: TaskClaim) -> Iterator[TaskProxy]:
    with proxy_of(world, claim) as proxy:
        yield proxy


class Upstream:
    """A server that calls the test's function with the handler of each request."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def do_GET(self) -> None:
                upstream.requests.append((self.command, self.path, dict(self.headers)))
                answer(self)

            do_PUT = do_POST = do_HEAD = do_CONNECT = do_GET  # noqa: N815 - http.server's names

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def respond(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


@contextmanager
def scripted(upstream: Upstream) -> Generator[TaskProxy]:
    proxy = TaskProxy(upstream.url, Credentials("me", "secret-token"), ["a:b"], lambda: 1e9)
    with proxy:
        yield proxy


def test_the_official_client_creates_artifacts_and_tasks_with_nothing_but_the_url(
    claim: TaskClaim, proxy: TaskProxy
) -> None:
    queue = taskcluster.Queue({"rootUrl": proxy.url})
    task_id = claim.status.task_id
    made = queue.createArtifact(
        task_id,
        "0",
        "public/link",
        {
            "storageType": "link",
            "artifact": "public/x",
            "contentType": "text/plain",
            "expires": claim.task["expires"],
        },
    )
    assert made == {"storageType": "link"}
    definition: dict[str, Any] = {**claim.task, "scopes": [], "taskGroupId": slugid()}
    created = queue.createTask(slugid(), definition)
    assert created["status"]["state"] == "pending"


CALLS: dict[str, Callable[[Queue, str], object]] = {
    "reclaim": lambda queue, task_id: queue.reclaim_task(task_id, 0),
    "report-completed": lambda queue, task_id: queue.report_completed(task_id, 0),
    "report-failed": lambda queue, task_id: queue.report_failed(task_id, 0),
    "report-exception": lambda queue, task_id: queue.report_exception(task_id, 0, "worker-shutdown"),
    "claim-work": lambda queue, _: queue.claim_work(TASK_QUEUE_ID, worker_group="group", worker_id="worker"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_task_cannot_extend_resolve_or_claim_runs(name: str, claim: TaskClaim, proxy: TaskProxy) -> None:
    with Queue(proxy.url) as queue, pytest.raises(InsufficientScopes):
        CALLS[name](queue, claim.status.task_id)


def test_our_own_client_finds_the_proxy_in_the_environment(claim: TaskClaim, proxy: TaskProxy) -> None:
    with Queue.from_env({"TASKCLUSTER_PROXY_URL": proxy.url}) as queue:
        assert queue.status(claim.status.task_id).status.state == "running"


def test_a_path_without_the_prefix_is_not_found(proxy: TaskProxy) -> None:
    parts = urlsplit(proxy.url)
    response = requests.get(f"http://{parts.netloc}/api/queue/v1/ping", timeout=30)
    assert response.status_code == 404
    assert "TASKCLUSTER_PROXY_URL" in response.text
    assert len(parts.path) > 30


def test_on_request_the_url_has_no_path(world: World, claim: TaskClaim) -> None:
    with proxy_of(world, claim, plain=True) as proxy:
        assert urlsplit(proxy.url).path == ""
        assert requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).json()["alive"]
        rebound = {"Host": f"rebound.example:{urlsplit(proxy.url).port}"}
        assert requests.get(f"{proxy.url}/api/queue/v1/ping", headers=rebound, timeout=30).status_code == 421


@pytest.mark.parametrize("plain", [False, True])
def test_programs_in_containers_reach_it_at_the_address_of_their_bridge(
    world: World, claim: TaskClaim, *, plain: bool
) -> None:
    with proxy_of(world, claim, plain=plain, host="127.0.0.2") as proxy:
        parts = urlsplit(proxy.url)
        assert parts.hostname == "127.0.0.2"
        assert requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).json()["alive"]
        with pytest.raises(requests.ConnectionError):
            requests.get(f"http://127.0.0.1:{parts.port}{parts.path}/api/queue/v1/ping", timeout=30)


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "", "::1", "172.17.0.1:80", 5])
def test_a_host_that_is_not_an_ipv4_address_is_refused(world: World, claim: TaskClaim, host: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^host: .* expected an IPv4 address"):
        TaskProxy(world.local.root_url, claim.credentials, (), world.local.clock.now, host=host)


def test_an_address_of_another_machine_is_named_and_leaves_no_thread(world: World, claim: TaskClaim) -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        TaskProxy(world.local.root_url, claim.credentials, (), world.local.clock.now, host="192.0.2.1")
    assert "task proxy" not in {each.name for each in threading.enumerate()}


@pytest.mark.parametrize("path", ["/api/queue/v1/ping", "/queue/v1/ping"])
def test_new_and_old_paths_lead_to_the_deployment(proxy: TaskProxy, path: str) -> None:
    response = requests.get(proxy.url + path, timeout=30)
    assert response.json()["alive"] is True
    assert response.headers["X-Taskcluster-Endpoint"].endswith("/api/queue/v1/ping")


@pytest.mark.parametrize(
    "path",
    [
        *("/api/queue", "/queue", "/", "", "/not_a.host_name/path", "/-.-/"),
        *("/api/queue/v1?x=/y", "/api?x=/queue/v1/ping", "/queue?x=/v1/ping", "/queue/v1?x=/ping"),
    ],
)
def test_other_paths_are_not_found(proxy: TaskProxy, path: str) -> None:
    response = requests.get(proxy.url + path, timeout=30)
    assert response.status_code == 404
    assert "X-Taskcluster-Endpoint" not in response.headers


def test_a_host_name_leads_to_that_host_over_tls(proxy: TaskProxy, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        hellos: list[bytes] = []

        def serve() -> None:
            for _ in range(proxy_module.ATTEMPTS):
                connection, _ = listening.accept()
                with connection:
                    hellos.append(connection.recv(1))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        response = requests.get(f"{proxy.url}/127.0.0.1:{port}/a/path?q=%2F", timeout=60)
    assert response.status_code == 500
    assert response.headers["X-Taskcluster-Endpoint"] == f"https://127.0.0.1:{port}/a/path?q=%2F"
    assert response.text.startswith("Failed during proxy request:")
    assert hellos == [b"\x16"] * proxy_module.ATTEMPTS  # a TLS handshake, retried
    assert "q=" not in caplog.text


def test_a_name_with_many_addresses_that_do_not_respond_takes_few_file_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The addresses are tried one after the other, and the first attempts are still under way."""
    look_up, hosts = socket.getaddrinfo, [f"127.9.0.{number}" for number in range(1, 5)]

    def find(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        names = hosts if host == "many.example" else [host]
        return [each for name in names for each in look_up(name, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(proxy_module, "ATTEMPTS", 1)
    monkeypatch.setattr(proxy_module, "TIMEOUT", aiohttp.ClientTimeout(total=None, connect=2))
    monkeypatch.setattr(proxy_module, "_CONNECT", 2)
    with (
        ExitStack() as stack,
        TaskProxy("http://127.0.0.1:9", Credentials("me", "token"), [], lambda: 1e9) as url,
    ):
        port = stack.enter_context(socket.create_server((hosts[0], 0), backlog=0)).getsockname()[1]
        *_, last = [stack.enter_context(socket.create_server((host, port), backlog=0)) for host in hosts[1:]]
        for host in hosts[:-1]:
            stack.enter_context(socket.create_connection((host, port)))  # further ones get no response
        found = requests.get(f"{url}/many.example:{port}/", timeout=60)
        assert "could not connect to many.example" in found.text
        last.settimeout(0)
        with pytest.raises(BlockingIOError):
            last.accept()


def test_no_connection_to_another_host_stays_open_after_a_call(
    tmp_path: Path, proxy: TaskProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(tmp_path, "127.0.0.1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    clients: list[object] = []

    def note(handler: BaseHTTPRequestHandler) -> None:
        clients.append(handler.client_address)
        respond(handler, 200)

    with Upstream(note) as other, requests.Session() as session:
        other.server.socket = context.wrap_socket(other.server.socket, server_side=True)
        session.trust_env = False
        for _ in range(2):
            url = f"{proxy.url}/127.0.0.1:{other.server.server_address[1]}/x"
            assert session.get(url, timeout=30).status_code == 200
    assert len(set(clients)) == 2


def test_a_query_may_follow_a_host_name(proxy: TaskProxy) -> None:
    response = requests.get(f"{proxy.url}/127.0.0.1:1?x=a/b.c", timeout=60)
    assert response.headers["X-Taskcluster-Endpoint"] == "https://127.0.0.1:1/?x=a/b.c"


def test_path_and_query_pass_undecoded() -> None:
    with Upstream(lambda handler: respond(handler, 200)) as upstream, scripted(upstream) as proxy:
        connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=30)
        resource = "/api/queue/v1/a%2Fb%20c//%7e?x=%2B&y=a+b&z"
        connection.request("GET", urlsplit(proxy.url).path + resource)
        connection.getresponse().read()
        connection.close()
    assert [path for _, path, _ in upstream.requests] == [resource]


def test_a_wrong_authorization_is_replaced_and_other_headers_pass() -> None:
    with Upstream(lambda handler: respond(handler, 200, Thing="1")) as upstream, scripted(upstream) as proxy:
        given = {"Authorization": "Bearer x", "X-Mine": "y", "User-Agent": "me"}
        response = requests.get(f"{proxy.url}/api/queue/v1/ping", headers=given, timeout=30)
    ((_, _, headers),) = upstream.requests
    assert headers["Authorization"].startswith('Hawk mac="')
    assert headers["X-Mine"] == "y"
    assert headers["User-Agent"] == "me"
    assert headers["Host"] == urlsplit(upstream.url).netloc
    assert response.headers["Thing"] == "1"


@pytest.mark.parametrize("size", [1000, 2 * MIB], ids=["kept for a retry", "streamed"])
def test_a_compressed_body_passes_as_it_is(size: int) -> None:
    bodies: list[bytes] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        bodies.append(handler.rfile.read(int(handler.headers["Content-Length"])))
        respond(handler, 200)

    body = gzip.compress(random.Random(0).randbytes(size))
    with Upstream(answer) as upstream, scripted(upstream) as proxy:
        requests.post(
            f"{proxy.url}/api/queue/v1/x", data=body, headers={"Content-Encoding": "gzip"}, timeout=9
        )
    assert (bodies, upstream.requests[0][2]["Content-Encoding"]) == ([body], "gzip")


def test_headers_of_the_response_name_the_credentials(claim: TaskClaim, proxy: TaskProxy) -> None:
    headers = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).headers
    assert headers["X-Taskcluster-Proxy-Temp-ClientId"] == claim.credentials.client_id
    assert any(
        scope.startswith("queue:reclaim-task:")
        for scope in json.loads(headers["X-Taskcluster-Proxy-Temp-Scopes"])
    )
    allowed = json.loads(headers["X-Taskcluster-Authorized-Scopes"])
    assert allowed == [*claim.task["scopes"], f"queue:create-artifact:{claim.status.task_id}/0"]
    assert headers["X-Taskcluster-Proxy-Version"]
    assert headers["X-Taskcluster-Proxy-Revision"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/bewit", 500), ("GET", "/credentials", 405), ("PUT", "/credentials", 400), ("GET", "/x", 404)],
)
def test_responses_of_the_proxy_itself_name_the_credentials_too(method: str, path: str, status: int) -> None:
    with Upstream(lambda handler: respond(handler, 200)) as upstream, scripted(upstream) as proxy:
        response = requests.request(method, f"{proxy.url}{path}", timeout=30)
    assert (response.status_code, response.headers["X-Taskcluster-Proxy-Perm-ClientId"]) == (status, "me")


@pytest.mark.parametrize("size", [1, 2 * MIB], ids=["kept for a retry", "streamed"])
def test_a_body_without_a_content_type_counts_as_json(size: int) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        respond(handler, 200)

    with Upstream(answer) as upstream, scripted(upstream) as proxy:
        for headers in ({}, {"Content-Type": "text/plain"}):
            url = f"{proxy.url}/api/queue/v1/x"
            requests.post(url, data=bytes(size), headers=headers, timeout=30)
        requests.post(url, timeout=30)
    sent = [headers.get("Content-Type") for _, _, headers in upstream.requests]
    assert sent == ["application/json", "text/plain", None]


def test_permanent_credentials_are_named_as_such() -> None:
    with Upstream(lambda handler: respond(handler, 200)) as upstream, scripted(upstream) as proxy:
        headers = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).headers
    assert headers["X-Taskcluster-Proxy-Perm-ClientId"] == "me"
    assert "X-Taskcluster-Proxy-Temp-ClientId" not in headers


def test_headers_that_occur_twice_are_passed_back_twice() -> None:
    def twice(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(204)
        handler.send_header("Link", "<https://a.example/>")
        handler.send_header("Link", "<https://b.example/>")
        handler.end_headers()

    with Upstream(twice) as upstream, scripted(upstream) as proxy:
        response = requests.get(f"{proxy.url}/api/queue/v1/x", timeout=30)
    assert response.headers["Link"] == "<https://a.example/>, <https://b.example/>"


def test_headers_of_one_connection_do_not_pass() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        respond(handler, 200, Connection="keep-alive, X-Hop", X_Hop="1", Thing="1")

    given = {"Connection": "x-hop , X-Mine", "X-Hop": "1", "X-Mine": "2", "Proxy-Connection": "close"}
    with Upstream(answer) as upstream, scripted(upstream) as proxy:
        response = requests.get(f"{proxy.url}/api/queue/v1/x", headers=given, timeout=30)
    ((_, _, headers),) = upstream.requests
    assert not {"Connection", *given} & headers.keys()
    assert "X-Hop" not in response.headers
    assert response.headers["Thing"] == "1"


def test_redirects_are_passed_back() -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        respond(handler, 303, b"there", Location="https://elsewhere.example/x?sig=1")

    with Upstream(redirect) as upstream, scripted(upstream) as proxy:
        response = requests.get(f"{proxy.url}/api/queue/v1/x", allow_redirects=False, timeout=30)
    assert (response.status_code, response.text) == (303, "there")
    assert response.headers["Location"] == "https://elsewhere.example/x?sig=1"


def test_a_5xx_is_retried_with_a_fresh_signature_and_the_same_body() -> None:
    bodies: list[bytes] = []

    def fail_twice(handler: BaseHTTPRequestHandler) -> None:
        bodies.append(handler.rfile.read(int(handler.headers["Content-Length"])))
        respond(handler, 502 if len(bodies) < 3 else 200, b"done")

    with Upstream(fail_twice) as upstream, scripted(upstream) as proxy:
        response = requests.put(f"{proxy.url}/api/queue/v1/task/x", data=b"{}", timeout=60)
    assert (response.status_code, response.text) == (200, "done")
    assert bodies == [b"{}"] * 3
    assert len({headers["Authorization"] for _, _, headers in upstream.requests}) == 3


def test_a_retry_goes_over_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load balancer that was restarted closes each older connection at its next request."""
    monkeypatch.setattr(proxy_module, "BACKOFF", 0)
    together = threading.Barrier(proxy_module.ATTEMPTS)
    older: set[object] = set()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if len(older) == proxy_module.ATTEMPTS and handler.client_address in older:
            handler.close_connection = True
            return
        if len(older) < proxy_module.ATTEMPTS:
            older.add(handler.client_address)
            together.wait(WAIT)
        respond(handler, 200)

    with (
        Upstream(answer) as upstream,
        scripted(upstream) as proxy,
        ThreadPoolExecutor(proxy_module.ATTEMPTS) as threads,
    ):
        url = f"{proxy.url}/api/queue/v1/ping"
        before = [threads.submit(requests.get, url, timeout=WAIT) for _ in range(proxy_module.ATTEMPTS)]
        assert [each.result().status_code for each in before] == [200] * proxy_module.ATTEMPTS
        assert requests.get(url, timeout=WAIT).status_code == 200


def test_a_retry_after_a_5xx_needs_no_new_connection() -> None:
    """An overloaded deployment would otherwise have to accept several connections for each call."""
    connections: list[object] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        connections.append(handler.client_address)
        respond(handler, 503 if len(connections) < proxy_module.ATTEMPTS else 200)

    with Upstream(answer) as upstream, scripted(upstream) as proxy:
        assert requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=60).status_code == 200
    assert len(connections) == proxy_module.ATTEMPTS
    assert len(set(connections)) == 1


def test_the_last_5xx_is_passed_back() -> None:
    with Upstream(lambda handler: respond(handler, 503, b"busy")) as upstream, scripted(upstream) as proxy:
        response = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=60)
    assert (response.status_code, response.text) == (503, "busy")
    assert len(upstream.requests) == proxy_module.ATTEMPTS


@pytest.mark.parametrize(
    ("method", "path", "size", "signed", "status"),
    [
        ("GET", "ping", 0, 2, 200),
        ("PUT", "task/x", 2, 2, 200),
        ("POST", "task/x/rerun", 0, 2, 200),
        pytest.param("PUT", "task/x", 2 * MIB, 1, 401, id="a body that is streamed cannot be sent again"),
    ],
)
def test_a_call_that_is_refused_while_the_clock_is_wrong_is_signed_again_with_the_service_s_time(
    method: str, path: str, size: int, signed: int, status: int
) -> None:
    def check_timestamp(handler: BaseHTTPRequestHandler) -> None:
        bodies.append(handler.rfile.read(int(handler.headers.get("Content-Length", 0))))
        found = re.search(r'ts="(\d+)"', handler.headers["Authorization"])
        is_stale = found is None or abs(int(found[1]) - time.time()) > 900
        respond(handler, 401 if is_stale else 200, b"stale" if is_stale else b"done")

    bodies: list[bytes] = []
    with Upstream(check_timestamp) as upstream, scripted(upstream) as proxy:
        response = requests.request(method, f"{proxy.url}/api/queue/v1/{path}", data=bytes(size), timeout=60)
    assert (response.status_code, bodies) == (status, [bytes(size)] * signed)


@pytest.mark.parametrize("date", ["right", "", "missing"])
def test_a_call_that_is_refused_for_another_reason_is_not_signed_again(date: str) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response_only(401)
        if date != "missing":
            handler.send_header("Date", date and formatdate(1e9, usegmt=True))
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with Upstream(refuse) as upstream, scripted(upstream) as proxy:
        response = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=60)
    assert (response.status_code, len(upstream.requests)) == (401, 1)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "claim-work/a%2Fb"),
        ("POST", "claim-work/a/b"),
        ("POST", "task/x/rerun"),
        ("POST", "task/x/priority"),
        ("PUT", "provisioners/a/worker-types/b/workers/group/id"),
    ],
)
@pytest.mark.parametrize("is_response_lost", [False, True])
def test_a_call_that_the_clients_do_not_repeat_is_sent_once(
    method: str, path: str, *, is_response_lost: bool
) -> None:
    respond_badly = hang_up if is_response_lost else partial(respond, status=502)
    with Upstream(respond_badly) as upstream, scripted(upstream) as proxy:
        response = requests.request(method, f"{proxy.url}/api/queue/v1/{path}", timeout=60)
    assert response.status_code == (500 if is_response_lost else 502)
    assert len(upstream.requests) == 1


def test_a_change_of_a_group_s_priority_is_repeated_as_by_the_clients() -> None:
    with Upstream(partial(respond, status=502)) as upstream, scripted(upstream) as proxy:
        requests.post(f"{proxy.url}/api/queue/v1/task-group/x/priority", timeout=60)
    assert len(upstream.requests) == proxy_module.ATTEMPTS


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def test_more_scopes_than_a_signature_may_have_are_a_500_that_says_so() -> None:
    scopes = [f"project:demo:{number:0100}" for number in range(50)]
    with (
        Upstream(lambda handler: respond(handler, 200)) as upstream,
        TaskProxy(upstream.url, Credentials("me", "secret-token"), scopes, lambda: 1e9) as url,
    ):
        response = requests.get(f"{url}/api/queue/v1/ping", timeout=60)
    assert (response.status_code, upstream.requests) == (500, [])
    assert "expected a header of at most 4096 characters" in response.text
    assert "leave some scopes out" in response.text


def test_no_response_at_all_is_a_500_that_says_why() -> None:
    with Upstream(hang_up) as upstream, scripted(upstream) as proxy:
        response = requests.get(f"{proxy.url}/api/queue/v1/ping?bewit=hidden", timeout=60)
    assert response.status_code == 500
    assert response.text.startswith("Failed during proxy request: the connection was closed before")
    assert "hidden" not in response.text
    assert len(upstream.requests) == proxy_module.ATTEMPTS


@pytest.mark.parametrize("user", ["", "me:hid%20den@"])
def test_calls_over_http_go_through_the_http_proxy_of_the_environment_with_its_credentials(
    monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    with Upstream(lambda handler: respond(handler, 200, b"{}")) as http_proxy:
        monkeypatch.setenv("http_proxy", f"http://{user}{http_proxy.url.removeprefix('http://')}")
        with TaskProxy("http://tc.example.com", Credentials("me", "token"), [], lambda: 1e9) as url:
            direct = {"http": "", "no": "*"}
            headers = {"Proxy-Authorization": "Basic of the command"}
            found = requests.get(f"{url}/api/queue/v1/ping", timeout=60, proxies=direct, headers=headers)
    assert found.text == "{}"
    ((_, target, sent),) = http_proxy.requests
    assert target == "http://tc.example.com/api/queue/v1/ping"
    assert sent.get("Proxy-Authorization") == ("Basic bWU6aGlkIGRlbg==" if user else None)
    assert "Proxy-Authorization" not in found.headers


def test_an_http_proxy_that_does_not_respond_is_waited_for_as_long_as_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = proxy_module.TIMEOUT
    impatient = aiohttp.ClientTimeout(connect=limits.connect and 0.05, sock_connect=limits.sock_connect)
    monkeypatch.setattr(proxy_module, "TIMEOUT", impatient)
    monkeypatch.setattr(proxy_module, "ATTEMPTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with TaskProxy("https://tc.example.com", Credentials("me", "token"), [], lambda: 1e9) as url:
            found = requests.get(f"{url}/api/queue/v1/ping", timeout=60)
    assert found.status_code == 500
    assert "could not connect to tc.example.com:443 in time through the proxy http://127.0.0.1:" in found.text


@pytest.mark.parametrize("is_proxied", [False, True], ids=["nobody listens", "the HTTP proxy refuses"])
def test_the_reason_why_there_is_no_response_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_proxied: bool
) -> None:
    monkeypatch.setattr(proxy_module, "ATTEMPTS", 1)
    with Upstream(lambda handler: respond(handler, 407)) as http_proxy:
        if is_proxied:
            root_url = "https://tc.example.com"
            cause = f"the proxy {http_proxy.url} refuses the user and password in HTTPS_PROXY: correct them"
            monkeypatch.setenv("https_proxy", http_proxy.url.replace("://", "://me:hidden@"))
        else:
            root_url = "http://127.0.0.1:9"
            cause = "the connection to 127.0.0.1:9 failed: Connection refused"
        with TaskProxy(root_url, Credentials("me", "token"), [], lambda: 1e9) as url:
            found = requests.get(f"{url}/api/queue/v1/ping?bewit=hidden", timeout=60)
    assert found.text == f"Failed during proxy request: {cause}: {root_url}/api/queue/v1/ping\n"
    assert f"failed: {cause}" in caplog.text
    assert "hidden" not in found.text + caplog.text


def test_a_url_to_which_no_call_can_be_sent_is_told_without_its_query(
    proxy: TaskProxy, caplog: pytest.LogCaptureFixture
) -> None:
    found = requests.get(f"{proxy.url}/tc.example.com:99999/x?bewit=hidden", timeout=60)
    cause = "the URL or a header of the request is not valid: https://tc.example.com:99999/x"
    assert (found.status_code, found.text) == (500, f"Failed during proxy request: {cause}\n")
    assert "hidden" not in caplog.text


def test_an_http_proxy_that_wants_a_user_and_password_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Upstream(lambda handler: respond(handler, 407)) as http_proxy:
        monkeypatch.setenv("https_proxy", http_proxy.url)
        with TaskProxy("https://tc.example.com", Credentials("me", "token"), [], lambda: 1e9) as url:
            found = requests.get(f"{url}/api/queue/v1/ping", timeout=60)
    assert (found.status_code, len(http_proxy.requests)) == (500, 1)


def test_a_deployment_that_does_not_take_the_body_of_a_call_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy_module, "SENT_WITHIN", 0.2, raising=False)
    monkeypatch.setattr(proxy_module, "ATTEMPTS", 2)
    body = bytes(proxy_module.RETRIED_BODY - 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # accepted connections inherit this
        root_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with TaskProxy(root_url, Credentials("me", "token"), [], lambda: 1e9) as url:
            found = requests.put(f"{url}/api/queue/v1/task/x", body, timeout=60)
    assert found.status_code == 500
    assert "the response was not complete in time" in found.text


def test_calls_of_more_connections_than_a_proxy_has_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a build tool that starts all its downloads at once."""
    monkeypatch.setattr(bounded_server, "MOST_CONNECTIONS", 5)
    came: queue.SimpleQueue[None] = queue.SimpleQueue()
    go_on = threading.Event()

    def download(handler: BaseHTTPRequestHandler) -> None:
        came.put(None)
        go_on.wait(WAIT)
        respond(handler, 200, b"all")

    with (
        Upstream(download) as upstream,
        scripted(upstream) as proxy,
        ExitStack() as stack,
        ThreadPoolExecutor(20) as threads,
    ):
        sessions = [stack.enter_context(requests.Session()) for _ in range(20)]  # each keeps its connection
        url = f"{proxy.url}/api/queue/v1/ping"
        calls = [threads.submit(each.get, url, timeout=60) for each in sessions]
        for _ in range(5):
            came.get(timeout=WAIT)
        assert came.empty()
        go_on.set()
        assert [each.result().content for each in calls] == [b"all"] * 20


def test_clients_that_disconnect_while_a_proxy_is_closed_are_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As at the end of a command that has made calls on many threads."""
    came, go_on = queue.SimpleQueue[None](), threading.Event()

    def hold(_: BaseHTTPRequestHandler) -> None:
        came.put(None)
        go_on.wait(WAIT)

    with Upstream(hold) as upstream, ExitStack() as stack:
        stack.callback(go_on.set)
        for _ in range(5):
            clients = ExitStack()
            with scripted(upstream) as proxy:
                parts = urlsplit(proxy.url)
                call = f"GET {parts.path}/api/queue/v1/ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                for _ in range(60):
                    client = socket.create_connection((str(parts.hostname), parts.port or 0), WAIT)
                    clients.enter_context(client).sendall(call)
                for _ in range(60):
                    came.get(timeout=WAIT)
                disconnecting = threading.Thread(target=clients.close)
                disconnecting.start()
            disconnecting.join()
    assert "Unhandled exception" not in caplog.text


def test_a_full_proxy_closes_connections_that_only_wait_for_a_further_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, a client with a pool of idle connections would exclude others until these time out."""
    monkeypatch.setattr(bounded_server, "SILENCE", 0.01)

    def ping(handler: BaseHTTPRequestHandler) -> None:
        respond(handler, 200, b"all")

    with Upstream(ping) as upstream, scripted(upstream) as proxy, ExitStack() as stack:
        url = f"{proxy.url}/api/queue/v1/ping"
        for _ in range(5):
            session = stack.enter_context(requests.Session())
            assert session.get(url, timeout=60).content == b"all"
        monkeypatch.setattr(bounded_server, "MOST_CONNECTIONS", 5)
        assert requests.get(url, timeout=60).content == b"all"


def test_a_full_proxy_responds_to_a_call_that_comes_together_with_a_further_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It must not forward the call, and then close the connection to make room."""
    monkeypatch.setattr(bounded_server, "SILENCE", 0.0)
    goes_on = threading.Event()
    with Upstream(partial(respond, status=200, body=b"all")) as upstream, scripted(upstream) as proxy:
        address = ("127.0.0.1", urlsplit(proxy.url).port or 0)
        call = f"GET {urlsplit(proxy.url).path}/api/queue/v1/ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        with socket.create_connection(address, WAIT) as idle:
            idle.sendall(call.encode())
            assert idle.recv(10_000).endswith(b"all")
            monkeypatch.setattr(bounded_server, "MOST_CONNECTIONS", 1)
            proxy._thread.call(goes_on.wait, WAIT)  # pyright: ignore[reportPrivateUsage]
            idle.sendall(call.encode())
            with socket.create_connection(address, WAIT):
                goes_on.set()
                assert idle.recv(10_000).endswith(b"all")


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"x" * 10)
    handler.connection.shutdown(socket.SHUT_RDWR)


def test_of_the_calls_that_fail_only_the_first_of_each_kind_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A task could fill the worker's log: the URL of a call may have 8 kB."""
    with Upstream(cut) as upstream, scripted(upstream) as proxy:
        for number in range(5):
            requests.get(f"{proxy.url}/tc.example.com:99999/{number}", timeout=60)
            with pytest.raises(requests.ConnectionError):
                requests.get(f"{proxy.url}/api/queue/v1/{number}", timeout=60)
    why = "the URL or a header of the request is not valid"
    assert caplog.messages == [
        f"proxy of a run: GET https://tc.example.com:99999/0 failed: {why}",
        f"proxy of a run: the response to GET {upstream.url}/api/queue/v1/0 was cut short",
        "proxy of a run: further calls that failed or were cut: 8",
    ]


def test_a_response_that_is_cut_does_not_look_whole() -> None:
    with (
        Upstream(cut) as upstream,
        scripted(upstream) as proxy,
        pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
    ):
        _ = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=60).content


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"200 OK\r\nX-Odd: a\x01b", "a header of the response contains a control character: "),
        (b"200 O\x7fK", "a header of the response contains a control character: "),
        (
            b"101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c",
            "the response switches to another protocol: ",
        ),
        (b"200 OK\r\nno colon", "the response is not HTTP"),
    ],
)
def test_a_call_whose_response_cannot_be_passed_back_is_not_repeated_and_a_500_says_why(
    head: bytes, reason: str
) -> None:
    calls: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        calls.append(handler.path)
        handler.wfile.write(b"HTTP/1.1 " + head + b"\r\nContent-Length: 2\r\n\r\n{}")

    with Upstream(answer) as upstream, scripted(upstream) as proxy:
        found = requests.post(f"{proxy.url}/api/notify/v1/email", timeout=60)
    assert found.status_code == 500
    assert found.text.startswith(f"Failed during proxy request: {reason}")
    assert calls == ["/api/notify/v1/email"]


def test_bewit_signs_a_url_that_works_without_credentials(claim: TaskClaim, proxy: TaskProxy) -> None:
    root = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).headers["X-Taskcluster-Endpoint"]
    url = root.replace("/ping", f"/task/{claim.status.task_id}/status")
    response = requests.post(f"{proxy.url}/bewit", data=url, allow_redirects=False, timeout=30)
    assert response.status_code == 303
    assert response.text == response.headers["Location"]
    assert "bewit=" in response.text
    assert requests.get(response.text, timeout=30).json()["status"]["state"] == "running"


@pytest.mark.parametrize("end", ["?", "#part", "?#part", "?limit=1#part"])
def test_bewit_signs_the_part_of_a_url_that_is_sent(claim: TaskClaim, proxy: TaskProxy, end: str) -> None:
    root = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).headers["X-Taskcluster-Endpoint"]
    url = root.replace("/ping", f"/task/{claim.status.task_id}/dependents{end}")
    response = requests.post(f"{proxy.url}/bewit", data=url, allow_redirects=False, timeout=30)
    assert requests.get(response.text, timeout=30).status_code == 200
    assert urlsplit(response.text).fragment == urlsplit(url).fragment


def test_bewit_signs_a_url_without_a_path(proxy: TaskProxy) -> None:
    response = requests.post(f"{proxy.url}/bewit", data="http://host", allow_redirects=False, timeout=30)
    assert response.text.startswith("http://host/?bewit=")


@pytest.mark.parametrize(
    "url",
    ["", "not a url", "ftp://host/x", "https://", "http://[::1/", "http://host/\r\nX: y", b"http://\xff/"],
)
def test_bewit_refuses_what_is_not_a_url(proxy: TaskProxy, url: str | bytes) -> None:
    response = requests.post(f"{proxy.url}/bewit", data=url, allow_redirects=False, timeout=30)
    assert response.status_code == 500
    assert "bewit" in response.text


def test_credentials_can_be_replaced_and_stay_restricted() -> None:
    with Upstream(lambda handler: respond(handler, 200)) as upstream, scripted(upstream) as proxy:
        new = {"clientId": "other", "accessToken": "other-token", "certificate": ""}
        assert requests.put(f"{proxy.url}/credentials", json=new, timeout=30).status_code == 200
        headers = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).headers
        assert requests.post(f"{proxy.url}/credentials", json=new, timeout=30).status_code == 405
        assert requests.put(f"{proxy.url}/credentials", data="{", timeout=30).status_code == 400
        assert requests.put(f"{proxy.url}/credentials", json={"clientId": ""}, timeout=30).status_code == 400
    assert headers["X-Taskcluster-Proxy-Perm-ClientId"] == "other"
    assert json.loads(headers["X-Taskcluster-Authorized-Scopes"]) == ["a:b"]
    assert 'id="other"' in upstream.requests[0][2]["Authorization"]


def test_deeply_nested_credentials_are_refused_without_an_error_in_the_worker_s_log(
    proxy: TaskProxy, caplog: pytest.LogCaptureFixture
) -> None:
    body = '{"x":' + "[" * 100_000
    assert requests.put(f"{proxy.url}/credentials", data=body, timeout=30).status_code == 400
    assert caplog.text == ""


def test_responses_pass_with_a_certificate_whose_scopes_have_a_control_character(
    caplog: pytest.LogCaptureFixture,
) -> None:
    new = {"clientId": "me", "accessToken": "token", "certificate": '{"scopes":["a\\u007f"]}'}
    with Upstream(lambda handler: respond(handler, 200)) as upstream, scripted(upstream) as proxy:
        assert requests.put(f"{proxy.url}/credentials", json=new, timeout=30).status_code == 200
        headers = requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=30).headers
    assert headers["X-Taskcluster-Proxy-Temp-Scopes"] == r'["a\u007f"]'
    assert caplog.text == ""


def test_credentials_are_swapped_in_the_middle_of_an_upload() -> None:
    received = threading.Event()
    swapped = threading.Event()

    def read_slowly(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(1)
        received.set()
        assert swapped.wait(30)
        handler.rfile.read(int(handler.headers["Content-Length"]) - 1)
        respond(handler, 200)

    with Upstream(read_slowly) as upstream, scripted(upstream) as proxy:

        def swap() -> None:
            assert received.wait(30)
            proxy.use_credentials(Credentials("later", "token"))
            swapped.set()

        swapping = threading.Thread(target=swap)
        swapping.start()
        first = requests.put(f"{proxy.url}/api/queue/v1/x", data=b"x" * 4 * MIB, timeout=60)
        swapping.join()
        received.set()
        second = requests.put(f"{proxy.url}/api/queue/v1/x", data=b"x", timeout=60)
    assert first.status_code == second.status_code == 200
    assert ['id="me"' in headers["Authorization"] for _, _, headers in upstream.requests] == [True, False]


@pytest.mark.parametrize("sized", [True, False])
def test_a_gigabyte_passes_both_ways_in_little_memory(*, sized: bool) -> None:
    size, block = 1024 * MIB, b"\0" * MIB
    counted: list[int] = []

    def echo(handler: BaseHTTPRequestHandler) -> None:
        counted.append(_body_length(handler))
        handler.send_response(200)
        handler.send_header("Content-Length", str(size))
        handler.end_headers()
        for _ in range(size // MIB):
            handler.wfile.write(block)

    def blocks() -> Iterator[bytes]:
        for _ in range(size // MIB):
            yield block

    with Upstream(echo) as upstream, scripted(upstream) as proxy:
        before = psutil.Process().memory_info().rss
        headers = {"Content-Length": str(size)} if sized else {}
        url = urlsplit(proxy.url)
        connection = http.client.HTTPConnection(url.netloc, timeout=120)
        connection.request("PUT", f"{url.path}/api/queue/v1/x", blocks(), headers, encode_chunked=not sized)
        response = connection.getresponse()
        received, most = 0, 0
        while data := response.read(MIB):
            received += len(data)
            most = max(most, psutil.Process().memory_info().rss - before)
        connection.close()
    assert counted == [size]
    assert received == size
    assert most < 64 * MIB


def _body_length(handler: BaseHTTPRequestHandler) -> int:
    if length := handler.headers.get("Content-Length"):
        left = total = int(length)
        while left:
            left -= len(handler.rfile.read(min(left, MIB)))
        return total
    total = 0
    while size := int(handler.rfile.readline(), 16):
        handler.rfile.read(size + 2)
        total += size
    handler.rfile.readline()
    return total


def test_expect_continue_gets_a_response() -> None:
    def accept(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        respond(handler, 200)

    with Upstream(accept) as upstream, scripted(upstream) as proxy:
        url = urlsplit(proxy.url)
        with socket.create_connection((url.hostname or "", url.port or 0), timeout=30) as connection:
            head = f"PUT {url.path}/api/queue/v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
            connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
            connection.sendall(b"{}")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_after_its_end_connections_are_refused_and_open_ones_closed(proxy: TaskProxy) -> None:
    url = urlsplit(proxy.url)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=30) as open_one:
        proxy.close()
        assert open_one.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.hostname or "", url.port or 0), timeout=30)


def test_closing_does_not_wait_for_a_call_under_way() -> None:
    arrived, over = threading.Event(), threading.Event()

    def hang(_handler: BaseHTTPRequestHandler) -> None:
        arrived.set()
        over.wait(30)

    with Upstream(hang) as upstream, scripted(upstream) as proxy:
        failures: list[BaseException] = []

        def call() -> None:
            try:
                requests.get(f"{proxy.url}/api/queue/v1/ping", timeout=60)
            except requests.ConnectionError as error:
                failures.append(error)

        calling = threading.Thread(target=call)
        calling.start()
        assert arrived.wait(30)
        proxy.close()
        calling.join(30)
        over.set()
    assert len(failures) == 1


def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        Upstream(lambda handler: respond(handler, 502)) as upstream,
        scripted(upstream) as proxy,
    ):
        requests.get(f"{proxy.url}/api/queue/v1/ping?bewit=signature", timeout=60)
        prefix = proxy.path
    ours = [each.getMessage() for each in caplog.records if not each.name.startswith("urllib3")]
    assert not any(secret in line for line in ours for secret in ("secret-token", "signature", prefix))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "Connection reset by peer"),  # raised by writing if the server disconnects
        ConnectionResetError("Cannot write to closing transport"),
        web.RequestPayloadError("the body is incomplete"),  # raised by reading if the command ends
    ],
)
def test_a_long_body_that_is_not_taken_shows_no_signature(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def broken(beginning: bytes, _: object) -> AsyncIterator[bytes]:
        yield beginning
        raise error

    def swallow(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read()

    monkeypatch.setattr(proxy_module, "_whole_body", broken)
    body = bytes(proxy_module.RETRIED_BODY + 1)
    with Upstream(swallow) as upstream, scripted(upstream) as proxy:
        found = requests.put(f"{proxy.url}/api/queue/v1/x?bewit=hidden", body, timeout=60)
    assert f" failed: {error.args[-1]}: " in found.text
    ours = [each.getMessage() for each in caplog.records if not each.name.startswith("urllib3")]
    assert not any("hidden" in text for text in (found.text, *ours))


COMMAND = """
import os, taskcluster
queue = taskcluster.Queue({"rootUrl": os.environ["TASKCLUSTER_PROXY_URL"]})
print("state", queue.status(os.environ["TASK_ID"])["status"]["state"])
print("proxy", os.environ["TASKCLUSTER_PROXY_URL"])
assert not any(name.startswith("TASKCLUSTER_ACCESS") for name in os.environ)
"""


@pytest.mark.parametrize("is_async", [False, True])
def test_a_command_calls_the_deployment_without_credentials(world: World, *, is_async: bool) -> None:
    urls: list[str] = []

    def handle(task: TaskRun) -> None:
        task.run_command([sys.executable, "-c", COMMAND], proxy=True)
        with task.proxy() as url:
            urls.append(url)

    async def handle_async(task: TaskRun) -> None:
        await task.run_command_async([sys.executable, "-c", COMMAND], proxy=True)
        with task.proxy(plain=True, host="127.0.0.2") as url:
            urls.append(url)

    task_id = world.create()
    if is_async:
        work(world, awaited=handle_async)
    else:
        work(world, handle)
    log = world.queue.download_artifact(task_id, "public/logs/live_backing.log").content.decode()
    assert world.run(task_id).state == "completed", log
    assert "state running" in log
    assert re.search(r"proxy http://127.0.0.1:\d+/\[masked\]", log)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{urls[0]}/api/queue/v1/ping", timeout=30)


def test_the_proxy_s_path_is_masked_without_its_slash_too(world: World) -> None:
    task_id = world.create()
    work(
        world, lambda task: task.run_command("echo url=${TASKCLUSTER_PROXY_URL##*/}", shell=True, proxy=True)
    )
    log = world.queue.download_artifact(task_id, "public/logs/live_backing.log").content.decode()
    assert " url=[masked]\n" in log


ROOT = Path(__file__).parents[2]
INNER_WORKER = """
from taskqueue_client import WorkerLoop

class Inner(WorkerLoop):
    def run_task(self, task):
        print("the inner worker has claimed a run")

Inner(task_queue_id="proj/inner", worker_group="g", worker_id="w", max_tasks=1).run()
"""


def test_a_worker_behind_a_proxy_claims_no_run_that_it_could_not_report(world: World) -> None:
    world.create(scopes=["queue:claim-work:proj/inner", "queue:worker-id:g/w"])
    inner = world.create(taskQueueId="proj/inner")
    errors: list[str] = []

    def handle(task: TaskRun) -> None:
        command, env = [sys.executable, "-c", INNER_WORKER], {"PYTHONPATH": str(ROOT)}
        result = task.run_command(command, proxy=True, env=env, check=False, capture="stderr", timeout=60)
        errors.append(str(result.stderr))

    work(world, handle)
    assert world.run(inner).state == "pending"
    assert "InvalidArgument: TASKCLUSTER_PROXY_URL: a worker cannot use this proxy" in errors[0]


def test_a_command_on_a_machine_with_an_http_proxy_reaches_the_proxy_of_its_run(world: World) -> None:
    def handle(task: TaskRun) -> None:
        nowhere = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        task.run_command([sys.executable, "-c", COMMAND], proxy=True, env=nowhere)

    task_id = world.create()
    work(world, handle)
    assert world.run(task_id).state == "completed"


def test_a_proxy_signs_with_the_credentials_of_the_last_reclaim_and_ends_with_the_run(world: World) -> None:
    urls: list[str] = []

    def signs_with() -> str:
        headers = requests.get(f"{urls[0]}/api/queue/v1/ping", timeout=30).headers
        return headers["X-Taskcluster-Proxy-Temp-ClientId"]

    def handle(task: TaskRun) -> None:
        urls.append(task.proxy().__enter__())
        first = signs_with()
        world.local.clock.advance(1200 * max(RECLAIM_BETWEEN))
        until(lambda: signs_with() != first)

    task_id = world.create()
    worker = worker_for(world, handle, max_tasks=1)
    worker.clock = world.local.clock
    with Working(world, worker) as working:
        working.wait_for_end()
    assert world.run(task_id).state == "completed"
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{urls[0]}/api/queue/v1/ping", timeout=30)


@pytest.mark.parametrize("of_commands", [False, True])
def test_a_proxy_is_closed_before_the_run_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch, *, of_commands: bool
) -> None:
    urls: list[str] = []

    def handle(task: TaskRun) -> None:
        if of_commands:
            shown = task.run_command(["printenv", "TASKCLUSTER_PROXY_URL"], proxy=True, capture=True).stdout
        else:
            shown = task.proxy().__enter__()
        urls.append(f"{(shown or '').strip()}/api/queue/v1/ping")
        requests.get(urls[0], timeout=30).raise_for_status()

    def ping(_: TaskEnd) -> None:
        with pytest.raises(requests.ConnectionError):
            requests.get(urls[0], timeout=30)
        urls.append("refused")

    task_id = world.create()
    worker = worker_for(world, handle, max_tasks=1)
    monkeypatch.setattr(worker, "on_task_end", ping)
    with Working(world, worker) as working:
        working.wait_for_end()
    assert world.run(task_id).state == "completed"
    assert urls[1:] == ["refused"]


def test_a_run_does_not_grow_with_the_number_of_proxies_that_its_handler_has_closed(world: World) -> None:
    world.create()
    alive: list[int] = []

    def handler(task: TaskRun) -> None:
        proxies: WeakSet[object] = WeakSet()

        def use_one() -> None:
            proxies.add(proxy := task.proxy())
            with proxy:
                pass

        for _ in range(5):
            use_one()
        gc.collect()
        alive.append(len(proxies))

    work(world, handler, max_tasks=1)
    assert alive == [1]  # the last proxy, until the run ends or starts another one


def test_a_thread_that_outlives_the_run_starts_no_proxy(world: World) -> None:
    runs: list[TaskRun] = []
    world.create()
    work(world, runs.append)
    with pytest.raises(InternalError, match="has ended"):
        runs[0].proxy()
    with pytest.raises(InternalError, match="has ended"):
        runs[0].run_command(["true"], proxy=True)
    assert "task proxy" not in {each.name for each in threading.enumerate()}


FEW_DESCRIPTORS = """
import resource, time
from pathlib import Path
from taskqueue_client import Credentials
from taskqueue_client.worker.features.proxy import TaskProxy

def start_and_close():
    TaskProxy("http://localhost:1", Credentials("test", "token"), (), time.time).close()

def count():
    return len(list(Path("/proc/self/fd").iterdir()))

start_and_close()
before, open_now = resource.getrlimit(resource.RLIMIT_NOFILE), count()
for limit in range(3, open_now + 16):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        start_and_close()
        print("started")
    except OSError as error:
        print(error.strerror)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
print(count() - open_now)
"""


def test_without_an_address_a_proxy_is_an_error_and_leaves_nothing(
    world: World, claim: TaskClaim, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: object) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)
    with pytest.raises(OSError, match="Cannot assign"), proxy_of(world, claim):
        pass
    gc.collect()  # a ResourceWarning names what was left open
    assert caplog.text == ""


def test_without_free_descriptors_a_proxy_is_an_error_and_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS], capture_output=True, text=True, timeout=100, check=False
    )
    *results, left_open = done.stdout.splitlines()
    assert left_open == "0", done.stderr
    assert set(results) == {"Too many open files", "started"}
    assert results[-1] == "started"


def test_without_free_descriptors_a_proxy_logs_its_first_attempt_to_accept_a_connection(
    proxy: TaskProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bounded_server, "SILENCE", 0.0)

    def is_refused() -> bool:
        for _ in range(10):  # several attempts
            proxy._thread.turned().wait(WAIT)  # pyright: ignore[reportPrivateUsage]
        return bool(caplog.messages)

    found = get_when_descriptors_are_free_again(proxy.url, "/", is_refused)
    assert found.startswith(b"HTTP/1.1 404")
    server = f"the proxy of a run on 127.0.0.1:{urlsplit(proxy.url).port}"
    refused = f"{server} cannot accept a connection, retrying: "
    assert [each.partition("[")[0] for each in caplog.messages] == [refused]


@pytest.mark.parametrize(("runs", "connections"), [(1, 64), (20, 9)])
def test_the_proxies_of_all_runs_share_the_open_files_of_the_worker(
    world: World, caplog: pytest.LogCaptureFixture, runs: int, connections: int
) -> None:
    """Tasks could use them up, and then no run could be reclaimed, write its log or upload artifacts.

    No proxy has more than 64, because each takes memory, too.
    """

    def connect_often(task: TaskRun) -> None:
        with task.proxy() as url, ExitStack() as stack:
            address = ("127.0.0.1", urlsplit(url).port or 0)
            for _ in range(connections + 1):
                stack.enter_context(socket.create_connection(address, WAIT))
            until(lambda: f"has {connections} connections: further ones wait" in caplog.text)

    task_id = world.create()
    with file_limit(1024):
        work(world, connect_often, concurrency=runs)
    assert world.run(task_id).state == "completed"
