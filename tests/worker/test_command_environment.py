"""The environment of commands."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from taskqueue_client import TaskRun, WorkerLoop
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.testing import run_handler
from taskqueue_client.worker.commands.command import run_command
from taskqueue_client.worker.commands.environment import (
    PASSED,
    CommandEnvironment,
    looks_like_secret,
)
from tests.worker.running_commands import context_in, printed_in

CREDENTIALS = ("TASKCLUSTER_ACCESS_TOKEN", "TASKCLUSTER_CERTIFICATE", "TASKCLUSTER_CLIENT_ID")
TASK = {"TASK_ID": "taskid", "RUN_ID": "2"}


def passed(worker: Mapping[str, str], *names: str) -> Mapping[str, str]:
    """Return the environment of commands, given a worker's environment and its `pass_environment`."""
    return CommandEnvironment(names, worker).of_command({}, {})


def test_a_command_gets_the_ids_of_its_run_which_env_cannot_override() -> None:
    wrong = dict.fromkeys(TASK, "wrong")
    assert CommandEnvironment(["*"], wrong).of_command(wrong, TASK) == TASK


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "HTTPS_PROXY", "no_proxy"),
        *("SSL_CERT_FILE", "TASKCLUSTER_WORKER_LOCATION"),
    ],
)
def test_harmless_variables_are_passed(name: str) -> None:
    assert passed({name: "x"}) == {name: "x"}


@pytest.mark.parametrize("name", ["CC", "EDITOR", "PWD", "SSH_AUTH_SOCK", "MY_SETTING", *CREDENTIALS])
def test_all_other_variables_are_not_passed(name: str) -> None:
    assert passed({name: "x"}) == {}


@pytest.mark.parametrize(
    "proxy", ["http://user:pass@proxy:80", "http://token@proxy:80", "user:pass@proxy:80"]
)
def test_a_proxy_with_credentials_is_not_passed(proxy: str) -> None:
    assert passed({"HTTPS_PROXY": proxy, "http_proxy": "http://proxy:3128"}) == {
        "http_proxy": "http://proxy:3128"
    }


def test_a_setting_names_variables_to_pass() -> None:
    worker = {"CC": "gcc", "CARGO_HOME": "/cargo", "NPM_TOKEN": "named, so wanted", "OTHER": "x"}
    assert passed(worker, "CC", "CARGO_*", "NPM_TOKEN").keys() == {"CC", "CARGO_HOME", "NPM_TOKEN"}


def test_a_pattern_passes_nothing_that_looks_like_a_secret() -> None:
    worker = {"CC": "gcc", "NPM_TOKEN": "x", "BROKER": "amqp://user:pass@host/", "SSH_AUTH_SOCK": "/run/ssh"}
    assert passed(worker, "*").keys() == {"CC", "SSH_AUTH_SOCK"}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_no_setting_passes_the_worker_s_own_credentials(name: str) -> None:
    assert passed({name: "x"}, "*", name) == {}


SECRETS = """
    DB_PASS2 PASS1 PASSCODE KEY1 API_KEY2 PW ROOTPW ADMINPW HMAC WEBHOOK_SIGNATURE WALLET_SEED MNEMONIC OAUTH
    OAUTH2 HTTPAUTH SENTRYDSN WEBHOOKURL
    SIGNING_KEY STRIPE_KEY AZURE_STORAGE_KEY ENCRYPTION_KEY DEPLOY_KEY GPG_KEY SSHKEY APIKEY MASTERKEY API_KEY
    AWS_ACCESS_KEY_ID SSH_KEY_FILE KEYRING GITHUBTOKEN ACCESSTOKEN GITHUB_TOKEN AWS_SESSION_TOKEN
    CREDENTIALSFILE GOOGLE_APPLICATION_CREDENTIALS DB_CREDS DB_PASS MYSQL_PASS PGPASS PGPASSFILE PGPASSWORD
    MYSQL_PWD ROOT_PW some_secret HTTP_AUTHORIZATION DOCKER_AUTH_CONFIG BEARER JWT GH_PAT COOKIE SENTRY_DSN
    SLACK_WEBHOOK_URL AZURE_STORAGE_CONNECTION_STRING TASKCLUSTER_PROXY_URL TASKQUEUE_WORKER_ID PULSE_USER
    PULSE_PASSWORD NOTIFY_SOCKET
"""


@pytest.mark.parametrize("name", [*SECRETS.split(), *CREDENTIALS])
def test_a_name_looks_like_a_secret(name: str) -> None:
    assert looks_like_secret(name, "x")


HARMLESS = """
    PATH HOME KEYBOARD KEYMAP GIT_AUTHOR_NAME AUTHOR SSH_AUTH_SOCK PWD OLDPWD PATTERN SSL_CERT_FILE TOKYO
    XDG_SESSION_ID TASKCLUSTER_WORKER_LOCATION DISPLAY PASSENGER_COUNT SASL_PATH
"""


@pytest.mark.parametrize("name", HARMLESS.split())
def test_a_name_does_not_look_like_a_secret(name: str) -> None:
    assert not looks_like_secret(name, "x")


@pytest.mark.parametrize(
    "value",
    [
        "amqp://user:pass@host/",
        "https://ghp_token@example.com/",
        "https://u:p/w@h/",
        "redis://:pass@host/0",
        "user:pass@proxy:3128",
        "https://store.example.com/x?se=1&sig=abc",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
        "eyJhbGciOiJI.eyJzdWIi.sig",
        "ghp_0123456789abcdef",
        "Bearer abc",
        "Authorization: Bearer abc",
        "https://bucket.example.com/x?X-Amz-Signature=abc",
        "Server=db;Password=abc",
        "DefaultEndpointsProtocol=https;AccountKey=abc==",
        "https://hooks.slack.com/services/T0/B0/abc",
        "sk_live_0123456789",
    ],
)
def test_a_value_looks_like_a_secret(value: str) -> None:
    assert looks_like_secret("X", value)


@pytest.mark.parametrize(
    "value",
    [
        *("http://host:80/@x", "mailto:a@b", "http://proxy:3128", "ssh://git@example.com/x", "/a:/b"),
        *("http://[::1]:80/", "me@example.com", "https://example.com/?page=2", ""),
        *("a;b=c", "the password = of a key", "sk-SK"),
    ],
)
def test_a_value_does_not_look_like_a_secret(value: str) -> None:
    assert not looks_like_secret("X", value)


def test_the_documentation_lists_what_is_passed() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/commands.md").read_text()
    assert [each for each in PASSED if f"`{each.upper()}`" not in page] == []


def test_variables_of_the_handler_take_precedence_over_those_of_the_worker() -> None:
    assert CommandEnvironment((), {"LANG": "C"}).of_command({"LANG": "de"}, {}) == {"LANG": "de"}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credentials_in_env_are_refused_by_name_unless_the_handler_insists(name: str) -> None:
    environment = CommandEnvironment((), {})
    with pytest.raises(
        InvalidArgument, match=f"^env: '{name}' is not valid.*pass_credentials.*proxy=True"
    ) as caught:
        environment.of_command({name: "s3cret"}, {})
    assert "s3cret" not in str(caught.value)
    assert environment.of_command({name: "s3cret"}, {}, pass_credentials=True) == {name: "s3cret"}


def test_a_copy_of_the_worker_s_environment_is_refused_if_it_brings_a_secret() -> None:
    worker = {"GITHUB_TOKEN": "s3cret", "CC": "gcc"}
    environment = CommandEnvironment((), worker)
    with pytest.raises(InvalidArgument, match=r"^env: 'GITHUB_TOKEN' is.*needs no copy of os\.environ"):
        environment.of_command({**worker, "MORE": "1"}, {})
    assert environment.of_command({"CC": "gcc", "MORE": "1"}, {}) == {"CC": "gcc", "MORE": "1"}
    assert environment.of_command(worker, {}, pass_credentials=True) == worker


def test_a_secret_that_the_settings_name_may_be_in_env_too() -> None:
    worker = {"NPM_TOKEN": "s3cret"}
    assert CommandEnvironment(["NPM_TOKEN"], worker).of_command(worker, {}) == worker


def test_a_secret_of_the_task_s_own_is_passed_on() -> None:
    given = {"GITHUB_TOKEN": "the task's", "SSH_AUTH_SOCK": "/run/ssh"}
    worker = {"GITHUB_TOKEN": "worker's", "SSH_AUTH_SOCK": "/run/ssh"}
    assert CommandEnvironment((), worker).of_command(given, {}) == given


def test_the_log_names_once_what_was_not_passed_and_how_to_pass_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    environment = CommandEnvironment((), {"PATH": "/bin", "MY_TOKEN": "s3cret", "CC": "gcc"})
    for _ in range(2):
        environment.of_command({}, {})
    (record,) = caplog.records
    assert record.getMessage() == (
        "environment variables not passed to commands: CC, MY_TOKEN; "
        "the setting pass_environment (TASKQUEUE_PASS_ENVIRONMENT) names variables to pass"
    )


def test_the_log_does_not_name_what_every_command_gets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    CommandEnvironment((), {**TASK, "CC": "gcc"}).of_command({}, TASK)
    assert "not passed to commands: CC;" in caplog.text


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"": "x"}, "env: ''"),
        ({"A=B": "x"}, "env: 'A=B'"),
        ({"A": 1}, r"env\['A'\]"),
        ({"A": "s3cret\0"}, r"env\['A'\]: its value has NUL or"),
        ({"A": "s3cret\ud800"}, r"env\['A'\]: its value has NUL or"),
        ({"A\0": "s3cret"}, r"env: 'A\\x00' is not valid"),
        ({"A\ud800": "s3cret"}, r"env: 'A\\ud800' is not valid"),
    ],
)
def test_a_name_or_value_that_no_environment_can_have_is_refused_and_not_shown(
    given: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named) as caught:
        CommandEnvironment().of_command(given, {})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", [1, True, None, ["x"]])
def test_a_variable_of_the_payload_that_is_not_text_makes_the_payload_malformed(value: object) -> None:
    class Builder(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            task.run_command(["true"], env={**task.payload["env"], "MORE": "1"})

    result = run_handler(Builder, {"env": {"JOBS": value}})
    assert result.outcome == "malformed-payload"
    problem = f"its value is of type {type(value).__name__}; expected a str without NUL or lone surrogates"
    assert f"$.env.JOBS: {problem}" in result.log


@pytest.mark.parametrize("env", [["JOBS=1"], "JOBS=1", 1])
def test_an_env_that_is_not_a_mapping_is_refused(env: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^env: of type (list|str|int); expected a") as caught:
        CommandEnvironment().of_command(env, {})
    assert caught.value.given == env


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"http_proxy": "http://proxy"}, ("127.0.0.1", "127.0.0.1")),
        ({"ALL_PROXY": "http://proxy", "NO_PROXY": "a,b"}, ("a,b,127.0.0.1", "a,b,127.0.0.1")),
        ({"HTTP_PROXY": "http://proxy", "no_proxy": "a", "NO_PROXY": "b"}, ("a,127.0.0.1", "b,127.0.0.1")),
        ({"HTTP_PROXY": "http://proxy", "no_proxy": "*"}, ("*", "*")),
        ({"NO_PROXY": "a"}, (None, "a")),
    ],
)
def test_no_http_proxy_gets_the_calls_to_the_proxy_of_the_run(
    env: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    task = {"TASKCLUSTER_PROXY_URL": "http://127.0.0.1:80/path"}
    made = CommandEnvironment((), env).of_command({}, task)
    assert (made.get("no_proxy"), made.get("NO_PROXY")) == expected
    assert CommandEnvironment((), {}).of_command({**env, **task}, {}) == made
    assert CommandEnvironment((), env).of_command({}, {}) == env


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://172.17.0.1:80/path", "172.17.0.1"),
        ("http://172.17.0.1:80", "172.17.0.1"),
        ("https://tc.example.com/", "127.0.0.1"),  # a deployment: the HTTP proxy may be the way to it
    ],
)
def test_no_http_proxy_gets_the_calls_of_a_program_in_a_container(url: str, expected: str) -> None:
    worker = {"HTTP_PROXY": "http://proxy", "NO_PROXY": "a"}
    made = CommandEnvironment((), worker).of_command({"TASKCLUSTER_PROXY_URL": url}, {})
    assert made["NO_PROXY"] == f"a,{expected}"


def test_a_command_has_this_environment_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ.keys() - {"PATH"}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SOMETHING", "else")
    with context_in(tmp_path, TASK) as context:
        code = "import os; print(*sorted(os.environ))"
        run_command([sys.executable, "-c", code], context)
        names = set(printed_in(context)[0].split())
    assert names - {"LC_CTYPE"} == {"PATH", "TASKQUEUE_RUN", *TASK}  # Python sets LC_CTYPE in the C locale


WORKER = """
import os, sys
from pathlib import Path
from tests.worker.running_commands import context_in, guardians
from taskqueue_client.worker.commands.command import run_command
from taskqueue_client.worker.commands.environment import protect_process
directory, user = sys.argv[1:]
with context_in(Path(directory)) as context:
    context.guardian.begin_run("RUN=none")
    context.guardian.end_run("RUN=none")
    (guardian,) = guardians()
    protect_process()
    if user:  # the user's rights, and nothing else: /proc belongs to root for a process that is protected
        os.chown(context.work_directory, 65534, -1)
        context.log.logger.info("begun")
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    for secret in ("environ", "mem", "maps"):
        run_command(f"cat /proc/$PPID/{secret}", context, shell=True, check=False)
    run_command(f"cat /proc/{guardian}/environ", context, shell=True, check=False)
    daemon = "setsid sh -c ': > ready; exec sleep 1000' & until [ -e ready ]; do :; done"
    run_command(daemon, context, shell=True)
    assert context.processes.end(30) == 1  # the worker itself sees what it must
    print(context.log.path.read_text(errors="replace"), flush=True)
    if user:
        os._exit(0)
"""


@pytest.mark.parametrize(
    "user", [pytest.param("", id="without capabilities"), pytest.param("nobody", id="as nobody")]
)
def test_a_command_of_the_same_user_cannot_read_the_worker_s_environment_and_memory(user: str) -> None:
    """Nor the guardian's. The worker itself works as usual."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root, with setpriv, can start a worker with other rights")
    without_rights = [] if user else ["setpriv", "--bounding-set=-all"]
    with TemporaryDirectory() as directory:  # not tmp_path, which other users cannot enter
        Path(directory).chmod(0o755)
        done = subprocess.run(
            [*without_rights, sys.executable, "-c", WORKER, directory, user],
            cwd=Path(__file__).parents[2],
            env={"MY_SECRET": "s3cret", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Permission denied") == (4 if user else 3)
    assert "s3cret" not in done.stdout
