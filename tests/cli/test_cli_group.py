"""Options and errors that all commands have in common."""

from __future__ import annotations

import ast
import asyncio
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client import Queue, RetryPolicy, __version__, cli, slugid
from taskqueue_client.__main__ import main
from taskqueue_client.cli import taskqueue
from taskqueue_client.cli.failures import ExitStatus, in_one_line
from taskqueue_client.errors import CallFailed, InvalidArgument
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Respond
from tests.certificates import Authority
from tests.cli.command import COMMAND, run
from tests.servers import listening, want_a_password

ONCE = RetryPolicy(attempts=1)

COMMANDS = sorted(taskqueue.list_commands(taskqueue.make_context("taskqueue", [], resilient_parsing=True)))
LEAVES = [[name] for name in COMMANDS if name != "artifacts"] + [["artifacts", "list"], ["artifacts", "get"]]
SLOW = ("aiohttp", "jsonschema", "requests", "rich", "tenacity", "yaml")


def test_help_imports_no_slow_modules() -> None:
    script = (
        "import sys, taskqueue_client.cli as cli\n"
        "cli.taskqueue(['--help'], standalone_mode=False)\n"
        f"print([name for name in {SLOW} if name in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command_and_every_exit_status() -> None:
    result = run("--help")
    assert all(f"\n  {name} " in result.stdout for name in COMMANDS)
    assert all(f"\n    {int(status)} " in result.stdout for status in ExitStatus)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_help_and_a_json_option(words: list[str]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_a_command_that_does_not_exist_is_wrong_use() -> None:
    assert run("frobnicate").exit_code == ExitStatus.WRONG_USE


def test_the_command_is_installed_with_the_package() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="taskqueue")
    assert script.load() is main


def test_without_a_deployment_the_variable_to_set_is_named() -> None:
    result = run("status", "fN1SbArXTPSVFNUvaOlinQ")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stderr.count("\n") == 1
    assert "TASKCLUSTER_ROOT_URL is not set" in result.stderr


@pytest.mark.usefixtures("deployment")
def test_an_unknown_task_is_reported_in_one_line_with_the_status_of_a_refusal() -> None:
    result = run("status", "fN1SbArXTPSVFNUvaOlinQ")
    assert result.exit_code == ExitStatus.REFUSED
    assert result.stderr.startswith("Error: not found: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["status", "fN1SbArXTPSVFNUvaOlinQ"], ["doctor"]])
def test_a_root_url_of_another_server_is_named(
    arguments: list[str], deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_url = f"{deployment.root_url}/elsewhere"
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", root_url)
    result = run(*arguments)
    printed = result.stdout + result.stderr
    assert f"{root_url} responded to" in printed
    assert (
        "with HTTP 404 and no error code of Taskcluster (Not found): check TASKCLUSTER_ROOT_URL\n" in printed
    )


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("arguments", [["status", "fN1SbArXTPSVFNUvaOlinQ"], ["doctor"]])
def test_a_proxy_of_the_worker_that_is_not_there_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKCLUSTER_PROXY_URL", "http://127.0.0.1:1")
    result = run(*arguments)
    assert "refused): check TASKCLUSTER_PROXY_URL and the network\n" in result.stdout + result.stderr


@pytest.mark.parametrize("arguments", [["status", "fN1SbArXTPSVFNUvaOlinQ"], ["doctor"]])
def test_a_root_url_of_a_server_that_responds_with_a_web_page_is_named(
    arguments: list[str], deployment: LocalQueue
) -> None:
    deployment.faults.add(Respond(endpoint="*", status=200, html=True, times=99))
    result = run(*arguments)
    printed = result.stdout + result.stderr
    assert f"{deployment.root_url} responded to" in printed
    assert "with HTTP 200 and an unreadable response (" in printed
    assert "): check TASKCLUSTER_ROOT_URL\n" in printed


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("arguments", [["status", "fN1SbArXTPSVFNUvaOlinQ"], ["doctor"]])
def test_a_proxy_that_gets_too_many_requests_is_not_taken_for_another_server(
    arguments: list[str], deployment: LocalQueue
) -> None:
    deployment.faults.add(Respond(endpoint="*", status=429, html=True, times=99))
    result = run(*arguments)
    said = f"{deployment.root_url} gets too many requests (HTTP 429: "
    printed = result.stdout + result.stderr
    assert said in printed
    assert "): try later\n" in printed
    assert "check TASKCLUSTER_ROOT_URL" not in printed


@pytest.mark.parametrize(
    ("root_url", "variable"),
    [
        ("http://tc.example.com", "HTTP_PROXY"),
        ("https://tc.example.com", "HTTPS_PROXY"),
        ("https://tc.example.com", "ALL_PROXY"),
    ],
)
def test_the_variable_of_a_proxy_that_wants_a_password_is_named(
    monkeypatch: pytest.MonkeyPatch, root_url: str, variable: str
) -> None:
    with listening(want_a_password) as port:
        monkeypatch.setenv(variable, f"http://me:hidden@127.0.0.1:{port}")
        with Queue(root_url, retry=ONCE) as queue, pytest.raises(CallFailed) as failed:
            queue.ping()
    said = in_one_line(failed.value)
    problem = f"the proxy http://127.0.0.1:{port} refuses the user and password in {variable}"
    assert said == f"cannot reach {root_url}: {problem}: correct them"


def test_the_variable_of_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Queue("http://tc.example.com", retry=ONCE) as queue, pytest.raises(CallFailed) as failed:
        queue.ping()
    assert in_one_line(failed.value).endswith(": check TASKCLUSTER_ROOT_URL, HTTP_PROXY and the network")


def test_the_variable_of_a_proxy_that_may_have_responded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deny(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied")
        writer.close()

    with listening(deny) as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:hidden@127.0.0.1:{port}")
        with Queue("http://tc.example.com", retry=ONCE) as queue, pytest.raises(CallFailed) as failed:
            queue.ping()
    said = in_one_line(failed.value)
    assert f"(the proxy http://127.0.0.1:{port} may have responded, and not the service: denied)" in said
    assert said.endswith(": check TASKCLUSTER_ROOT_URL, HTTP_PROXY")


def test_the_variable_of_trusted_certificates_is_named(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with (
        listening(never, context) as port,
        Queue(f"https://localhost:{port}", retry=ONCE) as queue,
        pytest.raises(CallFailed) as failed,
    ):
        queue.ping()
    advice = "): check TASKCLUSTER_ROOT_URL and the trusted certificates (REQUESTS_CA_BUNDLE)"
    assert in_one_line(failed.value).endswith(advice)


@pytest.mark.parametrize("given", [0, "", False])
def test_a_value_that_is_refused_is_shown_and_not_called_unset(given: object) -> None:
    error = InvalidArgument("concurrency in worker.yml", given, "a whole number, 1 or more")
    assert in_one_line(error) == str(error)


def test_an_invalid_task_id_is_refused_before_any_request() -> None:
    result = run("cancel", "my-task")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "'my-task' is not the id of a task or group; expected a slugid" in result.stderr


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("words", [["cancel"], ["rerun"], ["retrigger"], ["status"], ["watch"]])
def test_a_command_without_a_task_is_wrong_use(words: list[str]) -> None:
    assert run(*words).exit_code == ExitStatus.WRONG_USE


def test_the_version_option_prints_the_package_version() -> None:
    completed = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert completed.stdout.split()[1:] == run("--version").stdout.split()[1:]


def test_the_version_is_known_in_an_executable_without_the_metadata_of_packages() -> None:
    script = (
        "import importlib.metadata, sys\n"
        "from taskqueue_client.cli import taskqueue\n"
        "def missing(name): raise importlib.metadata.PackageNotFoundError(name)\n"
        "importlib.metadata.version = missing\n"
        "taskqueue(['--version'], prog_name='taskqueue')"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout == f"taskqueue, version {__version__}\n"


def test_the_module_of_each_command_is_imported_where_pyinstaller_finds_it() -> None:
    source = ast.parse(Path(cli.__file__).read_text(encoding="utf-8"))
    statements = [each for each in ast.walk(source) if isinstance(each, ast.ImportFrom) and each.level]
    found = {name.name for each in statements if each.module is None for name in each.names}
    context = taskqueue.make_context("taskqueue", [], resilient_parsing=True)
    commands = [taskqueue.get_command(context, name) for name in COMMANDS]
    modules = {each.callback.__module__ for each in commands if each is not None and each.callback}
    assert {f"{cli.__name__}.{name}" for name in found} == modules


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_command_runs_with_closed_standard_streams(queue: Queue, task_factory: Any, closed: str) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory())
    script = f'exec "$@" {closed}'
    arguments = ["sh", "-c", script, "sh", *COMMAND, "status", task_id]
    completed = subprocess.run(arguments, stderr=subprocess.PIPE, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (ExitStatus.DONE, "")
    arguments = ["sh", "-c", script, "sh", *COMMAND, "status", slugid()]
    assert subprocess.run(arguments, stderr=subprocess.DEVNULL, check=False).returncode == ExitStatus.REFUSED


def test_the_package_runs_as_a_module() -> None:
    module = [sys.executable, "-m", "taskqueue_client", "--version"]
    done = subprocess.run(module, capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout


@pytest.mark.parametrize("missing", ["click", "yaml"])
def test_without_the_extra_one_line_says_how_to_install_it(missing: str, tmp_path: Path) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['taskqueue', 'submit', '-']\n"
        "from taskqueue_client.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"taskqueue needs {missing}: pip install 'taskqueue_client[cli]'\n"


def test_a_limit_of_threads_is_named_in_one_line(tmp_path: Path) -> None:
    script = (
        "import threading\n"
        'def refuse(*_, **__): raise RuntimeError("can\'t start new thread")\n'
        "threading._start_new_thread = threading._start_joinable_thread = refuse\n"
        "import sys; sys.argv = ['taskqueue', 'local']\n"
        "from taskqueue_client.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == ExitStatus.NOT_COMPLETED
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: the system starts no more threads: raise the limit of processes (")
    assert line.endswith(" or of memory (`ulimit -v`)")


@pytest.mark.parametrize(
    ("line", "expected"),
    [("taskqueue ret", "retrigger"), ("taskqueue artifacts g", "get"), ("taskqueue status --g", "--group")],
)
def test_a_shell_completes_commands_and_options(line: str, expected: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_TASKQUEUE_COMPLETE": "bash_complete"}
    script = "from taskqueue_client.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | words, check=False
    )
    assert done.stdout == f"plain,{expected}\n"
