"""Views of the page, and the latest messages and requests as a stream.

Each view is one response: the Queue's own endpoints would take very many requests.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web

from taskqueue_client.clock import Clock
from taskqueue_client.local.engine import Core
from taskqueue_client.local.engine.scheduling import GROUP
from taskqueue_client.local.engine.task_records import PRIORITIES
from taskqueue_client.local.http.responses import plain_body
from taskqueue_client.local.javascript_values import decode_base64
from taskqueue_client.local.messages import Message
from taskqueue_client.local.refusal import existing
from taskqueue_client.local.times import SECOND, milliseconds

_SHOWN = 200  # how many task queues, workers and groups an overview has
_SAMPLES = 60  # in the history of a task queue
_SAMPLE_SECONDS = 1.0  # the shortest time between two samples
_NAME_OF_TASK = "json_extract(CAST(definition AS TEXT), '$.metadata.name')"
_STATE = "ifnull(json_extract(CAST(runs AS TEXT), '$[#-1].state'), 'unscheduled')"
_IS_HELD = f"""
{_STATE} = 'running' AND run_id = json_array_length(CAST(runs AS TEXT)) - 1
AND json_extract(CAST(runs AS TEXT), '$[#-1].takenUntil')
    = strftime('%Y-%m-%dT%H:%M:%fZ', taken_until / 1000.0, 'unixepoch')
"""
"""Whether a claim record is that of the current claim; others are of refused or earlier claims."""

_COUNTS = """
SELECT task_queue_id, sum(pending), min(oldest), sum(claimed) FROM (
    SELECT task_queue_id, count(*) AS pending, min(inserted) AS oldest, 0 AS claimed
    FROM pending WHERE expires > ? GROUP BY task_queue_id
    UNION ALL
    SELECT task_queue_id, 0, NULL, count(DISTINCT task_id || '/' || run_id)
    FROM claims WHERE taken_until > ? GROUP BY task_queue_id
    UNION ALL
    SELECT task_queue_id, 0, NULL, 0 FROM task_queues WHERE expires > ?
) GROUP BY task_queue_id ORDER BY task_queue_id
"""
_WORKERS = """
SELECT task_queue_id, worker_group, worker_id, quarantine_until, last_date_active, recent_tasks
FROM workers WHERE max(expires, quarantine_until) > ? ORDER BY last_date_active DESC, worker_id LIMIT ?
"""
_RUNNING = f"""
SELECT task_queue_id, worker_group, worker_id, task_id, run_id, taken_until, {_NAME_OF_TASK}
FROM claims JOIN tasks USING (task_queue_id, task_id) WHERE taken_until > ? AND {_IS_HELD}
ORDER BY task_id
"""  # noqa: S608 - constants
_GROUPS = f"""
SELECT task_group_id, json_group_object(state, number), min(oldest) FROM (
    SELECT task_group_id, {_STATE} AS state, count(*) AS number, max(rowid) AS newest, min(rowid) AS oldest
    FROM tasks GROUP BY task_group_id, state
) GROUP BY task_group_id ORDER BY max(newest) DESC LIMIT ?
"""  # noqa: S608 - constants
_NAME = f"SELECT {_NAME_OF_TASK} FROM tasks WHERE rowid = ?"  # noqa: S608 - constants
_TASKS = f"""
SELECT task_id, task_queue_id, priority, retries_left, deadline, runs, {_NAME_OF_TASK},
    json_extract(CAST(definition AS TEXT), '$.dependencies')
FROM tasks WHERE task_group_id = ? ORDER BY rowid
"""  # noqa: S608 - constants
_MOMENTS = f"""
SELECT (SELECT min(taken_until) FROM claims JOIN tasks USING (task_id)
        WHERE taken_until > ? AND taken_until < deadline AND {_IS_HELD}),
    (SELECT min(deadline) FROM tasks
        WHERE deadline_open AND deadline > ? AND {_STATE} IN ('unscheduled', 'pending', 'running')),
    (SELECT min(inserted) FROM resolved)
"""  # noqa: S608 - constants


@dataclass(slots=True)
class Views:
    """Reads the store for the page."""

    core: Core
    _sampled: float = -math.inf
    _history: defaultdict[str, deque[tuple[float, int, int]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_SAMPLES))
    )

    def overview(self) -> dict[str, Any]:
        """Return task queues, workers and groups with the counts of their tasks; times are seconds."""
        return {"queues": self._queues(), "workers": self._workers(), "groups": self._groups()}

    def group(self, task_group_id: str) -> dict[str, Any]:
        """Return a group, with its tasks as a graph or time line needs them."""
        record = self.core.store.row(GROUP, task_group_id)
        scheduler_id, expires, sealed = existing(record, f"There is no task group {task_group_id}")
        return {
            "taskGroupId": task_group_id,
            "schedulerId": scheduler_id,
            "expires": expires / SECOND,
            "sealed": sealed and sealed / SECOND,
            "tasks": [_task(row) for row in self.core.store.rows(_TASKS, task_group_id)],
        }

    def moments(self) -> dict[str, float | None]:
        """Return when claims expire, deadlines pass and dependents become pending next, in seconds."""
        interval = max(1, milliseconds(self.core.settings.resolver_interval))
        now = self.core.now()
        ((claim, deadline, resolved),) = self.core.store.rows(_MOMENTS, now, now)
        look = resolved and -(-resolved // interval) * interval
        moments = {"claimExpiry": claim, "deadline": deadline, "dependencies": look}
        return {name: moment and moment / SECOND for name, moment in moments.items()}

    def sample(self) -> None:
        """Note how many runs of each task queue are pending and claimed now."""
        now = self.core.clock.now()
        if now - self._sampled < _SAMPLE_SECONDS:
            return
        self._sampled = now
        for task_queue_id, pending, _, claimed in self._counts():
            self._history[task_queue_id].append((now, pending, claimed))

    def _counts(self) -> list[tuple[Any, ...]]:
        return self.core.store.rows(_COUNTS, *3 * [self.core.now()])

    def _queues(self) -> list[dict[str, Any]]:
        self.sample()
        return [
            {
                "taskQueueId": task_queue_id,
                "pending": pending,
                "claimed": claimed,
                "oldest": oldest and oldest / SECOND,
                "history": list(self._history.get(task_queue_id, ())),
            }
            for task_queue_id, pending, oldest, claimed in self._counts()
        ][:_SHOWN]

    def _workers(self) -> list[dict[str, Any]]:
        now = self.core.now()
        running: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for *worker, task_id, run_id, taken_until, name in self.core.store.rows(_RUNNING, now):
            run = {"taskId": task_id, "runId": run_id, "takenUntil": taken_until / SECOND, "name": name}
            running.setdefault(tuple(worker), []).append(run)
        return [
            {
                "taskQueueId": row[0],
                "workerGroup": row[1],
                "workerId": row[2],
                "quarantineUntil": row[3] / SECOND if row[3] > now else None,
                # as in the service, the record is up to half an hour late
                "lastActive": max(row[4], self.core.seen.get(row[:3], 0)) / SECOND,
                "running": running.get(row[:3], []),
                "recent": msgspec.Raw(row[5]),
            }
            for row in self.core.store.rows(_WORKERS, now, _SHOWN)
        ]

    def _groups(self) -> list[dict[str, Any]]:
        return [self._summary(*row) for row in self.core.store.rows(_GROUPS, _SHOWN)]

    def _summary(self, task_group_id: str, states: str, oldest: int) -> dict[str, Any]:
        scheduler_id, _, sealed = self.core.store.row(GROUP, task_group_id) or ("", 0, None)
        return {
            "taskGroupId": task_group_id,
            "name": self.core.store.value(_NAME, oldest),
            "schedulerId": scheduler_id,
            "sealed": sealed is not None,
            "states": msgspec.Raw(states),
        }


def _task(row: tuple[Any, ...]) -> dict[str, Any]:
    task_id, task_queue_id, priority, retries_left, deadline, runs, name, dependencies = row
    return {
        "taskId": task_id,
        "taskQueueId": task_queue_id,
        "priority": PRIORITIES[priority],
        "retriesLeft": retries_left,
        "deadline": deadline / SECOND,
        "name": name,
        "dependencies": msgspec.Raw(dependencies),
        "runs": msgspec.Raw(runs),
    }


_KEPT = 1000  # how many messages, and how many requests, are kept for pages that are opened later
_SHORTEST_PAUSE = 0.05  # seconds between two events of a stream: a page is updated 20 times a second at most
_HEARTBEAT = 5.0  # after so many seconds without changes, an event says that the queue is there, and its time
_AFTER = re.compile(r"after=([0-9]{1,18})")
_CLIENT_ID = re.compile(r'\bid="([^"]*)"')
_BEWIT = re.compile(r"[?&]bewit=([\w-]+)")
_MISSING = re.compile(r"is missing the following scopes:\s+```\n(.*?)\n```", re.DOTALL)

Entry = dict[str, Any]


class Feed:
    """Records messages and requests, and sends them, with `state`, to every page that is open."""

    def __init__(self, clock: Clock, state: Callable[[], Entry]) -> None:
        self._clock = clock
        self._state = state
        self._run = uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._messages: deque[Entry] = deque(maxlen=_KEPT)
        self._requests: deque[Entry] = deque(maxlen=_KEPT)
        self._viewers: set[asyncio.Event] = set()

    def add_message(self, message: Message) -> None:
        """Record a message of the queue."""
        self._messages.append(
            {
                "id": self._next_id(),
                "time": self._clock.now(),
                "exchange": message.exchange.rpartition("/")[2],
                "routingKey": message.routing_key,
                "routes": message.cc,
                "body": message.body,
            }
        )
        self.wake()

    def add_request(
        self, request: web.BaseRequest, response: web.StreamResponse, milliseconds: float, **more: object
    ) -> None:
        """Record a request, without the query, which may have a signature."""
        # A fault or the client has closed the connection: nobody gets the response.
        is_closed = request.transport is None or request.transport.is_closing()
        self._requests.append(
            {
                "id": self._next_id(),
                "time": self._clock.now(),
                "method": request.method,
                "path": request.raw_path.partition("?")[0],
                "status": None if is_closed else response.status,
                "ms": round(milliseconds, 1),
                "client": _client_id(request),
                **_reason(response),
                **more,
            }
        )
        self.wake()

    def history(self) -> Entry:
        """Return all recorded messages and requests."""
        return {"run": self._run, "messages": list(self._messages), "requests": list(self._requests)}

    def wake(self) -> None:
        """Notify every page soon that something has changed."""
        for viewer in self._viewers:
            viewer.set()

    def wake_from_any_thread(self) -> None:
        """Call `wake` from outside of the queue's thread."""
        with suppress(RuntimeError):  # the queue has stopped
            self._loop.call_soon_threadsafe(self.wake)

    async def stream(self, request: web.BaseRequest, headers: dict[str, str]) -> web.StreamResponse:
        """Send server-sent events until the page is closed; the query's `after` is the last known entry."""
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        changed = asyncio.Event()
        self._viewers.add(changed)
        after = _AFTER.fullmatch(request.query_string)
        last = self._last if after is None else int(after[1])
        try:
            while True:
                changed.clear()
                event = self._event_after(last)
                last = event["last"]
                await response.write(b"data: %b\n\n" % msgspec.json.encode(event))
                await asyncio.sleep(_SHORTEST_PAUSE)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HEARTBEAT):
                        await changed.wait()
        except ConnectionError:  # the page was closed
            return response
        finally:
            self._viewers.discard(changed)

    def _next_id(self) -> int:
        self._last += 1
        return self._last

    def _event_after(self, last: int) -> Entry:
        """Return the entries after the id `last`, and the state; a restarted queue has another `run`."""
        return {
            "run": self._run,
            "last": self._last,
            "messages": [entry for entry in self._messages if entry["id"] > last],
            "requests": [entry for entry in self._requests if entry["id"] > last],
            **self._state(),
        }


def _client_id(request: web.BaseRequest) -> str | None:
    """Return the client id that a request claims to have; with a status of 401, that is not verified."""
    if found := _CLIENT_ID.search(request.headers.get("Authorization", "")):
        return found[1]
    if found := _BEWIT.search(request.raw_path):
        return decode_base64(found[1]).partition(b"\\")[0].decode(errors="replace")
    return None


def _reason(response: web.StreamResponse) -> Entry:
    """Return why a request was refused, and the scopes that its client lacks; `{}` if it succeeded."""
    if response.status < 400 or not isinstance(response, web.Response):  # noqa: PLR2004 - it is not an error
        return {}
    body = plain_body(response)
    try:
        message = msgspec.json.decode(body, type=_Error).message.partition("\n\n---\n\n")[0]
    except msgspec.DecodeError:
        return {"error": body[:2000].decode(errors="replace")}
    missing = _MISSING.search(message)
    return {"error": message, "missing": missing[1] if missing else None}


class _Error(msgspec.Struct):
    message: str
