"""The Azure storage queues of legacy polling, whose messages are kept in line with the database.

Triggers note each task whose runs or priority change, in the transaction of the change; a background task
brings the messages of these tasks up to date. So no crash and no outage of the storage loses a message.
A superfluous message does no harm: its run is not pending, and the worker that polls it deletes it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError
from azure.storage.queue import QueueMessage, QueueSasPermissions, generate_queue_sas
from azure.storage.queue.aio import QueueServiceClient

from taskqueue_client.local import times
from taskqueue_client.local.engine import Core
from taskqueue_client.local.engine.task_records import Task, find_task

HIDDEN_WHEN_POLLED = 300
"""Seconds for which a message is invisible after a poll."""

VALID = timedelta(minutes=30)
SKEW = timedelta(minutes=15)
"""A signed URL is valid for `VALID`, from `SKEW` ago, as the clock of the storage may be behind."""

_LONGEST_HIDDEN = 7 * 24 * 3600
_GONE = {"MessageNotFound", "PopReceiptMismatch"}
_NO_QUEUE = {"QueueNotFound", "QueueBeingDeleted"}


class Receipt(NamedTuple):
    """The identifiers that an update or a delete of a message needs."""

    message_id: str
    pop_receipt: str


def queue_names(task_queue_id: str, suffixes: list[str]) -> list[str]:
    """Return the names of Azure queues of a task queue, of at most 63 characters as Azure demands."""
    hashed = "-".join(_hashed(part) for part in task_queue_id.split("/"))
    return [f"queue-{hashed}-{suffix}" for suffix in suffixes]


def _check_key(connection_string: str) -> None:
    """Raise a ValueError for a connection string without an account key, which signs the URLs."""
    if "accountkey=" not in connection_string.lower():
        raise ValueError


def _code(error: HttpResponseError) -> str:
    code = getattr(error, "error_code", "")
    return str(getattr(code, "value", code))  # some codes are members of an enumeration, others are strings


def _receipt(message: QueueMessage) -> Receipt:
    return Receipt(message.id, str(message.pop_receipt))


def _hashed(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()[:15]).decode().lower()


class AzureQueues:
    """The queues of one storage account. Its methods may raise `azure.core.exceptions.AzureError`."""

    def __init__(self, connection_string: str) -> None:
        try:
            _check_key(connection_string)
            self._service = QueueServiceClient.from_connection_string(
                connection_string, retry_total=0, connection_timeout=5, read_timeout=10
            )
            self._account: str = self._service.credential.account_name
            self._key: str = self._service.credential.account_key
        except (ValueError, AttributeError):
            raise ValueError(
                "legacy_azure: not a connection string of a storage account; expected"
                " DefaultEndpointsProtocol=…;AccountName=…;AccountKey=…, and QueueEndpoint=… for an emulator"
            ) from None  # the cause could show the key

    async def create(self, name: str) -> None:
        """Create a queue unless it exists."""
        with suppress(ResourceExistsError):
            await self._service.get_queue_client(name).create_queue()

    async def put(self, name: str, text: str, *, hidden: int, lifetime: int) -> Receipt:
        """Put a message into a queue, which is created if it does not exist; times are in seconds."""
        queue = self._service.get_queue_client(name)
        timing = {"visibility_timeout": min(hidden, lifetime - 1, _LONGEST_HIDDEN), "time_to_live": lifetime}
        try:
            message = await queue.send_message(text, **timing)
        except HttpResponseError as error:
            if _code(error) not in _NO_QUEUE:
                raise
            await self.create(name)
            message = await queue.send_message(text, **timing)
        return _receipt(message)

    async def update(self, name: str, receipt: Receipt, text: str, *, hidden: int) -> Receipt | None:
        """Replace a message; return its new receipt, or None if it was polled, updated or deleted since."""
        queue = self._service.get_queue_client(name)
        try:
            message = await queue.update_message(
                *receipt, content=text, visibility_timeout=min(hidden, _LONGEST_HIDDEN)
            )
        except HttpResponseError as error:
            if _code(error) in _GONE | _NO_QUEUE:
                return None
            raise
        return _receipt(message)

    async def delete(self, name: str, receipt: Receipt) -> None:
        """Delete a message unless somebody has polled or deleted it since."""
        try:
            await self._service.get_queue_client(name).delete_message(*receipt)
        except HttpResponseError as error:
            if _code(error) not in _GONE | _NO_QUEUE:
                raise

    def poll_url(self, name: str) -> str:
        """Return a signed URL to poll a queue with."""
        return f"{self._url(name)}/messages?visibilitytimeout={HIDDEN_WHEN_POLLED}&{self._signature(name)}"

    def delete_url(self, name: str) -> str:
        """Return a signed URL to delete a message with, with the placeholders of the Queue's contract."""
        message = "messages/{{messageId}}?popreceipt={{popReceipt}}"
        return f"{self._url(name)}/{message}&{self._signature(name)}"

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    def _url(self, name: str) -> str:
        return str(self._service.get_queue_client(name).url)

    def _signature(self, name: str) -> str:
        now = datetime.now(UTC)  # not the local queue's clock: the storage has its own
        permission = QueueSasPermissions(process=True)
        signature: str = generate_queue_sas(
            self._account, name, self._key, permission=permission, start=now - SKEW, expiry=now + VALID
        )
        return signature


SINGLE = "all"
"""The queue of the draft's `pollTaskUrl`, which has the tasks of all priorities."""

BY_PRIORITY = "7654321"
"""The queues of `pollTaskUrls`, the highest priority first."""

CHECK_EVERY = 300.0
"""Seconds between checks that each message is still there: a worker may have deleted it without a claim."""

_AT_ONCE = 32
_PAUSE_FIRST = 0.25
_PAUSE_MOST = 5.0
_UNKNOWN = -1
_ABOUT_MESSAGE = {400, 404, 409, 413}
"""Statuses after which a retry is useless: the next check of all messages repeats the request."""

_TABLES = """
CREATE TABLE IF NOT EXISTS azure_polled (
    task_queue_id TEXT NOT NULL,
    form TEXT NOT NULL,
    PRIMARY KEY (task_queue_id, form)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS azure_messages (
    task_id TEXT NOT NULL,
    queue TEXT NOT NULL,
    run_id INTEGER NOT NULL,
    visible INTEGER NOT NULL,  -- from then on, in milliseconds; 0: at once; -1: not known
    message_id TEXT NOT NULL,
    pop_receipt TEXT NOT NULL,
    PRIMARY KEY (task_id, queue)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS azure_due (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL UNIQUE
) STRICT;
"""

_TRIGGER = """
CREATE TEMP TRIGGER azure_after_{event} AFTER {change} ON tasks
WHEN EXISTS (SELECT 1 FROM azure_polled WHERE task_queue_id = NEW.task_queue_id)
BEGIN INSERT OR REPLACE INTO azure_due (task_id) VALUES (NEW.task_id); END
"""

_ALL_DUE = """
INSERT OR REPLACE INTO azure_due (task_id)
SELECT task_id FROM azure_messages UNION SELECT task_id FROM tasks
WHERE task_queue_id IN (SELECT task_queue_id FROM azure_polled) AND deadline > ?
"""

_log = logging.getLogger(__name__)


class _Wanted(NamedTuple):
    """The message that a task should have, or has: its run, and when it becomes visible."""

    run_id: int
    visible: int


class MessageSync:
    """Keeps messages in line with the database, by puts, updates and deletes, until `stop`."""

    def __init__(self, core: Core, azure: AzureQueues, encode: Callable[[str, int], str]) -> None:
        self._core = core
        self._azure = azure
        self._encode = encode
        self._store = core.store
        core.store.connection.executescript(_TABLES)
        core.store.change(_TRIGGER.format(event="creation", change="INSERT"))
        core.store.change(_TRIGGER.format(event="change", change="UPDATE OF runs, priority"))
        self._due = asyncio.Event()
        self._failures = 0
        self._check_soon()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._check_again())]

    def wake(self) -> None:
        """Look for tasks that have changed; to be called after changes."""
        self._due.set()

    async def stop(self) -> None:
        """Stop; the next start does the remaining work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def serve(self, task_queue_id: str, form: str) -> list[str]:
        """Put messages about a task queue from now on; return the names of its Azure queues.

        `form` is `SINGLE` or `BY_PRIORITY`.
        """
        if self._store.insert("azure_polled", task_queue_id, form, verb="INSERT OR IGNORE"):
            self._store.change(
                "INSERT OR REPLACE INTO azure_due (task_id) SELECT task_id FROM tasks"
                " WHERE task_queue_id = ? AND deadline > ?",
                *(task_queue_id, self._core.now()),
            )
            self.wake()
        return queue_names(task_queue_id, [form] if form == SINGLE else [*form])

    def adopt(self, task: Task, run_id: int, receipt: Receipt) -> None:
        """Use the receipt that a worker got by its poll for the next update of a message."""
        (queue,) = queue_names(task.task_queue_id, [SINGLE])
        self._save(task.task_id, queue, _Wanted(run_id, _UNKNOWN), receipt)

    async def discard(self, task: Task, receipt: Receipt) -> None:
        """Delete a message that has no pending run; if that fails, another poll finds it."""
        (queue,) = queue_names(task.task_queue_id, [SINGLE])
        try:
            await self._azure.delete(queue, receipt)
        except AzureError as error:
            _log.warning("cannot delete a message about task %s: %s", task.task_id, error)

    def _check_soon(self) -> None:
        self._is_checked = False
        self.wake()

    def _check_all(self) -> None:
        self._store.change("UPDATE azure_messages SET visible = ?", _UNKNOWN)
        self._store.change(_ALL_DUE, self._core.now())
        self._is_checked = True

    async def _check_again(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            self._check_soon()

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                if not self._is_checked:
                    self._check_all()
                while await self._settle_some():
                    self._failures = 0
            except AzureError as error:
                await self._recover(error)
            except Exception:  # noqa: BLE001 - without a retry no message would be put any more
                _log.exception("legacy polling failed")
                await self._recover(None)

    async def _recover(self, error: AzureError | None) -> None:
        """Wait, and check all messages afterwards: a storage that was killed may have lost messages."""
        pause = min(_PAUSE_FIRST * 2.0 ** min(self._failures, 16), _PAUSE_MOST)
        self._failures += 1
        if error is not None:
            _log.warning("the Azure storage queues failed, retrying in %.1f s: %s", pause, error)
        self._check_soon()
        await asyncio.sleep(pause)

    async def _settle_some(self) -> int:
        """Bring the messages of some tasks up to date; return how many tasks there were."""
        rows = self._store.rows("SELECT seq, task_id FROM azure_due ORDER BY seq LIMIT ?", _AT_ONCE)
        ended = await asyncio.gather(*(self._settle(*row) for row in rows), return_exceptions=True)
        for failed in ended:
            if failed is not None:
                raise failed
        return len(rows)

    async def _settle(self, seq: int, task_id: str) -> None:
        try:
            await self._bring_up_to_date(task_id)
        except HttpResponseError as error:
            if error.status_code not in _ABOUT_MESSAGE:
                raise
            _log.exception("cannot bring the message of task %s up to date", task_id)
        self._store.change("DELETE FROM azure_due WHERE seq = ?", seq)

    async def _bring_up_to_date(self, task_id: str) -> None:
        known = self._known(task_id)
        task = find_task(self._store, task_id)
        wanted = task and _wanted(task, self._core.now())
        if task and wanted:
            for queue in self._queues(task):
                found, receipt = known.pop(queue, (None, None))
                if found != wanted:
                    await self._keep(task, queue, wanted, receipt)
        for queue, (_, receipt) in known.items():
            await self._azure.delete(queue, receipt)
            self._store.change("DELETE FROM azure_messages WHERE task_id = ? AND queue = ?", task_id, queue)

    async def _keep(self, task: Task, queue: str, wanted: _Wanted, known: Receipt | None) -> None:
        now = self._core.now()
        text, hidden = self._encode(task.task_id, wanted.run_id), max(_seconds(wanted.visible - now), 0)
        receipt = known and await self._azure.update(queue, known, text, hidden=hidden)
        if receipt is None:
            lifetime = max(_seconds(task.deadline - now), 1)
            receipt = await self._azure.put(queue, text, hidden=hidden, lifetime=lifetime)
        self._save(task.task_id, queue, wanted, receipt)

    def _queues(self, task: Task) -> list[str]:
        forms = self._store.rows("SELECT form FROM azure_polled WHERE task_queue_id = ?", task.task_queue_id)
        suffixes = [SINGLE if form == SINGLE else str(task.priority + 1) for (form,) in forms]
        return queue_names(task.task_queue_id, suffixes)

    def _known(self, task_id: str) -> dict[str, tuple[_Wanted, Receipt]]:
        sql = "SELECT queue, run_id, visible, message_id, pop_receipt FROM azure_messages WHERE task_id = ?"
        return {
            queue: (_Wanted(run_id, visible), Receipt(*receipt))
            for queue, run_id, visible, *receipt in self._store.rows(sql, task_id)
        }

    def _save(self, task_id: str, queue: str, wanted: _Wanted, receipt: Receipt) -> None:
        self._store.insert("azure_messages", task_id, queue, *wanted, *receipt, verb="INSERT OR REPLACE")


def _wanted(task: Task, now: int) -> _Wanted | None:
    """Return the run that a task's message is about, and when it becomes visible; None: no message.

    The message of a claimed run is about the next run, and hidden until the claim expires: then it becomes
    visible by itself.
    """
    if not task.runs or task.deadline <= now:
        return None
    run = task.runs[-1]
    if run.state == "pending":
        return _Wanted(run.run_id, 0)
    if run.state == "running" and task.retries_left > 0:
        taken_until = times.parse(str(run.taken_until), "takenUntil")
        return _Wanted(run.run_id + 1, taken_until) if taken_until < task.deadline else None
    return None


def _seconds(milliseconds: int) -> int:
    return math.ceil(milliseconds / times.SECOND)
