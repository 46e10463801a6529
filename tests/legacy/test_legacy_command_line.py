"""`taskqueue local --legacy-azure` and `taskqueue work --task-source azure`, as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from taskqueue_client import Credentials, LocalQueue, Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.definitions import task_definition
from tests.cli.command import running
from tests.legacy.azurite import KEY, Azurite

WORKER = """
from taskqueue_client import WorkerLoop

class Greeter(WorkerLoop):
    def run_task(self, task):
        task.log.info("hello")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "greeting.py").write_text(WORKER)
    return tmp_path


def test_a_worker_process_runs_what_a_queue_process_put_into_the_storage(
    azurite: Azurite, task_queue_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_LOCAL_LEGACY_AZURE", azurite.connection_string)
    with running("local", "--json", "--no-page") as local:
        assert local.stdout is not None
        for name, value in json.loads(local.stdout.readline()).items():
            monkeypatch.setenv(name, value)
        task_id = slugid()
        with Queue.from_env() as queue:
            definition = task_definition(
                task_queue_id, {}, name="test", owner="me@example.com", source="https://example.com/"
            )
            queue.create_task(task_id, definition)
            settings = ["--task-queue-id", task_queue_id, "--worker-group", "g", "--worker-id", "w"]
            command = ["work", "greeting:Greeter", "--task-source", "azure", *settings, "--max-tasks", "1"]
            with running(*command) as worker:
                _, worker_log = worker.communicate(timeout=60)
            assert worker.returncode == ExitStatus.DONE, worker_log
            assert queue.status(task_id).status.state == "completed"
        local.terminate()
        _, queue_log = local.communicate(timeout=60)
    assert f"POST /api/queue/v1/task/{task_id}/runs/0/claim 200" in queue_log
    assert "claim-work" not in queue_log
    for secret in (KEY, "sig=", "x-ms-"):
        assert secret not in worker_log + queue_log


@pytest.mark.usefixtures("emulator_installed")
@pytest.mark.parametrize(
    "wrong", ["", "nonsense", "AccountKey=c2VjcmV0", "AccountName=a;SharedAccessSignature=c2VjcmV0"]
)
def test_a_connection_string_that_cannot_be_used_is_an_error_that_does_not_show_it(wrong: str) -> None:
    status, errors = refused("local", "--legacy-azure", wrong)
    assert status == ExitStatus.WRONG_USE
    assert "legacy_azure: not a connection string of a storage account; expected" in errors
    assert "c2VjcmV0" not in errors


def test_without_the_extra_the_error_says_how_to_install_it(folder: Path) -> None:
    (folder / "azure").mkdir()  # it shadows the real package, and has no modules
    (folder / "azure" / "__init__.py").touch()
    status, errors = refused("local", "--legacy-azure", "any")
    assert status == ExitStatus.WRONG_USE
    assert "pip install 'taskqueue_client[azure]'" in errors


def refused(*arguments: str) -> tuple[int, str]:
    """Run a command that ends by itself; return its exit status and its standard error."""
    with running(*arguments) as process:
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_a_polling_worker_ends_with_the_reason_at_a_deployment_without_legacy_polling(
    local_queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials: Credentials = local_queue.credentials
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local_queue.root_url)
    monkeypatch.setenv("TASKCLUSTER_CLIENT_ID", credentials.client_id)
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", credentials.access_token)
    settings = ["--task-queue-id", "proj/linux", "--worker-group", "g", "--worker-id", "w"]
    with running("work", "greeting:Greeter", "--task-source", "azure", *settings) as worker:
        _, log = worker.communicate(timeout=60)
    assert worker.returncode == ExitStatus.REFUSED, log
    assert "this Queue has no legacy polling (pollTaskUrls): use the default task source" in log


def test_nothing_else_imports_legacy_polling() -> None:
    names = ["taskqueue_client.legacy", "taskqueue_client.local.legacy_endpoints", "azure"]
    program = (
        "import sys, taskqueue_client.worker, taskqueue_client.local, taskqueue_client.cli;"
        "import taskqueue_client.cli.work, taskqueue_client.cli.local;"
        f"print([name for name in {names} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
