"""The 500s that the service sends because of a defect: a fault for each, which clients survive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from taskqueue_client import Queue, errors, slugid
from taskqueue_client.local import faults
from taskqueue_client.worker import TaskRun, WorkerLoop
from tests.local.local_http import NO_SUCH_TASK, QUEUE, Key, Wire, payload_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskqueue_client.local import LocalQueue
    from taskqueue_client.testing import TaskFactory

TASK_QUEUE = "test-provisioner/test-worker"
WHO: dict[str, Any] = {"worker_group": "tests", "worker_id": "one"}
EXPIRES = "2100-01-01T00:00:00.000Z"


@pytest.fixture
def queue(local_queue: LocalQueue) -> Iterator[Queue]:
    """A client that makes two attempts: a 500 that the service always sends is retried once."""
    with Queue(local_queue.root_url, local_queue.credentials) as queue:
        yield queue.with_options(attempts=2, wait_max=0)


@pytest.fixture
def created(queue: Queue, task_factory: TaskFactory) -> str:
    """A pending task."""
    task_id = slugid()
    queue.create_task(task_id, task_factory())
    return task_id


class ObjectUploader(WorkerLoop):
    """Uploads one artifact per run to the object service."""

    def run_task(self, task: TaskRun) -> None:
        task.upload_artifact("public/x", b"data", storage="object")


def _work(local: LocalQueue) -> None:
    settings: dict[str, Any] = {"task_queue_id": TASK_QUEUE, "max_tasks": 1, **WHO}
    worker = ObjectUploader(root_url=local.root_url, credentials=local.credentials, **settings)
    worker.serve()


def test_a_reclaim_of_a_pending_run_is_given_up_and_works_once_the_run_is_claimed(
    local_queue: LocalQueue, queue: Queue, created: str
) -> None:
    with pytest.raises(errors.RequestConflict):
        queue.reclaim_task(created, 0)
    local_queue.faults.add(faults.service_500("reclaim of a pending run"))
    with pytest.raises(errors.ServerError):
        queue.reclaim_task(created, 0)
    queue.claim_work(TASK_QUEUE, **WHO)
    assert queue.reclaim_task(created, 0).run_id == 0


def test_a_claim_in_quarantine_is_given_up_and_works_for_another_worker(
    local_queue: LocalQueue, queue: Queue, created: str
) -> None:
    queue.declare_worker(TASK_QUEUE, **WHO, expires=EXPIRES)
    queue.quarantine_worker(TASK_QUEUE, **WHO, quarantine_until=EXPIRES)
    with pytest.raises(errors.RequestConflict):
        queue.claim_task(created, 0, **WHO)
    local_queue.faults.add(faults.service_500("claimTask in quarantine"))
    with pytest.raises(errors.ServerError):
        queue.claim_task(created, 0, **WHO)
    assert queue.claim_task(created, 0, worker_group="tests", worker_id="two").run_id == 0


def test_an_object_artifact_that_is_created_again_is_given_up_and_stays_as_it_is(
    local_queue: LocalQueue, queue: Queue, created: str
) -> None:
    queue.claim_work(TASK_QUEUE, **WHO)
    upload: dict[str, Any] = {"storage": "object", "expires": queue.task(created)["expires"]}
    queue.upload_artifact(created, 0, "public/x", b"first", **upload)
    with pytest.raises(errors.RequestConflict):
        queue.upload_artifact(created, 0, "public/x", b"second", **upload)
    local_queue.faults.add(faults.service_500("object artifact again"))
    with pytest.raises(errors.ServerError):
        queue.upload_artifact(created, 0, "public/x", b"second", **upload)
    assert queue.download_artifact(created, "public/x").content == b"first"
    queue.upload_artifact(created, 0, "public/y", b"another", **upload)


def test_an_upload_whose_finish_gets_a_500_is_stored_and_the_worker_resolves_the_run(
    local_queue: LocalQueue, queue: Queue, created: str
) -> None:
    local_queue.faults.add(faults.service_500("finishArtifact after contentLength"))
    _work(local_queue)
    assert queue.status(created).status.state == "exception"
    assert queue.download_artifact(created, "public/x", run_id=0).content == b"data"


def test_a_payload_hash_of_the_wrong_length_gets_the_services_500_and_the_right_one_is_accepted(
    local_queue: LocalQueue, queue: Queue
) -> None:
    wire, resource, body = Wire(local_queue), f"{QUEUE}/tasks/status", b'{"taskIds": []}'
    local_queue.faults.add(faults.service_500("payload hash of a wrong length"))
    whole = payload_hash("application/json", body)
    for signed, status in ((whole[:-4], 500), (whole, 200)):
        header = wire.root.header("POST", resource, wire.host, hash=signed)
        headers = {"Content-Type": "application/json", "Authorization": header}
        assert wire.send("POST", resource, body=body, headers=headers).status == status
    assert list(queue.statuses([NO_SUCH_TASK]).statuses) == []


def test_an_object_whose_name_no_client_id_can_have_is_downloaded_in_spite_of_the_services_500(
    local_queue: LocalQueue, queue: Queue, created: str
) -> None:
    queue.claim_work(TASK_QUEUE, **WHO)
    expires = queue.task(created)["expires"]
    queue.upload_artifact(created, 0, "public/a b", b"data", storage="object", expires=expires)
    found = queue.latest_artifact(created, "public/a b")
    assert found.credentials is not None
    assert found.name is not None
    path = f"/api/object/v1/start-download/{quote(found.name)}"
    body: dict[str, Any] = {"acceptDownloadMethods": {"getUrl": True}}
    ext = {"certificate": json.loads(str(found.credentials.certificate))}
    key = Key(found.credentials.client_id, found.credentials.access_token, ext)
    wire = Wire(local_queue)
    assert wire.json("PUT", path, body, key=key).status == 401
    local_queue.faults.add(faults.service_500("client id of odd characters"))
    assert wire.json("PUT", path, body, key=key).status == 500
    assert queue.download_artifact(created, "public/a b").content == b"data"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("task/{}/runs/0/artifacts", 500),
        ("task/{}/artifacts", 500),
        (f"task-queues/{TASK_QUEUE.replace('/', '%2F')}/pending", 500),
        (f"task-queues/{TASK_QUEUE.replace('/', '%2F')}/claimed", 500),
        ("task/{}/dependents", 200),
        ("provisioners", 200),
    ],
)
def test_a_limit_of_zero_gets_the_services_500_on_the_lists_that_have_it(
    local_queue: LocalQueue, queue: Queue, created: str, path: str, status: int
) -> None:
    queue.claim_work(TASK_QUEUE, **WHO)
    wire, resource = Wire(local_queue), f"{QUEUE}/{path.format(created)}"
    assert wire.send("GET", f"{resource}?limit=0", key=wire.root).status == 200
    local_queue.faults.add(faults.service_500("limit=0"))
    assert wire.send("GET", f"{resource}?limit=0", key=wire.root).status == status
    assert wire.send("GET", f"{resource}?limit=1", key=wire.root).status == 200


@pytest.mark.parametrize("path", ["tasks", "tasks/status"])
def test_a_limit_of_zero_gets_the_services_500_for_tasks_and_statuses(
    local_queue: LocalQueue, created: str, path: str
) -> None:
    wire, body = Wire(local_queue), {"taskIds": [created]}
    assert wire.json("POST", f"{QUEUE}/{path}?limit=0", body, key=wire.root).status == 200
    local_queue.faults.add(faults.service_500("limit=0 of tasks"))
    assert wire.json("POST", f"{QUEUE}/{path}?limit=0", body, key=wire.root).status == 500
    assert wire.json("POST", f"{QUEUE}/{path}?limit=1", body, key=wire.root).status == 200


_REQUESTS: dict[str, tuple[str, str, bytes, dict[str, str]]] = {
    "declareWorker in the past": (
        *("PUT", f"{QUEUE}/provisioners/p/worker-types/w/g/i"),
        *(b'{"expires": "2001-01-01T00:00:00Z"}', {}),
    ),
    "body of more than 10 MiB": ("POST", f"{QUEUE}/tasks", b" " * (11 << 20), {}),
    "NUL in JSON": ("POST", f"{QUEUE}/tasks", b'{"taskIds": ["\\u0000"]}', {}),
    "lone surrogate in JSON": ("POST", f"{QUEUE}/tasks", b'{"taskIds": ["\\ud800"]}', {}),
    "unknown coding or charset": ("POST", f"{QUEUE}/tasks", b"{}", {"Content-Encoding": "zstd"}),
    "body not in its coding": ("POST", f"{QUEUE}/tasks", b"{}", {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("case", _REQUESTS)
def test_requests_that_the_service_cannot_digest_get_its_500(local_queue: LocalQueue, case: str) -> None:
    wire = Wire(local_queue)
    method, path, body, headers = _REQUESTS[case]
    headers = {"Content-Type": "application/json", **headers}
    assert wire.send(method, path, body=body, headers=headers, key=wire.root).status // 100 == 4
    local_queue.faults.add(faults.service_500(case))
    assert wire.send(method, path, body=body, headers=headers, key=wire.root).status == 500
    assert wire.send("POST", f"{QUEUE}/tasks", body=b"{}", headers={}, key=wire.root).status == 400


def test_defects_and_other_faults_of_the_same_endpoints_all_strike(local_queue: LocalQueue) -> None:
    wire = Wire(local_queue)
    for case in _REQUESTS:
        local_queue.faults.add(faults.service_500(case))
    local_queue.faults.add(faults.Respond("queue.ping", status=502))
    assert wire.send("GET", f"{QUEUE}/ping").status == 502
    for method, path, body, headers in _REQUESTS.values():
        headers = {"Content-Type": "application/json", **headers}  # noqa: PLW2901
        assert wire.send(method, path, body=body, headers=headers, key=wire.root).status == 500
    assert len(local_queue.faults.waiting()) == len(_REQUESTS)


def test_a_replaced_response_is_counted_and_others_are_not(local_queue: LocalQueue) -> None:
    wire = Wire(local_queue)
    local_queue.faults.add(faults.RespondWith500("queue.status", instead_of=404))
    missing = f"{QUEUE}/task/{NO_SUCH_TASK}/status"
    statuses = [wire.send("GET", path).status for path in (f"{QUEUE}/task/x/status", missing, missing)]
    assert statuses == [400, 500, 404]


@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
def test_a_defect_is_found_in_a_long_response_however_it_is_compressed(
    local_queue: LocalQueue, coding: str
) -> None:
    wire = Wire(local_queue)
    local_queue.faults.add(faults.service_500("lone surrogate in JSON"))
    headers = {"Content-Type": "application/json", "Accept-Encoding": coding}
    for text, status in (("\\ud800", 500), ("", 400)):
        body = f'{{"unknown": "{"x" * 2000}{text}"}}'.encode()
        assert wire.send("POST", f"{QUEUE}/tasks", body=body, headers=headers, key=wire.root).status == status


def test_a_malformed_content_type_gets_the_services_500_and_a_good_one_is_accepted(
    local_queue: LocalQueue,
) -> None:
    wire = Wire(local_queue)
    local_queue.faults.add(faults.service_500("malformed contentType of an object"))
    terms = {"projectId": "p", "uploadId": slugid(), "expires": EXPIRES}
    for content_type, status in (("text", 500), ("text/plain", 200)):
        methods = {"putUrl": {"contentType": content_type, "contentLength": 1}}
        body = {**terms, "proposedUploadMethods": methods}
        assert wire.json("PUT", "/api/object/v1/upload/x", body, key=wire.root).status == status


def test_a_hash_of_null_gets_the_services_500_and_an_upload_without_it_is_finished(
    local_queue: LocalQueue,
) -> None:
    wire = Wire(local_queue)
    local_queue.faults.add(faults.service_500("hash of null"))
    terms = {"projectId": "p", "uploadId": slugid()}
    create: dict[str, Any] = {**terms, "expires": EXPIRES, "proposedUploadMethods": {}}
    for method, path, body in (("PUT", "upload", create), ("POST", "finish-upload", terms)):
        for hashes, status in (({"crc": None}, 500), ({"crc": "5"}, 200)):
            resource = f"/api/object/v1/{path}/x"
            assert wire.json(method, resource, {**body, "hashes": hashes}, key=wire.root).status == status


@pytest.mark.parametrize("case", ["no such case", "finishArtifact of another storage type"])  # is a 400
def test_an_unknown_case_is_refused_with_those_that_are_known(case: str) -> None:
    with pytest.raises(ValueError, match="reclaim of a pending run"):
        faults.service_500(case)
