"""The differences between deployments, and the service's 500 responses on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import requests

from taskqueue_client import Queue, errors, slugid
from taskqueue_client.definitions import task_definition
from taskqueue_client.local import PUBLIC_SCOPES, LocalQueue, faults
from taskqueue_client.worker import TaskRun, WorkerLoop
from tests.local.local_http import QUEUE, Wire

if TYPE_CHECKING:
    from taskqueue_client.testing import TaskFactory

TASK_QUEUE = "test-provisioner/test-worker"
WHO: dict[str, Any] = {"worker_group": "tests", "worker_id": "one"}


class Uploader(WorkerLoop):
    """Uploads one artifact per run."""

    def run_task(self, task: TaskRun) -> None:
        task.upload_artifact("public/made.txt", b"made")


def _work(local: LocalQueue) -> None:
    Uploader(
        root_url=local.root_url,
        credentials=local.credentials,
        task_queue_id=TASK_QUEUE,
        worker_group="tests",
        worker_id="one",
        max_tasks=1,
    ).serve()


def _public_url(local: LocalQueue, task_id: str) -> str:
    reply = Wire(local).send("GET", f"{QUEUE}/task/{task_id}/artifacts/public%2Fmade.txt")
    return reply.headers["location"]


@pytest.mark.parametrize("signed", [False, True])
def test_urls_of_public_artifacts_are_signed_where_a_deployment_does_so(
    signed: bool,  # noqa: FBT001 - the variant
) -> None:
    with LocalQueue(sign_public_artifacts=signed) as local, Queue(local.root_url, local.credentials) as queue:
        task_id = _created(queue)
        _work(local)
        url = _public_url(local, task_id)
        assert ("X-Amz-Signature" in url) is signed
        assert requests.get(url, timeout=10).content == b"made"
        assert queue.download_artifact(task_id, "public/made.txt").content == b"made"


def _created(queue: Queue, **more: Any) -> str:
    task_id = slugid()
    named: Any = {"name": "t", "owner": "o@example.com", "source": "https://example.com"}
    definition: Any = task_definition(TASK_QUEUE, {}, **named)
    definition.update(more)
    queue.create_task(task_id, definition)
    return task_id


def test_a_deployment_may_limit_dependencies(task_factory: TaskFactory) -> None:
    with LocalQueue(max_dependencies=2) as local, Queue(local.root_url, local.credentials) as queue:
        first, second, third = (_created(queue) for _ in range(3))
        _created(queue, dependencies=[first, second])
        with pytest.raises(errors.CallFailed, match="cannot have more than 2"):
            queue.create_task(slugid(), task_factory(dependencies=[first, second, third]))


def _object(local: LocalQueue, methods: dict[str, Any]) -> Any:
    wire = Wire(local)
    body = {
        "projectId": "p",
        "uploadId": slugid(),
        "expires": "2100-01-01T00:00:00Z",
        "proposedUploadMethods": methods,
    }
    name = slugid()
    created = wire.json("PUT", f"/api/object/v1/upload/{name}", body, key=wire.root)
    finish = {key: body[key] for key in ("projectId", "uploadId")}
    assert wire.json("POST", f"/api/object/v1/finish-upload/{name}", finish, key=wire.root).status == 200
    return name, created.json["uploadMethod"]


INLINE = {"dataInline": {"contentType": "text/plain", "objectData": "eA=="}}
PUT = {"putUrl": {"contentType": "text/plain", "contentLength": 1}}


def test_a_back_end_without_data_inline_takes_the_next_method() -> None:
    with LocalQueue(object_methods=["putUrl", "simple"]) as local:
        assert list(_object(local, {**INLINE, **PUT})[1]) == ["putUrl"]
        assert _object(local, INLINE)[1] == {}


@pytest.mark.parametrize(
    ("methods", "accepted", "status"),
    [
        (["dataInline", "simple"], {"getUrl": True, "simple": True}, 200),
        (["dataInline", "simple"], {"getUrl": True}, 406),
        (["dataInline", "getUrl"], {"simple": True}, 406),
        (["dataInline", "getUrl"], {"getUrl": True, "simple": True}, 200),
    ],
)
def test_a_back_end_gives_only_the_methods_it_has(
    methods: list[str], accepted: dict[str, bool], status: int
) -> None:
    with LocalQueue(object_methods=methods) as local:
        wire, (name, _) = Wire(local), _object(local, INLINE)
        path = f"/api/object/v1/start-download/{name}"
        reply = wire.json("PUT", path, {"acceptDownloadMethods": accepted}, key=wire.root)
        assert reply.status == status
        assert status == 406 or reply.json["method"] in {"simple", "getUrl"} & {*methods}


def test_the_queue_cannot_redirect_to_an_object_without_simple_downloads() -> None:
    with (
        LocalQueue(object_methods=["dataInline", "getUrl"]) as local,
        Queue(local.root_url, local.credentials) as queue,
    ):
        wire, task_id = Wire(local), slugid()
        named: Any = {"name": "t", "owner": "o@example.com", "source": "https://example.com"}
        queue.create_task(task_id, task_definition("test-provisioner/test-worker", {}, **named))
        queue.claim_work("test-provisioner/test-worker", worker_group="tests", worker_id="one")
        options: Any = {"storage": "object", "expires": queue.task(task_id)["expires"]}
        queue.upload_artifact(task_id, 0, "public/x", b"data", **options)
        resource = f"{QUEUE}/task/{task_id}/runs/0/artifacts/public%2Fx"
        reply = wire.send("GET", resource)
        assert (reply.status, reply.json["code"]) == (404, "ResourceNotFound")
        local.faults.add(faults.service_500("getArtifact of an object without simple downloads"))
        assert wire.send("GET", resource).status == 500
        assert queue.download_artifact(task_id, "public/x").content == b"data"


def test_an_unknown_object_method_is_refused_with_those_that_are_allowed() -> None:
    with pytest.raises(ValueError, match="allowed: dataInline, putUrl, simple, getUrl"):
        LocalQueue(object_methods=["torrent"])


def test_a_private_deployment_lets_nobody_in_and_a_public_one_shows_scopes() -> None:
    for scopes, status in (((), 403), (PUBLIC_SCOPES, 200)):
        with LocalQueue(anonymous_scopes=scopes) as local:
            assert Wire(local).send("GET", "/api/auth/v1/scopes/current").status == status


def test_a_report_that_is_refused_after_it_was_done_leaves_the_run_resolved(local_queue: LocalQueue) -> None:
    local_queue.faults.add(faults.overlapping_reports())
    with Queue(local_queue.root_url, local_queue.credentials) as queue:
        first, second = _created(queue), _created(queue)
        _work(local_queue)
        _work(local_queue)
        assert [queue.status(each).status.state for each in (first, second)] == ["completed"] * 2
    assert local_queue.faults.waiting() == []


def test_a_reclaim_that_gets_a_500_after_it_was_done_is_retried(local_queue: LocalQueue) -> None:
    local_queue.faults.add(faults.overlapping_reclaims(2))
    with Queue(local_queue.root_url, local_queue.credentials, clock=local_queue.clock) as queue:
        task_id = _created(queue)
        queue.claim_work(TASK_QUEUE, **WHO)
        assert queue.with_options(wait_max=0).reclaim_task(task_id, 0).run_id == 0
    assert local_queue.faults.waiting() == []
