"""The local queue as one object: a thread with an event loop, and everything that runs on it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from inspect import iscoroutinefunction
from typing import NoReturn, Self, TypeVar

from taskqueue_client._arguments import check_kind, check_kinds, number
from taskqueue_client._protocol.threads_and_tasks import end_other_tasks
from taskqueue_client.clock import Clock, MovableClock
from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local.auth.known_clients import ANONYMOUS_SCOPES, Client, Roles, check_clients
from taskqueue_client.local.http.server import check_host
from taskqueue_client.local.storage.objects import OBJECT_METHODS
from taskqueue_client.slugid import slugid

from .deployment import Deployment, Settings
from .engine import Settings as EngineSettings
from .faults import Faults
from .messages import Audience, Message

_Result = TypeVar("_Result")

_LAST_PORT = 65_535

_LONGEST_CLAIM = 31 * 24 * 60 * 60
"""In seconds: temporary credentials, such as those of a claim, last no longer."""


class LocalQueue:
    """A Taskcluster Queue on this machine: its API, the object service, storage, and enough of auth.

    Use it with `with` or `async with`, or `start` and `stop` it, once. It runs in a separate thread.

    Args:
        host: The address to listen on.
        port: The port to listen on; 0: a free port.
        allow_remote: Whether `host` may be an address that other machines can reach.
        db: The SQLite file of the state, with artifacts in `<file>.artifacts/`; or `:memory:`.
        clock: The source of time; default: a new `MovableClock`.
        claim_timeout: The seconds until a claim expires unless it is reclaimed.
        max_dependencies: The largest number of dependencies of a task.
        sign_public_artifacts: Whether to sign the URLs of public artifacts, too (`signPublicArtifactUrls`).
        object_methods: The upload and download methods of the object service.
        like_production: Whether to act on deadlines and dependencies as late as the service does.
        client_id: The id of a client that has the scope `*`.
        access_token: The access token of that client; default: a random one.
        clients: Further clients.
        roles: The scopes of roles by role id, with `*` and `<..>` as in the service.
        anonymous_scopes: The scopes of calls without credentials; default: `ANONYMOUS_SCOPES`.
        amqp_url: The URL of the RabbitMQ to publish messages to, and to consume those of worker-manager from;
            needs the extra `events`.
        admin_secret: The token of requests to the routes under `/admin/`; default: no such routes.
        page: Whether to serve the web page, at `page_url`.
        legacy_azure: The connection string of a storage account, for workers that poll Azure storage queues;
            needs the extra `azure`.

    Raises:
        ValueError: A client, a role, a scope, a number, the host, the path or the admin secret is not valid;
            or an argument has another type; or the address is not loopback, and `allow_remote` is not set.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_remote: bool = False,
        db: str = ":memory:",
        clock: Clock | None = None,
        claim_timeout: float = 1200,
        max_dependencies: int = 10_000,
        sign_public_artifacts: bool = False,
        object_methods: Collection[str] = OBJECT_METHODS,
        like_production: bool = False,
        client_id: str = "local",
        access_token: str | None = None,
        clients: Sequence[Client] = (),
        roles: Mapping[str, Sequence[str]] | None = None,
        anonymous_scopes: Sequence[str] | None = None,
        amqp_url: str | None = None,
        admin_secret: str | None = None,
        page: bool = False,
        legacy_azure: str | None = None,
    ) -> None:
        _check_kinds(locals())
        _check_secrets(
            access_token=access_token, amqp_url=amqp_url, admin_secret=admin_secret, legacy_azure=legacy_azure
        )
        number("port", port, most=_LAST_PORT)
        number("max_dependencies", max_dependencies)
        check_host(host, allow_remote=allow_remote)
        _check_values(db, claim_timeout, admin_secret, object_methods)
        self.client_id = client_id
        self.access_token = access_token or slugid() + slugid()
        self._clock = clock or MovableClock()
        self._audience = Audience()
        anonymous = ANONYMOUS_SCOPES if anonymous_scopes is None else anonymous_scopes
        self._settings = Settings(
            host=host,
            allow_remote=allow_remote,
            port=port,
            db=db,
            engine=EngineSettings(
                claim_timeout=claim_timeout,
                max_dependencies=max_dependencies,
                deadline_delay=60.0 if like_production else 0,
                resolver_interval=5.0 if like_production else 0,
            ),
            sign_public_artifacts=sign_public_artifacts,
            object_methods=object_methods,
            clients=check_clients([*clients, Client(client_id, self.access_token, ["*"])]),
            roles=Roles({**(roles or {}), "anonymous": anonymous}),
            amqp_url=amqp_url,
            admin_secret=admin_secret,
            page=page,
            legacy_azure=legacy_azure,
        )
        self._deployment: Deployment | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None

    @property
    def root_url(self) -> str:
        """The URL of the deployment, e.g. `http://127.0.0.1:40001`."""
        return self._running.root_url

    @property
    def page_url(self) -> str | None:
        """The address of the web page, with the token that lets a browser in; None without a page."""
        page = self._running.page
        return None if page is None else page.url

    @property
    def credentials(self) -> Credentials:
        """The credentials of the client that has the scope `*`."""
        return Credentials(self.client_id, self.access_token)

    @property
    def clock(self) -> MovableClock:
        """The queue's clock; `advance` returns when everything that became due has been done.

        Raises:
            TypeError: The queue's clock cannot be moved.
        """
        if not isinstance(self._clock, MovableClock):
            raise TypeError(f"clock: {type(self._clock).__name__} cannot be moved; use a MovableClock")
        return self._clock

    @property
    def faults(self) -> Faults:
        """The faults of this queue; see `taskqueue_client.local.faults`."""
        return self._running.faults

    def subscribe(self, callback: Callable[[Message], object]) -> None:
        """Call `callback` with each later message, in the queue's thread, after the change is stored.

        No request is served before the callback returns, so it must not call the queue itself. Its errors are
        logged.

        Raises:
            TypeError: The callback is not a function, or an asynchronous one.
        """
        _check_callback(callback)
        self._audience.listeners.append(callback)

    def remove_worker(self, task_queue_id: str, worker_group: str, worker_id: str) -> None:
        """Remove a worker, as its provider does: its runs end with `worker-shutdown`."""
        self.call(lambda: self._running.remove_worker(task_queue_id, worker_group, worker_id))

    def run_expirers(self) -> None:
        """Run the nightly jobs now, which remove what has expired."""
        while self.call(self._running.background.expire):
            pass  # between two batches, requests are served

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call `function` in the queue's thread, and return what it returns.

        Raises:
            RuntimeError: The queue runs in the parent of this process.
        """
        if self._process not in {None, os.getpid()}:
            raise RuntimeError(
                "the local queue runs in the parent process, where its clock and workers are changed"
            )
        if self._thread is threading.current_thread() or self._loop is None:
            return function()
        return asyncio.run_coroutine_threadsafe(_call(function), self._loop).result()

    def start(self) -> None:
        """Start the queue; return when it accepts requests.

        Raises:
            OSError: The address cannot be used, or the file cannot be written.
            sqlite3.Error: The file is not that of a local queue, or another process uses it.
            TypeError: There is an admin secret, and the clock cannot be moved.
            ImportError: There is an AMQP URL or a storage account, and the extra `events` or `azure` is not
                installed.
            ValueError: The connection string of the storage account is malformed.
            RuntimeError: The queue was started before.
        """
        if self._thread is not None:
            raise RuntimeError("the local queue was started before; create another one")
        self._process = os.getpid()
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="local queue", daemon=True)
        self._thread.start()
        started.result()
        if isinstance(self._clock, MovableClock):
            self._clock.after_move(self._catch_up)

    def stop(self) -> None:
        """Stop the queue: end requests in progress and close everything. State in memory is lost."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a LocalQueue cannot be pickled or copied: pass its root_url and credentials to other processes"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.create_task(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            while not starting.done():  # the thread continues, and nothing else would stop the queue
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([starting])
            if starting.exception() is None:
                self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def _running(self) -> Deployment:
        if self._deployment is None:
            raise RuntimeError("the local queue is not running")
        return self._deployment

    def _run(self, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # others may lack sendfile
                runner.run(self._serve(started))
        except BaseException as error:  # the thread that waits for the start gets it
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        try:
            async with Deployment(self._settings, self._clock, self._audience) as deployment:
                self._deployment = deployment
                self._loop = asyncio.get_running_loop()
                started.set_result(None)
                try:
                    await self._stopping.wait()
                finally:
                    self._loop = self._deployment = None
        finally:
            await end_other_tasks()

    def _catch_up(self) -> None:
        while self._deployment is not None and self.call(self._deployment.run_due):
            pass  # between two batches, requests are served


def _check_kinds(given: Mapping[str, object]) -> None:
    """Check the kinds of the arguments of `LocalQueue`, except secrets and whole numbers."""
    check_kinds(
        given,
        host=str,
        allow_remote=bool,
        db=str | os.PathLike,
        clock=Clock | None,
        sign_public_artifacts=bool,
        object_methods=Collection,
        like_production=bool,
        client_id=str,
        clients=Sequence,
        roles=Mapping | None,
        anonymous_scopes=Sequence | None,
        page=bool,
    )


def _check_secrets(**given: object) -> None:
    """Check the kinds of arguments whose values an error must not show."""
    for name, secret in given.items():
        if not isinstance(secret, str | None):
            raise InvalidArgument(name, type(secret), "str or None")


def _check_values(db: str, claim_timeout: float, admin_secret: str | None, methods: Collection[str]) -> None:
    check_kind("claim_timeout", claim_timeout, int | float, "a number of seconds")
    if not 0 < claim_timeout <= _LONGEST_CLAIM:
        allowed = f"more than 0 and at most {_LONGEST_CLAIM} seconds"
        raise ValueError(f"claim_timeout must be {allowed}, not {claim_timeout}")
    if not db:
        raise ValueError("db: empty; expected the path of a file, or :memory:")
    if admin_secret == "":
        raise ValueError("admin_secret: empty; every request would match it")
    if admin_secret is not None and not admin_secret.isprintable():  # a header could not contain it
        raise ValueError("admin_secret: not valid; expected a str of printable Unicode, in one line")
    if unknown := sorted({*methods} - {*OBJECT_METHODS}):
        raise ValueError(f"object_methods: {unknown} are not known; allowed: {', '.join(OBJECT_METHODS)}")


def _check_callback(callback: object) -> None:
    if not callable(callback) or iscoroutinefunction(callback):
        raise TypeError(f"callback: {callback!r} is not valid; expected a function that is not asynchronous")


async def _call(function: Callable[[], _Result]) -> _Result:
    return function()
