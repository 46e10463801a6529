"""The settings of a worker, and the rules for their values.

Durations are numbers of seconds, or text such as `10 minutes`.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, cast, get_args

import msgspec

from taskqueue_client import calls
from taskqueue_client._dates import seconds_of
from taskqueue_client.errors import InvalidArgument

T = TypeVar("T")

TimeoutOutcome = Literal[
    "failed", "malformed-payload", "resource-unavailable", "intermittent-task", "internal-error"
]

_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_LONGEST_ID = 38
_HASH_DIGITS = 8


def closest_to(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelled one stands for; None if the name is too different from each.

    Names that may well mean something else are less similar than the limit of 0.8: the variable
    `SERVICE_HOST` has 0.75 (to a setting), the method `on_message` 0.56 (to a hook).
    """
    return next(iter(get_close_matches(name, known, n=1, cutoff=0.8)), None)


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown names of arguments: Python's TypeError would name a function that nobody has called."""
    names = sorted(known)
    if unknown := sorted(set(given).difference(names)):
        closest = closest_to(unknown[0], names)
        hint = f"the closest known one is {closest}" if closest else f"known arguments: {', '.join(names)}"
        raise InvalidArgument(unknown[0], "", "", f"unknown argument; {hint}")


class Rule(NamedTuple):
    """The type of a setting's values, the allowed values in words, and whether the values are durations."""

    type: Any
    words: str
    is_duration: bool = False

    def checked(self, name: str, given: object) -> Any:
        """Return the value in the setting's type: a path or seconds for a text, a tuple for a list."""
        if self.is_duration and isinstance(given, str):
            seconds = seconds_of(given)
            given = given if seconds is None else seconds
        try:
            value = msgspec.convert(given, self.type, dec_hook=converted)
        except (msgspec.ValidationError, UnicodeEncodeError):
            raise InvalidArgument(name, given, self.words) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidArgument(name, given, self.words)
        return value

    def of_text(self, text: str) -> Any:
        """Return the value that a text stands for; the text itself if it is not allowed."""
        try:
            value = msgspec.convert(text, self.type, strict=False, dec_hook=converted)
        except (msgspec.ValidationError, UnicodeEncodeError):  # a variable may hold bytes that are not UTF-8
            return text
        return text if value is None else value  # msgspec converts the text `null` to None


_COUNT = Rule(Annotated[int, msgspec.Meta(ge=1)], "a whole number, 1 or more")
_COUNT_OR_0 = Rule(Annotated[int, msgspec.Meta(ge=0)], "a whole number, 0 or more")
_SECONDS = "seconds, or whole numbers with units such as '10 minutes'"
_DURATION = Rule(Annotated[float, msgspec.Meta(ge=0)], f"{_SECONDS}, 0 or more", is_duration=True)
INTERVAL = Rule(Annotated[float, msgspec.Meta(gt=0)], f"{_SECONDS}, more than 0", is_duration=True)
_PATH = Rule(Path, "the path of a directory")
_FILE = Rule(Path, "the path of a file")
_PORT = Rule(Annotated[int, msgspec.Meta(ge=0, le=65535)], "a whole number, 0 to 65535")


class _Host(str):
    """The name of a host, which `socket` can encode."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        str.encode(name, "idna")  # a label may be too long, a ValueError; a path is no str, a TypeError
        return super().__new__(cls, name)


_HOST = Rule(_Host, "a name or address of this machine")
_HTTP_URL = Rule(
    Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://[^\s/?#][^\s?#]*\Z")],
    "an http or https URL without a query",
)
_VARIABLES = Rule(
    tuple[Annotated[str, msgspec.Meta(pattern=r"\A[^=,\s]+\Z")], ...],
    "a list of names of environment variables; * stands for any characters",
)


_WRONG_PORT = {errno.EADDRINUSE, errno.EACCES}


def files_limit() -> int:
    """Return how many file descriptors this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def files_needed(runs: int) -> int:
    """Return how many file descriptors a worker needs for so many runs at a time.

    50 are for connections and event loops of the worker, and 12 for each run: four for its proxy, two for a
    call through it, four for a command with captured output, and two for its log.
    """
    return 50 + runs * 12


def address_of(host: str, port: int) -> str:
    """Return the address of a server for URLs and logs: `host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(server: str, host: str, port: int, error: OSError) -> InvalidArgument:
    """Return the error about the setting that keeps a server, `metrics` or `live_log`, from listening."""
    found = f"cannot listen on {address_of(host, port)}: {error}"
    if error.errno in _WRONG_PORT:
        return InvalidArgument(f"{server}_port", port, f"a free port of {host}", found)
    return InvalidArgument(f"{server}_host", host, _HOST.words, found)


def converted(kind: type, given: Any) -> Any:
    """Return a path or host, which msgspec cannot convert by itself; "" and a NUL character are refused.

    A `~` at the start of a path is replaced, as a shell does: otherwise, a directory named `~` would be made.
    """
    if not os.fspath(given) or "\0" in os.fspath(given):
        raise ValueError("empty, or with a NUL character")
    # Not the method of `Path`, which fails if there is no home directory.
    return kind(os.path.expanduser(given) if kind is Path else given)  # noqa: PTH111 - as above


def _required(meaning: str) -> Any:
    return field(metadata={"meaning": meaning})


def _setting(default: T, rule: Rule, meaning: str) -> T:
    return field(default=default, metadata={"rule": rule, "meaning": meaning})


def _optional(rule: Rule, meaning: str) -> Any:
    """Return a setting that may have the value None, and has it by default."""
    return _setting(None, Rule(rule.type | None, f"{rule.words}, or no value", rule.is_duration), meaning)


def _switch(meaning: str) -> bool:
    """Return a setting that is off by default."""
    return _setting(default=False, rule=Rule(bool, "true or false"), meaning=meaning)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The worker that claims runs, and the task queue that it claims from."""

    task_queue_id: str
    worker_group: str
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The settings of a worker, checked.

    Raises:
        InvalidArgument: A value is not allowed.
    """

    task_queue_id: str | Sequence[str] = _required(
        "The task queue to claim from, PROVISIONER/WORKER_TYPE; or a list of several in order of preference, "
        "which share `concurrency`."
    )
    worker_group: str = _required("The worker's group, such as a region or a rack.")
    worker_id: str = _required(
        "The worker's name, unique within its group. A host name with dots or more than 38 characters, which "
        "the Queue does not allow, is replaced by its beginning and a hash."
    )
    concurrency: int = _setting(1, _COUNT, "How many runs are worked on at a time.")
    graceful_shutdown_timeout: float = _setting(
        60.0, _DURATION, "How long runs may go on after the worker was asked to shut down."
    )
    shutdown_timeout: float | None = _optional(
        INTERVAL,
        "How long the whole shutdown may take, whatever hangs; runs are stopped early enough to report "
        "them. None: 20 s more than graceful_shutdown_timeout and termination_grace together.",
    )
    max_tasks: int | None = _optional(_COUNT, "Shut down after so many runs; None: never.")
    max_idle: float | None = _optional(
        INTERVAL,
        "Shut down after so long without work, at least 1 s, or 3 s with several task queues; None: never.",
    )
    max_internal_errors: int = _setting(
        5,
        _COUNT_OR_0,
        "Shut down and raise the error after so many internal errors in a row with the same cause; 0: never.",
    )
    cancellation_poll_interval: float = _setting(5.0, INTERVAL, "The time between polls for canceled runs.")
    max_run_time: float | None = _optional(
        INTERVAL,
        "A run whose attempts together take longer is stopped; None: only the task's deadline and the hook "
        "`run_time_limit` count.",
    )
    max_run_time_outcome: TimeoutOutcome = _setting(  # noqa: RUF009 - a field
        "failed",
        Rule(TimeoutOutcome, f"one of {', '.join(get_args(TimeoutOutcome))}"),
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
        "the run, at the latest after this interval; if the Queue could not be reached before, up to 3 "
        "minutes after the start. 0: the log is uploaded only at the end.",
    )
    upload_timeout: float = _setting(
        900.0,
        _DURATION,
        "How long the upload of an artifact or log is retried after its first failure: before the report of "
        "the run at most until 30 s before the task's deadline, and only while the run is claimed; after the "
        "report of an exception at most for 24 minutes. An upload that makes progress before the report has "
        "no limit.",
    )
    live_log: bool = _switch(
        "Serve the logs of runs over HTTP while they grow; `public/logs/live.log` leads there until the run "
        "has ended.",
    )
    live_log_url: str | None = _optional(
        _HTTP_URL,
        "The URL by which readers reach the server of `live_log`, as through a reverse proxy; None: http:// "
        "with its address and port, which no other machine reaches if the address is 0.0.0.0.",
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
        "*Environment* in the how-to on commands). `*` in a name stands for any characters; names with `*` "
        "leave out variables that look like secrets, so a single `*` passes all others.",
    )
    keep_work_directories: bool = _switch("Keep the directory of a run after the run.")
    artifact_storage: Literal["s3", "object"] = _setting(
        "s3",
        Rule(Literal["s3", "object"], "s3 or object"),
        "Where artifacts are stored unless their declaration says otherwise.",
    )
    signing_key: Path | None = _optional(  # noqa: RUF009 - a field
        _FILE,
        "The file, pipe or descriptor (/dev/fd/3) with the key that signs chains of trust, which commands "
        "must not be able to read; None: nothing is signed.",
    )
    chain_of_trust: Literal["all", "requested"] = _setting(
        "all",
        Rule(Literal["all", "requested"], "all or requested"),
        "Which runs get a chain of trust if there is a signing_key: all, or those of tasks with "
        "`features.chainOfTrust` in their payload.",
    )
    metrics_port: int | None = _optional(
        _PORT, "The port of /metrics, /live and /ready; 0: a free port; None: no server."
    )
    metrics_host: str = _setting(
        "127.0.0.1",
        _HOST,
        "The address of /metrics, /live and /ready; other machines cannot reach the default.",
    )

    tracing: bool = _switch("Make OpenTelemetry spans of claims, runs and API calls (extra `otel`).")

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker_id", worker_id_of(self.worker_id))
        given = self.task_queue_id
        if not isinstance(given, str):
            object.__setattr__(self, "task_queue_id", _several(given))
        for each in self.task_queue_ids:
            calls.claim_work(each, worker_group=self.worker_group, worker_id=self.worker_id)
        for name in ("task_queue_id", "worker_group", "worker_id"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        for name, rule in RULES.items():
            object.__setattr__(self, name, rule.checked(name, getattr(self, name)))

    @property
    def task_queue_ids(self) -> tuple[str, ...]:
        """The task queues, in order of preference."""
        given = self.task_queue_id
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def identities(self) -> tuple[WorkerIdentity, ...]:
        """The worker with each of its task queues."""
        return tuple(WorkerIdentity(each, self.worker_group, self.worker_id) for each in self.task_queue_ids)


_NEEDED = {
    "live_log_url": "live_log",
    "live_log_host": "live_log",
    "live_log_port": "live_log",
    "chain_of_trust": "signing_key",
    "metrics_host": "metrics_port",
}
_DEFAULTS = {each.name: each.default for each in fields(WorkerConfig)}


def without_effect(config: WorkerConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings that were given and have no effect, each with the setting that is missing."""
    for name, needed in _NEEDED.items():
        is_off = getattr(config, needed) is _DEFAULTS[needed]
        if is_off and getattr(config, name) != _DEFAULTS[name]:
            yield name, needed


def _plain(given: str | Sequence[str]) -> str | tuple[str, ...]:
    """Return text as plain `str`: members of an enumeration would be logged as their names."""
    return str.__str__(given) if isinstance(given, str) else tuple(map(str.__str__, given))


def _several(given: object) -> str | tuple[str, ...]:
    """Return a list of task queues as a tuple, or as a string if there is only one."""
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


RULES: Mapping[str, Rule] = {
    each.name: each.metadata["rule"] for each in fields(WorkerConfig) if "rule" in each.metadata
}
"""The rules of all settings except the worker's identity, which `claim_work` checks."""


def meaning_of(setting: Field[Any]) -> str:
    """Return the meaning of a setting, its type or unit, and its default."""
    rule = RULES.get(setting.name)
    default = "an empty list" if setting.default == () else setting.default
    kind = f"{rule.words}; default: {default}" if rule else "text; required"
    return f"{setting.metadata['meaning']} ({kind})"


def settings_described() -> str:
    """Return every setting with its meaning, as lines of a docstring."""
    return "\n".join(f"    {each.name}: {meaning_of(each)}" for each in fields(WorkerConfig))


WorkerConfig.__doc__ = f"{WorkerConfig.__doc__}\nAttributes:\n{settings_described()}\n"
