"""What `import taskqueue_client` offers, and what it leaves until it is asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import taskqueue_client

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_every_public_name_can_be_had() -> None:
    public = [name for name in dir(taskqueue_client) if not name.startswith("_")]
    assert {"AsyncQueue", "LocalQueue", "Queue", "WorkerLoop"} <= set(public)
    assert all(getattr(taskqueue_client, name) is not None for name in public)


def test_all_names_are_those_that_the_package_imports_itself_or_when_asked() -> None:
    modules = {name for name, value in vars(taskqueue_client).items() if isinstance(value, ModuleType)}
    public = {name for name in dir(taskqueue_client) if not name.startswith("_")}
    assert set(taskqueue_client.__all__) == public - modules - {"TYPE_CHECKING", "Any", "annotations"} | {
        "errors"
    }
    assert taskqueue_client.__all__ == sorted(taskqueue_client.__all__)


def test_what_the_reference_documents_at_the_top_of_the_package_is_public() -> None:
    pages = "".join(path.read_text() for path in sorted(REFERENCE.glob("*.md")))
    documented = {*re.findall(r"auto(?:class|function):: (?:taskqueue_client\.)?(\w+)\n", pages)}
    assert documented == {"AsyncQueue", "Credentials", "Queue", "RetryPolicy", "slugid"}
    assert documented <= set(taskqueue_client.__all__)


def test_a_star_import_has_every_public_name() -> None:
    program = (
        "import taskqueue_client as package, sys; imported = set(sys.modules);"
        "from taskqueue_client import *;"
        "print(sorted(set(package.__all__) - set(globals())), 'requests' in imported, 'aiohttp' in imported)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] False False"


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
