"""`WorkerLoop`: subclass it, say what a task means, and run it."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, Unpack

from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.credentials import Credentials, checked, checked_root_url, from_environment
from taskqueue_client.events.settings import PulseSettings

from .config import WorkerConfig, load_config
from .payload import PayloadSchema
from .session import Session
from .task_run import TaskRun


class WorkerSettings(TypedDict, total=False):
    """The arguments of a worker; `WorkerConfig` describes each of them."""

    task_queue_id: str
    worker_group: str
    worker_id: str
    concurrency: int
    graceful_shutdown_timeout: float
    max_tasks: int | None
    max_idle: float | None
    cancellation_poll_interval: float
    max_run_time: float | None
    intermittent_attempts: int
    log_checkpoint_interval: float | None
    termination_grace: float
    work_directory: Path | None
    keep_work_directories: bool
    artifact_storage: Literal["s3", "object"]
    metrics_port: int | None
    metrics_host: str


class WorkerLoop(ABC):
    """Claims runs, keeps them, has a handler do what they say, uploads what they made and reports them.

    Subclass it and write `run_task`; everything else has a default.

    Args:
        config_file: A YAML or TOML file with settings.
        root_url: The deployment; from the environment when left out, together with the credentials.
        credentials: The worker's own; they need `queue:claim-work:<task_queue_id>` and
            `queue:worker-id:<worker_group>/<worker_id>`.
        pulse: The broker of the Queue's messages, from which the worker hears of canceled runs at once
            (extra `events`); without it they are noticed within about `cancellation_poll_interval`.
        clock: Where time comes from.
        **settings: What the file and the environment do not say, or say otherwise: see `WorkerConfig`.

    Raises:
        InvalidArgument: A setting, the URL, the credentials or `payload_schema` is not allowed.
    """

    payload_schema: ClassVar[Mapping[str, Any] | None] = None
    """JSON Schema of the payloads that `run_task` takes; others are reported as `malformed-payload`."""

    def __init__(
        self,
        *,
        config_file: Path | None = None,
        root_url: str | None = None,
        credentials: Credentials | None = None,
        pulse: PulseSettings | None = None,
        clock: Clock | None = None,
        **settings: Unpack[WorkerSettings],
    ) -> None:
        self.config: WorkerConfig = load_config(settings, file=config_file)
        if root_url is None:
            root_url, found = from_environment()
            credentials = credentials or found
        self.root_url = checked_root_url(root_url)
        self._credentials = None if credentials is None else checked(credentials)
        self.pulse = pulse
        self.clock = SystemClock() if clock is None else clock
        self.schema = None if self.payload_schema is None else PayloadSchema(self.payload_schema)
        self._lock = threading.RLock()  # a host's signal handler may call `shutdown` at any point
        self._session: Session | None = None
        self._told_to_leave = False

    @abstractmethod
    def run_task(self, task: TaskRun) -> Coroutine[Any, Any, None] | None:
        """Do what a task says: `def`, in a thread of its own, or `async def`, in one loop with others.

        Returning completes the task. Raise an `Outcome` to end it otherwise; any other exception ends it
        as `internal-error`, and so does returning a coroutine or generator that nobody has run. A group
        that holds nothing but outcomes which are reported alike, as of a `TaskGroup`, is the first of them.
        """

    def on_idle(self, seconds: float) -> None:  # noqa: B027 - a hook that need not be used
        """Called after each claim call that found nothing while no run is held; must be quick.

        Args:
            seconds: How long the worker has had nothing to do.
        """

    def termination_notice(self) -> float | None:
        """How many seconds the machine has left, or None as long as nobody says so.

        Override it to ask the cloud provider, where spot machines are told; it is called every few
        seconds, in a thread of its own, and begins the shutdown.
        """
        return None

    @property
    def credentials(self) -> Credentials | None:
        """The worker's own; may be replaced at any time, from any thread, even while it runs."""
        return self._credentials

    @credentials.setter
    def credentials(self, credentials: Credentials) -> None:
        with self._lock:
            self._credentials = checked(credentials)
            if self._session is not None:
                self._session.use_credentials(credentials)

    def run(self) -> None:
        """Work until told to leave by SIGTERM or SIGINT, or for another reason that `serve` has.

        The first signal lets runs go on for `graceful_shutdown_timeout`; the second one stops them.
        Outside of the main thread, no signals are handled.

        Raises:
            ApiError: The Queue's first answer was a refusal: wrong credentials, missing scopes, …
        """
        self._serve(signals=threading.current_thread() is threading.main_thread())

    def serve(self) -> None:
        """`run`, for a host that handles signals itself and calls `shutdown`.

        Raises:
            ApiError: As for `run`.
        """
        self._serve(signals=False)

    def shutdown(self, *, within: float | None = None) -> None:
        """Leave; called again, hurry. Returns at once, and may be called from any thread and any time.

        No more runs are claimed, those that are held may go on, and what is not done in time is stopped
        and reported as `worker-shutdown`, so that the Queue has it tried again.

        Args:
            within: Seconds that runs may go on; `graceful_shutdown_timeout` when left out.
        """
        with self._lock:
            self._told_to_leave = True
            if self._session is not None:
                self._session.shutdown(within)

    def hint_cancelled(self, task_id: str) -> None:
        """Look at once whether a run of this task was canceled, because a message said so."""
        with self._lock:
            if self._session is not None:
                self._session.hint_cancelled(task_id)

    def _serve(self, *, signals: bool) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._live(signals=signals))

    async def _live(self, *, signals: bool) -> None:
        """One session. Made in its loop: what it is told meanwhile is heard when it has started."""
        try:
            with self._lock:
                session = self._session = Session(self, self._credentials)
            if not self._told_to_leave:
                await session.run(signals=signals)
        finally:
            with self._lock:
                self._session = None
