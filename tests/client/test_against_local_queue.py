"""The life of tasks, through both clients, against a real queue."""

from __future__ import annotations

import copy
import inspect
import socket
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskqueue_client import AsyncQueue, Credentials, Queue, calls, slugid, temporary_credentials
from taskqueue_client.definitions import from_now, task_definition
from taskqueue_client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ErrorArtifact,
    InputValidationError,
    InsufficientScopes,
    RequestConflict,
    ResourceNotFound,
)
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Drop
from taskqueue_client.models import Provisioner, ReasonResolved, TaskAndStatus, TaskState, WorkerType
from tests.transport.test_async_transport import has_ipv6

WORKER = {"worker_group": "wg", "worker_id": "w1"}


@pytest.fixture
def queue(make_client: Any, local: LocalQueue) -> Any:
    return make_client(local.root_url, local.credentials)


def definition(**keys: Any) -> Any:
    return task_definition("prov/wt", {"x": 1}, name="n", owner="o", source="https://example.com", **keys)


def as_run(queue: Any, claim: Any) -> Any:
    return queue.with_credentials(claim.credentials)


def test_a_task_is_created_claimed_reclaimed_and_completed(queue: Any) -> None:
    task_id = slugid()
    assert queue.create_task(task_id, definition()).status.state is TaskState.PENDING
    (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
    assert claim.task["payload"] == {"x": 1}
    run = as_run(queue, claim)
    again = run.reclaim_task(task_id, claim.run_id)
    assert again.taken_until >= claim.taken_until
    assert again.credentials != claim.credentials
    run = as_run(queue, again)
    assert run.report_completed(task_id, run_id=0).status.state is TaskState.COMPLETED
    assert queue.status(task_id).status.runs[0].reason_resolved is ReasonResolved.COMPLETED
    assert queue.task(task_id)["metadata"]["name"] == "n"


def test_calls_do_not_change_their_arguments(queue: Any) -> None:
    task_id, link = slugid(), {"storageType": "link", "artifact": "public/a", "contentType": "text/plain"}
    given = [definition(scopes=["a:b"], extra={"list": [{"a": 1}]}), {**link, "expires": "1 hour"}]
    before = copy.deepcopy(given)
    queue.create_task(task_id, given[0])
    (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
    claimed = copy.deepcopy(claim)
    run = as_run(queue, claim)
    run.create_artifact(task_id, 0, "public/b", given[1])
    assert run.reclaim_task(task_id, 0).credentials != claim.credentials
    run.report_completed(task_id, 0)
    assert (given, claim, claim.task) == (before, claimed, queue.task(task_id))


MANY = [f"public/{number:04}" for number in range(1001)]


@pytest.fixture(scope="module")
def local_with_many() -> Iterator[tuple[LocalQueue, str]]:
    """A local queue, and the id of a task whose run has many artifacts."""
    with LocalQueue() as local, Queue(local.root_url, local.credentials) as setup:
        setup.create_task(task_id := slugid(), definition())
        (claim,) = setup.claim_work("prov/wt", worker_group="wg", worker_id="w1").tasks
        run = as_run(setup, claim)
        for name in MANY:
            run.create_reference_artifact(task_id, 0, name, "https://example.com", expires="1 day")
        yield local, task_id


def test_all_artifacts_of_a_run_are_listed_though_a_page_has_a_thousand(
    make_client: Any, local_with_many: tuple[LocalQueue, str]
) -> None:
    local, task_id = local_with_many
    queue = make_client(local.root_url, local.credentials)
    assert len(queue.list_artifacts(task_id, 0).artifacts) == 1000
    assert [each.name for each in queue.all("iter_artifacts", task_id, 0)] == MANY


def test_a_run_that_is_shut_down_is_retried(queue: Any) -> None:
    task_id = slugid()
    queue.create_task(task_id, definition())
    (claim,) = queue.claim_work(provisioner_id="prov", worker_type="wt", **WORKER).tasks
    status = as_run(queue, claim).report_exception(task_id, 0, "worker-shutdown").status
    assert (status.state, status.retries_left, len(status.runs)) == (TaskState.PENDING, 4, 2)
    with pytest.raises(RequestConflict):
        as_run(queue, claim).reclaim_task(task_id, 0)


def test_a_response_lost_after_the_task_was_made_does_no_harm(queue: Any, local: LocalQueue) -> None:
    task_id = slugid()
    local.faults.add(Drop("queue.createTask", after=True))
    assert queue.create_task(task_id, definition()).status.task_id == task_id


def test_a_response_lost_before_the_group_was_sealed_does_no_harm(queue: Any, local: LocalQueue) -> None:
    """The repeated call is a conflict then; the equal stored definition shows that the task was created."""
    group_id, task_id = slugid(), slugid()
    queue.create_task(group_id, definition())
    made = definition(taskGroupId=group_id)
    queue.create_task(task_id, made)
    queue.seal_task_group(group_id)
    local.faults.add(Drop("queue.createTask"))
    assert queue.create_task(task_id, made).status.task_id == task_id
    local.faults.add(Drop("queue.createTask"))
    with pytest.raises(RequestConflict):
        queue.create_task(task_id, {**made, "payload": {"x": 2}})
    with pytest.raises(RequestConflict):
        queue.create_task(task_id, made)


def test_a_lost_claim_is_not_repeated(queue: Any, local: LocalQueue) -> None:
    for _ in range(2):
        queue.create_task(slugid(), definition())
    local.faults.add(Drop("queue.claimWork", after=True))
    with pytest.raises(ConnectionFailed) as caught:
        queue.claim_work("prov/wt", **WORKER)
    assert caught.value.attempted.outcome_unknown
    counts = queue.task_queue_counts("prov/wt")
    assert (counts.pending_tasks, counts.claimed_tasks) == (1, 1)


def test_the_counts_of_several_task_queues_take_one_call(queue: Any) -> None:
    for _ in range(2):
        queue.create_task(slugid(), definition())
    queue.claim_work("prov/wt", **WORKER)
    found = queue.task_queue_counts_batch(["prov/wt", "prov/unknown"]).task_queue_counts
    assert {(each.task_queue_id, each.pending_tasks, each.claimed_tasks) for each in found} == {
        ("prov/wt", 1, 1),
        ("prov/unknown", 0, 0),
    }
    with pytest.raises(InputValidationError, match="taskQueueIds"):
        queue.task_queue_counts_batch(["prov/wt", "prov/wt"])
    with pytest.raises(InputValidationError, match="must NOT have more than 1000 items"):
        queue.task_queue_counts_batch([f"prov/wt-{number}" for number in range(1001)])


@pytest.mark.parametrize("kind", ["pending", "claimed"])
def test_the_counts_of_several_task_queues_need_both_scopes_of_each(make_client: Any, kind: str) -> None:
    scopes = ("queue:pending-count:prov/a", "queue:claimed-count:prov/a", f"queue:{kind}-count:prov/b")
    with LocalQueue(anonymous_scopes=[]) as local:
        credentials = msgspec.structs.replace(local.credentials, authorized_scopes=scopes)
        queue = make_client(local.root_url, credentials)
        assert len(queue.task_queue_counts_batch(["prov/a"]).task_queue_counts) == 1
        with pytest.raises(InsufficientScopes):
            queue.task_queue_counts_batch(["prov/a", "prov/b"])


def test_every_list_can_be_walked_to_its_end(queue: Any) -> None:
    group = slugid()
    ids = [group, *(slugid() for _ in range(6))]
    for task_id in ids:
        queue.create_task(task_id, definition(taskGroupId=group))
    assert len(queue.list_task_group(group, limit=2).tasks) == 2
    walked = queue.all("iter_task_group", group, page_size=2)
    assert sorted(member.status.task_id for member in walked) == sorted(ids)
    assert len(queue.all("iter_statuses", ids, page_size=3)) == 7
    assert len(queue.all("iter_pending_tasks", "prov/wt", page_size=3)) >= 7


def test_each_task_that_depends_on_a_task_is_returned_once(queue: Any) -> None:
    first, *dependents = (slugid() for _ in range(6))
    queue.create_task(first, definition())
    for task_id in dependents:
        queue.create_task(task_id, definition(dependencies=[first]))
    walked: list[TaskAndStatus] = queue.all("iter_dependent_tasks", first, page_size=2)
    assert sorted(each.status.task_id for each in walked) == sorted(dependents)
    assert all(each.task["dependencies"] == [first] for each in walked)
    assert queue.all("iter_dependent_tasks", dependents[0]) == []


def test_each_provisioner_and_worker_type_from_which_workers_claimed_is_returned_once(queue: Any) -> None:
    task_queues = [("walked", "a"), ("walked", "b"), ("walked", "c"), ("walked-too", "a")]
    for provisioner, worker_type in task_queues:
        made = task_definition(
            f"{provisioner}/{worker_type}", {}, name="n", owner="o", source="https://example.com"
        )
        queue.create_task(slugid(), made)
        queue.claim_work(f"{provisioner}/{worker_type}", **WORKER)
    provisioners: list[Provisioner] = queue.all("iter_provisioners")
    names = [each.provisioner_id for each in provisioners]
    assert [name for name in names if "walked" in name] == ["walked", "walked-too"]
    worker_types: list[WorkerType] = queue.all("iter_worker_types", "walked", page_size=2)
    assert [(each.provisioner_id, each.worker_type) for each in worker_types] == task_queues[:3]


def test_a_clock_an_hour_off_does_no_harm(make_client: Any, local: LocalQueue) -> None:
    local.clock.advance(hours=1)
    queue = make_client(local.root_url, local.credentials)
    queue.ping()
    queue.create_task(slugid(), definition(created=queue.queue.now()))
    assert queue.claim_work("prov/wt", **WORKER).tasks


def test_missing_scopes_are_named(make_client: Any, local: LocalQueue) -> None:
    nobody = make_client(local.root_url, credentials=None)
    task_id = slugid()
    with pytest.raises(InsufficientScopes) as caught:
        nobody.create_task(task_id, definition())
    assert "queue:create-task:project:none" in caught.value.missing_scopes
    assert "the request had no credentials; missing queue:create-task:project:none" in str(caught.value)
    with pytest.raises(ResourceNotFound, match=task_id):
        nobody.status(task_id)


@pytest.mark.parametrize("name", [None, "made/up"])
def test_temporary_credentials_do_what_they_are_for(
    make_client: Any, local: LocalQueue, name: str | None
) -> None:
    made = temporary_credentials(local.credentials, ["queue:list-task-queues"], name=name)
    queue = make_client(local.root_url, made)
    assert queue.list_task_queues().task_queues == []
    with pytest.raises(InsufficientScopes, match=f"client '{name or 'local'}' is missing"):
        queue.get_task_queue("prov/wt")
    with pytest.raises(InsufficientScopes):
        make_client(local.root_url, made.restricted_to([])).list_task_queues()
    expired = temporary_credentials(
        local.credentials, ["*"], start=datetime.now(UTC) - timedelta(days=1), lifetime=timedelta(hours=1)
    )
    with pytest.raises(AuthenticationFailed, match="expiry"):
        make_client(local.root_url, expired).list_task_queues()


def test_the_auth_service_knows_its_tester(make_client: Any, local: LocalQueue) -> None:
    tester = make_client(local.root_url, Credentials("tester", "no-secret"))
    response = tester.test_authenticate(client_scopes=["a:*"], required_scopes=["a:b"])
    assert response.client_id == "tester"
    assert make_client(local.root_url, local.credentials).current_scopes().scopes == ["*"]


def test_an_ipv6_address_is_signed_as_in_the_host_header(make_client: Any) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no address ::1")
    with LocalQueue(host="::1") as local:
        queue = make_client(local.root_url, local.credentials)
        assert list(queue.list_task_queues().task_queues) == []
        url = queue.queue.signed_url(calls.list_task_queues())
        assert b"taskQueues" in urllib.request.urlopen(url).read()


def test_a_host_with_a_dot_at_its_end_is_signed_as_in_the_host_header(
    make_client: Any, local: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve: Any = socket.getaddrinfo

    def resolve_any(_: str, *rest: Any, **more: Any) -> Any:
        return resolve("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_any)
    queue = make_client(local.root_url.replace("127.0.0.1", "localhost."), local.credentials)
    assert queue.current_scopes().scopes == ["*"]


@pytest.mark.parametrize("address", ["0:0:0:0:0:0:0:1", "0000::0001", "::1"])
def test_an_ipv6_address_may_be_written_in_any_form(make_client: Any, address: str) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no address ::1")
    with LocalQueue(host="::1") as local:
        queue = make_client(local.root_url.replace("::1", address), local.credentials)
        assert queue.current_scopes().scopes == ["*"]


def test_a_signed_url_works_without_credentials(queue: Any) -> None:
    task_id = slugid()
    queue.create_task(task_id, definition())
    (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
    request = {"storageType": "reference", "expires": from_now("1 hour"), "contentType": "text/plain"}
    as_run(queue, claim).create_artifact(task_id, 0, "private/a b", {**request, "url": "http://x/"})
    url = queue.queue.signed_url(calls.latest_artifact(task_id, "private/a b"))
    with urllib.request.urlopen(url) as response:
        assert b"http://x/" in response.read()
    assert queue.get_artifact(task_id, 0, "private/a b").url == "http://x/"


def test_an_error_artifact_says_why(queue: Any) -> None:
    task_id = slugid()
    queue.create_task(task_id, definition())
    (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
    error = {"storageType": "error", "reason": "file-missing-on-worker", "message": "gone"}
    as_run(queue, claim).create_artifact(task_id, 0, "public/x", {**error, "expires": from_now("1 hour")})
    with pytest.raises(ErrorArtifact, match="gone") as caught:
        queue.get_artifact(task_id, 0, "public/x")
    assert caught.value.reason == "file-missing-on-worker"


@pytest.mark.parametrize("storage", ["s3", "object"])
def test_an_artifact_goes_up_and_comes_down(queue: Any, tmp_path: Path, storage: str) -> None:
    task_id = slugid()
    queue.create_task(task_id, definition())
    (claim,) = queue.claim_work("prov/wt", **WORKER).tasks
    source, copy = tmp_path / "build.log", tmp_path / "copy.log"
    source.write_bytes(b"a line\n" * 10_000)
    expires = claim.status.expires
    as_run(queue, claim).upload_artifact(task_id, 0, "public/x", source, expires=expires, storage=storage)
    queue.download_artifact(task_id, "public/x", to=copy)
    assert copy.read_bytes() == source.read_bytes()


def test_the_methods_of_artifacts_look_like_all_others() -> None:
    assert "source" in inspect.signature(Queue.upload_artifact).parameters
    assert inspect.iscoroutinefunction(AsyncQueue.upload_artifact)
    assert (Queue.download_artifact.__doc__ or "").startswith("Download")
