"""The RabbitMQ that tests use."""

from __future__ import annotations

import os
import socket

import pytest

from taskqueue_client.events import PulseSettings

BROKER = os.environ.get("PULSE_URL", "amqp://guest:guest@127.0.0.1:5672/")


def require_broker() -> str:
    """Return the URL of RabbitMQ; without one, skip the test, or fail if `TASKQUEUE_REQUIRE_BROKER` is 1."""
    settings = PulseSettings.from_url(BROKER)
    try:
        socket.create_connection((settings.host, settings.effective_port), timeout=5).close()
    except OSError as error:
        absent = f"no RabbitMQ at {settings}: {error}"
        if os.environ.get("TASKQUEUE_REQUIRE_BROKER") == "1":
            pytest.fail(absent)
        pytest.skip(absent)
    return BROKER
