"""What `import taskqueue_client` offers, and what it leaves until it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import taskqueue_client


def test_every_public_name_can_be_had() -> None:
    public = [name for name in dir(taskqueue_client) if not name.startswith("_")]
    assert {"AsyncQueue", "LocalQueue", "Queue", "WorkerLoop"} <= set(public)
    assert all(getattr(taskqueue_client, name) is not None for name in public)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Quue'"):
        _ = taskqueue_client.Quue


def test_the_blocking_client_does_not_import_what_it_does_not_need() -> None:
    program = (
        "import sys; from taskqueue_client import Queue; Queue('http://h');"
        "heavy = {'aiohttp', 'asyncio', 'jsonschema', 'tenacity', 'mohawk', 'sqlite3', 'aio_pika'};"
        "print(heavy & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
