"""How a worker is set up: by arguments, by the environment, and by a file in YAML or TOML.

An argument goes before the variable `TASKQUEUE_<NAME>` (in upper case), that before the file, and that
before the default. An empty variable counts as unset. Times are numbers of seconds. The deployment's URL and
the credentials are no part of this: they come from the `TASKCLUSTER_…` variables.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec

from taskqueue_client import calls
from taskqueue_client.errors import InvalidArgument

ENVIRONMENT_PREFIX = "TASKQUEUE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker needs to know, checked.

    Attributes:
        task_queue_id: Where work is claimed: `<provisioner>/<worker type>`.
        worker_group: The worker's group, such as a region or a rack.
        worker_id: The worker's name, which no other one of the group has.
        concurrency: How many runs are worked on at a time.
        graceful_shutdown_timeout: How long runs may go on when the worker was told to leave, in seconds.
        max_tasks: Leave after so many runs; None: never.
        max_idle: Leave after so many seconds without work; None: never.
        cancellation_poll_interval: Seconds between looks whether runs were canceled.
        max_run_time: A run whose tries together take longer fails, in seconds; None: no limit but the
            task's deadline.
        intermittent_attempts: How often a handler is called before its `IntermittentTask` is reported.
        log_checkpoint_interval: Upload the log so far every so many seconds; None: at the end only.
        termination_grace: Seconds between asking a command to end (SIGTERM) and killing it.
        work_directory: Where the directories of runs are made; None: where temporary files go.
        keep_work_directories: Leave a run's directory where it is when the run has ended.
        artifact_storage: Where artifacts go unless their declaration says otherwise: `s3` or `object`.
        metrics_port: Serve `/metrics`, `/live` and `/ready` on it; 0: a free one; None: not at all.
        metrics_host: The address to serve them on; the default cannot be reached from other machines.

    Raises:
        InvalidArgument: A value is not allowed.
    """

    task_queue_id: str
    worker_group: str
    worker_id: str
    concurrency: int = 1
    graceful_shutdown_timeout: float = 60.0
    max_tasks: int | None = None
    max_idle: float | None = None
    cancellation_poll_interval: float = 5.0
    max_run_time: float | None = None
    intermittent_attempts: int = 1
    log_checkpoint_interval: float | None = None
    termination_grace: float = 10.0
    work_directory: Path | None = None
    keep_work_directories: bool = False
    artifact_storage: Literal["s3", "object"] = "s3"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        calls.claim_work(self.task_queue_id, worker_group=self.worker_group, worker_id=self.worker_id)
        for name, rule in _RULES.items():
            if not rule.holds_for(getattr(self, name)):
                raise InvalidArgument(name, getattr(self, name), rule.words)


class _Rule(NamedTuple):
    """What a value is made of, and that in words."""

    type: Any
    words: str

    def holds_for(self, given: object) -> bool:
        try:
            value = msgspec.convert(given, self.type)
        except msgspec.ValidationError:
            return False
        return not isinstance(value, float) or math.isfinite(value)


def _whole(least: int, most: int | None = None) -> Any:
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


_DURATION = Annotated[float, msgspec.Meta(ge=0)]
_INTERVAL = Annotated[float, msgspec.Meta(gt=0)]
_OR_NONE = ", or none"

_RULES: Mapping[str, _Rule] = {
    "concurrency": _Rule(_whole(1), "a whole number, 1 or more"),
    "graceful_shutdown_timeout": _Rule(_DURATION, "seconds, 0 or more"),
    "max_tasks": _Rule(_whole(1) | None, "a whole number, 1 or more" + _OR_NONE),
    "max_idle": _Rule(_INTERVAL | None, "seconds, more than 0" + _OR_NONE),
    "cancellation_poll_interval": _Rule(_INTERVAL, "seconds, more than 0"),
    "max_run_time": _Rule(_INTERVAL | None, "seconds, more than 0" + _OR_NONE),
    "intermittent_attempts": _Rule(_whole(1), "a whole number, 1 or more"),
    "log_checkpoint_interval": _Rule(_INTERVAL | None, "seconds, more than 0" + _OR_NONE),
    "termination_grace": _Rule(_DURATION, "seconds, 0 or more"),
    "work_directory": _Rule(Path | None, "the path of a directory" + _OR_NONE),
    "keep_work_directories": _Rule(bool, "true or false"),
    "artifact_storage": _Rule(Literal["s3", "object"], "s3 or object"),
    "metrics_port": _Rule(_whole(0, 65535) | None, "a whole number, 0 to 65535" + _OR_NONE),
    "metrics_host": _Rule(Annotated[str, msgspec.Meta(min_length=1)], "a name or address of this machine"),
}
"""Of all but the worker's identity, which `claim_work` checks."""

_NAMES = ("task_queue_id", "worker_group", "worker_id", *_RULES)


class _Setting(NamedTuple):
    """A value, and where it was found."""

    value: Any
    source: str


def load_config(
    arguments: Mapping[str, Any], *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> WorkerConfig:
    """Put a configuration together.

    Args:
        arguments: By the names of `WorkerConfig`; None counts as not given.
        file: Its name ends in `.yml`, `.yaml` or `.toml`; its keys are the names of `WorkerConfig`.
        environ: The environment; the process's when left out.

    Raises:
        InvalidArgument: A value is not allowed or missing, or the file is no such file; names the
            argument, the variable, or the key and its file.
    """
    settings = {
        **({} if file is None else _in_file(file)),
        **_in_environment(os.environ if environ is None else environ),
        **{name: _Setting(value, name) for name, value in arguments.items() if value is not None},
    }
    for name in _NAMES[:3]:
        if name not in settings:
            variable = ENVIRONMENT_PREFIX + name.upper()
            raise InvalidArgument(name, None, f"a value: as an argument, as {variable} or in a file")
    try:
        return WorkerConfig(**{name: setting.value for name, setting in settings.items()})
    except InvalidArgument as error:
        raise InvalidArgument(settings[error.argument].source, error.given, error.allowed) from None


def _in_environment(environ: Mapping[str, str]) -> dict[str, _Setting]:
    variables = {name: ENVIRONMENT_PREFIX + name.upper() for name in _NAMES}
    return {
        name: _Setting(_of_text(name, environ[variable]), variable)
        for name, variable in variables.items()
        if environ.get(variable)
    }


def _of_text(name: str, text: str) -> Any:
    """What a text stands for; the text itself if that is nothing allowed."""
    if name not in _RULES:
        return text
    try:
        return msgspec.convert(text, _RULES[name].type, strict=False, dec_hook=_made)
    except msgspec.ValidationError:
        return text


def _made(kind: type, given: Any) -> Any:
    """A path, which msgspec does not make."""
    return kind(given)


def _in_file(file: Path) -> dict[str, _Setting]:
    found: dict[str, _Setting] = {}
    for key, given in _read(file).items():
        source = f"{key} in {file}"
        if key not in _NAMES:
            raise InvalidArgument(source, given, f"no such key; there are {', '.join(_NAMES)}")
        value = Path(given) if key == "work_directory" and isinstance(given, str) else given
        if value is not None:
            found[key] = _Setting(value, source)
    return found


def _read(file: Path) -> dict[str, Any]:
    """The file's keys and values."""
    try:
        document = _decoded(file)
    except (OSError, ValueError) as error:
        raise InvalidArgument("file", str(file), f"a file that can be read: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgument("file", str(file), "a file of keys and values")
    return cast("dict[str, Any]", document)


def _decoded(file: Path) -> Any:
    if file.suffix == ".toml":
        return tomllib.loads(file.read_text(encoding="utf-8"))
    if file.suffix in {".yml", ".yaml"}:
        return msgspec.yaml.decode(file.read_bytes())
    message = "its name must end in .yml, .yaml or .toml"
    raise ValueError(message)
