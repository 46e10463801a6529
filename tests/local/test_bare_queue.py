"""The server that the benchmarks compare the local queue with."""

from __future__ import annotations

import sqlite3
from functools import partial
from types import TracebackType
from typing import Any, Literal

import pytest
from aiohttp.test_utils import TestServer

from benchmarks.bare_queue import NEXT_DUE, NEXT_RESOLVED, application
from benchmarks.inputs import Inputs
from taskqueue_client import AsyncQueue, Credentials, slugid
from taskqueue_client.local import LocalQueue
from tests.worker.queue_world import until

LAST = "UPDATE tasks SET ever_resolved = 1 WHERE task_id = ?"


class Recording(sqlite3.Connection):
    """Notes the statements of all connections."""

    statements: list[str]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.statements.append(" ".join(sql.split()))
        return super().execute(sql, *values)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self.in_transaction:
            self.statements.append("COMMIT" if kind is None else "ROLLBACK")
        return super().__exit__(kind, error, trace)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(Recording, "statements", found, raising=False)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Recording))
    return found


async def completed(root_url: str, credentials: Credentials, statements: list[str]) -> list[str]:
    """Create, claim and complete two tasks; return the statements for the second one."""
    async with AsyncQueue(root_url, credentials) as queue:
        for definition in Inputs(0).definitions(2, dependencies=0):
            statements.clear()
            await queue.create_task(slugid(), {**definition, "taskQueueId": "prov/wt"})
            [claim] = (await queue.claim_work("prov/wt", worker_group="wg", worker_id="w1")).tasks
            await queue.report_completed(claim.status.task_id, claim.run_id)
            until(lambda: LAST in statements and "COMMIT" in statements[statements.index(LAST) :])
    return [*statements]


def apart_from_looking(statements: list[str]) -> list[str]:
    """Leave out the statements that look for what is due: how often they run depends on the time."""
    return [each for each in statements if each not in {NEXT_DUE, NEXT_RESOLVED}]


async def test_the_bare_queue_executes_the_statements_of_the_local_queue(statements: list[str]) -> None:
    with LocalQueue() as local:
        ours = await completed(local.root_url, local.credentials, statements)
    statements.clear()
    async with TestServer(application(":memory:")) as server:
        bare = await completed(str(server.make_url("")).rstrip("/"), local.credentials, statements)
    assert apart_from_looking(bare) == apart_from_looking(ours)
    assert NEXT_DUE in {*bare} & {*ours}
    assert NEXT_RESOLVED in {*bare} & {*ours}
