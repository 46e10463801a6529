"""Requests that were recorded from the real service, sent to a local queue in the order of the recording.

Each response equals the recorded one in status, headers and body, including the order of its keys. Only the
form of times, secrets and addresses is compared.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client.clock import MovableClock
from taskqueue_client.local import LocalQueue
from tests.local.contract_schemas import violations
from tests.local.local_http import Key, Reply, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_THEN = datetime.fromisoformat("2026-11-21T10:13:18.865+00:00").timestamp()
_SELF_DEPENDENT = "RJNzkKJ0RN6jGO5atasFDA"
_PLAIN = "JWfCkbKhSSuuMcCiyVo09A"
_WORKER = {"workerGroup": "example-group", "workerId": "example-worker-1"}

_STORY = """
createTask createTask.dependent status status.unscheduled task tasks tasks.page statuses
+self-dependent +plain
pendingTasks listPendingTasks listPendingTasks.page getTaskGroup
listDependentTasks changeTaskPriority changeTaskGroupPriority listTaskGroup.page
claimWork listClaimedTasks scheduleTask taskQueueCounts reclaimTask
createArtifact createArtifact.s3-private createArtifact.reference createArtifact.link createArtifact.error
createArtifact.object object.createUpload object.finishUpload finishArtifact
createArtifact.object.putUrl object.createUpload.putUrl object.finishUpload.putUrl finishArtifact.putUrl
object.object object.startDownload object.startDownload.simple object.download
getArtifact getArtifact.private getArtifact.object getArtifact.link getArtifact.error getLatestArtifact
artifact artifact.object artifact.reference artifact.error latestArtifact
artifactInfo latestArtifactInfo listArtifacts listArtifacts.page listLatestArtifacts
reportCompleted claimTask +claim-again reportFailed rerunTask
+claim-self-dependent reportException cancelTask listTaskGroup
declareWorker quarantineWorker listWorkers getWorker getWorker.quarantined listWorkers.quarantined
getTaskQueue getWorkerType getProvisioner
sealTaskGroup cancelTaskGroup
error.AuthenticationFailed error.InputError error.InputValidationError error.InsufficientScopes.anonymous
error.InvalidRequestArguments error.MalformedPayload error.NotFound error.RequestConflict
error.ResourceNotFound heartbeat lbheartbeat version object.heartbeat object.lbheartbeat object.version
"""


@pytest.fixture(scope="module")
def recorded(contract: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (contract / "recorded").glob("*.json")}


@pytest.fixture(scope="module")
def replies(recorded: dict[str, Any]) -> Iterator[dict[str, tuple[Reply, str]]]:
    """The responses of the local queue by the names of the recordings, each with the root URL."""
    with LocalQueue(clock=MovableClock(_THEN, held=True), like_production=True) as local:
        teller = _Teller(Wire(local), recorded)
        yield {name: (teller.tell(name), local.root_url) for name in _STORY.split()}


class _Teller:
    """Sends the requests, with the local queue's upload ids in place of the recorded ones."""

    def __init__(self, wire: Wire, recorded: dict[str, Any]) -> None:
        self._wire = wire
        self._recorded = recorded
        self._upload_ids: dict[str, str] = {}

    def tell(self, name: str) -> Reply:
        if name.startswith("+"):
            return self._unrecorded(name)
        request, response = self._recorded[name]["request"], self._recorded[name]["response"]
        reply = self._send(request["method"], request["path"], request.get("body"), self._key(name, request))
        if "uploadId" in (response.get("body") or {}) and reply.status == 200:
            self._upload_ids[response["body"]["uploadId"]] = reply.json["uploadId"]
        return reply

    def _unrecorded(self, name: str) -> Reply:
        """Send a request that the recorder sent without recording it."""
        root, base = self._wire.root, "/api/queue/v1/task"
        task = self._recorded["createTask"]["request"]["body"]
        if name == "+plain":
            return self._send("PUT", f"{base}/{_PLAIN}", task, root)
        if name == "+self-dependent":
            return self._send(
                "PUT", f"{base}/{_SELF_DEPENDENT}", {**task, "dependencies": [_SELF_DEPENDENT]}, root
            )
        task_id = _PLAIN if name == "+claim-again" else _SELF_DEPENDENT
        return self._send("POST", f"{base}/{task_id}/runs/0/claim", _WORKER, root)

    def _key(self, name: str, request: Any) -> Key | None:
        if name == "error.AuthenticationFailed":
            return Key("no/such-client", "token")
        return self._wire.root if "Authorization" in request["headers"] else None

    def _send(self, method: str, path: str, body: Any, key: Key | None) -> Reply:
        text = body if isinstance(body, str) else json.dumps(body)
        for theirs, ours in self._upload_ids.items():
            text = text.replace(theirs, ours)
        headers = {} if body is None else {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = key.header(method, path, self._wire.host, ts=str(int(_THEN)))
        return self._wire.send(method, path, body=b"" if body is None else text.encode(), headers=headers)


_FORMS = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d*[1-9])?\+00:00", "DATABASE-TIME"),
    (r"until/\d+(\.\d*[1-9])?", "until/SECONDS"),
    (r'"accessToken": "[\w-]{43}"', '"accessToken": "TOKEN"'),
    (r'\\"start\\":\d{13},\\"expiry\\":\d{13}', "DATES"),
    (r'\\"seed\\":\\"[\w-]{44}\\"', "SEED"),
    (r'\\"signature\\":\\"[\w+/-]{43}=\\"', "SIGNATURE"),
    (r"X-Amz-(Credential|Date|Signature|Content-Sha256)=[\w%.-]+&?", ""),
    (r"&?x-id=\w+", ""),
    (r"ROOT/(storage/)?(public|private|object)-bucket/", "BUCKET/"),
    (r'"uploadId": "[\w-]{22}"', '"uploadId": "UPLOAD"'),
]


def _form(value: Any, root_url: str) -> Any:
    """Return the value as JSON, with all that differs in each run of the tests replaced by its form."""
    text = json.dumps(value).replace(root_url, "ROOT")
    for pattern, form in _FORMS:
        text = re.sub(pattern, form, text)
    return text


_NAMES = [name for name in _STORY.split() if not name.startswith("+")]


@pytest.mark.parametrize("name", _NAMES)
def test_the_response_is_the_recorded_one(
    recorded: dict[str, Any], replies: dict[str, tuple[Reply, str]], name: str
) -> None:
    then = recorded[name]["response"]
    reply, root_url = replies[name]
    is_text = then["headers"].get("content-type", "").startswith("text/")
    body = reply.body.decode() if is_text else (reply.json if reply.body else None)
    assert reply.status == then["status"], reply.body
    assert _form(body, root_url) == _form(then.get("body"), "http://tc.example.test")
    for header, value in then["headers"].items():
        assert _form(reply.headers[header], root_url) == _form(value, "http://tc.example.test")


def test_every_good_response_is_valid_under_its_schema(
    contract: Path, recorded: dict[str, Any], replies: dict[str, tuple[Reply, str]]
) -> None:
    outputs = {
        f"{prefix}{entry['name']}": f"{service}/{entry['output'].removesuffix('.json#')}"
        for service, prefix, file in (("queue", "", "api.json"), ("object", "object.", "object/api.json"))
        for entry in json.loads((contract / "data" / file).read_text())["entries"]
        if "output" in entry
    }
    checked = set[str]()
    for name, (reply, _) in replies.items():
        endpoint = name if name in outputs else recorded.get(name, {}).get("endpoint", "")
        if endpoint in outputs and reply.status < 400:
            assert violations(contract, outputs[endpoint], reply.json) == []
            checked.add(endpoint)
    assert outputs.keys() - checked == {"listProvisioners", "listTaskQueues", "listWorkerTypes"}
