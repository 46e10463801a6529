"""The local queue as an object: start, stop, clock, messages, restarts, admin routes, pytest fixtures."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import aio_pika
import pytest

from taskqueue_client import AsyncQueue, Queue, slugid
from taskqueue_client.clock import MovableClock, SystemClock
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import FaultInjector
from tests.broker import require_broker
from tests.local.local_http import QUEUE, Key, Wire
from tests.servers import get_when_descriptors_are_free_again

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from taskqueue_client.local.messages import Message
    from taskqueue_client.testing import TaskFactory

_FORKED = """
import os, signal, sys
from taskqueue_client import LocalQueue
with LocalQueue() as local:
    if (child := os.fork()) == 0:
        signal.alarm(60)
        for move in (local.run_expirers, lambda: local.clock.advance(days=1)):
            try:
                move()
            except RuntimeError as error:
                print(error, flush=True)
        sys.exit(0)
    print(os.waitpid(child, 0)[1])
"""
_OUTLIVED = """
import os, signal, socket, sys
from urllib.parse import urlsplit
from taskqueue_client import LocalQueue

signal.alarm(60)
waiting, end = os.pipe()
with LocalQueue() as local:
    port = urlsplit(local.root_url).port
    connection = socket.create_connection(("127.0.0.1", port))
    local.run_expirers()  # the connection is accepted
    if (child := os.fork()) == 0:
        os.close(end)
        os.read(waiting, 1)
        os._exit(0)
    connection.sendall(b"not HTTP\\r\\n\\r\\n")
    while connection.recv(1024):
        pass
    print("closed")
try:
    socket.create_connection(("127.0.0.1", port))
except ConnectionRefusedError:
    print("refused")
with LocalQueue(port=port):
    print("started again")
os.close(end)
os.waitpid(child, 0)
"""
_WORKER = {"workerGroup": "group", "workerId": "worker"}
_CLAIM = f"{QUEUE}/claim-work/test-provisioner/test-worker"


def _create(wire: Wire, task: Mapping[str, Any]) -> str:
    task_id = slugid()
    assert wire.json("PUT", f"{QUEUE}/task/{task_id}", task, key=wire.root).status == 200
    return task_id


def _claim(wire: Wire) -> dict[str, Any]:
    (claimed,) = wire.json("POST", _CLAIM, _WORKER, key=wire.root).json["tasks"]
    claim: dict[str, Any] = claimed
    return claim


def _state(wire: Wire, task_id: str) -> str:
    state: str = wire.send("GET", f"{QUEUE}/task/{task_id}/status").json["status"]["state"]
    return state


def test_two_queues_know_nothing_of_each_other(task_factory: TaskFactory) -> None:
    with LocalQueue() as one, LocalQueue() as other:
        task_id = _create(Wire(one), task_factory())
        assert Wire(other).send("GET", f"{QUEUE}/task/{task_id}").status == 404


class _SilentClock(MovableClock):
    """A clock that does not tell its queue when it is moved: the queue notices at its next alarm."""

    def after_move(self, callback: Callable[[], object]) -> None:
        pass


@pytest.mark.parametrize("trigger", ["alarm", "move", "call"])
def test_requests_are_served_between_two_batches_of_what_has_expired(trigger: str) -> None:
    """Each turn of the event loop serves requests: in each turn, the test counts the artifacts left."""
    counts: set[int] = set()
    with LocalQueue(clock=(MovableClock if trigger == "move" else _SilentClock)(held=True)) as local:
        deployment = local._running  # pyright: ignore[reportPrivateUsage]
        store = deployment.core.store
        hour = int(local.clock.now() + 3600) * 1000

        def fill() -> None:
            for number in range(1001):
                name = str(number)
                store.insert("artifacts", "a" * 22, 0, name, name, "error", "", hour, True, b"{}")

        async def count() -> None:
            while left := store.value("SELECT count(*) FROM artifacts"):
                counts.add(left)
                await asyncio.sleep(0)

        local.call(fill)
        counting = asyncio.run_coroutine_threadsafe(count(), local.call(asyncio.get_running_loop))
        local.clock.advance(days=400)
        if trigger == "alarm":
            local.call(deployment._wake)  # pyright: ignore[reportPrivateUsage]
        elif trigger == "call":
            local.run_expirers()
        counting.result(60)
    assert counts == {1001, 501, 1}


async def test_it_can_be_entered_asynchronously() -> None:
    async with LocalQueue() as local:
        reply = await asyncio.to_thread(Wire(local).send, "GET", f"{QUEUE}/ping")
        assert reply.json["alive"] is True


async def test_a_queue_whose_start_is_canceled_is_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starting, canceled, started = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def start(local: LocalQueue) -> None:
        loop.call_soon_threadsafe(starting.set)
        canceled.wait()
        original(local)
        started.set()

    original = LocalQueue.start
    monkeypatch.setattr(LocalQueue, "start", start)
    threads = set(threading.enumerate())
    entering = asyncio.create_task(LocalQueue().__aenter__())
    await starting.wait()
    entering.cancel()
    await asyncio.sleep(0)
    canceled.set()
    await asyncio.wait([entering])
    await asyncio.to_thread(started.wait)
    assert entering.cancelled()
    assert not {each.name for each in set(threading.enumerate()) - threads} & {"local queue"}


def test_after_the_end_nothing_listens_and_no_thread_runs() -> None:
    threads = set(threading.enumerate())
    with LocalQueue() as local:
        address = Wire(local).host.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])), timeout=5)
    assert set(threading.enumerate()) <= threads
    with pytest.raises(RuntimeError, match="not running"):
        _ = local.root_url


def test_a_stop_leaves_no_connection_open_that_is_just_being_made(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", warned.append)
    for _ in range(20):
        with LocalQueue() as local:
            address = urlsplit(local.root_url)
            socket.create_connection((str(address.hostname), address.port or 0)).close()
    gc.collect()
    assert warned == []
    assert list(recwarn) == []


def test_it_is_started_once() -> None:
    with LocalQueue() as local, pytest.raises(RuntimeError, match="started before"):
        local.start()


def test_a_port_in_use_is_an_error_at_the_start() -> None:
    with LocalQueue() as local, pytest.raises(OSError, match="in use"):
        LocalQueue(port=int(Wire(local).host.split(":")[1])).start()


def test_a_file_that_is_not_a_local_queue_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("not a database, but long enough to look like one\n" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database") as caught:
        LocalQueue(db=str(path)).start()
    assert str(path) in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("version", [0, 1, 7])
def test_the_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "bookmarks.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.executescript(f"CREATE TABLE tasks (title); PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(sqlite3.DatabaseError, match="the database of another program"):
        LocalQueue(db=str(path)).start()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("host", ["bad.invalid", "two..dots"])
@pytest.mark.parametrize("allow_remote", [False, True])
def test_a_host_that_does_not_exist_is_named(host: str, *, allow_remote: bool) -> None:
    with pytest.raises(InvalidArgument, match=f"host: '{host}' is not valid; expected an address or a name"):
        LocalQueue(host=host, allow_remote=allow_remote)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_can_reach_needs_permission(host: str) -> None:
    with pytest.raises(ValueError, match="can be reached from other machines"):
        LocalQueue(host=host)


def test_with_permission_it_listens_everywhere() -> None:
    with LocalQueue(host="0.0.0.0", allow_remote=True) as local:
        assert Wire(local).send("GET", f"{QUEUE}/ping").status == 200


def test_when_the_clock_has_been_moved_everything_due_is_done(
    local_queue: LocalQueue, task_factory: TaskFactory
) -> None:
    wire = Wire(local_queue)
    task_id = _create(wire, task_factory(retries=0))
    _claim(wire)
    local_queue.clock.advance(minutes=20)
    assert _state(wire, task_id) == "exception"


def test_a_claim_runs_out_on_its_own_when_time_passes(task_factory: TaskFactory) -> None:
    resolved = threading.Event()
    with LocalQueue(claim_timeout=0.2) as local:
        local.subscribe(
            lambda message: resolved.set() if message.exchange.endswith("task-exception") else None
        )
        wire = Wire(local)
        _create(wire, task_factory(retries=0))
        _claim(wire)
        assert resolved.wait(30)


@pytest.mark.parametrize(
    ("argument", "given"),
    [("host", None), ("port", "0"), ("port", True), ("allow_remote", "no"), ("db", b"x"), ("clock", "x"),
     ("claim_timeout", "5"), ("claim_timeout", True), ("max_dependencies", None), ("page", "no"),
     ("sign_public_artifacts", "no"), ("object_methods", 5), ("like_production", "no"), ("client_id", 5),
     ("clients", None), ("roles", ["a"]), ("anonymous_scopes", 5), ("port", -1), ("port", 65_536),
     ("max_dependencies", -1), ("max_dependencies", True)],
)  # fmt: skip
def test_an_argument_that_is_not_valid_is_refused(argument: str, given: object) -> None:
    options: Any = {argument: given}
    with pytest.raises(InvalidArgument) as refused:
        LocalQueue(**options)
    assert refused.value.argument == argument


def test_a_claim_timeout_that_is_text_is_refused_with_the_unit() -> None:
    given: Any = "5 min"
    with pytest.raises(InvalidArgument, match=r"^claim_timeout: '5 min' .* expected a number of seconds$"):
        LocalQueue(claim_timeout=given)


@pytest.mark.parametrize("argument", ["access_token", "admin_secret", "amqp_url", "legacy_azure"])
def test_a_secret_of_another_type_is_refused_and_not_shown(argument: str) -> None:
    options: Any = {argument: b"the-secret"}
    with pytest.raises(
        InvalidArgument, match=f"{argument}: .*bytes.* is not valid; expected str or None"
    ) as refused:
        LocalQueue(**options)
    assert "the-secret" not in repr(refused.value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            {"clients": [{"client_id": "x", "access_token": "the-secret"}]},
            "clients: .*dict.*; expected Client",
        ),
        (
            {"clients": [Client("x", "the-secret", cast("Any", None))]},
            "client 'x': scopes: None is not valid",
        ),
        ({"roles": {"x": 5}}, "role 'x': scopes: 5 is not valid; expected a list of scopes"),
        ({"roles": {5: ["x"]}}, "roles: 5 is not valid; expected str"),
    ],
)
def test_clients_and_roles_of_other_types_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint) as refused:
        LocalQueue(**arguments)
    assert "the-secret" not in repr(refused.value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_claim_timeout_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="claim_timeout must be more than 0"):
        LocalQueue(claim_timeout=seconds)


@pytest.mark.parametrize(
    "arguments",
    [
        {"clients": [Client("worker", "a-secret", "queue:claim-*")]},
        {"roles": {"worker": "queue:claim-*"}},
        {"anonymous_scopes": "queue:claim-*"},
    ],
)
def test_scopes_that_are_one_text_are_refused_instead_of_giving_all(arguments: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"(worker|anonymous)': scopes 'queue:claim-\*' must be a list of scopes"
    ):
        LocalQueue(**arguments)


def test_like_production_acts_late(task_factory: TaskFactory) -> None:
    with LocalQueue(like_production=True, clock=MovableClock()) as local:
        wire = Wire(local)
        first = _create(wire, task_factory())
        second = _create(wire, task_factory(dependencies=[first]))
        _claim(wire)
        local.clock.hold()
        wire.send("POST", f"{QUEUE}/task/{first}/runs/0/completed", key=wire.root, body=b"")
        assert _state(wire, second) == "unscheduled"
        local.clock.advance(5)
        assert _state(wire, second) == "pending"


def test_the_server_shows_and_checks_the_clocks_time(local_queue: LocalQueue) -> None:
    wire = Wire(local_queue)
    local_queue.clock.advance(hours=1)
    reply = wire.send("GET", f"{QUEUE}/task-queues", key=wire.root)
    assert (reply.status, reply.words) == (401, "Unauthorized: Stale timestamp")


def test_a_clock_that_nobody_can_move_is_not_offered_as_one() -> None:
    with LocalQueue(clock=SystemClock()) as local, pytest.raises(TypeError, match="SystemClock"):
        _ = local.clock


def test_messages_come_in_the_order_of_the_changes(
    local_queue: LocalQueue, task_factory: TaskFactory
) -> None:
    seen: list[Message] = []
    local_queue.subscribe(seen.append)
    task_id = _create(Wire(local_queue), task_factory(routes=["a.b"]))
    assert [message.exchange.rpartition("/")[2] for message in seen] == ["task-defined", "task-pending"]
    assert seen[0].routing_key.startswith(f"primary.{task_id}.")
    assert seen[0].cc == ["route.a.b"]


async def test_messages_go_to_rabbitmq_when_there_is_a_url(task_factory: TaskFactory) -> None:
    url = require_broker()
    async with await aio_pika.connect(url) as connection, LocalQueue(amqp_url=url) as local:
        channel = await connection.channel()
        inbox = await channel.declare_queue(exclusive=True)
        task_id = slugid()
        await inbox.bind("exchange/taskcluster-queue/v1/task-defined", f"primary.{task_id}.#")
        wire = Wire(local)
        created = await asyncio.to_thread(
            wire.json, "PUT", f"{QUEUE}/task/{task_id}", task_factory(), key=wire.root
        )
        assert created.status == 200
        async with inbox.iterator(timeout=30) as messages:
            message = await anext(messages)
            await message.ack()
        assert json.loads(message.body)["status"]["taskId"] == task_id


def test_an_error_of_one_subscriber_does_not_affect_others(
    local_queue: LocalQueue, task_factory: TaskFactory, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Message] = []
    local_queue.subscribe(lambda _: 1 / 0)
    local_queue.subscribe(seen.append)
    _create(Wire(local_queue), task_factory())
    assert len(seen) == 2
    assert "ZeroDivisionError" in caplog.text


def test_a_subscriber_that_would_never_run_is_refused(local_queue: LocalQueue) -> None:
    async def subscriber(_: Message) -> None:
        pytest.fail("it is awaited")

    for callback in (subscriber, "task-pending"):
        with pytest.raises(TypeError, match="expected a function that is not asynchronous"):
            local_queue.subscribe(callback)  # type: ignore[arg-type] # wrong on purpose


def test_a_forked_child_that_moves_its_parents_clock_gets_an_error() -> None:
    output = subprocess.check_output([sys.executable, "-c", _FORKED], text=True, timeout=120)
    assert output.splitlines() == 2 * [
        "the local queue runs in the parent process, where its clock and workers are changed"
    ] + ["0"]


def test_a_queue_that_is_pickled_says_what_to_pass_to_another_process(local_queue: LocalQueue) -> None:
    with pytest.raises(TypeError, match="pass its root_url and credentials"):
        pickle.dumps(local_queue)


def test_a_forked_child_keeps_neither_connections_nor_the_port_of_its_parents_queue_open() -> None:
    output = subprocess.check_output([sys.executable, "-c", _OUTLIVED], text=True, timeout=120)
    assert output.splitlines() == ["closed", "refused", "started again"]


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "queue.db")
    with pytest.raises(OSError, match="No such file or directory") as caught:
        LocalQueue(db=path).start()
    assert path in str(caught.value)


def test_a_removed_workers_run_is_retried(local_queue: LocalQueue, task_factory: TaskFactory) -> None:
    wire = Wire(local_queue)
    task_id = _create(wire, task_factory())
    _claim(wire)
    local_queue.remove_worker("test-provisioner/test-worker", "group", "worker")
    runs = wire.send("GET", f"{QUEUE}/task/{task_id}/status").json["status"]["runs"]
    assert [(run["state"], run.get("reasonResolved")) for run in runs] == [
        ("exception", "worker-shutdown"),
        ("pending", None),
    ]


def test_a_queue_that_was_stopped_at_night_removes_at_its_start_what_has_expired(
    tmp_path: Path, task_factory: TaskFactory
) -> None:
    db = str(tmp_path / "queue.sqlite")
    with LocalQueue(db=db) as local:
        path = f"{QUEUE}/task/{_create(Wire(local), task_factory())}"
        assert Wire(local).send("GET", path).status == 200
        three_days_later = MovableClock(local.clock.now() + 3 * 24 * 60 * 60)
    with LocalQueue(db=db, clock=three_days_later) as local:
        assert Wire(local).send("GET", path).status == 404


def test_state_and_run_credentials_outlive_a_restart(tmp_path: Path, task_factory: TaskFactory) -> None:
    db = str(tmp_path / "queue.sqlite")
    with LocalQueue(db=db) as local:
        task_id = _create(Wire(local), task_factory())
        given = _claim(Wire(local))["credentials"]
    run = Key(given["clientId"], given["accessToken"], {"certificate": json.loads(given["certificate"])})
    with LocalQueue(db=db) as local:
        wire = Wire(local)
        assert wire.send("POST", f"{QUEUE}/task/{task_id}/runs/0/completed", key=run, body=b"").status == 200
        assert _state(wire, task_id) == "completed"


def test_a_client_that_hangs_up_takes_no_task(local_queue: LocalQueue, task_factory: TaskFactory) -> None:
    wire = Wire(local_queue)
    host, port = wire.host.split(":")
    body = json.dumps(_WORKER).encode()
    head = f"POST {_CLAIM} HTTP/1.1\r\nHost: {wire.host}\r\nContent-Type: application/json\r\n"
    head += (
        f"Content-Length: {len(body)}\r\nAuthorization: {wire.root.header('POST', _CLAIM, wire.host)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        while not wire.send("GET", f"{QUEUE}/task-queues", key=wire.root).json["taskQueues"]:
            pass  # the server has begun to handle the claim when the task queue is known
    assert wire.send("GET", f"{QUEUE}/ping").status == 200  # the end of the connection was read before this
    task_id = _create(wire, task_factory())
    assert _state(wire, task_id) == "pending"
    assert _claim(wire)["status"]["taskId"] == task_id


def test_a_stop_ends_long_polls() -> None:
    replies: list[object] = []
    with LocalQueue() as local:
        wire = Wire(local)

        def poll() -> None:
            try:
                replies.append(wire.json("POST", _CLAIM, _WORKER, key=wire.root))
            except OSError as error:
                replies.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        while not wire.send("GET", f"{QUEUE}/task-queues", key=wire.root).json["taskQueues"]:
            pass
    thread.join(10)
    assert len(replies) == 1


@pytest.fixture
def admin_wire(local_with_admin: LocalQueue) -> Wire:
    return Wire(local_with_admin)


@pytest.fixture
def local_with_admin() -> Any:
    with LocalQueue(admin_secret="open sesame") as local:
        yield local


def _admin(wire: Wire, method: str, path: str, body: Any = None, secret: str = "open sesame") -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    return wire.send(method, f"/admin{path}", body=data, headers={"Authorization": f"Bearer {secret}"})


def test_admin_routes_need_the_secret(admin_wire: Wire) -> None:
    assert _admin(admin_wire, "GET", "/clock", secret="wrong").status == 401
    assert admin_wire.send("GET", "/admin/clock").status == 401
    assert _admin(admin_wire, "GET", "/clock").status == 200


def test_an_admin_route_that_does_not_exist_is_not_found(admin_wire: Wire) -> None:
    assert _admin(admin_wire, "GET", "/nothing").status == 404
    assert _admin(admin_wire, "DELETE", "/clock").status == 404


def test_the_details_of_a_bug_are_in_the_log_and_not_in_the_response(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a detail")

    monkeypatch.setattr(FaultInjector, "respond", broken)
    reply = wire.send("GET", f"{QUEUE}/ping")
    assert (reply.status, reply.json["code"]) == (500, "InternalServerError")
    assert reply.words == "Internal Server Error"
    assert b"detail" not in reply.body
    assert f"GET {QUEUE}/ping failed" in caplog.messages
    assert "ZeroDivisionError: a detail" in caplog.text


def test_an_admin_moves_the_clock(admin_wire: Wire, task_factory: TaskFactory) -> None:
    task_id = _create(admin_wire, task_factory(retries=0))
    _claim(admin_wire)
    assert _admin(admin_wire, "POST", "/clock/hold").status == 200
    before = _admin(admin_wire, "GET", "/clock").json["now"]
    after = _admin(admin_wire, "POST", "/clock/advance", {"seconds": 1200}).json["now"]
    assert after == before + 1200
    assert _admin(admin_wire, "POST", "/clock/release").status == 200
    assert _state(admin_wire, task_id) == "exception"


def test_an_admin_shifts_the_servers_clock(admin_wire: Wire) -> None:
    _admin(admin_wire, "POST", "/clock/shift", {"seconds": -3600})
    assert admin_wire.send("GET", f"{QUEUE}/task-queues", key=admin_wire.root).status == 401
    _admin(admin_wire, "DELETE", "/faults")
    assert admin_wire.send("GET", f"{QUEUE}/task-queues", key=admin_wire.root).status == 200


def test_an_admin_asks_for_faults(admin_wire: Wire) -> None:
    fault = {"kind": "respond", "endpoint": "queue.ping", "status": 503}
    assert _admin(admin_wire, "POST", "/faults", fault).json["faults"][0]["times"] == 1
    assert [admin_wire.send("GET", f"{QUEUE}/ping").status for _ in range(2)] == [503, 200]
    assert _admin(admin_wire, "GET", "/faults").json == {"faults": []}


def test_an_admin_takes_a_worker_away_and_runs_the_nightly_jobs(
    admin_wire: Wire, task_factory: TaskFactory
) -> None:
    task_id = _create(admin_wire, task_factory(retries=0))
    _claim(admin_wire)
    worker = {"taskQueueId": "test-provisioner/test-worker", **_WORKER}
    assert _admin(admin_wire, "POST", "/worker-removed", worker).status == 200
    assert _state(admin_wire, task_id) == "exception"
    assert _admin(admin_wire, "POST", "/run-expirers").status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/clock/advance", {"seconds": -1}),
        ("/clock/advance", {"seconds": 1e300}),
        ("/clock/advance", {}),
        ("/clock/advance", []),
        ("/faults", {"kind": "flood"}),
        ("/faults", {"kind": "respond", "endpoint": "queue.nothing", "status": 500}),
        ("/worker-removed", {"taskQueueId": 1}),
    ],
)
def test_an_admin_request_that_makes_no_sense_is_refused(admin_wire: Wire, path: str, body: Any) -> None:
    reply = _admin(admin_wire, "POST", path, body)
    assert (reply.status, reply.json["code"]) == (400, "InputError")


def test_admin_routes_need_a_clock_that_can_be_moved() -> None:
    with pytest.raises(TypeError, match="MovableClock"):
        LocalQueue(admin_secret="s", clock=SystemClock()).start()


def test_the_fixtures_of_the_plugin_belong_together(queue: Queue, task_factory: TaskFactory) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(payload={"a": 1}))
    assert queue.task(task_id)["payload"] == {"a": 1}


async def test_the_asynchronous_fixture_talks_to_the_same_queue(
    async_queue: AsyncQueue, queue: Queue, task_factory: TaskFactory
) -> None:
    task_id = slugid()
    await async_queue.create_task(task_id, task_factory())
    assert queue.status(task_id).status.state == "pending"


def test_without_aio_pika_an_amqp_url_is_refused_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    monkeypatch.delitem(sys.modules, "taskqueue_client.local.amqp", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'taskqueue_client\[events\]'"):
        LocalQueue(amqp_url="amqp://guest:guest@127.0.0.1/").start()


def test_without_free_descriptors_one_attempt_a_second_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with LocalQueue() as local:
        found = get_when_descriptors_are_free_again(
            local.root_url, "/api/queue/v1/ping", lambda: caplog.records
        )
    assert found.startswith(b"HTTP/1.1 200")
    assert len(caplog.records) < 10
