"""The parts of a running local queue, put together on its event loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from taskqueue_client.clock import Clock, MovableClock
from taskqueue_client.local.admin import Admin
from taskqueue_client.local.api import Api
from taskqueue_client.local.artifact_storage import ArtifactStorage
from taskqueue_client.local.auth_service import AuthService
from taskqueue_client.local.authentication.certificates import Issuer, issue
from taskqueue_client.local.authentication.clients import Client, Roles
from taskqueue_client.local.authentication.validator import SignatureValidator
from taskqueue_client.local.endpoints import ENDPOINTS
from taskqueue_client.local.engine import Engine
from taskqueue_client.local.engine import Settings as EngineSettings
from taskqueue_client.local.engine.store import Store
from taskqueue_client.local.faults import Faults
from taskqueue_client.local.monitoring import Monitoring
from taskqueue_client.local.server import Parts, Server

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from taskqueue_client.local.audience import Audience

_QUEUE_CLIENT = "static/taskcluster/queue"
"""The client in whose name the queue issues temporary credentials."""

_SERVICE_DEADLINE_DELAY = 60.0
_SERVICE_RESOLVER_INTERVAL = 5.0
_LONGEST_NAP = 60.0
"""After so many seconds the clock is looked at again: the machine's may have been set."""

_RETRY_INTERVAL = 1.0
"""After so many seconds background work that failed is tried again: the disk may have been full."""

_log = logging.getLogger(__name__)

_SECRETS = """
CREATE TABLE IF NOT EXISTS issuer (only INTEGER PRIMARY KEY CHECK (only = 1), access_token TEXT NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a local queue is started with; see `LocalQueue`."""

    host: str
    port: int
    db: str
    claim_timeout: float
    like_production: bool
    clients: Mapping[str, Client]
    roles: Roles
    amqp_url: str | None = field(repr=False)
    admin_secret: str | None = field(repr=False)


class Deployment:
    """Everything that runs, while it is entered.

    Args:
        settings: How.
        clock: What all time is read from.
        audience: Gets each message.
    """

    root_url: str

    def __init__(self, settings: Settings, clock: Clock, audience: Audience) -> None:
        self._settings = settings
        self._clock = clock
        self._audience = audience
        self._cleanup = AsyncExitStack()
        self._wake_up: asyncio.TimerHandle | None = None
        self._due: float = 0
        self.faults = Faults(
            clock, [*(endpoint.full_name for endpoint in ENDPOINTS), "storage.put", "storage.get"]
        )

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._cleanup.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cleanup.aclose()

    async def _start(self) -> None:
        if self._settings.amqp_url is not None:
            await self._connect(self._settings.amqp_url)
        store = Store(self._settings.db)
        self._cleanup.callback(store.close)
        storage = ArtifactStorage(store.connection, self._settings.db, self._clock, lambda: self.root_url)
        self._cleanup.callback(storage.close)
        self.engine = Engine(
            store,
            self._clock,
            settings=self._engine_settings(),
            storage=storage,
            issue_credentials=self._issue_credentials,
            audience=self._audience,
        )
        self._issuer = _issuer(store.connection)
        server = Server(self._parts(storage))
        self._cleanup.push_async_callback(server.stop)
        self.root_url = await server.start(self._settings.host, self._settings.port)
        self.run_due()
        self._cleanup.callback(self._cancel_wake_up)

    async def _connect(self, amqp_url: str) -> None:
        from taskqueue_client.local.amqp import AmqpPublisher  # noqa: PLC0415 - needs an extra

        publisher = await self._cleanup.enter_async_context(AmqpPublisher(amqp_url))
        self._audience.add(publisher.publish)
        self._cleanup.callback(self._audience.remove, publisher.publish)

    def _engine_settings(self) -> EngineSettings:
        if not self._settings.like_production:
            return EngineSettings(claim_timeout=self._settings.claim_timeout)
        return EngineSettings(
            claim_timeout=self._settings.claim_timeout,
            deadline_delay=_SERVICE_DEADLINE_DELAY,
            resolver_interval=_SERVICE_RESOLVER_INTERVAL,
        )

    def _issue_credentials(
        self, client_id: str, scopes: list[str], start_ms: int, expiry_ms: int
    ) -> dict[str, str]:
        return issue(self._issuer, client_id, scopes, start_ms, expiry_ms)

    def _parts(self, storage: ArtifactStorage) -> Parts:
        validator = SignatureValidator(self._find_client, self._settings.roles.expand, self.faults.now)
        services = {"queue": self.engine, "object": storage.objects, "auth": AuthService(validator)}
        monitored = {name: Monitoring(service) for name, service in services.items()}
        api = Api(monitored, validator, self.faults.now, lambda: self.root_url)
        return Parts(api, storage.buckets, self.faults, self._admin(), self._look_for_work, self.faults.now)

    def _find_client(self, client_id: str) -> Client | None:
        if client_id == _QUEUE_CLIENT:
            return Client(_QUEUE_CLIENT, self._issuer.access_token, self._issuer.scopes)
        return self._settings.clients.get(client_id)

    def _admin(self) -> Admin | None:
        if self._settings.admin_secret is None:
            return None
        if not isinstance(self._clock, MovableClock):
            message = "the admin routes need a MovableClock"
            raise TypeError(message)
        return Admin(self._settings.admin_secret, self._clock, self.faults, self.engine)

    def run_due(self) -> None:
        """Do all background work whose time has come, and come back when there is more."""
        self.engine.run_due()
        self._look_for_work()

    def _look_for_work(self) -> None:
        """Set the alarm for the next background work; to be called after each change."""
        due = self.engine.next_due()
        if self._wake_up is None or due != self._due:
            self._cancel_wake_up()
            self._due = due
            nap = min(max(due - self._clock.now(), 0.001), _LONGEST_NAP)
            self._wake_up = asyncio.get_running_loop().call_later(nap, self._wake)

    def _wake(self) -> None:
        self._wake_up = None
        try:
            self.run_due()
        except Exception:  # noqa: BLE001 - whatever it was, nobody else would start the work again
            _log.exception("background work failed; it is tried again in %g s", _RETRY_INTERVAL)
            self._wake_up = asyncio.get_running_loop().call_later(_RETRY_INTERVAL, self._wake)

    def _cancel_wake_up(self) -> None:
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None


def _issuer(connection: sqlite3.Connection) -> Issuer:
    """The store's own issuer, made at its first start: what it issues outlives a restart."""
    connection.execute(_SECRETS)
    connection.execute("INSERT OR IGNORE INTO issuer VALUES (1, ?)", (secrets.token_urlsafe(33),))
    (access_token,) = connection.execute("SELECT access_token FROM issuer").fetchone()
    return Issuer(_QUEUE_CLIENT, access_token, ["*"])
