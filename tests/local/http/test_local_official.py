"""The official `taskcluster` package works with the local queue as it is."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import requests
import taskcluster
from taskcluster import aio

from taskqueue_client import slugid

if TYPE_CHECKING:
    from taskqueue_client.local import LocalQueue
    from taskqueue_client.testing import TaskFactory

_upload: Any = importlib.import_module("taskcluster.upload")
_download: Any = importlib.import_module("taskcluster.download")
_aio_upload: Any = importlib.import_module("taskcluster.aio.upload")
_aio_download: Any = importlib.import_module("taskcluster.aio.download")
_WORKER = {"workerGroup": "group", "workerId": "worker", "tasks": 1}


def _options(local: LocalQueue, credentials: dict[str, Any] | None = None) -> dict[str, Any]:
    mine = {"clientId": local.client_id, "accessToken": local.access_token}
    return {"rootUrl": local.root_url, "credentials": credentials or mine, "maxRetries": 0}


@pytest.fixture
def official(local_queue: LocalQueue) -> Any:
    return taskcluster.Queue(_options(local_queue))


@pytest.fixture
def claim(local_queue: LocalQueue, official: Any, task_factory: TaskFactory) -> tuple[str, Any]:
    """A claimed task's id, and a client with the run's credentials."""
    official.createTask(slugid(), task_factory(scopes=["some:scope"], projectId="project"))
    (claimed,) = official.claimWork("test-provisioner/test-worker", _WORKER)["tasks"]
    return claimed["status"]["taskId"], taskcluster.Queue(_options(local_queue, claimed["credentials"]))


def test_a_task_goes_from_creation_to_resolution(claim: tuple[str, Any], official: Any) -> None:
    task_id, run = claim
    before = official.status(task_id)["status"]["runs"][0]["takenUntil"]
    assert run.reclaimTask(task_id, 0)["takenUntil"] >= before
    assert run.reportCompleted(task_id, 0)["status"]["state"] == "completed"
    assert official.task(task_id)["scopes"] == ["some:scope"]


def test_run_credentials_are_good_for_nothing_else(claim: tuple[str, Any], official: Any) -> None:
    _, run = claim
    with pytest.raises(taskcluster.exceptions.TaskclusterRestFailure, match="queue:list-task-queues"):
        run.listTaskQueues()
    assert official.listTaskQueues()["taskQueues"][0]["taskQueueId"] == "test-provisioner/test-worker"


def test_an_s3_artifact_is_uploaded_and_read(claim: tuple[str, Any], official: Any) -> None:
    task_id, run = claim
    body = {"storageType": "s3", "expires": taskcluster.fromNow("30 min"), "contentType": "text/plain"}
    created = run.createArtifact(task_id, 0, "private/a b.txt", body)
    put = requests.put(created["putUrl"], data=b"text", headers={"Content-Type": "text/plain"}, timeout=30)
    assert put.status_code == 200
    content = requests.get(official.latestArtifact(task_id, "private/a b.txt")["url"], timeout=30)
    assert (content.content, content.headers["Content-Type"]) == (b"text", "text/plain")


def _object(task_id: str, run: Any, local: LocalQueue, name: str) -> tuple[dict[str, Any], Any]:
    body = {"storageType": "object", "expires": taskcluster.fromNow("30 min"), "contentType": "text/plain"}
    created = run.createArtifact(task_id, 0, name, body)
    options = _options(local, created["credentials"])
    return created, options


@pytest.mark.parametrize("size", [10, 20_000], ids=["inline", "by URL"])
def test_an_object_is_uploaded_and_downloaded_by_the_helpers(
    claim: tuple[str, Any], official: Any, local_queue: LocalQueue, size: int
) -> None:
    task_id, run = claim
    created, options = _object(task_id, run, local_queue, "public/object")
    _upload.uploadFromBuf(
        projectId=created["projectId"],
        name=created["name"],
        contentType="text/plain",
        contentLength=size,
        uploadId=created["uploadId"],
        expires=created["expires"],
        maxRetries=0,
        objectService=taskcluster.Object(options),
        data=b"x" * size,
    )
    run.finishArtifact(task_id, 0, "public/object", {"uploadId": created["uploadId"]})
    data, content_type = _download.downloadArtifactToBuf(
        taskId=task_id, runId=0, name="public/object", maxRetries=0, queueService=official
    )
    assert (bytes(data), content_type) == (b"x" * size, "text/plain")


def test_a_signed_url_gives_a_private_artifact_to_whoever_has_it(
    claim: tuple[str, Any], official: Any
) -> None:
    task_id, run = claim
    body = {
        "storageType": "reference",
        "expires": taskcluster.fromNow("30 min"),
        "url": "https://x.example/",
        "contentType": "a/b",
    }
    run.createArtifact(task_id, 0, "private/link", body)
    url = official.buildSignedUrl("getArtifact", task_id, 0, "private/link")
    response = requests.get(url, allow_redirects=False, timeout=30)
    assert (response.status_code, response.headers["Location"]) == (303, "https://x.example/")
    bare = requests.get(url.partition("?")[0], allow_redirects=False, timeout=30)
    assert bare.status_code == 403


@pytest.mark.parametrize("name", [None, "some/name"])
def test_temporary_credentials_made_by_the_package_are_good(
    local_queue: LocalQueue, name: str | None
) -> None:
    mine = _options(local_queue)["credentials"]
    temporary = taskcluster.createTemporaryCredentials(
        mine["clientId"],
        mine["accessToken"],
        taskcluster.fromNow("-1 min"),
        taskcluster.fromNow("1 hour"),
        ["auth:current-scopes", "auth:x", "queue:list-task-queues"],
        **({"name": name} if name else {}),
    )
    assert taskcluster.Queue(_options(local_queue, temporary)).listTaskQueues() == {"taskQueues": []}
    scopes = taskcluster.Auth(_options(local_queue, temporary)).currentScopes()["scopes"]
    assert {"auth:x", "queue:list-task-queues"} <= {*scopes}


def test_authorized_scopes_restrict_the_package(local_queue: LocalQueue) -> None:
    queue = taskcluster.Queue({**_options(local_queue), "authorizedScopes": ["queue:status:*"]})
    with pytest.raises(taskcluster.exceptions.TaskclusterRestFailure, match="missing the following scopes"):
        queue.listTaskQueues()


def test_a_wrong_token_is_an_authentication_failure(local_queue: LocalQueue) -> None:
    queue = taskcluster.Queue(
        _options(local_queue, {"clientId": local_queue.client_id, "accessToken": "wrong"})
    )
    with pytest.raises(taskcluster.exceptions.TaskclusterAuthFailure, match="Bad mac"):
        queue.listTaskQueues()


def test_the_signers_test_endpoints_know_the_tester(local_queue: LocalQueue) -> None:
    auth = taskcluster.Auth(_options(local_queue, {"clientId": "tester", "accessToken": "no-secret"}))
    posted = auth.testAuthenticate({"clientScopes": ["test:a"], "requiredScopes": ["test:a"]})
    assert posted == {"clientId": "tester", "scopes": ["assume:anonymous", "test:a"]}
    assert auth.testAuthenticateGet()["clientId"] == "tester"


async def test_the_asynchronous_package_works_too(local_queue: LocalQueue, task_factory: TaskFactory) -> None:
    async with aiohttp.ClientSession() as session:
        queue = aio.Queue(_options(local_queue), session=session)
        task_id = slugid()
        waiting = asyncio.create_task(queue.claimWork("test-provisioner/test-worker", _WORKER))
        await queue.createTask(task_id, task_factory())
        (claimed,) = (await waiting)["tasks"]
        run = aio.Queue(_options(local_queue, claimed["credentials"]), session=session)
        body = {
            "storageType": "object",
            "expires": taskcluster.fromNow("30 min"),
            "contentType": "text/plain",
        }
        created = await run.createArtifact(task_id, 0, "public/object", body)
        await _aio_upload.uploadFromBuf(
            projectId=created["projectId"],
            name=created["name"],
            contentType="text/plain",
            contentLength=4,
            uploadId=created["uploadId"],
            expires=created["expires"],
            maxRetries=0,
            objectService=aio.Object(_options(local_queue, created["credentials"]), session=session),
            data=b"text",
        )
        await run.finishArtifact(task_id, 0, "public/object", {"uploadId": created["uploadId"]})
        assert (await run.reportCompleted(task_id, 0))["status"]["state"] == "completed"
        data, _ = await _aio_download.downloadArtifactToBuf(
            taskId=task_id, runId=0, name="public/object", maxRetries=0, queueService=queue
        )
        assert bytes(data) == b"text"
