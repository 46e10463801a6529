"""`taskqueue local`, as a shell sees it: output, settings, signals and errors."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pytest
import requests
import taskcluster

from taskqueue_client import slugid
from tests.cli.command import running

if TYPE_CHECKING:
    from pathlib import Path

    from taskqueue_client.testing import TaskFactory

_COMMAND = [sys.executable, "-m", "taskqueue_client", "local"]


def _settings(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    settings: dict[str, str] = json.loads(process.stdout.readline())
    return settings


def _official(settings: dict[str, str], **credentials: str) -> Any:
    mine = {
        "clientId": settings["TASKCLUSTER_CLIENT_ID"],
        "accessToken": settings["TASKCLUSTER_ACCESS_TOKEN"],
    }
    return taskcluster.Queue(
        {"rootUrl": settings["TASKCLUSTER_ROOT_URL"], "credentials": credentials or mine, "maxRetries": 0}
    )


def test_a_script_reads_its_settings_as_the_help_says(tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("export TASKCLUSTER_ROOT_URL=http://from.an.earlier.run")
    shown = subprocess.run([*_COMMAND, "--help"], capture_output=True, text=True, timeout=60, check=True)
    recipe = textwrap.dedent(shown.stdout[shown.stdout.index("    rm -f") :].partition("\n\n")[0])
    assert len(recipe.splitlines()) == 4
    options = '--client-id me --access-token "it\'s"'
    script = (
        f'taskqueue() {{ exec {shlex.join(_COMMAND[:-1])} "$@" {options}; }}\n{recipe}\n'
        "kill -TERM $!; wait $!; status=$?\n"
        'echo "$TASKCLUSTER_ROOT_URL $TASKCLUSTER_CLIENT_ID $TASKCLUSTER_ACCESS_TOKEN $status"\n'
        'echo "${TASKCLUSTER_CERTIFICATE-unset} ${TASKCLUSTER_PROXY_URL-unset}"'
    )
    signed_in = {"TASKCLUSTER_CERTIFICATE": "{}", "TASKCLUSTER_PROXY_URL": "http://taskcluster"}
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env=os.environ | signed_in,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    words = done.stdout.split()
    assert words[0].startswith("http://127.0.0.1:")
    assert words[1:] == ["me", "it's", "0", "unset", "unset"]


def test_behind_a_proxy_its_settings_let_clients_bypass_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "example.com")
    with running("local") as process:
        assert process.stdout is not None
        settings = takewhile(lambda line: not line.startswith("# page"), process.stdout)
        (tmp_path / "env.sh").write_text("".join(settings))
        doctor = f'. ./env.sh; echo "$NO_PROXY $no_proxy"; {shlex.join(_COMMAND[:-1])} doctor'
        done = subprocess.run(
            ["sh", "-c", doctor], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.stdout.startswith("example.com,127.0.0.1 example.com,127.0.0.1\n")
    assert "service: the Queue responds" in done.stdout
    with running("local", "--json", "--host", "localhost") as process:
        assert _settings(process)["NO_PROXY"] == "example.com,localhost"


def test_it_responds_as_soon_as_it_has_printed_one_line_of_json() -> None:
    with running("local", "--json") as process:
        settings = _settings(process)
        names = ["TASKCLUSTER_ROOT_URL", "TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN", "page"]
        assert list(settings) == names
        assert _official(settings).listTaskQueues() == {"taskQueues": []}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_log_has_requests_without_secrets(stop: signal.Signals) -> None:
    with running("local", "--json", "--access-token", "s3cret-token") as process:
        settings = _settings(process)
        url = _official(settings).buildSignedUrl("listTaskQueues")
        assert requests.get(url, timeout=30).status_code == 200
        process.send_signal(stop)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0
    assert "GET /api/queue/v1/task-queues 200" in log
    assert "s3cret" not in log
    assert "bewit" not in log


def test_state_in_a_file_is_there_again_the_next_time(tmp_path: Path, task_factory: TaskFactory) -> None:
    options = ("--json", "--db", str(tmp_path / "tasks.sqlite"))
    task_id = slugid()
    with running("local", *options) as process:
        _official(_settings(process)).createTask(task_id, task_factory())
    with running("local", *options) as process:
        assert _official(_settings(process)).status(task_id)["status"]["state"] == "pending"


def test_a_file_that_another_queue_uses_is_refused_as_such(tmp_path: Path) -> None:
    options = ("--db", str(tmp_path / "tasks.sqlite"))
    with running("local", *options) as first:
        assert first.stdout is not None
        first.stdout.readline()
        done = subprocess.run([*_COMMAND, *options], capture_output=True, text=True, timeout=60, check=False)
    finding = "another process uses this file; stop it, or use another file"
    assert (done.returncode, done.stderr) == (2, f"Error: {options[1]}: {finding}\n")


def test_clients_and_roles_come_from_options_and_a_file(tmp_path: Path) -> None:
    config = tmp_path / "config.yml"
    config.write_text(
        "clients:\n- {clientId: filed, accessToken: t, scopes: ['assume:lister']}\n"
        "roles:\n  lister: ['queue:list-task-queues']\nanonymousScopes: []\n"
    )
    options = ("--json", "--config", str(config), "--client", "given=t=queue:list-task-queues,queue:x")
    with running("local", *options) as process:
        settings = _settings(process)
        for name in ("filed", "given"):
            assert _official(settings, clientId=name, accessToken="t").listTaskQueues() == {"taskQueues": []}
        with pytest.raises(
            taskcluster.exceptions.TaskclusterRestFailure, match="requires Taskcluster credentials"
        ):
            taskcluster.Queue({"rootUrl": settings["TASKCLUSTER_ROOT_URL"]}).listProvisioners()


def test_the_claim_timeout_and_the_admin_routes_can_be_set(task_factory: TaskFactory) -> None:
    with running("local", "--json", "--claim-timeout", "60", "--admin-secret", "sesame") as process:
        settings = _settings(process)
        queue, task_id = _official(settings), slugid()
        queue.createTask(task_id, task_factory(retries=0))
        queue.claimWork("test-provisioner/test-worker", {"workerGroup": "g", "workerId": "w"})
        moved = requests.post(
            settings["TASKCLUSTER_ROOT_URL"] + "/admin/clock/advance",
            json={"seconds": 61},
            headers={"Authorization": "Bearer sesame"},
            timeout=30,
        )
        assert moved.status_code == 200
        assert queue.status(task_id)["status"]["runs"][0]["reasonResolved"] == "claim-expired"


def test_a_claim_may_last_as_long_as_one_of_a_local_queue_in_a_program() -> None:
    with running("local", "--json", "--claim-timeout", "31 days") as process:
        _settings(process)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines: set allow_remote (--allow-remote), or"),
        (["--client", "nonsense"], "CLIENT_ID=ACCESS_TOKEN=SCOPE"),
        (["--client", "a b=t"], "clientId 'a b'"),
        (["--config", "/nowhere"], "No such file"),
        (["--db", "/nowhere/x.sqlite"], "No such file or directory: '/nowhere/x.sqlite'"),
    ],
)
def test_bad_options_are_refused_in_one_line(options: list[str], words: str) -> None:
    command = [*_COMMAND, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_help_names_the_commands() -> None:
    done = subprocess.run(
        [*_COMMAND[:-1], "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=dict(os.environ),
    )
    assert "local" in done.stdout
