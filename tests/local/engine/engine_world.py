"""Helpers for tests of the engine: an engine on a held clock, and short methods for its endpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from taskqueue_client.clock import MovableClock
from taskqueue_client.local import times
from taskqueue_client.local.auth.auth_service import Caller, Identity
from taskqueue_client.local.engine import BackgroundWork, Core, Settings, Store
from taskqueue_client.local.http.api import ENDPOINTS
from taskqueue_client.local.messages import EXCHANGE_PREFIX, Audience, Message
from taskqueue_client.local.refusal import Refusal
from taskqueue_client.local.storage import ArtifactStorage, artifact_directory
from taskqueue_client.slugid import slugid

START = 1_795_255_998.0
QUEUE = "prov/wt"
GROUP, WORKER = "wg", "w1"
HOUR = 3600
_HANDLERS = {each.handler.__name__: each.handler for each in ENDPOINTS if each.service == "queue"}


class Asker(Caller):
    """A caller that records the scopes that calls require; with `refuse`, it has none of them."""

    def __init__(self, *, refuse: bool = False) -> None:
        super().__init__(lambda: Identity("tester", [], math.inf), None, {})
        self.refuse = refuse
        self.asked: list[dict[str, object]] = []

    def require(self, **params: object) -> None:
        self.asked.append(params)
        if self.refuse:
            raise Refusal("InsufficientScopes", "no")


def credentials(client_id: str, scopes: list[str], start_ms: int, expiry_ms: int) -> dict[str, Any]:
    certificate = {"scopes": scopes, "start": start_ms, "expiry": expiry_ms}
    return {"clientId": client_id, "accessToken": "x" * 22, "certificate": json.dumps(certificate)}


class Endpoints:
    """The queue's endpoints as methods, named in snake_case."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return partial(_HANDLERS[name], self._core)


class World:
    """An engine with everything that it needs, and a record of its messages."""

    def __init__(self, path: str = ":memory:", **settings: Any) -> None:
        self.clock = MovableClock(START, held=True)
        self.store = Store(path)
        self._cleanup = ExitStack()
        directory = self._cleanup.enter_context(artifact_directory(path))
        self.storage = ArtifactStorage(self.store, directory, self.clock, lambda: "http://127.0.0.1:1")
        self.messages: list[Message] = []
        self.caller = Asker()
        self.audience = Audience()
        self.audience.listeners.append(self.messages.append)
        self.core = Core(
            self.store, self.clock, Settings(**settings), self.storage, credentials, self.audience
        )
        self.background = BackgroundWork(self.core)
        self.engine = Endpoints(self.core)
        self.clock.after_move(self.background.run_due)
        self.background.run_due()  # as a queue does at its start

    def close(self) -> None:
        self._cleanup.close()
        self.store.close()

    def now(self, seconds: float = 0) -> str:
        """The time in `seconds` seconds, as the Queue writes it."""
        return times.text(int((self.clock.now() + seconds) * 1000))

    def definition(self, **changes: Any) -> dict[str, Any]:
        """A request to create a task, as the HTTP layer passes it to the engine."""
        request = {
            "taskQueueId": QUEUE,
            "schedulerId": "sched",
            "projectId": "proj",
            "dependencies": [],
            "requires": "all-completed",
            "routes": ["a.route"],
            "priority": "low",
            "retries": 5,
            "created": self.now(),
            "deadline": self.now(2 * HOUR),
            "expires": self.now(48 * HOUR),
            "scopes": ["some:scope"],
            "payload": {"command": ["true"]},
            "metadata": {"name": "n", "description": "d", "owner": "o@x.org", "source": "https://x.org"},
            "tags": {"kind": "test"},
            "extra": {},
        }
        return {**request, **changes}

    def create(self, task_id: str | None = None, **changes: Any) -> str:
        """Create a task; return its id."""
        task_id = task_id or slugid()
        self.engine.create_task(self.caller, task_id, self.definition(**changes))
        return task_id

    def status(self, task_id: str) -> dict[str, Any]:
        status: dict[str, Any] = self.engine.status(task_id)["status"]
        return status

    def claim(self, task_id: str, run_id: int = 0, worker: str = WORKER) -> dict[str, Any]:
        body = {"workerGroup": GROUP, "workerId": worker}
        claim: dict[str, Any] = self.engine.claim_task(self.caller, task_id, run_id, body)
        return claim

    async def claim_work(
        self, count: int = 1, queue: str = QUEUE, worker: str = WORKER
    ) -> list[dict[str, Any]]:
        body = {"workerGroup": GROUP, "workerId": worker, "tasks": count}
        claims: list[dict[str, Any]] = (await self.engine.claim_work(self.caller, queue, body))["tasks"]
        return claims

    def running(self, **changes: Any) -> str:
        """Create a task and claim its run 0; return its id."""
        task_id = self.create(**changes)
        self.claim(task_id)
        return task_id

    def completed(self, **changes: Any) -> str:
        task_id = self.running(**changes)
        self.engine.report_completed(self.caller, task_id, 0, {})
        return task_id

    def fail(self, task_id: str, reason: str, run_id: int = 0) -> dict[str, Any]:
        status: dict[str, Any] = self.engine.report_exception(
            self.caller, task_id, run_id, {"reason": reason}
        )["status"]
        return status

    def cancel(self, task_id: str) -> dict[str, Any]:
        status: dict[str, Any] = self.engine.cancel_task(self.caller, task_id)["status"]
        return status

    def rerun(self, task_id: str) -> dict[str, Any]:
        status: dict[str, Any] = self.engine.rerun_task(self.caller, task_id)["status"]
        return status

    def artifact(
        self, task_id: str, name: str, storage_type: str, run_id: int = 0, **more: Any
    ) -> dict[str, Any]:
        body = {"storageType": storage_type, "expires": self.now(HOUR), **more}
        created: dict[str, Any] = self.engine.create_artifact(self.caller, task_id, run_id, name, body)
        return created

    def sent(self) -> list[str]:
        """The exchanges of the messages since the last call of `sent` or `taken`, in order."""
        names = [message.exchange.removeprefix(EXCHANGE_PREFIX) for message in self.messages]
        self.messages.clear()
        return names

    def taken(self) -> list[Message]:
        """The messages since the last call of `sent` or `taken`, in order."""
        messages = list(self.messages)
        self.messages.clear()
        return messages


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Refusal:
    """Return the refusal that a call raises."""
    with pytest.raises(Refusal) as caught:
        call(*args, **kwargs)
    return caught.value
