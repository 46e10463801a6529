"""The files of `examples/deploy`: they run workers that work, and grant them what they need."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.testing import TaskFactory
from tests.worker.running_commands import in_shell

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
POD = "example-worker-7d4b9c6f5-x2x7k.example-worker.builders.svc.cluster.local"
"""A name that is too long for a worker id, and has dots."""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has more than one loopback address")


def own_address() -> str:
    """Return a loopback address for this process only: the port that the files name is free there."""
    return f"127.{os.getpid() >> 16 & 127 | 1}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


def in_dockerfile(pattern: str) -> str:
    """Return the first group of the only place in the Dockerfile that matches."""
    (found,) = re.findall(pattern, (DEPLOY / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def container_command() -> list[str]:
    return list(json.loads(in_dockerfile(r"^CMD ([^\n]*)$")))


def service() -> configparser.SectionProxy:
    """Return the section `Service` of the systemd unit."""
    unit = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment,method-assign] # as configparser's documentation says
    unit.read(DEPLOY / "taskqueue-worker.service")
    return unit["Service"]


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text()))


def pod() -> dict[str, Any]:
    """Return the specification of the pods."""
    (deployment,) = manifests()
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def pod_environment(**fields: str) -> dict[str, str]:
    """Return the environment of the pod's container, given the pod's fields, such as `podIP`."""
    (container,) = pod()["containers"]
    return {
        each["name"]: fields[each["valueFrom"]["fieldRef"]["fieldPath"].rpartition(".")[2]]
        for each in container["env"]
    }


@contextmanager
def worker_with_a_task(
    queue: Queue, task_factory: TaskFactory, command: list[str], folder: Path, **environment: str
) -> Generator[str]:
    """Start a worker, wait until it has completed a task, and stop it by SIGTERM after the block."""
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux", payload={"command": ["true"]}))
    with subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            assert process.stderr is not None
            assert any("ended: completed" in line for line in process.stderr), process.wait(60)
            yield task_id
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=120)
            assert process.returncode == ExitStatus.DONE, errors
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working directory for the worker, with its module and its configuration."""
    shutil.copy(ROOT / "examples" / "command_worker.py", tmp_path)
    shutil.copy(DEPLOY / "worker.yml", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("deployment")
def test_the_service_runs_a_worker_that_works(queue: Queue, task_factory: TaskFactory, folder: Path) -> None:
    program, *arguments = service()["ExecStart"].replace("\\\n", " ").split()
    assert Path(program).name == "taskqueue"
    variables = {"TASKQUEUE_WORKER_ID": "one", "TASKQUEUE_METRICS_PORT": "0"}
    with worker_with_a_task(queue, task_factory, ["taskqueue", *arguments], folder, **variables) as task_id:
        assert queue.status(task_id).status.state == "completed"


@on_linux
@pytest.mark.usefixtures("deployment")
def test_the_probes_of_a_pod_reach_its_worker(queue: Queue, task_factory: TaskFactory, folder: Path) -> None:
    address, (container,) = own_address(), pod()["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    variables = pod_environment(name=POD, podIP=address)
    with worker_with_a_task(queue, task_factory, container_command(), folder, **variables) as task_id:
        for probe in ("livenessProbe", "readinessProbe"):
            path, port = container[probe]["httpGet"]["path"], ports[container[probe]["httpGet"]["port"]]
            assert requests.get(f"http://{address}:{port}{path}", timeout=60).status_code == 200
    worker_id = queue.status(task_id).status.runs[0].worker_id
    assert worker_id == f"example-worker-7d4b9c6f5-x2x7-{hashlib.sha256(POD.encode()).hexdigest()[:8]}"


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for manifest in manifests():
        schemas.validate(manifest, version, strict=True)
        manifest["spec"]["template"]["spec"]["terminationGraceSeconds"] = 90
        with pytest.raises(schemas.ValidationError, match="terminationGraceSeconds"):
            schemas.validate(manifest, version, strict=True)


def test_the_pod_runs_as_the_user_of_the_image() -> None:
    assert pod()["securityContext"]["runAsUser"] == int(in_dockerfile(r"useradd --create-home --uid (\d+)"))


def test_the_first_process_of_a_container_reaps_zombies_and_passes_on_signals() -> None:
    init, *arguments = json.loads(in_dockerfile(r"^ENTRYPOINT ([^\n]*)$"))
    assert (init, arguments) == (in_dockerfile(r"apt-get install [^\n]* (\w+) \\$"), ["--"])
    assert "command" not in pod()["containers"][0]  # `command` would replace the entry point


def test_hosts_grant_more_time_than_the_worker_takes_to_shut_down() -> None:
    settings = yaml.safe_load((DEPLOY / "worker.yml").read_text())
    needed = settings["shutdown_timeout"]
    assert needed > settings["graceful_shutdown_timeout"] + settings["termination_grace"]
    assert int(service()["TimeoutStopSec"]) > needed
    assert int(in_dockerfile(r"--stop-timeout (\d+)")) > needed
    assert pod()["terminationGracePeriodSeconds"] > needed


def test_systemd_does_not_restart_a_worker_with_a_wrong_configuration() -> None:
    prevented = {int(status) for status in service()["RestartPreventExitStatus"].split()}
    assert prevented == {ExitStatus.WRONG_USE, ExitStatus.REFUSED}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "taskqueue-worker.service").read_text()
    unit = tmp_path / "taskqueue-worker.service"
    program = f'"{sys.executable}"'  # quoted, as the path may have spaces
    unit.write_text(text.replace("/opt/worker/venv/bin/taskqueue", program).replace("User=worker", ""))
    result = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    complaints = [line for line in result.stderr.splitlines() if unit.name in line]
    assert complaints == []


def build_context(folder: Path) -> Path:
    """Copy the files that `docker build` gets: those that the .dockerignore lets in."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in lines
    for name in (line[1:] for line in lines if line.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@on_linux
@pytest.mark.usefixtures("deployment")
def test_the_commands_of_the_dockerfile_make_an_image_whose_worker_is_healthy(
    queue: Queue, task_factory: TaskFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries, source, srv = tmp_path / "venv" / "bin", tmp_path / "source", tmp_path / "srv"
    source.mkdir()
    build_context(source)
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    (binaries / "useradd").symlink_to("/bin/true")  # the only command that changes the machine
    monkeypatch.setenv("PATH", f"{binaries}:/usr/bin:/bin")
    commands = in_dockerfile(r"^RUN (python .*?[^\\])$").replace("\\\n", " ")
    copied = re.sub("('?)/tmp/source", lambda at: f"'{source}" if at[1] else in_shell(source), commands)
    placed = copied.replace("/srv", in_shell(srv))
    built = subprocess.run(["sh", "-c", placed], check=False, capture_output=True, text=True, timeout=240)
    if "No matching distribution" in built.stderr and "CI" not in os.environ:
        pytest.skip("pip cannot reach a package index")
    assert built.returncode == 0, built.stderr
    assert not source.exists()

    address = own_address()
    check = json.loads(in_dockerfile(r"^HEALTHCHECK .*?CMD ([^\n]*)$").replace("127.0.0.1", address))
    variables = {"TASKQUEUE_WORKER_ID": "one", "TASKQUEUE_METRICS_HOST": address}
    workdir = srv / Path(in_dockerfile(r"^WORKDIR (\S+)$")).relative_to("/srv")
    with worker_with_a_task(queue, task_factory, container_command(), workdir, **variables):
        subprocess.run(check, check=True, capture_output=True, timeout=60)
