"""The sources of a worker's configuration, and the errors about it."""

from __future__ import annotations

import logging
import math
import re
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
import pytest

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.config import WorkerConfig
from taskqueue_client.worker.config_sources import load_config, load_custom_settings, setting_of_text

IDENTITY: dict[str, Any] = {"task_queue_id": "proj/linux", "worker_group": "rack1", "worker_id": "w1"}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


class Place(str, Enum):  # noqa: UP042 - `str` of its members is not their value, unlike with StrEnum
    LINUX = "proj/linux"
    MAC = "proj/mac"
    RACK = "rack1"
    WORKER = "w1"


@pytest.mark.parametrize("task_queues", [Place.LINUX, [Place.LINUX, Place.MAC]])
def test_a_worker_is_named_by_the_values_of_members_of_an_enumeration(task_queues: Any) -> None:
    config = WorkerConfig(task_queue_id=task_queues, worker_group=Place.RACK, worker_id=Place.WORKER)
    identity = config.identities[0]
    assert f"{identity.task_queue_id} {identity.worker_group} {identity.worker_id}" == "proj/linux rack1 w1"


def test_an_argument_goes_before_the_environment_that_before_the_file_and_that_before_the_default(
    tmp_path: Path,
) -> None:
    file = written(tmp_path / "worker.yml", "concurrency: 2\nmax_tasks: 2\nmetrics_port: 2\n")
    environ = {"TASKQUEUE_CONCURRENCY": "3", "TASKQUEUE_MAX_TASKS": "3"}
    config = load_config({**IDENTITY, "concurrency": 4}, file=file, environ=environ)
    assert (config.concurrency, config.max_tasks, config.metrics_port) == (4, 3, 2)
    assert config.intermittent_attempts == WorkerConfig(**IDENTITY).intermittent_attempts


def test_a_setting_that_is_none_or_empty_counts_as_unset(tmp_path: Path) -> None:
    file = written(tmp_path / "worker.yml", "concurrency: 2\nmax_idle:\n")
    config = load_config({**IDENTITY, "concurrency": None}, file=file, environ={"TASKQUEUE_CONCURRENCY": ""})
    assert (config.concurrency, config.max_idle) == (2, None)


def test_a_misspelled_argument_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"^concurency: unknown .* known one is concurrency$"):
        load_config({"concurency": 4})


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
        ("worker.toml", '\ufeffworker_id = "w9"\r\nmax_idle = 60\r\nwork_directory = "/scratch"\r\n'),
        ("worker.yml", "worker_id: w9\nmax_idle: 60\nwork_directory: /scratch\n"),
        ("worker.yaml", '{"worker_id": "w9", "max_idle": 60.0, "work_directory": "/scratch"}'),
    ],
)
def test_a_file_is_in_yaml_or_toml(tmp_path: Path, name: str, text: str) -> None:
    identity = {key: value for key, value in IDENTITY.items() if key != "worker_id"}
    config = load_config(identity, file=written(tmp_path / name, text), environ={})
    assert (config.worker_id, config.max_idle, config.work_directory) == ("w9", 60, Path("/scratch"))


@pytest.mark.parametrize("missing", IDENTITY)
def test_the_error_about_a_missing_identity_says_where_to_set_it(missing: str) -> None:
    given = {key: value for key, value in IDENTITY.items() if key != missing}
    with pytest.raises(InvalidArgument, match=f"{missing}: not set; .*TASKQUEUE_{missing.upper()}"):
        load_config(given, environ={})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("task_queue_id", "linux"),
        ("worker_group", "two words"),
        ("worker_id", 17),
        ("worker_id", "x y"),
        ("concurrency", 0),
        ("concurrency", 1.5),
        ("concurrency", True),
        ("concurrency", "\udcff"),
        ("graceful_shutdown_timeout", -1),
        ("graceful_shutdown_timeout", math.inf),
        ("graceful_shutdown_timeout", None),
        ("max_tasks", 0),
        ("max_idle", 0),
        ("max_idle", math.nan),
        ("max_idle", "0 minutes"),
        ("max_run_time", "-1 hour"),
        ("max_run_time", " "),
        ("cancellation_poll_interval", 0),
        ("max_run_time", "5"),
        ("intermittent_attempts", 0),
        ("log_checkpoint_interval", -5),
        ("termination_grace", "soon"),
        ("work_directory", 3),
        ("work_directory", ""),
        ("work_directory", "nul\0"),
        ("pass_environment", "CC"),
        ("pass_environment", ["CC=gcc"]),
        ("pass_environment", [""]),
        ("keep_work_directories", "yes"),
        ("artifact_storage", "gcs"),
        ("metrics_port", 65536),
        ("metrics_host", ""),
        ("metrics_host", "nul\0"),
        ("metrics_host", 70 * "ü"),
        ("live_log_host", "\udc80"),
        ("live_log_host", b"::1"),
        ("metrics_host", Path("localhost")),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        WorkerConfig(**{**IDENTITY, name: given})
    assert caught.value.argument == name
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("argument", "allowed", "given"),
    [
        ("arguments", "a dict of settings", {"arguments": [("concurrency", 2)]}),
        ("file", "str or PathLike or None", {"arguments": IDENTITY, "file": 5}),
        ("environ", "a dict of environment variables", {"arguments": IDENTITY, "environ": ["A=secret"]}),
    ],
)
def test_settings_from_something_else_are_refused_by_name(argument: str, allowed: str, given: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{argument}: .* is not valid; expected {allowed}") as caught:
        load_config(given["arguments"], file=given.get("file"), environ=given.get("environ"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["max_idle", "metrics_port", "live_log_url"])
def test_the_text_null_is_not_a_value_of_an_optional_setting(tmp_path: Path, name: str) -> None:
    """It must mean the same as an option and as a variable: it is refused."""
    file = written(tmp_path / "worker.yml", "max_idle: 60\nmetrics_port: 9400\n")
    variable = f"TASKQUEUE_{name.upper()}"
    with pytest.raises(InvalidArgument, match=f"{variable}: 'null' is not valid"):
        load_config(IDENTITY, file=file, environ={variable: "null"})
    with pytest.raises(InvalidArgument, match=f"{name}: 'null' is not valid"):
        load_config({**IDENTITY, name: setting_of_text(name, "null")}, file=file, environ={})


@pytest.mark.parametrize("given", ["~/work", Path("~/work")])
def test_a_path_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    """No shell replaces the `~` in a file, in a variable of systemd, or after `--work-directory=`."""
    monkeypatch.setenv("HOME", "/home/ci")
    assert WorkerConfig(**IDENTITY, work_directory=given).work_directory == Path("/home/ci/work")
    environ = {"TASKQUEUE_SIGNING_KEY": str(given)}
    assert load_config(IDENTITY, environ=environ).signing_key == Path("/home/ci/work")


@pytest.mark.parametrize("given", ["/scratch", Path("/scratch")])
def test_a_path_may_be_text_or_any_path(tmp_path: Path, given: Any) -> None:
    file = written(tmp_path / "worker.yml", "concurrency: 2\n")
    assert WorkerConfig(**IDENTITY, work_directory=given).work_directory == Path("/scratch")
    config = load_config({**IDENTITY, "work_directory": given}, file=str(file), environ={})
    assert (config.work_directory, config.concurrency) == (Path("/scratch"), 2)


@pytest.mark.parametrize(
    ("given", "seconds"), [("10 minutes", 600), ("1h30m", 5400), ("0 seconds", 0), (2.5, 2.5)]
)
def test_a_duration_is_seconds_or_text_wherever_it_is_given(
    tmp_path: Path, given: Any, seconds: float
) -> None:
    file = written(tmp_path / "worker.yml", f"graceful_shutdown_timeout: {given}\n")
    found = [
        WorkerConfig(**IDENTITY, graceful_shutdown_timeout=given),
        load_config({**IDENTITY, "graceful_shutdown_timeout": given}, environ={}),
        load_config(IDENTITY, environ={"TASKQUEUE_GRACEFUL_SHUTDOWN_TIMEOUT": str(given)}),
        load_config(IDENTITY, file=file, environ={}),
    ]
    assert [each.graceful_shutdown_timeout for each in found] == [seconds] * 4


def test_the_variables_to_pass_are_a_list_wherever_they_are_given(tmp_path: Path) -> None:
    file = written(tmp_path / "worker.yml", "pass_environment: [CC, CARGO_*]\n")
    found = [
        load_config({**IDENTITY, "pass_environment": ["CC", "CARGO_*"]}, environ={}),
        load_config(IDENTITY, environ={"TASKQUEUE_PASS_ENVIRONMENT": "CC, CARGO_*"}),
        load_config(IDENTITY, file=file, environ={}),
    ]
    assert [each.pass_environment for each in found] == [("CC", "CARGO_*")] * 3


@pytest.mark.parametrize("text", ["many", "\udcff"])
def test_an_error_names_the_variable(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_config(IDENTITY, environ={"TASKQUEUE_CONCURRENCY": text})
    words = f"TASKQUEUE_CONCURRENCY: {text!r} is not valid; expected a whole number"
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "concurrency: many",
            "concurrency in .*worker.yml: 'many' is not valid; expected a whole number, 1 or more",
        ),
        (
            "max_idle: 0",
            "max_idle in .*worker.yml: 0 is not valid; expected seconds, or whole numbers .*, more than 0",
        ),
        (
            "max_idle: 0.3 seconds",
            "max_idle in .*worker.yml: '0.3 seconds' is not valid; expected .* whole numbers with units",
        ),
        (
            "max_tasks: none",
            "max_tasks in .*worker.yml: 'none' is not valid; expected a whole number, 1 or more, or no value",
        ),
        ("concurency: 1", "concurency in .*worker.yml: unknown key; known keys: .*concurrency"),
        ("custom: {cache: /c}", r"custom in .*worker.yml: unknown key; known keys: .*worker\.custom"),
        (
            "worker: {concurrency: 4}",
            "worker in .*worker.yml: unknown key 'concurrency'; .* settings are outside of this table",
        ),
        ("[1, 2]", "worker.yml' contains a list; expected lines such as `concurrency: 4`"),
        ("", "worker.yml' is empty; expected lines such as `concurrency: 4`"),
        ("a: [1\nb: 1", "worker.yml': line 2, column 2: while parsing a flow sequence, expected "),
        ("a: 1\n---\nb: 2", "line 2, column 1: expected a single document in the stream, but found another "),
        ("a: \x01", "cannot read '.*worker.yml': unacceptable character #x0001"),
        ("concurrency: 1\nconcurrency: 2", "worker.yml': line 2, column 1: duplicate key 'concurrency'"),
        ("worker: {custom: {a: 1, b: 2, a: 3}}", "worker.yml': line 1, column 31: duplicate key 'a'"),
        ("worker: {custom: {b: [{a: 1,\n a: 3}]}}", "worker.yml': line 2, column 2: duplicate key 'a'"),
        ("worker: " + 1000 * "[" + 1000 * "]", "cannot read '.*worker.yml': nested too deeply"),
    ],
)
def test_an_error_names_the_key_and_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        load_config(IDENTITY, file=written(tmp_path / "worker.yml", text), environ={})


def test_without_pyyaml_the_error_about_a_file_in_yaml_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"^settings in YAML need PyYAML: pip install .*\[cli\]"):
        load_config(IDENTITY, file=written(tmp_path / "worker.yml", "concurrency: 2"), environ={})
    found = load_config(IDENTITY, file=written(tmp_path / "worker.toml", "concurrency = 2"), environ={})
    assert found.concurrency == 2


@pytest.mark.parametrize("name", ["missing.yml", "worker.ini", "broken.toml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    written(tmp_path / "worker.ini", "")
    written(tmp_path / "broken.toml", "=")
    with pytest.raises(InvalidArgument, match=name):
        load_config(IDENTITY, file=tmp_path / name, environ={})


@pytest.mark.parametrize(
    "name",
    ["a" * 39, "builders-7d4b9c6f5-x2x7k-and-a-long-name-of-a-pod", "host.example.com", "." * 252],
)
def test_a_host_name_becomes_a_worker_id_that_the_queue_allows(name: str) -> None:
    found, other = (
        load_config({**IDENTITY, "worker_id": each}, environ={}).worker_id for each in (name, name + "b")
    )
    assert len(found) <= 38
    assert found.startswith(name[:29].replace(".", "-"))
    assert found != other


def test_the_error_about_a_worker_id_that_is_a_number_in_a_file_says_that_it_must_be_a_str(
    tmp_path: Path,
) -> None:
    identity = {name: value for name, value in IDENTITY.items() if name != "worker_id"}
    with pytest.raises(InvalidArgument, match=r"worker_id in .*: 17 .* expected a str of 1 to 38 of"):
        load_config(identity, file=written(tmp_path / "worker.yml", "worker_id: 17"), environ={})


@pytest.mark.parametrize("name", ["a" * 38, "machine-12", "A_b-3"])
def test_a_valid_worker_id_stays_as_it_is(name: str) -> None:
    assert load_config({**IDENTITY, "worker_id": name}, environ={}).worker_id == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a" * 254, 17])
def test_a_value_that_is_neither_a_worker_id_nor_a_host_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="worker_id"):
        load_config({**IDENTITY, "worker_id": name}, environ={})


@pytest.mark.parametrize(
    ("variable", "closest"),
    [
        ("TASKQUEUE_WORKERID", "TASKQUEUE_WORKER_ID"),
        ("TASKQUEUE_CONCURENCY", "TASKQUEUE_CONCURRENCY"),
        ("TASKQUEUE_SHUTDOWN_TIMOUT", "TASKQUEUE_SHUTDOWN_TIMEOUT"),
    ],
)
def test_a_variable_with_a_typing_mistake_is_refused_with_the_closest_known_one(
    variable: str, closest: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{variable}: unknown variable; .* {closest}$"):
        load_config(IDENTITY, environ={variable: "5"})


def test_a_variable_that_may_have_another_purpose_is_only_named(caplog: pytest.LogCaptureFixture) -> None:
    of_kubernetes = ["TASKQUEUE_PORT", "TASKQUEUE_SERVICE_HOST", "TASKQUEUE_SERVICE_PORT"]
    environ = {**dict.fromkeys(of_kubernetes, "x"), "TASKQUEUE_RUN": "x", "TASKQUEUE_LOCAL_AMQP": "x"}
    with caplog.at_level(logging.WARNING):
        load_config(IDENTITY, environ=environ)
    assert [record.getMessage() for record in caplog.records] == [
        f"{each}: ignored, because no setting has this name" for each in of_kubernetes
    ]


@dataclass
class Own:
    cache: Path
    size: int = 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("worker.toml", '[worker.custom]\ncache = "/cache"\n'),
        ("worker.yml", "worker:\n  custom:\n    cache: /cache\n"),
    ],
)
def test_a_workers_own_settings_are_a_table_of_the_same_file(tmp_path: Path, name: str, text: str) -> None:
    file = written(tmp_path / name, text)
    assert load_custom_settings(Own, file) == Own(Path("/cache"), 3)
    assert load_config(IDENTITY, file=file, environ={}) == WorkerConfig(**IDENTITY)


@pytest.mark.parametrize(
    ("text", "kind", "finding"),
    [
        ("worker: {custom: {cache: /c, sise: 4}}", Own, "unknown key 'sise'; known keys: cache, size"),
        ("worker: {custom: {size: 4}}", Own, "missing required field `cache`"),
        ("worker: {custom: {cache: /c, size: many}}", Own, "Expected `int`, got `str`"),
        ("worker: {custom: [1]}", Own, "Expected `object`, got `array`"),
        ("worker: {costum: {}}", Own, "unknown key 'costum'; known keys: custom"),
        ("worker: {custom: {cache: /c}, cache: /c}", Own, "unknown key 'cache'; known keys: custom"),
        ("worker: 5", Own, "a table with the key custom"),
        ("worker: {custom: [1]}", None, "not a table"),
        ("worker: {custom: {cache: /c}}", None, "'cache'; no key is known: .* has no settings_type"),
    ],
)
def test_errors_of_custom_settings_name_the_file(
    tmp_path: Path, text: str, kind: type[Own] | None, finding: str
) -> None:
    file = written(tmp_path / "worker.yml", text)
    with pytest.raises(InvalidArgument) as caught:
        load_custom_settings(kind, file)
    assert re.search(finding, str(caught.value))
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "worker: {costum: {password: hunter2}}",
        "worker: {custom: {cache: /c, pasword: hunter2}}",
        "worker: {custom: {cache: /c, size: hunter2}}",
        "worker: {custom: hunter2}",
        "worker: [hunter2]",
    ],
)
def test_errors_of_custom_settings_do_not_show_values(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_custom_settings(Own, written(tmp_path / "worker.yml", text))
    assert "hunter2" not in str(caught.value)


class Limits(TypedDict, total=False):
    parallel: int


@dataclass
class Server:
    url: str
    retries: int = 3
    limits: Limits | None = None


class File(msgspec.Struct, tag="file"):
    path: str


class Service(msgspec.Struct, tag="service"):
    url: str


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"

    @classmethod
    def _missing_(cls, value: object) -> Mode | None:
        return cls.FAST if value == "quick" else None


@dataclass
class Nested:
    mode: Mode | None = None
    levels: list[Literal[1, 2]] = field(default_factory=list[Literal[1, 2]])
    servers: list[Server] = field(default_factory=list[Server])
    by_name: dict[str, Server] = field(default_factory=dict[str, Server])
    file: File | None = None
    keys: File | Service | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (
            "servers: [{url: u}, {url: u, retrys: 5}]",
            "unknown key 'retrys'; known keys: url, retries, limits - at `$.servers[1]`",
        ),
        (
            "by_name: {a: {url: u, limit: {}}}",
            "unknown key 'limit'; known keys: url, retries, limits - at `$.by_name.a`",
        ),
        (
            "servers: [{url: u, limits: {paralel: 5}}]",
            "unknown key 'paralel'; known keys: parallel - at `$.servers[0].limits`",
        ),
        (
            "file: {type: file, path: p, paht: q}",
            "unknown key 'paht'; known keys: path, type - at `$.file`",
        ),
        ("mode: fats", "'fats' is not valid; expected one of 'fast', 'slow' - at `$.mode`"),
        ("levels: [1, 3]", "3 is not valid; expected one of 1, 2 - at `$.levels[1]`"),
        ("mode: {password: hunter2}", "Expected `str | null`, got `object` - at `$.mode`"),
    ],
)
def test_a_key_or_value_of_a_nested_object_that_its_type_does_not_have_is_refused(
    tmp_path: Path, text: str, finding: str
) -> None:
    file = written(tmp_path / "worker.yml", f"worker: {{custom: {{{text}}}}}")
    with pytest.raises(InvalidArgument) as caught:
        load_custom_settings(Nested, file)
    assert str(caught.value) == f"worker.custom in {file}: {finding}"


def test_nested_settings_may_be_of_several_types_or_have_any_keys(tmp_path: Path) -> None:
    text = """
        worker:
          custom:
            mode: quick
            levels: [1, 2]
            servers: [{url: u, limits: {parallel: 2}}, {url: v, limits: null}]
            keys: {type: service, url: w}
            extra: {a: {b: [{c: 1}]}}
    """
    assert load_custom_settings(Nested, written(tmp_path / "worker.yml", text)) == Nested(
        mode=Mode.FAST,
        levels=[1, 2],
        servers=[Server("u", limits={"parallel": 2}), Server("v")],
        keys=Service("w"),
        extra={"a": {"b": [{"c": 1}]}},
    )


class Undecorated:
    cache: str


@pytest.mark.parametrize("kind", [Undecorated, dict, "Own"])
def test_a_settings_type_of_another_kind_is_refused(tmp_path: Path, kind: Any) -> None:
    file = written(tmp_path / "worker.yml", "worker: {custom: {cache: /c}}")
    for given in (file, None):
        with pytest.raises(InvalidArgument, match=r"settings_type: .* a dataclass, struct or TypedDict"):
            load_custom_settings(kind, given)


def test_own_settings_that_are_required_need_a_file() -> None:
    words = "^worker.custom \\(no config_file\\): .*missing required field `cache`"
    with pytest.raises(InvalidArgument, match=words):
        load_custom_settings(Own, None)
