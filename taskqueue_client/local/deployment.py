"""The parts of a running local queue, put together on its event loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from taskqueue_client.clock import Clock, MovableClock
from taskqueue_client.local.auth.auth_service import AuthService, SignatureValidator
from taskqueue_client.local.auth.known_clients import Client, Roles
from taskqueue_client.local.auth.presented_credentials import issue
from taskqueue_client.local.http.admin import Admin
from taskqueue_client.local.http.api import ENDPOINTS, ROUTES, Api, Routes
from taskqueue_client.local.http.server import Server
from taskqueue_client.local.storage import ArtifactStorage, artifact_directory

from .endpoints import LEGACY
from .engine import BackgroundWork, Core, Store
from .engine import Settings as EngineSettings
from .engine.store import is_of_machine
from .faults import FaultInjector
from .messages import Audience

if TYPE_CHECKING:
    from .legacy_endpoints import LegacyPolling
    from .page import Page

_QUEUE_CLIENT = "static/taskcluster/queue"  # the client in whose name the queue issues temporary credentials
_LONGEST_NAP = 60.0  # seconds after which the clock is read again: the system time may have been set

_RETRY_INTERVAL = 1.0
"""Background work that failed is retried after so many seconds: the disk may have been full."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a local queue; see `LocalQueue`."""

    host: str
    allow_remote: bool
    port: int
    db: str
    engine: EngineSettings
    sign_public_artifacts: bool
    object_methods: Collection[str]
    clients: Mapping[str, Client]
    roles: Roles
    amqp_url: str | None = field(repr=False)
    admin_secret: str | None = field(repr=False)
    page: bool
    legacy_azure: str | None = field(repr=False)


class Deployment:
    """The parts of a local queue, which run while its context (`async with`) is entered."""

    root_url: str
    page: Page | None = None
    legacy: LegacyPolling | None = None

    def __init__(self, settings: Settings, clock: Clock, audience: Audience) -> None:
        self._settings = settings
        self._clock = clock
        self._audience = audience
        self._cleanup = AsyncExitStack()
        self._wake_up: asyncio.TimerHandle | None = None
        self._due: float = 0
        self._failures: set[str] = set()  # errors of background work that were logged since it last succeeded
        self._failing_since: float = 0
        self._was_deleted = False

    async def __aenter__(self) -> Self:
        async with self._cleanup:
            await self._start()
            self._cleanup = self._cleanup.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cleanup.aclose()

    async def _start(self) -> None:
        store = Store(self._settings.db)
        self._cleanup.callback(store.close)
        self._issuer = Client(_QUEUE_CLIENT, store.secret("issuer", "access_token"), ["*"])
        if self._settings.amqp_url is not None:
            await self._connect(self._settings.amqp_url, store)
        storage = ArtifactStorage(
            store,
            self._cleanup.enter_context(artifact_directory(store.path)),
            self._clock,
            lambda: self.root_url,
            sign_public=self._settings.sign_public_artifacts,
            object_methods=self._settings.object_methods,
        )
        self.core = Core(
            store, self._clock, self._settings.engine, storage, partial(issue, self._issuer), self._audience
        )
        self.background = BackgroundWork(self.core)
        self._cleanup.callback(self._cancel_wake_up)  # runs after server.stop, whose last requests set it
        if self._settings.legacy_azure is not None:
            self.legacy = self._open_legacy(self._settings.legacy_azure)
            self._cleanup.push_async_callback(self.legacy.stop)
        endpoints = ENDPOINTS if self.legacy is None else self.legacy.endpoints
        named = [*dict.fromkeys(each.full_name for each in endpoints), "storage.put", "storage.get"]
        self._injector = FaultInjector(self._clock, named)
        self.faults = self._injector.faults
        if self._settings.page:
            self.page = self._open_page()
        server = self._server()
        self._cleanup.push_async_callback(server.stop)
        self.root_url = await server.start(self._settings.host, self._settings.port)
        self.run_due()
        if self._settings.amqp_url is not None:
            await self._consume_removals(self._settings.amqp_url)

    async def _connect(self, amqp_url: str, store: Store) -> None:
        from .amqp import AmqpPublisher, Outbox  # noqa: PLC0415 - needs an extra

        publisher = await self._cleanup.enter_async_context(AmqpPublisher(amqp_url, Outbox(store)))
        self._audience.stores.append(publisher.store)
        self._audience.listeners.append(publisher.send_soon)

    async def _consume_removals(self, amqp_url: str) -> None:
        from .amqp import WorkerRemovals  # noqa: PLC0415 - needs an extra

        own = hashlib.sha256(self._issuer.access_token.encode()).hexdigest()[:22]
        name = f"queue/taskqueue-local/{own}/worker-removed-resolver"
        removals = WorkerRemovals(amqp_url, name, self.remove_worker)
        self.removals = await self._cleanup.enter_async_context(removals)

    def _server(self) -> Server:
        clients = {**self._settings.clients, _QUEUE_CLIENT: self._issuer}
        expand = self._settings.roles.expand
        authenticate = SignatureValidator(clients.get, expand, self.faults.now).authenticate
        services = {
            "queue": self.core,
            "object": self.core.storage.objects,
            "auth": AuthService(authenticate, clients, expand),
            LEGACY: self.core,
        }
        return Server(
            api=Api(services, authenticate, self.faults.now, lambda: self.root_url),
            buckets=self.core.storage.buckets,
            injector=self._injector,
            admin=self._admin(),
            page=self.page,
            after_change=self._look_for_work,
            own_host=None if self._settings.allow_remote else self._settings.host,
            routes=ROUTES if self.legacy is None else Routes(self.legacy.endpoints),
        )

    def _open_legacy(self, connection_string: str) -> LegacyPolling:
        try:
            from .legacy_endpoints import LegacyPolling  # noqa: PLC0415 - needs an extra
        except ModuleNotFoundError as error:
            raise ImportError(
                "legacy polling needs azure-storage-queue: pip install 'taskqueue_client[azure]'"
            ) from error
        key, expire_claim = self._issuer.access_token, self.background.expire_claim
        return LegacyPolling(connection_string, self.core, key, expire_claim)

    def _open_page(self) -> Page:
        from .page import Page  # noqa: PLC0415 - a queue without a page does not load it

        secret, host = self._issuer.access_token, self._settings.host
        page = Page(self.core, self._injector, secret=secret, host=host, root_url=lambda: self.root_url)
        self._audience.listeners.append(page.note_message)
        return page

    def _admin(self) -> Admin | None:
        if self._settings.admin_secret is None:
            return None
        if not isinstance(self._clock, MovableClock):
            raise TypeError("clock: the admin routes need a MovableClock")
        return Admin(self._settings.admin_secret, self._clock, self.faults, self.background)

    def run_due(self) -> bool:
        """Do a batch of due background work, and set the alarm for more; return whether there may be more."""
        is_more = self.background.run_due()
        self._look_for_work()
        return is_more

    def remove_worker(self, task_queue_id: str, worker_group: str, worker_id: str) -> None:
        """Resolve the runs of a worker that was stopped or removed; may be repeated."""
        self.background.worker_removed(task_queue_id, worker_group, worker_id)
        self._look_for_work()

    def _look_for_work(self) -> None:
        """Set the alarm for the next background work; to be called after each change."""
        if self.legacy is not None:
            self.legacy.wake()
        due = self.background.next_due()
        if self._wake_up is None or due != self._due:
            self._cancel_wake_up()
            self._due = due
            nap = min(max(due - self._clock.now(), 0.001), _LONGEST_NAP)
            self._wake_up = asyncio.get_running_loop().call_later(nap, self._wake)

    def _wake(self) -> None:
        self._wake_up = None
        try:
            self._look_for_file()
            self.run_due()
        except Exception as error:  # noqa: BLE001 - without a retry the background work would never run again
            self._note_failure(error)
            self._wake_up = asyncio.get_running_loop().call_later(_RETRY_INTERVAL, self._wake)
        else:
            self._note_success()

    def _look_for_file(self) -> None:
        """Log an error if the database file was deleted, once."""
        if not self._was_deleted and self.core.store.is_deleted():
            self._was_deleted = True
            _log.error("%s was deleted: all state is lost when the local queue ends", self._settings.db)

    def _note_failure(self, error: Exception) -> None:
        """Log a failure, unless the same error was logged before: a disk can be full for hours."""
        if not self._failures:
            self._failing_since = time.monotonic()
        if repr(error) in self._failures:
            return
        self._failures.add(repr(error))
        _log.error(
            "background work of %s failed, retrying every %g s: %s",
            *(self._settings.db, _RETRY_INTERVAL, error),
            exc_info=None if is_of_machine(error) else error,
        )

    def _note_success(self) -> None:
        if self._failures:
            seconds = time.monotonic() - self._failing_since
            _log.info("background work of %s works again after %.0f s", self._settings.db, seconds)
            self._failures.clear()

    def _cancel_wake_up(self) -> None:
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None
