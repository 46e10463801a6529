from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue_client.events import PulseSettings
from taskqueue_client.local import LocalQueue
from tests.docs import documents

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
MODULES = [path for path in sorted(ROOT.glob("taskqueue_client/**/*.py")) if ">>> " in path.read_text()]
FRAGMENTS = sorted(path for path in ROOT.glob("changelog/*") if path.name != "README.md")
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def broker_url() -> str:
    url = os.environ.get("PULSE_URL", "amqp://guest:guest@127.0.0.1:5672/")
    settings = PulseSettings.from_url(url)
    try:
        socket.create_connection((settings.host, settings.effective_port), timeout=5).close()
    except OSError as error:
        absent = f"the page needs RabbitMQ, and there is none at {settings}: {error}"
        if os.environ.get("TASKQUEUE_REQUIRE_BROKER") == "1":
            pytest.fail(absent)
        pytest.skip(absent)
    return url


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def local(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalQueue]:
    amqp_url = broker_url() if "<!-- needs: rabbitmq -->" in page.read_text() else None
    if amqp_url:
        monkeypatch.setenv("PULSE_URL", amqp_url)
    with LocalQueue(amqp_url=amqp_url) as local:
        yield local


@pytest.fixture
def reader(local: LocalQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who follows a page: in an empty directory, with a queue in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
    monkeypatch.setenv("TASKCLUSTER_CLIENT_ID", local.client_id)
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", local.access_token)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::DeprecationWarning")  # of plugins that happen to be here
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("page", PAGES, ids=name_of, indirect=True)
@pytest.mark.usefixtures("reader")
def test_the_examples_of_a_page_do_what_it_says(page: Path) -> None:
    documents.run(documents.read_page(page))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_examples_of_docstrings_do_what_they_say(path: Path) -> None:
    assert documents.run(documents.read_docstrings(path)) > 0


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=name_of)
def test_a_fragment_of_the_change_log_says_what_kind_it_is(fragment: Path) -> None:
    assert fragment.name.removesuffix(".md").rpartition(".")[2] in KINDS
