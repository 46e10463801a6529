"""Legacy polling: the endpoints of the first draft and of the final form.

Loaded only for a local queue with a connection string, as it needs an extra. The database decides about each
claim; messages only follow the database.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace

from azure.core.exceptions import AzureError

from taskqueue_client._protocol.queue_messages import QueueMessage, RunMessage, decode_run, parse_messages
from taskqueue_client.local import times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.endpoints import LEGACY, Endpoint
from taskqueue_client.local.engine import claims_and_reports
from taskqueue_client.local.engine.core import Core, Json
from taskqueue_client.local.engine.task_records import get_task
from taskqueue_client.local.engine.worker_records import worker_seen
from taskqueue_client.local.http.api import ENDPOINTS
from taskqueue_client.local.refusal import Refusal, refuse
from taskqueue_client.scopes import ScopeExpression

from .legacy_messages import BY_PRIORITY, SINGLE, VALID, AzureQueues, MessageSync, Receipt

_WORKER_TYPE = "assume:worker-type:<provisionerId>/<workerType>"
_POLL_TASK_URL: ScopeExpression = {"AllOf": ["queue:poll-task", _WORKER_TYPE]}
_POLL_TASK_URLS: ScopeExpression = {
    "AnyOf": [
        "queue:poll-task-urls:<provisionerId>/<workerType>",
        {"AllOf": ["queue:poll-task-urls", _WORKER_TYPE]},
    ]
}
_CLAIM_WORK: ScopeExpression = {
    "AllOf": ["queue:claim-task", _WORKER_TYPE, "assume:worker-id:<workerGroup>/<workerId>"]
}
_CLAIM_TASK = next(each for each in ENDPOINTS if each.full_name == "queue.claimTask")
_POLL = "/poll-task-url/<provisionerId>/<workerType>"
_CLAIMED = ("workerGroup", "workerId", "runId", "takenUntil", "status")


class LegacyPolling:
    """Legacy polling of a local queue; runs from its construction, in an event loop, until `stop`."""

    def __init__(
        self, connection_string: str, core: Core, key: str, expire_claim: Callable[[str], None]
    ) -> None:
        self._core = core
        self._key = hashlib.sha256(f"legacy polling {key}".encode()).digest()
        self._expire_claim = expire_claim
        self._azure = AzureQueues(connection_string)
        self._sync = MessageSync(core, self._azure, self._text)
        self.wake = self._sync.wake

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints of the local queue, with those of legacy polling before the others."""
        return (
            Endpoint(LEGACY, "GET", _POLL, self.poll_task_url, _POLL_TASK_URL),
            Endpoint(
                *(LEGACY, "POST", "/claim-work/<provisionerId>/<workerType>", self.claim_work),
                _CLAIM_WORK,
                schema="legacy/v1/claim-work-request",
            ),
            Endpoint("queue", "GET", _POLL, self.poll_task_urls, _POLL_TASK_URLS),
            replace(_CLAIM_TASK, handler=self.claim_task),
            *ENDPOINTS,
        )

    async def stop(self) -> None:
        """Stop, and close the connections to the storage."""
        await self._sync.stop()
        await self._azure.close()

    async def poll_task_url(self, core: Core, task_queue_id: str) -> Json:
        """Return the URL of the one queue that has the tasks of all priorities."""
        (name,) = await self._opened(task_queue_id, SINGLE)
        url = self._azure.poll_url(name).replace("?", "?numofmessages=1&", 1)
        return {"signedPollTaskUrl": url, "expires": _expires(core)}

    async def poll_task_urls(self, core: Core, task_queue_id: str) -> Json:
        """Return the URLs of the queues, the highest priority first."""
        names = await self._opened(task_queue_id, BY_PRIORITY)
        azure = self._azure
        queues = [
            {"signedPollUrl": azure.poll_url(name), "signedDeleteUrl": azure.delete_url(name)}
            for name in names
        ]
        return {"queues": queues, "expires": _expires(core)}

    def claim_task(self, core: Core, caller: Caller, task_id: str, run_id: int, body: Json) -> Json:
        """Claim one run as `claimTask` does, even if the claim on the previous run has just expired."""
        self._expire_claim(task_id)
        return claims_and_reports.claim_task(core, caller, task_id, run_id, body)

    async def claim_work(self, core: Core, caller: Caller, task_queue_id: str, body: Json) -> Json | None:
        """Claim the run of a message that the worker polled, or without a message any pending run.

        Returns None if there is no work, or if the worker is in quarantine.
        """
        worker = body["workerGroup"], body["workerId"]
        caller.require(workerGroup=worker[0], workerId=worker[1])
        if worker_seen(core, task_queue_id, worker):
            return None
        if "xmlMessage" in body:
            claim = await self._claim_message(task_queue_id, worker, *self._verified(body["xmlMessage"]))
            return {name: claim[name] for name in _CLAIMED}
        claims = claims_and_reports.claim_pending(core, task_queue_id, worker, 1)
        return {name: claims[0][name] for name in _CLAIMED} if claims else None

    async def _claim_message(
        self, task_queue_id: str, worker: tuple[str, str], message: QueueMessage, run: RunMessage
    ) -> Json:
        task = get_task(self._core.store, run.task_id)
        if task.task_queue_id != task_queue_id:
            refuse("InputError", f"The task of `xmlMessage` is not one of the task queue `{task_queue_id}`.")
        receipt = Receipt(message.message_id, message.pop_receipt)
        self._expire_claim(run.task_id)
        self._sync.adopt(task, run.run_id, receipt)
        try:
            task = get_task(self._core.store, run.task_id)
            return claims_and_reports.claim_run(self._core, task, run.run_id, worker)
        except Refusal:
            await self._sync.discard(task, receipt)
            raise

    def _verified(self, xml: str) -> tuple[QueueMessage, RunMessage]:
        """Return the first message of a response to a poll, and its run."""
        try:
            messages = parse_messages(xml.encode(errors="replace"))
            if not messages:
                refuse("InputError", "`xmlMessage` has no message.")
            run = decode_run(messages[0].text)
        except ValueError as error:
            refuse("InputError", f"`xmlMessage` is malformed: {error}")
        if not hmac.compare_digest(run.signature.encode(), self._signature(run.task_id, run.run_id).encode()):
            refuse("AuthenticationFailed", "The message in `xmlMessage` was not signed by this queue.")
        return messages[0], run

    def _text(self, task_id: str, run_id: int) -> str:
        return RunMessage(task_id, run_id, self._signature(task_id, run_id)).encoded()

    def _signature(self, task_id: str, run_id: int) -> str:
        digest = hmac.digest(self._key, f"{task_id}/{run_id}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    async def _opened(self, task_queue_id: str, form: str) -> list[str]:
        """Create the Azure queues of a task queue unless they exist, and return their names."""
        names = self._sync.serve(task_queue_id, form)
        try:
            await asyncio.gather(*map(self._azure.create, names))
        except AzureError as error:
            refuse("InternalServerError", f"The Azure storage queues cannot be used: {type(error).__name__}.")
        return names


def _expires(core: Core) -> str:
    return times.text(core.now() + times.milliseconds(VALID.total_seconds()))
