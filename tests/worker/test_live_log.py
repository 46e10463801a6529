"""The log of a run, streamed by its worker to readers over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from errno import EINVAL
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import requests
from aiohttp import web

from taskqueue_client import Credentials, Queue
from taskqueue_client.cli.log import FollowedLog
from taskqueue_client.clock import SystemClock
from taskqueue_client.errors import CallFailed, InvalidArgument
from taskqueue_client.local.faults import Delay, Respond
from taskqueue_client.models import StorageType
from taskqueue_client.worker.commands.task_log import Output, TaskLog
from taskqueue_client.worker.features import bounded_server, live_log
from taskqueue_client.worker.features.live_log import LiveLogs
from taskqueue_client.worker.features.proxy import TaskProxy
from taskqueue_client.worker.run.task_run import TaskRun
from tests.servers import file_limit
from tests.worker.queue_world import WAIT, World, until
from tests.worker.run_outcomes import reasons
from tests.worker.worker_world import Working, artifact_names, log_of, work, worker_for

LINK, BACKING = "public/logs/live.log", "public/logs/live_backing.log"
MIB = 1024 * 1024


@pytest.fixture
def live_logs() -> Iterator[LiveLogs]:
    server = LiveLogs("127.0.0.1", 0)
    yield server
    server.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TaskLog]:
    log = TaskLog(tmp_path / "task.log", SystemClock(), kept_in_memory=0)
    log.say("first")
    yield log
    log.remove()


@contextmanager
def stream(url: str, **headers: str) -> Generator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT)
    connection.request("GET", urlsplit(url).path, headers=headers)
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def unbuffered(
    server: bounded_server.BoundedServer, handler: web.RequestHandler, transport: asyncio.Transport
) -> None:
    """Accept a connection that buffers only few bytes for a reader that reads none."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    transport.set_write_buffer_limits(0)
    accept(server, handler, transport)


accept = bounded_server.BoundedServer.connection_made


class TestServer:
    def test_a_line_comes_to_its_readers_when_it_is_written(self, live_logs: LiveLogs, log: TaskLog) -> None:
        url = live_logs.add(log.path)
        with stream(url) as early, stream(url) as other:
            assert early.readline().endswith(b"INFO first\n")
            log.say("second")
            assert early.readline().endswith(b"INFO second\n")
            with stream(url) as late:
                lines = [late.readline(), late.readline()]
                assert [line.split()[2] for line in lines] == [b"first", b"second"]
            assert other.readline().endswith(b"INFO first\n")

    def test_a_line_that_has_not_ended_is_streamed_too(self, live_logs: LiveLogs, log: TaskLog) -> None:
        with stream(live_logs.add(log.path)) as reader, Output(log) as output:
            reader.readline()
            output.write(b"10%\r")
            assert reader.read1(1000).endswith(b" 10%\r")
            output.write(b"20%\r")
            assert reader.read1(1000) == b"20%\r"

    def test_a_reader_gets_all_of_the_log_at_the_end_of_its_run(
        self, live_logs: LiveLogs, log: TaskLog
    ) -> None:
        url = live_logs.add(log.path)
        with stream(url) as reader:
            log.say("last")
            live_logs.remove(url)
            log.remove()
            assert reader.read().endswith(b"INFO last\n")
        response = requests.get(url, timeout=WAIT)
        assert response.status_code == 404
        assert BACKING in response.text

    def test_pages_of_a_browser_may_show_the_log(self, live_logs: LiveLogs, log: TaskLog) -> None:
        with stream(live_logs.add(log.path), Origin="https://tc.example.com") as reader:
            assert reader.headers["Access-Control-Allow-Origin"] == "*"
            assert reader.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert reader.headers["X-Content-Type-Options"] == "nosniff"

    def test_the_response_to_head_has_the_headers_of_the_stream(
        self, live_logs: LiveLogs, log: TaskLog
    ) -> None:
        """So `wget --spider`, `curl --head` and other checks of links find the log, as with other workers."""
        url = live_logs.add(log.path)
        with requests.Session() as session:
            response = session.head(url, timeout=WAIT)
            assert (response.status_code, response.headers["X-Streaming"]) == (200, "true")
            assert "Content-Length" not in response.headers
            rest = session.get(url, headers={"Range": "bytes=0-"}, timeout=WAIT)
            assert rest.content == log.path.read_bytes()
            live_logs.remove(url)
            assert session.head(url, timeout=WAIT).status_code == 404

    def test_a_url_cannot_be_guessed_and_other_paths_are_not_found(
        self, live_logs: LiveLogs, log: TaskLog
    ) -> None:
        urls = {live_logs.add(log.path) for _ in range(3)}
        assert len(urls) == 3
        assert all(len(url.rpartition("/")[2]) == 32 for url in urls)
        for path in ("", "/", "/x", f"/{log.path}", "/../../etc/passwd"):
            assert requests.get(live_logs.url + path, timeout=WAIT).status_code == 404
        assert requests.post(urls.pop(), timeout=WAIT).status_code == 405

    def test_the_public_url_may_have_a_path(self, log: TaskLog) -> None:
        server = LiveLogs("127.0.0.1", 0, "https://logs.example.com/worker-7/")
        try:
            assert server.add(log.path).startswith("https://logs.example.com/worker-7/")
        finally:
            server.close()

    def test_the_rest_of_a_log_is_a_range_with_a_mark_of_its_size(
        self, live_logs: LiveLogs, log: TaskLog
    ) -> None:
        url, size = live_logs.add(log.path), log.size
        part = requests.get(url, headers={"Range": "bytes=5-"}, timeout=WAIT)
        assert (part.status_code, part.content) == (206, log.path.read_bytes()[5:])
        assert part.headers["Content-Range"] == f"bytes 5-{size - 1}/*"
        assert part.headers["ETag"] == f'"{size}"'
        assert "Preference-Applied" not in part.headers
        known = requests.get(url, headers={"Range": "bytes=5-", "If-None-Match": f'"{size}"'}, timeout=WAIT)
        assert known.status_code == 304
        beyond = requests.get(url, headers={"Range": f"bytes={size}-"}, timeout=WAIT)
        assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")

    def test_a_reader_may_wait_for_the_rest(self, live_logs: LiveLogs, log: TaskLog) -> None:
        url, size = live_logs.add(log.path), log.size
        headers = {"Range": f"bytes={size}-", "If-None-Match": f'"{size}"', "Prefer": "wait=20"}
        answers: SimpleQueue[requests.Response] = SimpleQueue()
        thread = threading.Thread(
            target=lambda: answers.put(requests.get(url, headers=headers, timeout=WAIT))
        )
        thread.start()
        until(lambda: live_logs.readers)
        log.say("second")
        answer = answers.get(timeout=WAIT)
        thread.join(WAIT)
        assert answer.status_code == 206
        assert answer.content.endswith(b"INFO second\n")
        assert answer.headers["Preference-Applied"] == "wait=20"
        waited_in_vain = {**headers, "If-None-Match": answer.headers["ETag"], "Prefer": "wait=0"}
        assert requests.get(url, headers=waited_in_vain, timeout=WAIT).status_code == 304

    def test_a_reader_that_accepts_nothing_delays_nobody_and_uses_no_memory(
        self, live_logs: LiveLogs, log: TaskLog
    ) -> None:
        url = live_logs.add(log.path)
        with stream(url) as slow, stream(url) as other:
            slow.readline()
            memory = psutil.Process().memory_info().rss
            with Output(log) as output:
                for _ in range(64):
                    output.write(b"x" * MIB)
                output.write(b"\nthe end\n")
            count = 0
            while block := other.read1(MIB):
                count += len(block)
                if block.endswith(b"the end\n"):
                    break
            assert count > 64 * MIB
            assert psutil.Process().memory_info().rss - memory < 16 * MIB

    def test_a_reader_that_takes_nothing_is_disconnected_in_the_end(
        self, live_logs: LiveLogs, log: TaskLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_log, "STALLED", 0.05)
        with Output(log) as output:
            for _ in range(32):
                output.write(b"x" * MIB)
        with stream(live_logs.add(log.path)) as slow:
            until(lambda: not live_logs.readers)
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                slow.read()  # must not look like the end of the log

    def test_a_reader_that_stops_before_the_last_bytes_of_an_ended_log_is_disconnected(
        self, live_logs: LiveLogs, log: TaskLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_log, "STALLED", 0.05)
        monkeypatch.setattr(bounded_server.BoundedServer, "connection_made", unbuffered)
        with Output(log) as output:
            output.write(b"x" * 60_000)  # aiohttp writes so much without waiting
        url = live_logs.add(log.path)
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            reader.connect(("127.0.0.1", urlsplit(url).port))
            reader.sendall(f"GET {urlsplit(url).path} HTTP/1.1\r\nHost: log\r\n\r\n".encode())
            reader.recv(1)
            live_logs.remove(url)
            until(lambda: not live_logs.readers)

    def test_a_reader_that_disconnects_is_forgotten(self, live_logs: LiveLogs, log: TaskLog) -> None:
        with stream(live_logs.add(log.path)) as reader:
            reader.readline()
            assert live_logs.readers == 1
        until(lambda: not live_logs.readers)

    def test_more_readers_than_the_worker_has_files_for_are_refused(
        self, live_logs: LiveLogs, log: TaskLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_log, "MOST_READERS", 1)
        url = live_logs.add(log.path)
        with stream(url) as reader:
            reader.readline()
            assert requests.get(url, timeout=WAIT).status_code == 503

    def test_readers_are_refused_before_the_runs_of_the_worker_lack_open_files(self, world: World) -> None:
        refusals: list[str] = []

        def read_often(task: TaskRun) -> None:
            task.log.info("here")
            until(lambda: LINK in artifact_names(world, task.task_id))
            url: Any = getattr(world.queue.artifact(task.task_id, 0, LINK), "url")  # noqa: B009 - of a link
            with ExitStack() as stack:
                for _ in range(11):
                    stack.enter_context(stream(url)).readline()
                refusals.append(requests.get(url, timeout=WAIT).text)

        world.create()
        with file_limit(1024):
            work(world, read_often, concurrency=70, live_log=True)
        assert refusals == ["Too many readers: at most 11 at a time\n"]

    def test_a_log_that_cannot_be_opened_is_unavailable(self, live_logs: LiveLogs, tmp_path: Path) -> None:
        assert requests.get(live_logs.add(tmp_path / "missing"), timeout=WAIT).status_code == 503

    def test_closing_gives_readers_the_rest_and_frees_the_port(self, log: TaskLog) -> None:
        server = LiveLogs("127.0.0.1", 0)
        with stream(server.add(log.path)) as reader:
            reader.readline()
            log.say("last")
            server.close()
            assert reader.read().endswith(b"INFO last\n")
        port = urlsplit(server.url).port
        assert port is not None
        LiveLogs("127.0.0.1", port).close()

    def test_closing_does_not_wait_for_readers_that_take_nothing(
        self, log: TaskLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_log, "CLOSING", 0.01)
        server = LiveLogs("127.0.0.1", 0)
        with Output(log) as output:
            for _ in range(32):
                output.write(b"x" * MIB)
        with stream(server.add(log.path)) as reader:
            reader.readline()
            server.close()
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                reader.read()

    def test_a_file_system_that_hangs_does_not_hold_the_end_of_a_worker(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(live_log, "TO_END", 0.1, raising=False)
        responds = threading.Event()

        def size(_: object) -> int:
            responds.wait()
            return 0

        monkeypatch.setattr(live_log, "_size", size)
        server = LiveLogs("127.0.0.1", 0)
        (tmp_path / "log").touch()
        address = urlsplit(server.add(tmp_path / "log"))
        with socket.create_connection((address.hostname, address.port or 0)) as reader:
            reader.sendall(f"GET {address.path} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-\r\n\r\n".encode())
            until(lambda: server.readers == 1)
            server.close()
            assert "the server of live logs has not stopped within" in caplog.text
            responds.set()
        until(lambda: "live logs" not in {each.name for each in threading.enumerate()})

    def test_a_fifo_in_the_place_of_a_log_delays_no_reader_of_another_one(
        self, live_logs: LiveLogs, log: TaskLog, tmp_path: Path
    ) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        url = live_logs.add(fifo)
        with stream(url) as waiting:
            with stream(live_logs.add(log.path)) as reader:
                assert reader.readline().endswith(b"INFO first\n")
            live_logs.remove(url)
            assert waiting.read() == b""

    def test_a_link_in_the_place_of_a_log_is_not_followed(
        self, live_logs: LiveLogs, log: TaskLog, tmp_path: Path
    ) -> None:
        link = tmp_path / "link"
        link.symlink_to(log.path)
        assert requests.get(live_logs.add(link), timeout=WAIT).status_code == 503

    def test_a_server_that_starts_no_thread_leaves_no_port_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            message = "can't start new thread"
            raise RuntimeError(message)

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread") as failed:
                LiveLogs("127.0.0.1", port)
        LiveLogs("127.0.0.1", port).close()
        del failed  # until here, its traceback keeps the server alive

    def test_a_port_that_is_taken_is_an_error_that_names_the_setting(self, live_logs: LiveLogs) -> None:
        port = urlsplit(live_logs.url).port
        assert port is not None
        with pytest.raises(InvalidArgument, match=r"live_log_port: cannot listen on 127\.0\.0\.1"):
            LiveLogs("127.0.0.1", port)

    def test_a_host_that_is_not_of_this_machine_is_an_error_that_names_the_setting(self) -> None:
        with pytest.raises(InvalidArgument, match="live_log_host: cannot listen on"):
            LiveLogs("192.0.2.1", 0)


@contextmanager
def streaming(world: World, handler: Callable[[TaskRun], Any], **settings: Any) -> Generator[Working]:
    settings = {"max_tasks": 1, "live_log": True, **settings}
    with Working(world, worker_for(world, handler, **settings)) as working:
        yield working


def link_of(world: World, task_id: str) -> tuple[StorageType | str, str | None] | None:
    """Return the storage type and the URL of the artifact to which the link leads; None without a link."""
    try:
        found = world.queue.artifact(task_id, 0, LINK)
    except CallFailed:
        return None
    return found.storage_type, found.url


def live_url(world: World, task_id: str) -> str:
    """Wait until the link exists; return the URL at which the worker streams the log."""
    until(lambda: link_of(world, task_id) is not None)
    kind, url = link_of(world, task_id) or (None, None)
    assert kind == StorageType.REFERENCE
    assert url is not None
    return url


class Ready:
    """A handler that logs a text, and waits until it may end."""

    def __init__(self, text: str = "begun") -> None:
        self._text = text
        self.may_end = threading.Event()

    def __call__(self, task: TaskRun) -> None:
        task.register_secret("hunter2hunter2")
        task.log.info("%s", self._text)
        assert self.may_end.wait(WAIT)
        task.log.info("ended")


class TestRuns:
    @pytest.mark.parametrize("interval", [0, 0.02])
    def test_the_link_leads_to_the_stream_while_the_run_goes_on_and_to_the_uploaded_log_after_it(
        self, world: World, interval: float
    ) -> None:
        task_id, handler = world.create(), Ready()
        with streaming(world, handler, log_checkpoint_interval=interval) as working:
            url = live_url(world, task_id)
            with stream(url) as reader:
                assert b"INFO run 0 of task" in reader.readline()
                assert reader.readline().endswith(b"INFO begun\n")
                if interval:  # the uploads of checkpoints must not change the link
                    until(lambda: requests.get(backing_url(world, task_id), timeout=WAIT).ok)
                    assert live_url(world, task_id) == url
                handler.may_end.set()
                text = reader.read()
            working.wait_for_end()
        assert text.endswith(b"INFO the handler succeeded\n")
        kind, uploaded = link_of(world, task_id) or ("", "")
        assert kind == StorageType.S3
        assert "the handler succeeded" in requests.get(str(uploaded), timeout=WAIT).text

    def test_secrets_are_masked_in_the_stream(self, world: World) -> None:
        task_id, handler = world.create(), Ready("it is hunter2hunter2")
        with streaming(world, handler) as working:
            with stream(live_url(world, task_id)) as reader:
                reader.readline()
                assert reader.readline().endswith(b"INFO it is [masked]\n")
            handler.may_end.set()
            working.wait_for_end()

    def test_a_follower_prints_each_line_once_from_the_pending_task_to_its_end(self, world: World) -> None:
        task_id = world.create()
        printed: SimpleQueue[bytes] = SimpleQueue()
        told: list[str] = []
        with Queue(world.local.root_url, world.local.credentials) as queue:
            follower = FollowedLog(queue, task_id, 0, LINK, printed.put, told.append)
            thread = threading.Thread(target=follower.print, args=(0.01, SystemClock()))
            thread.start()
            until(lambda: told)
            handler = Ready()
            with streaming(world, handler) as working:
                text = b""
                while b"begun" not in text:
                    text += printed.get(timeout=WAIT)
                handler.may_end.set()
                working.wait_for_end()
            thread.join(WAIT)
        while not printed.empty():
            text += printed.get()
        assert text.decode() == log_of(world, task_id)
        assert told[0] == f"waiting: run 0 of task {task_id} is pending in the task queue {QUEUE}"
        assert f"run 0 of task {task_id} is running; its worker streams the log" in told

    def test_a_reference_that_the_queue_refuses_is_a_log_that_is_only_uploaded(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        task_id = world.create()
        world.local.faults.add(Respond(endpoint="queue.createArtifact", status=400))

        def handler(task: TaskRun) -> None:
            until(lambda: "is not streamed" in caplog.text)
            task.log.info("all the same")

        with streaming(world, handler) as working:
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]
        assert "all the same" in log_of(world, task_id)

    def test_a_slow_response_to_the_reference_delays_no_handler(self, world: World) -> None:
        task_id = world.create()
        world.local.faults.add(Delay(endpoint="queue.createArtifact", seconds=600))
        with streaming(world, lambda _: world.until_struck()) as working:
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]
        kind, _ = link_of(world, task_id) or ("", "")
        assert kind == StorageType.S3

    def test_after_the_cancellation_of_a_run_the_checkpoints_are_there(self, world: World) -> None:
        task_id = world.create()

        def handler(task: TaskRun) -> None:
            task.log.info("before")
            assert task.canceled.wait(WAIT)

        with streaming(world, handler, log_checkpoint_interval=0.02) as working:
            url = live_url(world, task_id)
            until(lambda: "before" in requests.get(backing_url(world, task_id), timeout=WAIT).text)
            world.queue.cancel_task(task_id)
            working.wait_for_end()
        with pytest.raises(requests.ConnectionError):
            requests.get(url, timeout=WAIT)
        printed: list[bytes] = []
        FollowedLog(world.queue, task_id, 0, LINK, printed.append, print).print(0.01, SystemClock())
        assert b"INFO before" in b"".join(printed)

    def test_a_line_of_128_mib_is_streamed_at_constant_memory(self, world: World) -> None:
        task_id, may_end = world.create(), threading.Event()

        def handler(task: TaskRun) -> None:
            task.run_command("head -c 134217728 /dev/zero | tr '\\0' x", shell=True)
            assert may_end.wait(WAIT)

        with streaming(world, handler, log_checkpoint_interval=0) as working:
            with stream(live_url(world, task_id)) as reader:
                memory, count = psutil.Process().memory_info().rss, 0
                while count < 128 * MIB:
                    count += len(reader.read1(MIB))
                grown = psutil.Process().memory_info().rss - memory
            may_end.set()
            working.wait_for_end()
        assert grown < 32 * MIB
        assert reasons(world, task_id) == ["completed"]

    def test_without_the_setting_nothing_is_served(self, world: World) -> None:
        task_id = world.create()
        names: list[str] = []
        work(world, lambda _: names.extend(each.name for each in threading.enumerate()))
        assert "live logs" not in names
        kind, _ = link_of(world, task_id) or ("", "")
        assert kind == StorageType.S3

    @pytest.mark.parametrize(
        ("host", "url", "is_logged"),
        [("0.0.0.0", None, True), ("0.0.0.0", "http://here", False), ("127.0.0.1", None, False)],
    )
    def test_a_url_that_no_other_machine_can_reach_is_logged(
        self, world: World, caplog: pytest.LogCaptureFixture, host: str, url: str | None, *, is_logged: bool
    ) -> None:
        world.create()
        work(world, lambda _: None, live_log=True, live_log_host=host, live_log_url=url)
        assert ("no other machine can reach: set live_log_url" in caplog.text) == is_logged

    def test_a_port_that_is_taken_ends_the_worker_before_it_claims(self, world: World) -> None:
        task_id = world.create()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            worker = worker_for(world, lambda _: None, live_log=True, live_log_port=taken.getsockname()[1])
            with pytest.raises(InvalidArgument, match="live_log_port"):
                worker.serve()
        assert world.run(task_id).state == "pending"


QUEUE = "test-provisioner/test-worker"


def backing_url(world: World, task_id: str) -> str:
    """Wait until a log is uploaded; return its URL."""
    found: list[str] = []

    def is_known() -> bool:
        with suppress(CallFailed):
            found.append(str(world.queue.artifact(task_id, 0, BACKING).url))
        return bool(found)

    until(is_known)
    return found[0]


@pytest.fixture
def open_server(request: pytest.FixtureRequest, live_logs: LiveLogs, log: TaskLog) -> Iterator[str]:
    """Yield a URL of a server to which any program can connect."""
    if request.param == "live log":
        yield live_logs.add(log.path)
    elif request.param == "live log, IPv6":
        try:
            over_ipv6 = LiveLogs("::1", 0)
        except InvalidArgument as error:
            pytest.skip(f"no IPv6 here: {error}")
        with closing(over_ipv6):
            yield over_ipv6.add(log.path)
    else:
        with TaskProxy("https://tc.example.com", Credentials("me", "secret"), (), time.time) as url:
            yield url


@pytest.mark.parametrize("open_server", ["live log", "proxy"], indirect=True)
@pytest.mark.parametrize("sent", [b"", b"GET /guessed HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_idle_connections_of_strangers_use_few_descriptors_and_exclude_no_reader(
    monkeypatch: pytest.MonkeyPatch, open_server: str, sent: bytes
) -> None:
    monkeypatch.setattr(bounded_server, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(bounded_server, "SILENCE", 0.01, raising=False)
    parts = urlsplit(open_server)
    with ExitStack() as stack:
        strangers: list[socket.socket] = []
        for _ in range(20):
            stranger = socket.create_connection((parts.hostname, parts.port), WAIT)
            strangers.append(stack.enter_context(stranger))
            with suppress(ConnectionError):
                stranger.sendall(sent)
        for each in strangers if sent else strangers[:15]:
            with suppress(ConnectionError):
                while each.recv(1000):
                    pass
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=WAIT)
        stack.callback(connection.close)
        connection.request("GET", parts.path, headers={"Range": "bytes=0-"})
        assert connection.getresponse().status in {206, 404}


@pytest.mark.parametrize(
    ("open_server", "name"),
    [
        ("live log", "the server of live logs on 127.0.0.1"),
        ("live log, IPv6", "the server of live logs on [::1]"),
        ("proxy", "the proxy of a run on 127.0.0.1"),
    ],
    indirect=["open_server"],
)
def test_connections_that_wait_because_there_are_too_many_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, open_server: str, name: str
) -> None:
    monkeypatch.setattr(bounded_server, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(bounded_server, "SILENCE", 0.01, raising=False)
    server = str(urlsplit(open_server).hostname), int(urlsplit(open_server).port or 0)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(server, WAIT)) for _ in range(8)]
        for each in clients[:3]:
            with suppress(ConnectionError):
                assert each.recv(1) == b""
    assert caplog.messages == [f"{name}:{server[1]} has 5 connections: further ones wait until one ends"]


@pytest.mark.parametrize("open_server", ["live log", "proxy"], indirect=True)
def test_connections_that_fail_after_they_were_accepted_exclude_no_others(
    monkeypatch: pytest.MonkeyPatch, open_server: str
) -> None:
    """As on macOS, where setting an option of a socket fails after its client has disconnected."""
    begin, failures = bounded_server.BoundedServer.__call__, iter([EINVAL] * 5)

    def failing(server: bounded_server.BoundedServer) -> web.RequestHandler:
        for number in failures:
            raise OSError(number, "Invalid argument")
        return begin(server)

    monkeypatch.setattr(bounded_server, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(bounded_server.BoundedServer, "__call__", failing)
    address = urlsplit(open_server).hostname, urlsplit(open_server).port
    for _ in range(5):
        with socket.create_connection(address, WAIT) as client:
            assert client.recv(1) == b""
    assert requests.get(f"{open_server}/guessed", timeout=WAIT).status_code == 404


def test_a_reader_that_keeps_its_connection_and_is_gone_excludes_no_other_for_long(
    monkeypatch: pytest.MonkeyPatch, log: TaskLog
) -> None:
    """As a laptop that was closed while it showed a log: its connection must not be kept for an hour."""
    monkeypatch.setattr(bounded_server, "IDLE", 0.01)
    live_logs = LiveLogs("127.0.0.1", 0)
    try:
        parts = urlsplit(live_logs.add(log.path))
        with socket.create_connection((parts.hostname, parts.port), WAIT) as gone:
            gone.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-\r\n\r\n".encode())
            response = b"".join(iter(lambda: gone.recv(1000), b""))
            assert response.startswith(b"HTTP/1.1 206 ")
    finally:
        live_logs.close()


NO_HTTP = [
    "GET {path} HTTP/9.x\r\n\r\n",
    "\x16\x03\x01\r\n\r\n",
    "GET {path}/{long} HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET {path} HTTP/1.1\r\nHost: x\r\nno header: {path}\r\n\r\n",
    "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{path}\r\n",
    "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n{path}\r\n",
]


@pytest.mark.parametrize("open_server", ["live log", "proxy"], indirect=True)
@pytest.mark.parametrize("sent", NO_HTTP)
def test_requests_that_are_not_http_log_nothing(
    caplog: pytest.LogCaptureFixture, open_server: str, sent: str
) -> None:
    caplog.set_level("DEBUG")
    parts = urlsplit(open_server)
    with socket.create_connection((parts.hostname, parts.port), WAIT) as stranger:
        stranger.sendall(sent.format(path=parts.path, long="a" * 10_000).encode())
        assert b" 400 " in stranger.recv(1000)
    assert parts.path not in caplog.text
    assert "Traceback" not in caplog.text
