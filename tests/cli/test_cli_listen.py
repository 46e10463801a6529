"""`taskqueue listen`: the Queue's messages on a terminal."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.events import PulseSettings
from taskqueue_client.local import LocalQueue
from tests.cli.command import run, running


@pytest.fixture(scope="module")
def broker_url() -> str:
    url = os.environ.get("PULSE_URL", "amqp://guest:guest@127.0.0.1:5672/")
    settings = PulseSettings.from_url(url)
    try:
        socket.create_connection((settings.host, settings.effective_port), timeout=5).close()
    except OSError as error:
        pytest.skip(f"no RabbitMQ at {settings}: {error}")
    return url


def test_messages_about_a_task_queue_are_printed_as_they_come(
    broker_url: str, task_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_URL", broker_url)
    pool, task_id = f"test-{slugid()}/w", slugid()
    with (
        LocalQueue(amqp_url=broker_url) as local,
        Queue(local.root_url, local.credentials) as queue,
        running(
            "listen", "--task-queue", pool, "--exchange", "task-pending", "--count", "1", "--json"
        ) as process,
    ):
        assert process.stderr is not None
        while process.stderr.readline() != "listening\n":
            pass
        queue.create_task(task_id, task_factory(taskQueueId=pool, routes=["index.a.b"]))
        output, _ = process.communicate(timeout=60)
    message = json.loads(output)
    assert process.returncode == ExitStatus.DONE
    assert message["exchange"] == "task-pending"
    assert message["routes"] == ["index.a.b"]
    assert message["message"]["status"]["taskId"] == task_id


def test_ctrl_c_ends_it(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_URL", broker_url)
    with running("listen", "--task", slugid()) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "listening\n":
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_wrong_credentials_are_a_refusal_that_does_not_show_them(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = PulseSettings.from_url(broker_url)
    monkeypatch.setenv("PULSE_URL", f"amqp://nobody:s3cret@{broker.host}:{broker.effective_port}/")
    result = run("listen")
    assert result.exit_code == ExitStatus.REFUSED
    assert "check PULSE_URL" in result.stderr
    assert "s3cret" not in result.output


def test_without_a_broker_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSE_URL", raising=False)
    result = run("listen")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "PULSE_URL" in result.stderr


def test_exchanges_without_messages_about_what_is_chosen_are_wrong_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULSE_URL", "amqp://u:p@127.0.0.1:1/")
    result = run("listen", "--task", slugid(), "--exchange", "task-group-sealed")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert "No messages about that are in task-group-sealed" in result.stderr
