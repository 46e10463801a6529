"""`WorkerLoop`: the base class of workers."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypedDict, Unpack

from taskqueue_client._arguments import check_callback, check_kind, check_kinds, seconds, signature_of, slugid
from taskqueue_client._protocol.threads_and_tasks import NO_THREAD
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.credentials import Credentials, checked, checked_root_url
from taskqueue_client.definitions import StorageName
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events.settings import PulseSettings, without_password

from .claims.claiming import QueueTaskSource, SeveralTaskQueues, TaskSourceFactory
from .commands.linux_processes import heed_sigterm
from .commands.masking import Secrets
from .config import TimeoutOutcome, WorkerConfig, check_names, closest_to, settings_described
from .config_sources import load_config, load_custom_settings, load_deployment
from .outcomes import thread_refused
from .payload import PayloadSchema, current_schema
from .run.handlers import children_ended
from .run.lifecycle import TaskEnd
from .run.task_run import TaskRun
from .session import Session, report_error
from .shutdown import Hooks, signals_restored
from .threads import WorkerEventLoop, check_not_patched, current_loop
from .worker_log import log, logged_by_default
from .worker_runner import WorkerRunner

if TYPE_CHECKING:
    from .features.chain_of_trust import SigningKey


class WorkerSettings(TypedDict, total=False):
    """The settings of `WorkerConfig` as keyword arguments, for type checkers."""

    task_queue_id: str | Sequence[str]
    worker_group: str
    worker_id: str
    concurrency: int
    graceful_shutdown_timeout: float | str
    shutdown_timeout: float | str | None
    max_tasks: int | None
    max_idle: float | str | None
    max_internal_errors: int
    cancellation_poll_interval: float | str
    max_run_time: float | str | None
    max_run_time_outcome: TimeoutOutcome
    intermittent_attempts: int
    log_checkpoint_interval: float | str
    upload_timeout: float | str
    capture_logging: bool
    live_log: bool
    live_log_url: str | None
    live_log_host: str
    live_log_port: int
    termination_grace: float | str
    work_directory: str | os.PathLike[str] | None
    pass_environment: Sequence[str]
    keep_work_directories: bool
    artifact_storage: StorageName
    signing_key: str | os.PathLike[str] | None
    chain_of_trust: Literal["all", "requested"]
    metrics_port: int | None
    metrics_host: str
    tracing: bool


class WorkerArguments(WorkerSettings, total=False):
    """The arguments of `WorkerLoop`, including its settings, for type checkers.

    The `__init__` of a subclass with further arguments takes them as `**arguments: Unpack[WorkerArguments]`,
    and passes them to `super().__init__(**arguments)`.
    """

    config_file: str | os.PathLike[str] | None
    root_url: str | None
    credentials: Credentials | None
    pulse: PulseSettings | None
    clock: Clock | None
    runner: WorkerRunner | None
    task_source: TaskSourceFactory


class WorkerLoop(ABC):
    """Base class for workers: claims tasks, reclaims them while they run, and calls `run_task`.

    Subclass it and write `run_task`; everything else has a default.

    Args:
        config_file: A YAML or TOML file with settings.
        root_url: The deployment's root URL; default: from the environment, together with the credentials.
        credentials: The worker's own credentials; they need `queue:claim-work:<task_queue_id>` and
            `queue:worker-id:<worker_group>/<worker_id>`; with several task queues, also
            `queue:pending-count:<task_queue_id>` for each.
        pulse: The message broker (extra `events`). A message about a canceled run stops the run at once;
            without a broker, cancellation is noticed within about `cancellation_poll_interval`.
        clock: The source of time.
        runner: The process that started this worker, if it speaks the worker-runner protocol.
        task_source: Makes the source of the worker's claims, such as `AzureTaskSource` of
            `taskqueue_client.legacy`; default: the Queue's `claimWork`.
        **settings: The settings below; the file and the environment may give them, too.

    Raises:
        InvalidArgument: A setting, the URL, the credentials or `payload_schema` is not allowed,
            `signing_key` cannot be read, a hook is declared as `async def`, or `run_task` or a hook has
            wrong parameters.
        ImportError: A package is not installed: PyYAML (extra `cli`) for a `config_file` in YAML,
            cryptography (extra `trust`) for `signing_key`, opentelemetry-api (extra `otel`) for `tracing`,
            or aio-pika (extra `events`) for `pulse`.
    """

    payload_schema: ClassVar[Mapping[str, Any] | None] = None
    """JSON Schema of payloads; a run whose payload does not match ends as `malformed-payload`."""

    settings_type: ClassVar[type[Any] | None] = None
    """A dataclass, struct or `TypedDict` for the table `[worker.custom]` of `config_file`; see `settings`."""

    settings: Any
    """The table `[worker.custom]`, as a checked object of `settings_type`; None without such a type."""

    def __init__(
        self,
        *,
        config_file: str | os.PathLike[str] | None = None,
        root_url: str | None = None,
        credentials: Credentials | None = None,
        pulse: PulseSettings | None = None,
        clock: Clock | None = None,
        runner: WorkerRunner | None = None,
        task_source: TaskSourceFactory = QueueTaskSource,
        **settings: Unpack[WorkerSettings],
    ) -> None:
        _check_methods(self)
        check_names(settings, WorkerArguments.__optional_keys__)  # before one is found to be missing
        _warn_of_names(type(self), settings)
        check_kind("pulse", without_password(pulse), PulseSettings | None)
        check_kinds(
            locals(), config_file=str | os.PathLike | None, clock=Clock | None, runner=WorkerRunner | None
        )
        check_callback("task_source", task_source)
        self.config: WorkerConfig = load_config(settings, file=config_file)
        self.settings = load_custom_settings(self.settings_type, config_file)
        if root_url is None:
            root_url, found = load_deployment()
            credentials = credentials or found
        self.root_url = checked_root_url(root_url)
        _import_extras(self.config, pulse)
        self.__credentials = None if credentials is None else checked(credentials)
        self.pulse = pulse
        self.clock = SystemClock() if clock is None else clock
        self.runner = runner
        self.task_source = _source_for(self.config, task_source)
        self.checked_schema = None if self.payload_schema is None else PayloadSchema(self.payload_schema)
        self.signing_key = None if self.config.signing_key is None else _load_key(self.config.signing_key)
        # Two underscores, because subclasses have attributes such as `_lock` and `_session` themselves.
        self.__lock = threading.RLock()  # a program's signal handler may call `shutdown` at any point
        self.__serving = threading.Lock()
        self.__session: Session | None = None
        self.__shutdown_requested = False

    @abstractmethod
    def run_task(self, task: TaskRun, /) -> Coroutine[Any, Any, None] | None:
        """Run a task. A `def` runs in a separate thread, an `async def` in an event loop that runs share.

        Returning completes the task. Raise an `Outcome` to end it in another way. An `InvalidArgument` that
        refuses a value of the payload counts as `MalformedPayload`. Any other exception ends the run as
        `internal-error`, and so does returning a coroutine or generator that nobody has run. An exception
        group (of a `TaskGroup`, for example) counts as its first member if all are reported alike.
        """

    def on_start(self) -> None:  # noqa: B027 - an optional hook
        """Called by `run` and `serve` before anything is claimed; an exception ends them."""

    def on_stop(self) -> None:  # noqa: B027 - an optional hook
        """Called at the end of `run` and `serve` if `on_start` has returned, also after an error."""

    def on_task_end(self, end: TaskEnd, /) -> None:  # noqa: B027 - an optional hook
        """Called when a run has been reported, or its claim is lost; must be quick.

        `sys.exit` in this hook shuts the worker down as `shutdown` does, and then ends the program.

        Args:
            end: How the run ended.
        """

    def run_time_limit(self, task: TaskRun, /) -> float | str | None:  # noqa: ARG002 - for those who override
        """Return how long all attempts of a run may take, in seconds or as `10 minutes`; None: no limit.

        Override it to return `task.payload.get("maxRunTime")`, for example. `max_run_time` bounds the run as
        well. The hook is called when the payload has been checked, and must be quick; if it raises, the run
        ends as if `run_task` had raised.

        At the time limit, `task.canceled` is set, commands are ended, and an asynchronous handler is
        canceled. A thread cannot be interrupted: if the handler neither waits for a command nor looks at
        `task.canceled`, the run ends some seconds later without it. `max_run_time_outcome` is reported.
        """
        return None

    def on_idle(self, seconds: float, /) -> None:  # noqa: B027 - an optional hook
        """Called after each claim request that found no work while no run is claimed; must be quick.

        `sys.exit` in this hook shuts the worker down as `shutdown` does, and then ends the program.

        Args:
            seconds: How long the worker has had no work.
        """

    def termination_notice(self) -> float | str | None:
        """Return how long the machine has left, in seconds or as `2 minutes`; None: no notice has come.

        Override it to ask the cloud provider for the termination notice of a spot machine. The hook is
        called every few seconds, in a separate thread; once it returns a duration, the worker shuts down.
        """
        return None

    @property
    def credentials(self) -> Credentials | None:
        """The worker's own credentials; may be replaced at any time, from any thread."""
        return self.__credentials

    @credentials.setter
    def credentials(self, credentials: Credentials) -> None:
        with self.__lock:
            self.__credentials = checked(credentials)
            if self.__session is not None:
                self.__session.use_credentials(credentials)

    def run(self) -> None:
        """Work until the worker is asked to shut down.

        SIGTERM, SIGINT and SIGHUP let runs go on for `graceful_shutdown_timeout`; a second signal, or
        SIGQUIT, stops them now. Outside of the main thread, signals are not handled. If the program does not
        configure `logging`, the worker's log is written to standard error.

        Raises:
            CallFailed: The Queue refused the first claim request, because of wrong credentials, missing
                scopes, …: an `ApiError`; or claim requests were failing when `max_idle` had passed.
            InternalError: `max_internal_errors` internal errors in a row had the same cause, or the system
                does not start the threads of the worker.
            InvalidArgument: Commands of tasks can read the file of `signing_key`; or `work_directory`, or the
                host or port of a server, cannot be used.
            RuntimeError: An event loop runs in this thread (use `await asyncio.to_thread(worker.serve)`), the
                worker is running already, the `__init__` of its class has not called that of `WorkerLoop`,
                or gevent or eventlet has patched the program.
        """
        heed_sigterm()
        self.__serve(logged_by_default, signals=threading.current_thread() is threading.main_thread())

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: make a worker in each process")

    def serve(self) -> None:
        """Work like `run`, in a program that handles signals itself and calls `shutdown`.

        In a thread, the worker shuts down when the program's main thread ends; join the thread before.
        In a coroutine, await `asyncio.to_thread(worker.serve)`, and call `worker.shutdown()` in a `finally`:
        on Ctrl-C, `asyncio.run` waits for the thread.

        Raises:
            CallFailed: As for `run`.
            InternalError: As for `run`.
            InvalidArgument: As for `run`.
            RuntimeError: As for `run`.
        """
        self.__serve(nullcontext, signals=False)

    def shutdown(self, *, within: float | str | None = None) -> None:
        """Shut down; called again, stop all runs now. Returns at once; call it from any thread at any time.

        The worker claims no more. Runs may go on for a while; those that have not ended by then are stopped
        and reported as `worker-shutdown`, so that the Queue retries them. A worker that was shut down does
        not run again: `run` and `serve` return at once.

        Args:
            within: Seconds that runs may go on, or text such as `1 minute`; default:
                `graceful_shutdown_timeout`. If it is 0 or negative, runs are stopped at once.

        Raises:
            InvalidArgument: `within` is not a duration.
        """
        given = seconds("within", within)
        if given is not None:
            given = max(given, 0.0)  # the time until a moment that a program knows may have passed
        with self.__lock:
            self.__shutdown_requested = True
            if self.__session is not None:
                self.__session.shutdown(given)

    def hint_canceled(self, task_id: str) -> None:
        """Ask the Queue at once whether a task was canceled, for example after a message about it.

        Raises:
            InvalidArgument: `task_id` is not the id of a task.
        """
        slugid("task_id", task_id)
        with self.__lock:
            if self.__session is not None:
                self.__session.hint_canceled(task_id)

    def __terminate(self, within: float | None) -> None:
        """Shut down as the runner asks: another message may shorten the time, but is no second `shutdown`."""
        with self.__lock:
            self.__shutdown_requested = True
            if self.__session is not None:
                self.__session.terminate(within)

    def __serve(self, logged: Callable[[], AbstractContextManager[None]], *, signals: bool) -> None:
        check_not_patched()
        if current_loop() is not None:
            raise RuntimeError(
                "run() and serve() block until the worker ends: they cannot be called in a running event "
                "loop; use `await asyncio.to_thread(worker.serve)`"
            )
        check_has_settings(self)
        if not self.__serving.acquire(blocking=False):
            raise RuntimeError("this worker is running already; make a second worker, or set concurrency")
        try:
            try:
                with children_ended():
                    self.on_start()  # it may configure logging
            except Exception as error:
                error.add_note(f"raised by {type(self).__name__}.on_start")
                if self.runner is not None:
                    self.__listen(self.runner)
                    report_error(self.runner, error, Secrets.of(self.__credentials))
                    self.runner.flush()
                raise
            with logged():
                self.__work(signals=signals)
        finally:
            self.__serving.release()

    def __work(self, *, signals: bool) -> None:
        last = Hooks()
        with signals_restored() if signals else nullcontext():
            try:
                with asyncio.Runner(loop_factory=WorkerEventLoop) as loop:
                    loop.run(self.__live(last if signals else None))
            except RuntimeError as error:
                if str(error) == NO_THREAD:
                    raise thread_refused() from error
                raise
            finally:
                last.call("on_stop", self.on_stop)

    def __listen(self, runner: WorkerRunner) -> None:
        runner.start(
            on_termination=lambda finish_tasks: self.__terminate(math.inf if finish_tasks else 0.0),
            on_credentials=lambda credentials: setattr(self, "credentials", credentials),
            on_closed=lambda: self.__terminate(None),
        )

    async def __live(self, last: Hooks | None) -> None:
        """Run one session. Calls that other threads make meanwhile wait in its loop until it has started."""
        try:
            with self.__lock:
                schema = current_schema(self.payload_schema, self.checked_schema)
                session = self.__session = Session(self, self.__credentials, schema)
            if self.runner is not None:
                self.__listen(self.runner)
            if self.__shutdown_requested:
                who = (self.config.worker_group, self.config.worker_id)
                log.info("worker %s/%s does not start: shutdown() was called before", *who)
            else:
                await session.run(last)
        finally:
            with self.__lock:
                if self.__session is not None:
                    self.__session.forget_calls()
                self.__session = None
            if self.runner is not None:
                self.runner.flush()


def check_has_settings(worker: WorkerLoop) -> None:
    """Raise a RuntimeError if a worker lacks attributes of `WorkerLoop`, or has replaced them by its own."""
    kind = type(worker).__name__
    if not hasattr(worker, "config"):
        raise RuntimeError(f"{kind}.__init__ must call super().__init__(…) with the settings")
    for name, allowed in _attribute_kinds(worker).items():
        if not isinstance(given := getattr(worker, name), allowed):
            found = type(given).__name__  # not the value, which may contain secrets
            raise RuntimeError(  # noqa: TRY004 - no argument is wrong, but the class
                f"{kind}.{name}: of type {found}, but WorkerLoop sets this attribute itself; use another name"
            )


def _attribute_kinds(worker: WorkerLoop) -> dict[str, Any]:
    """Return the types of the attributes that a worker reads after its `__init__`."""
    kinds = {
        "config": WorkerConfig,
        "root_url": str,
        "pulse": PulseSettings | None,
        "clock": Clock,
        "runner": WorkerRunner | None,
        "task_source": Callable,
        "checked_schema": PayloadSchema | None,
    }
    if worker.signing_key is None:
        return kinds
    from .features.chain_of_trust import SigningKey  # noqa: PLC0415 - few workers sign

    return {**kinds, "signing_key": SigningKey}


_PARAMETERS = {
    "run_task": ["task"],
    "on_start": [],
    "on_stop": [],
    "on_task_end": ["end"],
    "run_time_limit": ["task"],
    "on_idle": ["seconds"],
    "termination_notice": [],
}
"""The methods that the worker calls, each with the names of its arguments."""

_OPTIONAL = (*_PARAMETERS, "payload_schema", "settings_type")
"""The attributes that a class may define. A misspelled one would have no effect, and raise no error."""


def _check_methods(worker: WorkerLoop) -> None:
    """Refuse methods with wrong parameters, which would fail in each run, and hooks that are `async def`."""
    for name, parameters in _PARAMETERS.items():
        method = getattr(worker, name)
        if name != "run_task" and iscoroutinefunction(method):
            allowed = "a plain function (`def`); only run_task may be declared as `async def`"
            raise InvalidArgument(name, method, allowed)
        try:
            signature_of(method).bind(*parameters)
        except TypeError as error:
            allowed = f"def {name}({', '.join(['self', *parameters])})"
            raise InvalidArgument(name, method, allowed, f"wrong parameters ({error})") from error


def _warn_of_names(kind: type[WorkerLoop], settings: Mapping[str, object]) -> None:
    """Log attributes of a worker's class that look like hooks or settings and are neither.

    They are not refused, because the class may use them itself.
    """
    classes = [each for each in kind.__mro__ if each not in WorkerLoop.__mro__]
    own = {name: value for each in reversed(classes) for name, value in vars(each).items()}
    unused = [each for each in _OPTIONAL if each not in own]
    for name in sorted(each for each in own.keys() - dir(WorkerLoop) if not each.startswith("_")):
        is_value = not hasattr(own[name], "__get__")  # neither a method nor a property
        if is_value and name in WorkerSettings.__optional_keys__ and settings.get(name) is None:
            log.warning(
                "%s.%s has no effect: give settings as arguments, in environment variables or in a file",
                *(kind.__name__, name),
            )
        elif closest := closest_to(name.lower(), unused):
            log.warning(
                "%s.%s: the worker does not use it; the closest name that it uses is %s",
                *(kind.__name__, name, closest),
            )
        elif name.startswith("on_") and not is_value and not _has_other_caller(name, classes):
            log.warning(
                "%s.%s: the worker does not call it; the methods that it calls are %s",
                *(kind.__name__, name, ", ".join(_PARAMETERS)),
            )


def _has_other_caller(name: str, classes: Sequence[type]) -> bool:
    """Whether a method is a hook of another base class, such as a consumer's, or overrides one."""
    defining = [each for each in classes if name in vars(each)]
    return len(defining) > 1 or not issubclass(defining[0], WorkerLoop)


def _import_extras(config: WorkerConfig, pulse: PulseSettings | None) -> None:
    """Raise an ImportError if an extra is missing that the worker needs."""
    if config.tracing:
        import_module("taskqueue_client._protocol.call_spans")
    if pulse is not None:
        import_module("taskqueue_client.events._supervisor").session_type()


def _source_for(config: WorkerConfig, given: TaskSourceFactory) -> TaskSourceFactory:
    if len(config.task_queue_ids) == 1:
        return given
    if given is not QueueTaskSource:
        raise InvalidArgument(
            "task_queue_id", config.task_queue_id, "one task queue, because `task_source` is set"
        )
    return partial(SeveralTaskQueues, config.task_queue_ids)


def _load_key(path: Path) -> SigningKey:
    from .features.chain_of_trust import load_signing_key  # noqa: PLC0415 - few workers sign

    return load_signing_key(path)


_SETTINGS = settings_described().replace("    ", "        ")
WorkerLoop.__doc__ = f"{WorkerLoop.__doc__}\n    Settings:\n{_SETTINGS}\n"
