"""What all commands have in common."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taskqueue_client.cli import main
from taskqueue_client.cli.failures import ExitStatus
from tests.cli.command import COMMAND, run

COMMANDS = sorted(main.list_commands(main.make_context("taskqueue", [], resilient_parsing=True)))
LEAVES = [[name] for name in COMMANDS if name != "artifacts"] + [["artifacts", "list"], ["artifacts", "get"]]
SLOW = ("aiohttp", "jsonschema", "requests", "rich", "tenacity", "yaml")


def test_help_comes_at_once_because_nothing_slow_is_imported_for_it() -> None:
    script = (
        "import sys, taskqueue_client.cli as cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        f"print([name for name in {SLOW} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command_and_every_exit_status() -> None:
    result = run("--help")
    assert all(f"\n  {name} " in result.output for name in COMMANDS)
    assert all(f"\n    {int(status)} " in result.output for status in ExitStatus)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_explains_itself_and_prints_json_on_request(words: list[str]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "--json" in result.output


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
def test_a_task_that_does_not_exist_is_a_refusal_in_one_line() -> None:
    result = run("status", "fN1SbArXTPSVFNUvaOlinQ")
    assert result.exit_code == ExitStatus.REFUSED
    assert result.stderr.startswith("Error: not found: ")
    assert result.stderr.count("\n") == 1


def test_what_cannot_be_a_task_id_is_refused_before_anything_is_asked() -> None:
    result = run("cancel", "my-task")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "'my-task' is no id" in result.stderr


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("words", [["cancel"], ["rerun"], ["status"], ["watch"]])
def test_a_command_without_a_task_is_wrong_use(words: list[str]) -> None:
    assert run(*words).exit_code == ExitStatus.WRONG_USE


def test_the_version_is_the_package_s() -> None:
    answer = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout.split()[1:] == run("--version").stdout.split()[1:]
