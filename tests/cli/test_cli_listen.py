"""`taskqueue listen`: the Queue's messages on a terminal."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.cli.listen import line_of
from taskqueue_client.events import PulseSettings
from taskqueue_client.events.event import read_event
from taskqueue_client.local import LocalQueue
from tests.cli.command import run, running
from tests.events.messages_published import Publisher, body, key_of


def test_listen_prints_messages_about_a_task_queue_as_they_arrive(
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


@pytest.mark.parametrize("options", [["--json"], []])
def test_listen_prints_the_routing_key_of_a_message_that_it_cannot_read(
    options: list[str], broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_URL", broker_url)
    pool = f"test-{slugid()}/w"
    key = key_of(body("task-completed", slugid(), pool=pool))

    async def publish() -> None:
        publisher = await Publisher.connect(broker_url)
        await publisher.publish("task-completed", b"{", key)
        await publisher.close()

    with running("listen", "--task-queue", pool, "--count", "1", *options) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "listening\n":
            pass
        asyncio.run(publish())
        output, _ = process.communicate(timeout=60)
    assert key in output
    assert "Input data was truncated" in output


TASK = "fN1SbArXTPSVFNUvaOlinQ"
OF_THE_EVENT = "2026-11-21 10:13:18 UTC"
OF_RECEIPT = "2026-11-22 00:00:00 UTC"


def shown(exchange: str, message: dict[str, Any], key: str | None = None) -> str:
    """The line of a message that was received at `OF_RECEIPT`."""
    name = f"exchange/taskcluster-queue/v1/{exchange}"
    event = read_event(name, key or key_of(message), json.dumps(message).encode(), {}, redelivered=False)
    return line_of(event, datetime(2026, 11, 22, tzinfo=UTC))


@pytest.mark.parametrize(
    ("exchange", "line"),
    [
        ("task-defined", f"{OF_RECEIPT} task-defined {TASK} proj/linux"),
        ("task-pending", f"{OF_THE_EVENT} task-pending {TASK}/0 proj/linux"),
        ("task-running", f"{OF_THE_EVENT} task-running {TASK}/0 proj/linux"),
        ("artifact-created", f"{OF_RECEIPT} artifact-created {TASK}/0 proj/linux"),
        ("task-completed", f"{OF_THE_EVENT} task-completed {TASK}/0 proj/linux"),
        ("task-failed", f"{OF_THE_EVENT} task-failed {TASK}/0 proj/linux"),
        ("task-exception", f"{OF_THE_EVENT} task-exception {TASK}/0 proj/linux canceled"),
    ],
)
def test_a_line_has_the_time_of_the_event_and_the_reason_of_an_exception(exchange: str, line: str) -> None:
    assert shown(exchange, body(exchange, TASK)) == line


def test_a_line_about_a_run_that_is_retried_has_the_time_and_reason_of_this_run() -> None:
    message: dict[str, Any] = {**body("task-pending", TASK, runs=2), "runId": 0}
    message["status"]["runs"][0]["reasonResolved"] = "worker-shutdown"
    message["status"]["runs"][1]["scheduled"] = "2026-11-21T11:00:00.000Z"
    assert (
        shown("task-exception", message)
        == f"{OF_THE_EVENT} task-exception {TASK}/0 proj/linux worker-shutdown"
    )


def test_a_line_about_a_task_group_has_the_time_at_which_it_was_sealed() -> None:
    message: dict[str, Any] = {"version": 1, "taskGroupId": TASK, "schedulerId": "-"}
    key = f"primary.{TASK}.-._"
    sealed = message | {"sealed": "2026-11-21T10:13:18.865Z"}
    assert shown("task-group-sealed", sealed, key) == f"{OF_THE_EVENT} task-group-sealed group {TASK}"
    resolved = shown("task-group-resolved", sealed, key)
    assert resolved == f"{OF_RECEIPT} task-group-resolved group {TASK}", "groups are sealed before that"


def test_ctrl_c_ends_listen(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_URL", broker_url)
    with running("listen", "--task", slugid()) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "listening\n":
            pass
        assert interrupted(process) == 130


def interrupted(process: subprocess.Popen[str]) -> int | None:
    """Press Ctrl-C, and again if nothing happens: Python loses one in the callback of a weak reference."""
    for _ in range(6):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(10)
    return None


def test_wrong_credentials_are_a_refusal_that_does_not_show_them(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = PulseSettings.from_url(broker_url)
    monkeypatch.setenv("PULSE_URL", f"amqp://nobody:s3cret@{broker.host}:{broker.effective_port}/")
    result = run("listen")
    assert result.exit_code == ExitStatus.REFUSED
    assert result.stderr.endswith("the broker logfile: check PULSE_URL\n")
    assert "s3cret" not in result.stdout + result.stderr


def test_listen_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "taskqueue_client.events._broker_session", None)
    monkeypatch.setenv("PULSE_URL", "amqp://guest:guest@localhost/")
    result = run("listen")
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stderr == 'Error: listeners need aio-pika: pip install "taskqueue_client[events]"\n'


def test_listen_without_a_broker_url_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "task-group-sealed has no messages about these subjects" in result.stderr


def test_an_unreachable_broker_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_URL", "amqp://u:p@127.0.0.1:1/")
    result = run("listen")
    assert result.exit_code == ExitStatus.NO_RESPONSE
    assert result.stderr.splitlines()[-1].startswith(
        "Error: cannot reach RabbitMQ: amqp://u:***@127.0.0.1:1/"
    )


def test_with_wait_an_unreachable_broker_is_waited_for(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = PulseSettings.from_url(broker_url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("PULSE_URL", f"amqp://{broker.user}:{broker.password}@127.0.0.1:{port}/")
    with running("listen", "--task", slugid(), "--wait") as process:
        assert process.stderr is not None
        states = [line.partition(":")[0].strip() for line in islice(process.stderr, 3)]
    assert states == ["connecting", "disconnected", "connecting"]
