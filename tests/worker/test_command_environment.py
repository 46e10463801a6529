"""The environment of commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.command import run_command
from taskqueue_client.worker.environment import CREDENTIALS, command_environment, task_variables
from tests.worker.running_commands import context_in, printed_in

TASK = task_variables("taskid", 2, "groupid", "https://tc.example.com")


def test_a_command_is_told_what_it_is_part_of_and_nobody_can_say_otherwise() -> None:
    wrong = dict.fromkeys(TASK, "wrong")
    assert command_environment(wrong, wrong, TASK) == {
        "TASK_ID": "taskid",
        "RUN_ID": "2",
        "TASK_GROUP_ID": "groupid",
        "TASKCLUSTER_ROOT_URL": "https://tc.example.com",
    }


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "LANG", "PWD", "TASKCLUSTER_WORKER_LOCATION", "KEYBOARD", "SSL_CERT_FILE"]
)
def test_harmless_variables_of_the_worker_are_inherited(name: str) -> None:
    assert command_environment({name: "x"}, {}, {}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        *sorted(CREDENTIALS),
        "TASKCLUSTER_PROXY_URL",
        "TASKQUEUE_WORKER_ID",
        "PULSE_PASSWORD",
        "PULSE_USER",
        "GITHUB_TOKEN",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "PGPASSWORD",
        "MYSQL_PWD",
        "SSH_AUTH_SOCK",
        "some_secret",
        "API_KEY",
    ],
)
def test_what_gives_access_to_anything_is_not_inherited(name: str) -> None:
    assert command_environment({name: "x"}, {}, {}) == {}


def test_a_url_with_a_password_is_not_inherited() -> None:
    worker = {"BROKER": "amqp://user:pass@host/", "PROXY": "http://host:80/@x", "MAIL": "mailto:a@b"}
    assert set(command_environment(worker, {}, {})) == {"PROXY", "MAIL"}


def test_what_the_handler_gives_goes_before_what_the_worker_has() -> None:
    assert command_environment({"LANG": "C"}, {"LANG": "de"}, {}) == {"LANG": "de"}


@pytest.mark.parametrize("name", sorted(CREDENTIALS))
def test_credentials_are_not_passed_on_even_if_they_are_given(name: str) -> None:
    assert command_environment({}, {name: "x"}, {}) == {}


def test_a_copy_of_the_worker_s_environment_brings_no_secrets_in() -> None:
    worker = {"GITHUB_TOKEN": "worker's", "LANG": "C"}
    assert command_environment(worker, {**worker, "MORE": "1"}, {}) == {"LANG": "C", "MORE": "1"}


def test_a_secret_of_the_task_s_own_is_passed_on() -> None:
    given = {"GITHUB_TOKEN": "the task's"}
    assert command_environment({"GITHUB_TOKEN": "worker's"}, given, {}) == given


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"": "x"}, "env=''"),
        ({"A=B": "x"}, "env='A=B'"),
        ({"A": 1}, r"env\['A'\]"),
        ({"A": "s3cret\0"}, r"env\['A'\]"),
    ],
)
def test_what_cannot_stand_in_an_environment_is_refused_without_being_shown(
    given: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named) as caught:
        command_environment({}, given, {})
    assert "s3cret" not in str(caught.value)


def test_a_command_has_this_environment_and_nothing_else(tmp_path: Path) -> None:
    with context_in(tmp_path, TASK) as context:
        code = "import os; print(*sorted(os.environ))"
        run_command([sys.executable, "-c", code], context)
        names = set(printed_in(context)[0].split())
    assert names - {"LC_CTYPE"} == {"PATH", *TASK}  # LC_CTYPE is what Python adds to the C locale
