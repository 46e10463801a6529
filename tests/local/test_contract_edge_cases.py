"""Where several rules of the contract meet, over HTTP: what tests of single endpoints do not see."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import random
import sqlite3
import stat
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
import requests

from taskqueue_client import slugid
from taskqueue_client.local import LocalQueue, deployment
from taskqueue_client.local.engine.store import Store
from taskqueue_client.local.http.server import Server
from tests.local.local_http import QUEUE, Key, Wire
from tests.worker.queue_world import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskqueue_client.local.messages import Message

PRIORITIES = ["highest", "very-high", "high", "medium", "low", "very-low", "lowest"]
HOUR = 3600.0


class Corner(Wire):
    """Signed requests with short names."""

    def get(self, path: str) -> Any:
        return self.send("GET", QUEUE + path, key=self.root)

    def post(self, path: str, body: Any = None, key: Key | None = None) -> Any:
        key = key or self.root
        if body is None:
            return self.send("POST", QUEUE + path, key=key)
        return self.json("POST", QUEUE + path, body, key=key)

    def put(self, path: str, body: Any) -> Any:
        return self.json("PUT", QUEUE + path, body, key=self.root)

    def at(self, seconds: float) -> str:
        """The time in `seconds` seconds from now."""
        moment = datetime.fromtimestamp(self.local.clock.now() + seconds, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def advance(self, seconds: float) -> None:
        """Advance the queue's clock; signatures by this machine's clock are still accepted."""
        self.local.faults.clock_shift -= seconds
        self.local.clock.advance(seconds)

    def create(self, task_id: str | None = None, **changes: Any) -> str:
        task_id = task_id or slugid()
        definition = {
            "taskQueueId": "prov/wt",
            "created": self.at(0),
            "deadline": self.at(2 * HOUR),
            "expires": self.at(48 * HOUR),
            "payload": {},
            "metadata": {"name": "n", "description": "d", "owner": "o", "source": "https://x.org"},
        }
        response = self.put(f"/task/{task_id}", {**definition, **changes})
        assert response.status == 200, response.words
        return task_id

    def claim(self, count: int = 1) -> list[dict[str, Any]]:
        worker = {"workerGroup": "g", "workerId": "w", "tasks": count}
        claims: list[dict[str, Any]] = self.post("/claim-work/prov%2Fwt", worker).json["tasks"]
        return claims

    def claimed_ids(self, count: int) -> list[str]:
        return [claim["status"]["taskId"] for claim in self.claim(count)]

    def state(self, task_id: str) -> str:
        state: str = self.get(f"/task/{task_id}/status").json["status"]["state"]
        return state

    def artifact(self, task_id: str, name: str, storage_type: str, **more: Any) -> Any:
        body = {"storageType": storage_type, "expires": self.at(HOUR), **more}
        return self.post(f"/task/{task_id}/runs/0/artifacts/{quote(name, safe='')}", body)


@pytest.fixture
def local() -> Iterator[LocalQueue]:
    with LocalQueue() as local:
        yield local


@pytest.fixture
def corner(local: LocalQueue) -> Corner:
    return Corner(local)


def key_of(credentials: dict[str, str]) -> Key:
    """Temporary credentials as the queue hands them out."""
    ext = {"certificate": json.loads(credentials["certificate"])}
    return Key(credentials["clientId"], credentials["accessToken"], ext)


def names(messages: list[Message]) -> list[str]:
    return [message.exchange.rpartition("/")[2] for message in messages]


def test_forty_tasks_are_claimed_by_priority_and_then_by_age(corner: Corner) -> None:
    created = [
        (rank, number, corner.create(priority=PRIORITIES[rank]))
        for number, rank in enumerate(random.choices(range(7), k=40))
    ]
    expected = [task_id for _, _, task_id in sorted(created)]
    assert corner.claimed_ids(32) + corner.claimed_ids(32) == expected


def test_retried_and_rerun_tasks_stand_at_the_back_of_their_priority(corner: Corner) -> None:
    retried, rerun, waiting, urgent = (
        corner.create(priority=priority) for priority in ("high", "high", "low", "low")
    )
    assert corner.claimed_ids(2) == [retried, rerun]
    third = corner.create(priority="high")
    corner.post(f"/task/{retried}/runs/0/exception", {"reason": "intermittent-task"})
    corner.post(f"/task/{rerun}/runs/0/completed")
    corner.post(f"/task/{rerun}/rerun")
    corner.post(f"/task/{urgent}/priority", {"newPriority": "highest"})
    assert corner.claimed_ids(32) == [urgent, third, retried, rerun, waiting]


def test_a_canceled_groups_messages_name_worker_and_run_but_neither_tags_nor_priority(
    local: LocalQueue, corner: Corner
) -> None:
    group = slugid()
    running = corner.create(taskGroupId=group, tags={"a": "b"}, routes=["x.y"])
    corner.claim()
    pending = corner.create(taskGroupId=group)
    blocked = corner.create(taskGroupId=group, dependencies=[running], requires="all-resolved")
    corner.post(f"/task-group/{group}/seal")
    messages: list[Message] = []
    local.subscribe(messages.append)
    response = corner.post(f"/task-group/{group}/cancel").json
    assert response["taskGroupSize"] == response["cancelledCount"] == 3
    assert names(messages) == ["task-exception"] * 3 + ["task-group-resolved"]
    about = {message.body["status"]["taskId"]: message for message in messages[:3]}
    assert about[running].body["workerId"] == "w"
    assert about[running].body["task"] == {"tags": {}}
    assert about[running].cc == ["route.x.y"]
    assert about[running].routing_key == f"primary.{running}.0.g.w.prov.wt.-.{group}._"
    assert about[blocked].routing_key == f"primary.{blocked}.0._._.prov.wt.-.{group}._"
    assert all("priority" not in message.body["status"] for message in about.values())
    assert {corner.state(task_id) for task_id in (running, pending, blocked)} == {"exception"}


def test_a_link_gives_nobody_what_they_may_not_read(corner: Corner) -> None:
    task_id = corner.create()
    corner.claim()
    corner.artifact(task_id, "private/log", "reference", contentType="a/b", url="https://x.org")
    corner.artifact(task_id, "public/middle", "link", artifact="private/log")
    corner.artifact(task_id, "public/log", "link", artifact="public/middle")
    path = f"{QUEUE}/task/{task_id}/runs/0/artifacts/public%2Flog"
    refused = corner.send("GET", path)
    assert refused.status == 403
    assert '"queue:get-artifact:private/log"' in refused.words
    assert corner.send("GET", path, key=corner.root).headers["location"] == "https://x.org"


def test_an_artifact_can_be_added_until_just_before_25_minutes_after_an_exception(corner: Corner) -> None:
    corner.local.clock.hold()
    task_id = corner.create()
    corner.claim()
    corner.post(f"/task/{task_id}/cancel")
    error = {"reason": "file-missing-on-worker", "message": "", "expires": corner.at(2 * HOUR)}
    corner.advance(25 * 60 - 0.01)
    assert corner.artifact(task_id, "in-time", "error", **error).status == 200
    corner.advance(0.01)
    assert corner.artifact(task_id, "too-late", "error", **error).status == 409


def test_a_deadline_at_the_end_of_time_is_just_too_late(corner: Corner) -> None:
    definition = corner.get(f"/task/{corner.create()}").json
    for key in ("expires", "taskGroupId"):
        del definition[key]
    refused = corner.put(f"/task/{slugid()}", {**definition, "deadline": "9999-12-31T23:59:59.999Z"})
    assert (refused.status, refused.json["code"]) == (400, "InputError")


def test_an_artifacts_length_is_the_first_one_given_even_if_it_is_none(corner: Corner) -> None:
    task_id = corner.create()
    corner.claim()
    expires = corner.at(HOUR)
    corner.artifact(task_id, "x", "s3", contentType="a/b", expires=expires)
    again = corner.artifact(task_id, "x", "s3", contentType="a/b", expires=expires, contentLength=5)
    assert again.status == 200
    assert "contentLength" not in corner.get(f"/task/{task_id}/runs/0/artifact-info/x").json


def test_an_expired_worker_is_still_known_to_quarantine_worker(corner: Corner) -> None:
    worker_type = "/provisioners/prov/worker-types/wt"
    corner.put(f"{worker_type}/g/w", {"expires": corner.at(60)})
    corner.advance(61)
    assert corner.get(f"{worker_type}/workers/g/w").status == 404
    until = corner.at(HOUR)
    response = corner.put(f"{worker_type}/workers/g/w", {"quarantineUntil": until})
    assert (response.status, response.json["quarantineUntil"]) == (200, until)
    assert response.json["expires"] > corner.at(23 * HOUR)


def test_the_claim_of_an_expired_task_does_not_touch_the_next_task_of_its_id() -> None:
    with LocalQueue(claim_timeout=2 * HOUR) as local:
        corner = Corner(local)
        task_id = corner.create(deadline=corner.at(60), expires=corner.at(60))
        corner.claim()
        corner.advance(HOUR)
        local.run_expirers()
        corner.create(task_id, dependencies=[task_id])
        corner.advance(1.5 * HOUR)
        assert corner.state(task_id) == "unscheduled"
        local.remove_worker("prov/wt", "g", "w")
        assert corner.state(task_id) == "unscheduled"


def test_the_nightly_jobs_remove_expired_objects_too(corner: Corner) -> None:
    task_id = corner.create()
    corner.claim()
    upload = corner.artifact(task_id, "public/x", "object", contentType="a/b").json
    name, terms = quote(upload["name"], safe=""), {key: upload[key] for key in ("projectId", "uploadId")}
    data = {"dataInline": {"contentType": "a/b", "objectData": "aGk="}}
    creation = {**terms, "expires": upload["expires"], "proposedUploadMethods": data}
    key = key_of(upload["credentials"])
    assert corner.json("PUT", f"/api/object/v1/upload/{name}", creation, key=key).status == 200
    assert corner.json("POST", f"/api/object/v1/finish-upload/{name}", terms, key=key).status == 200
    corner.local.run_expirers()
    metadata = f"/api/object/v1/metadata/{name}"
    assert corner.send("GET", metadata, key=corner.root).status == 200
    corner.advance(HOUR + 1)
    corner.local.run_expirers()
    assert corner.send("GET", metadata, key=corner.root).status == 404


def test_the_file_with_the_queues_secrets_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    with LocalQueue(db=str(path)) as local:
        Corner(local).create()
        modes = {
            stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob("tasks.sqlite*") if each.is_file()
        }
    assert modes == {0o600}


@pytest.mark.parametrize("name", ["admin_secret", "db"])
def test_an_argument_must_not_be_empty(name: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        LocalQueue(**{name: ""})  # type: ignore[arg-type] # both are texts


@pytest.mark.parametrize("secret", ["\udcff", "hidden\n"])
def test_a_secret_that_no_header_can_contain_is_refused_with_its_name(secret: str) -> None:
    """A byte of an environment variable that is not UTF-8, and the end of a line of a file."""
    with pytest.raises(ValueError, match=r"admin_secret: .* printable") as refused:
        LocalQueue(admin_secret=secret)
    assert secret not in str(refused.value)


def test_a_temporary_directory_without_locks_is_named_and_stays_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on some network and FUSE file systems."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match=rf"cannot be locked: No locks available: '{tmp_path}/"):
        LocalQueue().start()
    assert not any(tmp_path.iterdir())


FULL = sqlite3.OperationalError("database or disk is full")
FULL.sqlite_errorcode = sqlite3.SQLITE_FULL


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FULL, "retrying every 1 s: database or disk is full\n"),
        (AssertionError(), "retrying every 1 s: \nTraceback"),
    ],
)
def test_background_work_that_failed_is_done_a_little_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, line: str
) -> None:
    with LocalQueue(claim_timeout=0.05) as local:
        corner, tries, done = Corner(local), iter([True]), threading.Event()
        background: Any = local._running.background  # pyright: ignore[reportPrivateUsage] - to break it
        run_due = background.run_due

        def fail_once() -> None:
            if next(tries, False):
                raise error
            run_due()
            done.set()

        monkeypatch.setattr(background, "run_due", fail_once)
        task_id = corner.create()
        corner.claim()
        assert done.wait(30)
        assert (
            corner.get(f"/task/{task_id}/status").json["status"]["runs"][0]["reasonResolved"]
            == "claim-expired"
        )
    assert f"background work of :memory: failed, {line}" in caplog.text


def test_failures_of_background_work_that_alternate_are_logged_once_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskqueue_client.local.deployment._RETRY_INTERVAL", 0.01)
    caplog.set_level("INFO", "taskqueue_client.local.deployment")
    with LocalQueue(claim_timeout=0.05) as local:
        background: Any = local._running.background  # pyright: ignore[reportPrivateUsage] - to break it
        failing = Mock(side_effect=[FULL, AssertionError("b")] * 3 + [None] * 1000)
        monkeypatch.setattr(background, "run_due", failing)
        corner = Corner(local)
        corner.create()
        corner.claim()
        until(lambda: "works again" in caplog.text)
    first, second, _ = (each.getMessage() for each in caplog.records)
    assert (first[-12:], second[-3:]) == ("disk is full", ": b")


def test_a_full_disk_is_logged_when_background_work_fails_and_when_it_works_again(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskqueue_client.local.deployment._RETRY_INTERVAL", 0.01)
    caplog.set_level("INFO", "taskqueue_client.local.deployment")
    database, filler = small_disk / "queue.db", small_disk / "filler"
    with LocalQueue(db=str(database), claim_timeout=1) as local:
        background: Any = local._running.background  # pyright: ignore[reportPrivateUsage] - to count its work
        attempts = Mock(side_effect=background.run_due)
        monkeypatch.setattr(background, "run_due", attempts)
        corner = Corner(local)
        task_id = corner.create()
        corner.claim()
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        until(lambda: attempts.call_count > 10)
        filler.unlink()
        until(lambda: "works again" in caplog.text)
        status = corner.get(f"/task/{task_id}/status").json["status"]
        assert status["runs"][0]["reasonResolved"] == "claim-expired"
    began, ended = (each.getMessage() for each in caplog.records)
    assert began == f"background work of {database} failed, retrying every 0.01 s: database or disk is full"
    assert ended.startswith(f"background work of {database} works again after ")


def test_that_the_database_file_was_deleted_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalQueue(db="queue.db", claim_timeout=0.05) as local:
        monkeypatch.chdir("/")  # the path is that of the start
        corner, retried = Corner(local), threading.Event()
        local.subscribe(lambda message: retried.set() if message.body.get("runId") == 1 else None)
        (tmp_path / "queue.db").unlink()
        corner.create()
        corner.claim()
        assert retried.wait(30)  # the queue works on
        until(lambda: "queue.db was deleted: all state is lost" in caplog.text)
        corner.claim()
        local.call(local._running._wake)  # pyright: ignore[reportPrivateUsage] - it looks again
    assert caplog.text.count("was deleted") == 1


def test_a_full_disk_is_a_line_without_traceback_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make = Store.__init__

    def make_small(store: Store, path: str) -> None:
        make(store, path)
        store.rows(f"PRAGMA max_page_count = {store.value('PRAGMA page_count') + 10}")

    monkeypatch.setattr(Store, "__init__", make_small)
    with LocalQueue() as local, pytest.raises(AssertionError, match="500"):
        Corner(local).create(payload={"text": "x" * 100_000})
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert line.endswith(": database or disk is full")
    assert "Traceback" not in caplog.text


async def test_a_last_request_leaves_no_background_work_for_a_stopped_queue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop = Server.stop

    async def stop_after_a_request(server: Server) -> None:
        await asyncio.to_thread(create)
        await stop(server)

    monkeypatch.setattr(Server, "stop", stop_after_a_request)
    monkeypatch.setattr(deployment, "_LONGEST_NAP", 0.001)
    async with LocalQueue() as running:
        create = Corner(running).create
    await asyncio.sleep(0.01)  # work due after 1 ms would be done in this time
    assert caplog.text == ""


def test_tokens_urls_and_credentials_stay_valid_after_a_restart(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"db": str(tmp_path / "tasks.sqlite"), "access_token": "always-the-same"}
    with LocalQueue(**settings) as local:
        corner, group = Corner(local), slugid()
        first = corner.create(taskGroupId=group, priority="high")
        second = corner.create(taskGroupId=group, dependencies=[first])
        corner.create(taskGroupId=group)
        (claim,) = corner.claim()
        corner.post(f"/task-group/{group}/seal")
        s3 = corner.artifact(first, "private/x", "s3", contentType="a/b").json
        paths = _what_a_client_sees(first, group)
        page = corner.get(f"/task-group/{group}/list?limit=1").json["continuationToken"]
        paths.append(f"/task-group/{group}/list?continuationToken={page}")
        seen = [corner.get(path).json for path in paths]
        port = int(local.root_url.rpartition(":")[2])
    with LocalQueue(**settings, port=port) as local:
        corner = Corner(local)
        assert [corner.get(path).json for path in paths] == seen
        assert requests.put(s3["putUrl"], data=b"abc", timeout=30).status_code == 200
        run, key = f"/task/{first}/runs/0", key_of(claim["credentials"])
        assert corner.post(f"{run}/reclaim", key=key).status == 200
        assert corner.post(f"{run}/completed", key=key).status == 200
        assert corner.state(second) == "pending"


def _what_a_client_sees(task_id: str, group: str) -> list[str]:
    return [
        f"/task/{task_id}",
        f"/task/{task_id}/status",
        f"/task/{task_id}/dependents",
        f"/task/{task_id}/runs/0/artifacts",
        f"/task-group/{group}",
        f"/task-group/{group}/list",
        "/task-queues",
        *(f"/task-queues/prov%2Fwt/{list_}" for list_ in ("counts", "pending", "claimed")),
        "/provisioners/prov/worker-types/wt/workers",
        "/provisioners/prov/worker-types/wt/workers/g/w",
    ]
