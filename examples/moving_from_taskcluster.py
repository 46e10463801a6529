"""The official client and this one side by side: each step is done with both, and the results compared.

    python -m examples.moving_from_taskcluster

It needs a deployment in the `TASKCLUSTER_…` variables (such as `taskqueue local`), with credentials for the
task queue `proj/moving`, and the package `taskcluster`. It prints a table of both ways to write each step.
"""
# ruff: noqa: D102, PLR2004 - a method's name says which step it is, and 404 is 404

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import requests
import taskcluster
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from taskqueue_client import Credentials, Queue, calls, slugid, task_definition, temporary_credentials
from taskqueue_client.errors import ResourceNotFound

DEFINITION: Any = task_definition(
    "proj/moving", {}, name="moving", owner="me@example.com", source="https://example.com/moving"
)
WORKER = {"workerGroup": "examples", "workerId": "moving"}


@dataclass
class Steps:
    """The steps to make with either client; `task_id` is the id of the task that they create."""

    task_id: str = field(default_factory=slugid)
    run_credentials: Any = None


class Official(Steps):
    """With `taskcluster`."""

    def connect(self) -> None:
        self.queue = taskcluster.Queue(taskcluster.optionsFromEnvironment())

    def create_a_task(self) -> object:
        return self.queue.createTask(self.task_id, DEFINITION)["status"]["state"]

    def ask_for_its_status(self) -> object:
        return self.queue.status(self.task_id)["status"]["runs"][0]["reasonCreated"]

    def claim_it(self) -> object:
        (claim,) = self.queue.claimWork("proj/moving", {**WORKER, "tasks": 1})["tasks"]
        self.run_credentials = claim["credentials"]
        return claim["runId"]

    def act_on_behalf_of_the_run(self) -> None:
        self.run = taskcluster.Queue({**self.queue.options, "credentials": self.run_credentials})

    def upload_an_artifact(self) -> None:
        request = {"storageType": "s3", "contentType": "text/plain", "expires": taskcluster.fromNow("1 day")}
        response = self.run.createArtifact(self.task_id, 0, "public/a.txt", request)
        headers = {"Content-Type": response["contentType"]}
        requests.put(response["putUrl"], data=b"content", headers=headers, timeout=60).raise_for_status()

    def report_it(self) -> object:
        return self.run.reportCompleted(self.task_id, 0)["status"]["state"]

    def list_its_artifacts(self) -> object:
        pages: list[Any] = []
        self.queue.listLatestArtifacts(self.task_id, paginationHandler=pages.append)
        return [artifact["name"] for page in pages for artifact in page["artifacts"]]

    def download_an_artifact(self) -> object:
        url = self.queue.buildUrl("getLatestArtifact", self.task_id, "public/a.txt")
        return requests.get(url, timeout=60).content

    def notice_that_something_is_missing(self) -> object:
        try:
            return self.queue.status(slugid())
        except taskcluster.exceptions.TaskclusterRestFailure as error:
            if error.status_code != 404:
                raise
            return "missing"

    def sign_a_url(self) -> object:
        url = self.queue.buildSignedUrl("task", self.task_id)
        return requests.get(url, timeout=60).json()["taskQueueId"]

    def make_temporary_credentials(self) -> object:
        made = taskcluster.createTemporaryCredentials(
            os.environ["TASKCLUSTER_CLIENT_ID"],
            os.environ["TASKCLUSTER_ACCESS_TOKEN"],
            start=taskcluster.fromNow("-5 minutes"),
            expiry=taskcluster.fromNow("1 hour"),
            scopes=["auth:current-scopes", "queue:rerun-task:*"],
        )
        return taskcluster.Auth({**self.queue.options, "credentials": made}).currentScopes()["scopes"]


class Ours(Steps):
    """With `taskqueue_client`."""

    def connect(self) -> None:
        self.queue = Queue.from_env()

    def create_a_task(self) -> object:
        return self.queue.create_task(self.task_id, DEFINITION).status.state

    def ask_for_its_status(self) -> object:
        return self.queue.status(self.task_id).status.runs[0].reason_created

    def claim_it(self) -> object:
        (claim,) = self.queue.claim_work("proj/moving", worker_group="examples", worker_id="moving").tasks
        self.run_credentials = claim.credentials
        return claim.run_id

    def act_on_behalf_of_the_run(self) -> None:
        self.run = self.queue.with_credentials(self.run_credentials)

    def upload_an_artifact(self) -> None:
        expires = self.queue.now() + timedelta(days=1)
        self.run.upload_artifact(self.task_id, 0, "public/a.txt", b"content", expires=expires)

    def report_it(self) -> object:
        return self.run.report_completed(self.task_id, 0).status.state

    def list_its_artifacts(self) -> object:
        return [artifact.name for artifact in self.queue.iter_latest_artifacts(self.task_id)]

    def download_an_artifact(self) -> object:
        return self.queue.download_artifact(self.task_id, "public/a.txt").content

    def notice_that_something_is_missing(self) -> object:
        try:
            return self.queue.status(slugid())
        except ResourceNotFound:
            return "missing"

    def sign_a_url(self) -> object:
        url = self.queue.signed_url(calls.task(self.task_id))
        return requests.get(url, timeout=60).json()["taskQueueId"]

    def make_temporary_credentials(self) -> object:
        mine = Credentials(os.environ["TASKCLUSTER_CLIENT_ID"], os.environ["TASKCLUSTER_ACCESS_TOKEN"])
        made = temporary_credentials(mine, ["auth:current-scopes", "queue:rerun-task:*"])
        return self.queue.with_credentials(made).current_scopes().scopes


def source(method: Callable[..., object]) -> str:
    """Return the lines of a method's body, without `self`."""
    body = inspect.getsource(method).split("\n", 1)[1]
    return inspect.cleandoc(body).replace("self.", "")


def main() -> int:
    """Do each step with both; return the exit status."""
    official, ours = Official(), Ours()
    table = Table("", "taskcluster", "taskqueue_client", show_lines=True)
    differences = 0
    for name in [name for name in vars(Official) if not name.startswith("_")]:
        theirs, mine = getattr(official, name), getattr(ours, name)
        results = theirs(), mine()
        differences += results[0] != results[1]
        if results[0] != results[1]:
            print(f"{name}: {results[0]!r} is not {results[1]!r}", file=sys.stderr)
        code = (Syntax(source(method), "python", word_wrap=True) for method in (theirs, mine))
        table.add_row(name.replace("_", " "), *code)
    ours.queue.close()
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    return min(differences, 1)


if __name__ == "__main__":
    sys.exit(main())
