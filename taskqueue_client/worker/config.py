"""The settings of a worker: from arguments, from the environment, and from a file in YAML or TOML.

An argument takes precedence over the variable `TASKQUEUE_<NAME>` (in upper case), the variable over the file,
and the file over the default. An empty variable counts as unset. Durations are numbers of seconds, or text
such as `10 minutes`. The deployment's URL and the credentials are not settings: they come from the
`TASKCLUSTER_…` variables.

To add a setting: its line in `WorkerConfig`, and its type in `loop.WorkerSettings`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_args

import msgspec
import msgspec.inspect

from taskqueue_client import calls
from taskqueue_client._dates import seconds_of
from taskqueue_client.errors import InvalidArgument

from .worker_log import log

T = TypeVar("T")

ENVIRONMENT_PREFIX = "TASKQUEUE_"

_PREFIX_LENGTH = len(ENVIRONMENT_PREFIX)

_OTHER_VARIABLES = ("TASKQUEUE_LOCAL_", "TASKQUEUE_RUN", "TASKQUEUE_REQUIRE_")
"""Variables that are not settings of workers: of the local queue, of commands, of the tests."""

_LIKENESS = 0.75
"""From this similarity on, a variable is a misspelled setting; that of `PORT` and `METRICS_PORT` is 0.5."""

_WORKER_TABLE = "worker"

_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_LONGEST_ID = 38
_HASH_DIGITS = 8


class _Rule(NamedTuple):
    """The type of a setting's values, the same in words, and whether the values are durations."""

    type: Any
    words: str
    is_duration: bool = False

    def checked(self, name: str, given: object) -> Any:
        """Return the value in its own type: a path or seconds for a text, a tuple for a list."""
        if self.is_duration and isinstance(given, str):
            seconds = seconds_of(given)
            given = given if seconds is None else seconds
        try:
            value = msgspec.convert(given, self.type, dec_hook=_converted)
        except (msgspec.ValidationError, UnicodeEncodeError):
            raise InvalidArgument(name, given, self.words) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidArgument(name, given, self.words)
        return value


_COUNT = _Rule(Annotated[int, msgspec.Meta(ge=1)], "a whole number, 1 or more")
_COUNT_OR_0 = _Rule(Annotated[int, msgspec.Meta(ge=0)], "a whole number, 0 or more")
TimeoutOutcome = Literal[
    "failed", "malformed-payload", "resource-unavailable", "intermittent-task", "internal-error"
]

_DURATION = _Rule(
    Annotated[float, msgspec.Meta(ge=0)], "seconds or text such as '10 minutes', 0 or more", is_duration=True
)
_INTERVAL = _Rule(
    Annotated[float, msgspec.Meta(gt=0)],
    "seconds or text such as '10 minutes', more than 0",
    is_duration=True,
)
_PATH = _Rule(Path, "the path of a directory")
_FILE = _Rule(Path, "the path of a file")
_PORT = _Rule(Annotated[int, msgspec.Meta(ge=0, le=65535)], "a whole number, 0 to 65535")
_HOST = _Rule(Annotated[str, msgspec.Meta(min_length=1)], "a name or address of this machine")
_HTTP_URL = _Rule(
    Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://[^\s/?#][^\s?#]*\Z")],
    "an http or https URL without a query",
)
_VARIABLES = _Rule(
    tuple[Annotated[str, msgspec.Meta(pattern=r"\A[^=,\s]+\Z")], ...],
    "a list of names of environment variables; * stands for any characters",
)


def checked_seconds(name: str, given: object) -> float:
    """Return seconds, also given as text such as `10 minutes`.

    Raises:
        InvalidArgument: The value is not a duration of more than 0 seconds.
    """
    seconds: float = _INTERVAL.checked(name, given)
    return seconds


def checked_time_left(name: str, given: Any) -> float | None:
    """Return a number of seconds, which may be negative or infinite, or None.

    Raises:
        InvalidArgument: The value is something else, such as False, which would count as 0 seconds.
    """
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool) and not math.isnan(given)
    if given is not None and not is_number:
        raise InvalidArgument(name, given, "a number of seconds, or None")
    seconds: float | None = given
    return seconds


def _setting(default: T, rule: _Rule, meaning: str) -> T:
    metadata = {"rule": rule, "meaning": meaning}
    return field(default=default, metadata=metadata)


def _optional(rule: _Rule, meaning: str) -> Any:
    """Return a setting that may have the value None, and has it by default."""
    return _setting(None, _Rule(rule.type | None, f"{rule.words}, or none", rule.is_duration), meaning)


def _switch(meaning: str) -> bool:
    """Return a setting that is off by default."""
    return _setting(default=False, rule=_Rule(bool, "true or false"), meaning=meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of a worker, checked.

    Raises:
        InvalidArgument: A value is not allowed.
    """

    task_queue_id: str | Sequence[str] = field(
        metadata={
            "meaning": "The task queue to claim from, PROVISIONER/WORKER_TYPE; or a list of several in order "
            "of preference, which share `concurrency`."
        }
    )
    worker_group: str = field(metadata={"meaning": "The worker's group, such as a region or a rack."})
    worker_id: str = field(
        metadata={
            "meaning": "The worker's name, unique within its group. Of a host name that the Queue does not "
            "allow, because it has dots or more than 38 characters, the beginning and a hash are used."
        }
    )
    concurrency: int = _setting(1, _COUNT, "How many runs are worked on at a time.")
    graceful_shutdown_timeout: float = _setting(
        60.0, _DURATION, "How long runs may go on after the worker was asked to shut down."
    )
    shutdown_timeout: float | None = _optional(
        _INTERVAL,
        "How long the whole shutdown may take, whatever hangs; runs are stopped early enough to report "
        "them. None: 20 s more than graceful_shutdown_timeout and termination_grace together.",
    )
    max_tasks: int | None = _optional(_COUNT, "Shut down after so many runs; None: never.")
    max_idle: float | None = _optional(_INTERVAL, "Shut down after so long without work; None: never.")
    max_internal_errors: int = _setting(
        5,
        _COUNT_OR_0,
        "Shut down after so many internal errors in a row with the same cause, and raise it; 0: never.",
    )
    cancellation_poll_interval: float = _setting(5.0, _INTERVAL, "How often canceled runs are polled for.")
    max_run_time: float | None = _optional(
        _INTERVAL,
        "A run whose attempts together take longer is stopped; None: only the task's deadline and the hook "
        "`run_time_limit` count.",
    )
    max_run_time_outcome: TimeoutOutcome = _setting(  # noqa: RUF009 - a field
        "failed",
        _Rule(TimeoutOutcome, f"one of {', '.join(get_args(TimeoutOutcome))}"),
        "How a run ends that is stopped because it takes too long.",
    )
    intermittent_attempts: int = _setting(
        1, _COUNT, "How often a handler is called before its IntermittentTask is reported."
    )
    log_checkpoint_interval: float = _setting(
        10.0,
        _DURATION,
        "Seconds from the first upload of a run's log to the second, while the run goes on. The next "
        "intervals are longer, up to 6 times as long. The first upload is 1.25 to 10 s after the start of "
        "the run, or after this interval if it is shorter; if the Queue could not be reached before, up to "
        "3 minutes after the start. 0: the log is uploaded only at the end.",
    )
    upload_timeout: float = _setting(
        900.0,
        _DURATION,
        "How long the upload of an artifact or log is retried after its first failure; at most until "
        "30 s before the task's deadline, and only while the run is claimed. An upload that makes progress "
        "has no limit.",
    )
    live_log: bool = _switch(
        "Serve the logs of runs over HTTP while they grow; `public/logs/live.log` leads there until the run "
        "has ended.",
    )
    live_log_url: str | None = _optional(
        _HTTP_URL,
        "The URL by which readers reach that server, as through a reverse proxy; None: http:// with its "
        "address and port.",
    )
    live_log_host: str = _setting(
        "127.0.0.1", _HOST, "The address to serve logs on; other machines cannot reach the default."
    )
    live_log_port: int = _setting(0, _PORT, "The port to serve logs on; 0: a free port.")
    capture_logging: bool = _switch(
        "Write what a handler logs, through any logger of `logging`, to the task's log as well."
    )
    termination_grace: float = _setting(
        10.0, _DURATION, "How long a command may go on between SIGTERM and SIGKILL."
    )
    work_directory: Path | None = _optional(  # noqa: RUF009 - a field
        _PATH, "Where the directories of runs are made; None: where temporary files are."
    )
    pass_environment: tuple[str, ...] = _setting(
        (),
        _VARIABLES,
        "Names of environment variables that commands get in addition to the harmless ones (see "
        "*Environment* in the how-to on commands). `*` in a name stands for any characters, and leaves out "
        'what looks like a secret, so `("*",)` passes everything else.',
    )
    keep_work_directories: bool = _switch("Keep the directory of a run after the run.")
    artifact_storage: Literal["s3", "object"] = _setting(
        "s3",
        _Rule(Literal["s3", "object"], "s3 or object"),
        "Where artifacts are stored unless their declaration says otherwise.",
    )
    signing_key: Path | None = _optional(  # noqa: RUF009 - a field
        _FILE,
        "The file, pipe or descriptor (/dev/fd/3) with the key that signs chains of trust, which commands "
        "must not be able to read; None: nothing is signed.",
    )
    chain_of_trust: Literal["all", "requested"] = _setting(
        "all",
        _Rule(Literal["all", "requested"], "all or requested"),
        "Which runs get a chain of trust if there is a signing_key: all, or those of tasks with "
        "`features.chainOfTrust` in their payload.",
    )
    metrics_port: int | None = _optional(
        _PORT, "The port of /metrics, /live and /ready; 0: a free port; None: no server."
    )
    metrics_host: str = _setting(
        "127.0.0.1", _HOST, "The address to serve them on; other machines cannot reach the default."
    )

    tracing: bool = _switch("Make OpenTelemetry spans of claims, runs and API calls (extra `otel`).")

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker_id", worker_id_of(self.worker_id))
        given = self.task_queue_id
        if not isinstance(given, str):
            object.__setattr__(self, "task_queue_id", _several(given))
        for each in self.task_queue_ids:
            calls.claim_work(each, worker_group=self.worker_group, worker_id=self.worker_id)
        for name, rule in _RULES.items():
            object.__setattr__(self, name, rule.checked(name, getattr(self, name)))

    @property
    def task_queue_ids(self) -> tuple[str, ...]:
        """The task queues, of which those before are preferred."""
        given = self.task_queue_id
        return (given,) if isinstance(given, str) else tuple(given)


def _several(given: object) -> str | tuple[str, ...]:
    """Return a list of task queues as a tuple, or the only one."""
    listed = cast("Sequence[object]", given) if isinstance(given, (list, tuple)) else ()
    names = [each for each in listed if isinstance(each, str)]
    if not names or len(set(names)) < len(listed):
        allowed = "PROVISIONER/WORKER_TYPE, or a list of them with at least one, each once"
        raise InvalidArgument("task_queue_id", given, allowed)  # pyright: ignore[reportUnknownArgumentType] # any type
    return tuple(names) if len(names) > 1 else names[0]


def worker_id_of(name: Any) -> Any:
    """Return a host name as a worker id: as it is, or its beginning and a hash of all of it."""
    if not isinstance(name, str) or not _HOST_NAME.fullmatch(name):
        return name  # refused later, with the rule
    if len(name) <= _LONGEST_ID and "." not in name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: _LONGEST_ID - _HASH_DIGITS - 1].replace('.', '-')}-{digest}"


_RULES: Mapping[str, _Rule] = {
    each.name: each.metadata["rule"] for each in fields(WorkerConfig) if "rule" in each.metadata
}
"""The rules of all settings except the worker's identity, which `claim_work` checks."""

_NAMES = tuple(each.name for each in fields(WorkerConfig))


def meaning_of(setting: Field[Any]) -> str:
    """Return the meaning of a setting, its type or unit, and its default."""
    rule = _RULES.get(setting.name)
    kind = f"{rule.words}; default: {setting.default}" if rule else "text; required"
    return f"{setting.metadata['meaning']} ({kind})"


def settings_described() -> str:
    """Return every setting with its meaning, as lines of a docstring."""
    return "\n".join(f"    {each.name}: {meaning_of(each)}" for each in fields(WorkerConfig))


WorkerConfig.__doc__ = f"{WorkerConfig.__doc__}\nAttributes:\n{settings_described()}\n"


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The worker that claims runs, and the task queue that it claims from."""

    task_queue_id: str
    worker_group: str
    worker_id: str


class _Setting(NamedTuple):
    """A value, and where it was found."""

    value: Any
    source: str


def load_config(
    arguments: Mapping[str, Any],
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> WorkerConfig:
    """Return the settings from arguments, environment and file.

    Args:
        arguments: Values by the names of `WorkerConfig`; None counts as not given.
        file: A file whose name ends in `.yml`, `.yaml` or `.toml`, with the names of `WorkerConfig` as keys.
        environ: The environment; default: the process's.

    Raises:
        InvalidArgument: A value is missing or not allowed, or the file cannot be read; names the argument,
            the variable, or the key and its file.
    """
    environ = os.environ if environ is None else environ
    _check_variables(environ)
    settings = {
        **({} if file is None else _in_file(Path(file))),
        **_in_environment(environ),
        **{name: _Setting(value, name) for name, value in arguments.items() if value is not None},
    }
    for name in _NAMES[:3]:
        if name not in settings:
            variable = ENVIRONMENT_PREFIX + name.upper()
            raise InvalidArgument(
                name, None, f"a value as an argument, as {variable} or in a file", "not set"
            )
    try:
        return WorkerConfig(**{name: setting.value for name, setting in settings.items()})
    except InvalidArgument as error:
        raise InvalidArgument(settings[error.argument].source, error.given, error.allowed) from None


def load_custom_settings(kind: type[T] | None, file: str | os.PathLike[str] | None) -> T | None:
    """Return a worker's own settings, the table `[worker.custom]` of a file.

    Args:
        kind: Their type: a dataclass, struct or `TypedDict`; None if the worker has none.
        file: The file; None: every setting has its default.

    Raises:
        InvalidArgument: A key is unknown or missing, or a value is not allowed.
    """
    tables: Any = {} if file is None else _read(Path(file)).get(_WORKER_TABLE, {})
    _check_worker_table(tables, f"{_WORKER_TABLE} in {file}")
    custom: Any = cast("dict[str, Any]", tables).get("custom", {})
    try:
        _check_custom(kind, custom)
        return None if kind is None else msgspec.convert(custom, kind, dec_hook=_converted)
    except msgspec.ValidationError as error:
        source = (
            f"{_WORKER_TABLE}.custom in {file}"
            if file is not None
            else f"{_WORKER_TABLE}.custom (no config_file)"
        )
        raise InvalidArgument(source, custom, "", str(error)) from None


def _check_worker_table(tables: object, source: str) -> None:
    """Refuse all but a table with the key `custom`, without showing values, which may be secrets."""
    if not isinstance(tables, dict):
        raise InvalidArgument(source, tables, "a table with the key custom", "not a table")
    unknown = [key for key in cast("dict[str, object]", tables) if key != "custom"]
    if unknown:
        raise InvalidArgument(source, tables, "", f"unknown key {unknown[0]!r}; known keys: custom")  # pyright: ignore[reportUnknownArgumentType] # any type


def _check_custom(kind: type[Any] | None, custom: Any) -> None:
    """Refuse keys that the type does not have."""
    info = None if kind is None else msgspec.inspect.type_info(kind)
    known = [] if info is None else [each.encode_name for each in getattr(info, "fields", ())]
    given = cast("dict[str, Any]", custom) if isinstance(custom, dict) else {}
    unknown = [key for key in given if key not in known]
    if unknown:
        message = f"unknown key {unknown[0]!r}; known keys: {', '.join(known) or 'none'}"
        raise msgspec.ValidationError(message)


def _check_variables(environ: Mapping[str, str]) -> None:
    """Refuse a variable that looks like a setting but is not one, and warn of others.

    Others may have another purpose: Kubernetes sets `TASKQUEUE_SERVICE_HOST` for a service `taskqueue`.
    """
    known = {ENVIRONMENT_PREFIX + name.upper() for name in _NAMES}
    for name in sorted(set(environ) - known):
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(_OTHER_VARIABLES):
            continue
        closest = max(known, key=lambda each: SequenceMatcher(None, name, each).ratio())
        if get_close_matches(name[_PREFIX_LENGTH:], [closest[_PREFIX_LENGTH:]], cutoff=_LIKENESS):
            words = f"unknown variable; the closest known one is {closest}"
            raise InvalidArgument(name, environ[name], "", words)
        log.warning("%s: ignored, because no setting has this name", name)


def _in_environment(environ: Mapping[str, str]) -> dict[str, _Setting]:
    variables = {name: ENVIRONMENT_PREFIX + name.upper() for name in _NAMES}
    return {
        name: _Setting(setting_of_text(name, environ[variable]), variable)
        for name, variable in variables.items()
        if environ.get(variable)
    }


def setting_of_text(name: str, text: str) -> Any:
    """Return the value that a text stands for; the text itself if it is not allowed."""
    if name == "task_queue_id":
        listed = text.replace(",", " ").split()
        return listed if len(listed) > 1 else text
    if name not in _RULES:
        return text
    if name == "pass_environment":
        return text.replace(",", " ").split()
    try:
        return msgspec.convert(text, _RULES[name].type, strict=False, dec_hook=_converted)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a variable may hold bytes that are not UTF-8
        return text


def _converted(kind: type, given: Any) -> Any:
    """Return a path, which msgspec cannot convert by itself; an empty string is refused."""
    if not os.fspath(given):
        message = "empty"
        raise ValueError(message)
    return kind(given)


def _in_file(file: Path) -> dict[str, _Setting]:
    found: dict[str, _Setting] = {}
    for key, given in _read(file).items():
        source = f"{key} in {file}"
        if key == _WORKER_TABLE:
            continue
        if key not in _NAMES:
            raise InvalidArgument(source, given, "", f"unknown key; known keys: {', '.join(_NAMES)}")
        if given is not None:
            found[key] = _Setting(given, source)
    return found


def _read(file: Path) -> dict[str, Any]:
    """Return the file's keys and values."""
    try:
        document = _decoded(file)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument("config_file", str(file), "", f"cannot read {str(file)!r}: {error}") from error
    if not isinstance(document, dict):
        found = "is empty" if document is None else f"contains a {type(document).__name__}"
        raise InvalidArgument(
            "config_file", str(file), "lines such as `concurrency: 4`", f"{str(file)!r} {found}"
        )
    return cast("dict[str, Any]", document)


def _decoded(file: Path) -> Any:
    if file.suffix == ".toml":
        return tomllib.loads(file.read_text(encoding="utf-8"))
    if file.suffix in {".yml", ".yaml"}:
        return msgspec.yaml.decode(file.read_bytes())
    message = "its name must end in .yml, .yaml or .toml"
    raise ValueError(message)
