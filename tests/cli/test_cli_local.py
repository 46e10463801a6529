"""`taskqueue local`: its end, and files of clients and roles with errors; other tests are in tests/local."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from taskqueue_client.cli.failures import ExitStatus
from tests.cli.command import COMMAND, ENDING, run, running

pytestmark = pytest.mark.usefixtures("folder")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clients: [\n", "config.yml, line 2, column 1: "),
        ("clients: 0x_\n", "config.yml, line 1, column 10: cannot be read as int"),
        ("roles: {}\nroles: {}\n", "config.yml, line 2, column 1: duplicate key 'roles'"),
        ("", "config.yml: the file must contain an object"),
        ("clients: 3\n", "config.yml: Expected `array`, got `int` - at `$.clients`"),
        ("client: []\n", "config.yml: Object contains unknown field `client`"),
    ],
)
def test_a_broken_config_is_refused_with_its_place(text: str, message: str) -> None:
    Path("config.yml").write_text(text)
    result = run("local", "--config", "config.yml")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert message in result.stderr.splitlines()[-1]
    assert result.stdout == ""


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_the_queue_and_removes_its_artifacts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    with running("local", "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(folder.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(60) == ExitStatus.DONE
    assert list(folder.iterdir()) == []


def test_the_queue_goes_on_if_nobody_reads_its_standard_error() -> None:
    unread, errors = os.pipe()
    os.set_blocking(errors, False)
    with suppress(BlockingIOError):
        while True:
            os.write(errors, b"x" * 4096)
    os.set_blocking(errors, True)
    with subprocess.Popen([*COMMAND, "local", "--json"], stdout=subprocess.PIPE, stderr=errors) as process:
        try:
            assert process.stdout is not None
            ping = json.loads(process.stdout.readline())["TASKCLUSTER_ROOT_URL"] + "/api/queue/v1/ping"
            assert requests.get(ping, timeout=60).ok
            assert requests.get(ping, timeout=60).ok  # the first one was logged before its response was read
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == ExitStatus.DONE
        finally:
            process.kill()
            os.close(errors)
            os.close(unread)
