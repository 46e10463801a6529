"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import HealthCheck, settings

import taskqueue_client
from taskqueue_client.local import LocalQueue
from tests.broker import require_broker
from tests.certificates import Authority, make_authority

# The machine may be busy: a slow example is not a failure. The examples of `steady` are the same each time,
# so that a failure belongs to the change at hand; `--hypothesis-profile exploring` looks for new ones.
settings.register_profile("exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("exploring"), derandomize=True)
settings.load_profile("steady")

# A shell ignores SIGINT and SIGQUIT for commands in the background, `nohup` ignores SIGHUP; children of the
# tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Programs that the tests start buffer their output as usual, and read and write compiled modules.
os.environ.pop("PYTHONUNBUFFERED", None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_PROXY_VARIABLES = {"http_proxy", "https_proxy", "all_proxy"}
_PROXIES = {name: os.environ.pop(name) for name in list(os.environ) if name.lower() in _PROXY_VARIABLES}
"""The proxies of this machine, which cannot reach servers of the tests; npm needs them."""

LONGEST = (
    "tests/types/test_types.py",
    "tests/campaign/test_campaign.py",
    "tests/worker/test_worker_cleanup.py",
    "tests/artifacts/test_connections.py",
    "tests/examples/test_deploying.py",
    "tests/docs/test_documentation.py",
    "tests/local/page/test_page_safety.py",
    "tests/examples/test_examples.py",
    "tests/local/http/test_local_scriptworker.py",
    "tests/events/test_listener_outages.py",
    "tests/fuzz/test_fuzz_requests.py",
    "tests/legacy/test_mixed_workers.py",
    "tests/local/page/test_page_views.py",
    "tests/worker/test_shutdown_timeout.py",
    "tests/worker/test_proxy.py",
    "tests/worker/test_upstream.py",
    "tests/worker/test_upload_retries.py",
    "tests/worker/test_command_ending.py",
    "tests/worker/test_worker_runner.py",
    "tests/worker/test_shutdown.py",
    "tests/cli/test_failing_output.py",
    "tests/cli/test_cli_work.py",
    "tests/local/http/test_local_command.py",
)
"""The modules that take longest. They run first: at the end, the other processes would have nothing to do."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the half million objects of the ten thousand tests from garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parents[1]
    places = {root / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


CONTRACT = Path(__file__).parents[2] / "shared" / "contract"


OURS = ("TASKCLUSTER_", "TASKQUEUE_")
NOT_OURS = {
    "TASKQUEUE_REQUIRE_BROKER",
    "TASKQUEUE_REQUIRE_BROWSER",
    "TASKQUEUE_DOCS_PICTURES",
}  # set by whoever runs the tests


def our_settings() -> dict[str, str]:
    """The environment variables that clients and workers read."""
    return {name: os.environ[name] for name in os.environ if name.startswith(OURS) and name not in NOT_OURS}


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Each test begins without settings of the machine or of another test, and leaves none behind."""
    before = our_settings()
    for name in before:
        del os.environ[name]
    yield
    for name in our_settings():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def deployment(local_queue: LocalQueue, monkeypatch: pytest.MonkeyPatch) -> LocalQueue:
    """A queue that the environment names, with credentials for everything."""
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local_queue.root_url)
    monkeypatch.setenv("TASKCLUSTER_CLIENT_ID", local_queue.client_id)
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", local_queue.access_token)
    return local_queue


@pytest.fixture(scope="session")
def broker_url() -> str:
    """The URL of a RabbitMQ."""
    return require_broker()


@pytest.fixture(scope="session")
def zipped_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zip file of the package, to be imported, as `python -m zipapp` makes one."""
    path = tmp_path_factory.mktemp("zipped") / "package.zip"
    package = Path(taskqueue_client.__file__).parent
    with ZipFile(path, "w") as archive:
        for each in package.rglob("*"):
            if "__pycache__" not in each.parts:
                archive.write(each, each.relative_to(package.parent))
    return path


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A private certificate authority, which no store of this machine knows."""
    return make_authority(tmp_path_factory.mktemp("authority"), "127.0.0.1")


@pytest.fixture(scope="session")
def contract() -> Path:
    """The folder that says how the real Queue behaves."""
    if not CONTRACT.is_dir():
        pytest.skip("the measured contract of the Queue is not beside this checkout")
    return CONTRACT


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the official client in it; skips where there is no node, or no registry."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    directory = tmp_path_factory.mktemp("javascript")
    command = ["npm", "install", "--no-audit", "--no-fund", "taskcluster-client@55"]
    try:
        environment = os.environ | _PROXIES
        subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True, timeout=180)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        if os.environ.get("TASKQUEUE_REQUIRE_NODE") == "1":
            raise
        pytest.skip(f"npm cannot install taskcluster-client: {type(error).__name__}")
    return directory / "node_modules"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)
