"""A listener outlives the broker itself: stopped, gone for a while, and started again.

This test starts its own broker, so that no other test meets a stopped one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue_client import events
from taskqueue_client.events import AsyncListener, PulseSettings, State
from taskqueue_client.models.messages import TaskMessage
from tests.events.conftest import States
from tests.events.messages_published import Publisher, task_ids
from tests.servers import reserved_port

SCRIPTS = Path("/usr/lib/rabbitmq/bin")  # the scripts on Debian's PATH only start the system's broker


def _script(name: str) -> str:
    found = SCRIPTS / name
    path = str(found) if found.exists() else shutil.which(name)
    if path is None:
        absent = f"{name} is not installed"
        if os.environ.get("TASKQUEUE_REQUIRE_BROKER") == "1":
            pytest.fail(absent)
        pytest.skip(absent)
    return path


class OwnBroker:
    """A separate RabbitMQ with its data in a folder."""

    def __init__(self, folder: Path, port: int, port_of_node: int) -> None:
        self.port = port
        self._pid_file = folder / "pid"
        (folder / "plugins").write_text("[].")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"test-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(port_of_node),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self._pid_file),
        }
        self._process = subprocess.Popen(
            [_script("rabbitmq-server")],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def wait_until_started(self) -> None:
        self.control("wait", "--timeout", "120", str(self._pid_file))

    def control(self, *arguments: str) -> None:
        """Run rabbitmqctl on this broker."""
        command = [_script("rabbitmqctl"), *arguments]
        subprocess.run(command, env=self._environment, check=True, capture_output=True, timeout=150)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    with reserved_port() as port, reserved_port("0.0.0.0") as port_of_node:
        broker = OwnBroker(tmp_path, port, port_of_node)
        try:
            broker.wait_until_started()
            yield broker
        finally:
            broker.kill()


async def test_a_listener_reconnects_after_a_restart_of_the_broker(
    own_broker: OwnBroker, pool: str, states: States
) -> None:
    sent = task_ids(100)
    publisher = await Publisher.connect(own_broker.url)
    settings = PulseSettings.from_url(own_broker.url)
    async with AsyncListener(
        settings,
        [events.task_completed(task_queue_id=pool)],
        queue="durable",
        on_state=states,
        wait_initial=0.05,
        wait_max=0.2,
    ) as listener:
        await publisher.complete(sent[:60], pool)
        seen = [await anext(listener) for _ in range(30)]
        await asyncio.to_thread(own_broker.control, "stop_app")
        await states.until(lambda names: names.count(State.DISCONNECTED) >= 3)
        await asyncio.to_thread(own_broker.control, "start_app")
        publisher = await Publisher.connect(own_broker.url)
        await publisher.complete(sent[60:], pool)
        tasks = {_task_of(event.message) for event in seen}
        while len(tasks) < len(sent):
            tasks.add(_task_of((await anext(listener)).message))
        assert listener.counts.acknowledged >= 99
        await publisher.close()
    assert tasks == set(sent)
    assert listener.counts.connections == 2


def _task_of(message: object) -> str:
    assert isinstance(message, TaskMessage)
    return message.status.task_id
