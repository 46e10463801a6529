"""Where a worker's configuration comes from, and what is wrong with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.config import WorkerConfig, load_config

IDENTITY: dict[str, Any] = {"task_queue_id": "proj/linux", "worker_group": "rack1", "worker_id": "w1"}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_argument_goes_before_the_environment_that_before_the_file_and_that_before_the_default(
    tmp_path: Path,
) -> None:
    file = written(tmp_path / "worker.yml", "concurrency: 2\nmax_tasks: 2\nmetrics_port: 2\n")
    environ = {"TASKQUEUE_CONCURRENCY": "3", "TASKQUEUE_MAX_TASKS": "3"}
    config = load_config({**IDENTITY, "concurrency": 4}, file=file, environ=environ)
    assert (config.concurrency, config.max_tasks, config.metrics_port) == (4, 3, 2)
    assert config.intermittent_attempts == WorkerConfig(**IDENTITY).intermittent_attempts


def test_what_is_none_or_empty_says_nothing(tmp_path: Path) -> None:
    file = written(tmp_path / "worker.yml", "concurrency: 2\nmax_idle:\n")
    config = load_config({**IDENTITY, "concurrency": None}, file=file, environ={"TASKQUEUE_CONCURRENCY": ""})
    assert (config.concurrency, config.max_idle) == (2, None)


def test_all_of_it_can_come_from_the_environment() -> None:
    environ = {
        "TASKQUEUE_TASK_QUEUE_ID": "proj/linux",
        "TASKQUEUE_WORKER_GROUP": "rack1",
        "TASKQUEUE_WORKER_ID": "17",
        "TASKQUEUE_MAX_RUN_TIME": "1.5",
        "TASKQUEUE_WORK_DIRECTORY": "/scratch",
        "TASKQUEUE_KEEP_WORK_DIRECTORIES": "true",
        "TASKQUEUE_METRICS_PORT": "0",
    }
    assert load_config({}, environ=environ) == WorkerConfig(
        task_queue_id="proj/linux",
        worker_group="rack1",
        worker_id="17",
        max_run_time=1.5,
        work_directory=Path("/scratch"),
        keep_work_directories=True,
        metrics_port=0,
    )


def test_the_process_s_environment_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQUEUE_CONCURRENCY", "5")
    assert load_config(IDENTITY).concurrency == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("worker.toml", 'worker_id = "w9"\nmax_idle = 60\nwork_directory = "/scratch"\n'),
        ("worker.yml", "worker_id: w9\nmax_idle: 60\nwork_directory: /scratch\n"),
        ("worker.yaml", '{"worker_id": "w9", "max_idle": 60.0, "work_directory": "/scratch"}'),
    ],
)
def test_a_file_is_in_yaml_or_toml(tmp_path: Path, name: str, text: str) -> None:
    identity = {key: value for key, value in IDENTITY.items() if key != "worker_id"}
    config = load_config(identity, file=written(tmp_path / name, text), environ={})
    assert (config.worker_id, config.max_idle, config.work_directory) == ("w9", 60, Path("/scratch"))


@pytest.mark.parametrize("missing", IDENTITY)
def test_a_worker_needs_an_identity_and_is_told_where_to_give_it(missing: str) -> None:
    given = {key: value for key, value in IDENTITY.items() if key != missing}
    with pytest.raises(InvalidArgument, match=f"{missing}=None.*TASKQUEUE_{missing.upper()}"):
        load_config(given, environ={})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("task_queue_id", "linux"),
        ("worker_group", "two words"),
        ("worker_id", 17),
        ("worker_id", "x" * 39),
        ("concurrency", 0),
        ("concurrency", 1.5),
        ("concurrency", True),
        ("graceful_shutdown_timeout", -1),
        ("graceful_shutdown_timeout", math.inf),
        ("graceful_shutdown_timeout", None),
        ("max_tasks", 0),
        ("max_idle", 0),
        ("max_idle", math.nan),
        ("cancellation_poll_interval", 0),
        ("max_run_time", "5"),
        ("intermittent_attempts", 0),
        ("log_checkpoint_interval", -5),
        ("termination_grace", "soon"),
        ("work_directory", 3),
        ("keep_work_directories", "yes"),
        ("artifact_storage", "gcs"),
        ("metrics_port", 65536),
        ("metrics_host", ""),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        WorkerConfig(**{**IDENTITY, name: given})
    assert caught.value.argument == name
    assert caught.value.allowed


def test_an_error_names_the_variable() -> None:
    with pytest.raises(
        InvalidArgument, match=r"^TASKQUEUE_CONCURRENCY='many' is not allowed: a whole number"
    ):
        load_config(IDENTITY, environ={"TASKQUEUE_CONCURRENCY": "many"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("concurrency: many", "concurrency in .*worker.yml='many' is not allowed: a whole number, 1 or more"),
        ("max_idle: 0", "max_idle in .*worker.yml=0 is not allowed: seconds, more than 0"),
        ("concurency: 1", "concurency in .*worker.yml=1 is not allowed: no such key; .*concurrency"),
        ("[1, 2]", "worker.yml' is not allowed: a file of keys and values"),
        ("", "worker.yml' is not allowed: a file of keys and values"),
        ("a: [", "worker.yml' is not allowed: a file that can be read: "),
    ],
)
def test_an_error_names_the_key_and_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        load_config(IDENTITY, file=written(tmp_path / "worker.yml", text), environ={})


@pytest.mark.parametrize("name", ["missing.yml", "worker.ini", "broken.toml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    written(tmp_path / "worker.ini", "")
    written(tmp_path / "broken.toml", "=")
    with pytest.raises(InvalidArgument, match=name):
        load_config(IDENTITY, file=tmp_path / name, environ={})
