"""Each line of the procedure of a polling worker, against a real storage queue."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from taskqueue_client import AsyncQueue, Credentials
from taskqueue_client.clock import MovableClock
from taskqueue_client.errors import ApiError, InsufficientScopes, NotFound, ServerError, UnreadableResponse
from taskqueue_client.legacy import AzureTaskSource, PollQueue, UrlRefused, poll_task_urls
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Respond
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker import SourceContext, WorkerIdentity
from tests.client.scripted import Say, ScriptedServer
from tests.legacy.azurite import Azurite
from tests.legacy.storage_view import StorageView
from tests.worker.queue_world import WAIT, World, until
from tests.worker.request_log import requests_noted

pytestmark = pytest.mark.usefixtures("served")


@pytest.fixture
def served(world: World, task_queue_id: str) -> None:
    """Let the local queue put messages about the task queue: it begins at the first request for URLs."""
    world.queue.send(poll_task_urls(task_queue_id))


class WorkerClock(MovableClock):
    """The worker's clock, which stands still until a test moves it.

    Attributes:
        sleepers: How many coroutines sleep on it.
    """

    sleepers = 0

    async def sleep_async(self, seconds: float) -> None:
        self.sleepers += 1
        try:
            await super().sleep_async(seconds)
        finally:
            self.sleepers -= 1


@pytest.fixture
def clock() -> WorkerClock:
    return WorkerClock(held=True)


@asynccontextmanager
async def source_of(
    world: World, task_queue_id: str, clock: MovableClock, *, credentials: Credentials | None = None
) -> AsyncGenerator[AzureTaskSource]:
    made = AsyncQueue(world.local.root_url, credentials or world.local.credentials, clock=clock)
    async with made.with_options(attempts=1) as queue:
        source = AzureTaskSource(SourceContext(queue, WorkerIdentity(task_queue_id, "g", "w"), clock))
        try:
            yield source
        finally:
            await source.close()


@pytest.fixture
async def source(world: World, task_queue_id: str, clock: WorkerClock) -> AsyncIterator[AzureTaskSource]:
    async with source_of(world, task_queue_id, clock) as made:
        yield made


@pytest.fixture
def create(world: World, storage: StorageView, task_queue_id: str) -> Any:
    """Return a function that creates a task, and waits for its message."""

    def make(**changes: Any) -> str:
        before = sum(storage.count(each) for each in "7654321")
        task_id = world.create(taskQueueId=task_queue_id, **changes)
        until(lambda: sum(storage.count(each) for each in "7654321") > before)
        return task_id

    return make


async def claim_nothing(source: AzureTaskSource, clock: WorkerClock) -> None:
    """Claim; the polls must find nothing. Move the clock past the pause after them."""
    claiming = asyncio.create_task(source.claim(8))
    while not claiming.done():
        await asyncio.wait([claiming], timeout=0.05)
        if clock.sleepers:
            clock.advance(60)
    assert claiming.result() == []


async def settled(condition: Any) -> None:
    await asyncio.to_thread(until, condition)


def ids(claims: Any) -> list[str]:
    return [claim.status.task_id for claim in claims]


class TestPolling:
    async def test_is_in_the_order_of_priorities(self, source: AzureTaskSource, create: Any) -> None:
        tasks = {priority: create(priority=priority) for priority in ("lowest", "medium", "highest")}
        claimed = [ids(await source.claim(8)) for _ in range(3)]
        assert claimed == [[tasks["highest"]], [tasks["medium"]], [tasks["lowest"]]]

    async def test_takes_as_many_messages_as_there_are_free_slots(
        self, source: AzureTaskSource, create: Any, storage: StorageView
    ) -> None:
        for _ in range(3):
            create()
        assert len(await source.claim(2)) == 2
        assert len(storage.visible()) == 1
        assert len(await source.claim(32)) == 1

    async def test_waits_longer_each_time_that_it_finds_nothing_up_to_a_bound(
        self, source: AzureTaskSource, clock: WorkerClock, create: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        monkeypatch.setattr(clock, "sleep_async", sleep)
        for _ in range(8):
            assert await source.claim(1) == []
        for wait, doubled in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30], strict=True):
            assert 0.5 * doubled <= wait <= 1.5 * doubled
        assert len(set(waits)) == 8
        create()
        assert len(await source.claim(1)) == 1
        assert await source.claim(1) == []
        assert waits[-1] <= 1.5

    async def test_ends_at_once_when_the_worker_shuts_down(
        self, source: AzureTaskSource, clock: WorkerClock
    ) -> None:
        claiming = asyncio.create_task(source.claim(1))
        await settled(lambda: clock.sleepers)
        source.stop()
        assert await asyncio.wait_for(claiming, WAIT) == []

    async def test_does_not_claim_polled_messages_after_a_request_to_shut_down(
        self, source: AzureTaskSource, create: Any, world: World
    ) -> None:
        task_id = create()
        source.stop()
        assert await source.claim(1) == []
        assert world.status(task_id).state == "pending"


class TestClaims:
    async def test_come_before_the_delete_and_carry_credentials(
        self, source: AzureTaskSource, create: Any, storage: StorageView
    ) -> None:
        task_id = create(retries=0)
        (claim,) = await source.claim(1)
        assert isinstance(claim, TaskClaim)
        assert (claim.status.task_id, claim.worker_id) == (task_id, "w")
        assert claim.credentials.certificate
        await settled(lambda: storage.count() == 0)

    async def test_that_fail_do_not_delete_the_message(
        self, source: AzureTaskSource, clock: WorkerClock, create: Any, world: World, storage: StorageView
    ) -> None:
        create()
        world.local.faults.add(Respond(endpoint="queue.claimTask", status=500, times=3))
        with pytest.raises(ServerError):
            await self._claim(source, clock)
        assert (storage.count(), storage.visible()) == (1, [])

    @pytest.mark.parametrize("status", [400, 404, 409, 410])
    async def test_that_are_refused_because_of_the_run_delete_the_message(
        self,
        source: AzureTaskSource,
        create: Any,
        world: World,
        storage: StorageView,
        clock: WorkerClock,
        status: int,
    ) -> None:
        create()
        world.local.faults.add(Respond(endpoint="queue.claimTask", status=status))
        await claim_nothing(source, clock)
        await settled(lambda: storage.count() == 0)

    @pytest.mark.parametrize("status", [401, 403, 429])
    async def test_that_are_refused_because_of_the_worker_do_not_delete_the_message(
        self,
        source: AzureTaskSource,
        clock: WorkerClock,
        create: Any,
        world: World,
        storage: StorageView,
        status: int,
    ) -> None:
        create()
        world.local.faults.add(Respond(endpoint="queue.claimTask", status=status, times=3))
        with pytest.raises(Exception, match=str(status)):
            await self._claim(source, clock)
        await source.close()
        assert storage.count() == 1

    @pytest.mark.parametrize("status", [400, 404, 408])
    async def test_that_a_load_balancer_refuses_do_not_delete_the_message(
        self,
        source: AzureTaskSource,
        clock: WorkerClock,
        create: Any,
        world: World,
        storage: StorageView,
        status: int,
    ) -> None:
        """Otherwise an hour without a route to the Queue would delete the messages of all pending tasks."""
        create()
        world.local.faults.add(Respond(endpoint="queue.claimTask", status=status, html=True, times=3))
        with pytest.raises(ApiError, match=str(status)):
            await self._claim(source, clock)
        await source.close()
        assert storage.count() == 1

    async def test_that_succeed_are_returned_though_others_fail(
        self,
        source: AzureTaskSource,
        clock: WorkerClock,
        create: Any,
        world: World,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        create()
        create()
        world.local.faults.add(Respond(endpoint="queue.claimTask", status=403))
        assert len(await self._claim(source, clock)) == 1
        assert "its message becomes visible again" in caplog.text

    async def test_are_not_made_twice_for_two_messages_about_one_run(
        self,
        source: AzureTaskSource,
        create: Any,
        storage: StorageView,
        clock: WorkerClock,
    ) -> None:
        """`claimTask` would succeed a second time, and the worker run the task twice."""
        task_id = create(retries=0)
        (message,) = storage.service.get_queue_client(storage.names["1"]).peek_messages()
        storage.put(str(message.content))
        assert ids(await source.claim(8)) == [task_id]
        storage.put(str(message.content))
        await claim_nothing(source, clock)
        await settled(lambda: storage.count() == 0)

    @staticmethod
    async def _claim(source: AzureTaskSource, clock: WorkerClock) -> Any:
        """Claim on a running clock: failed calls are retried after some tenths of a second."""
        clock.release()
        return await source.claim(8)


class TestMessagesThatAreNotClaimed:
    async def test_those_that_were_polled_15_times_are_deleted_with_an_alert_in_the_log(
        self,
        source: AzureTaskSource,
        create: Any,
        world: World,
        storage: StorageView,
        clock: WorkerClock,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        task_id = create()
        storage.poll_and_show(14)
        await claim_nothing(source, clock)
        await settled(lambda: storage.count() == 0)
        assert world.status(task_id).state == "pending"
        assert f"operator alert: the message about run {task_id}/0 was polled 15 times" in caplog.text
        assert "signature" not in caplog.text

    async def test_those_that_were_polled_14_times_are_claimed(
        self, source: AzureTaskSource, create: Any, storage: StorageView
    ) -> None:
        task_id = create()
        storage.poll_and_show(13)
        assert ids(await source.claim(1)) == [task_id]

    async def test_those_that_cannot_be_read_are_deleted(
        self,
        source: AzureTaskSource,
        storage: StorageView,
        clock: WorkerClock,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        storage.put("not base64!")
        storage.put(base64.b64encode(b'{"taskId": "x"}').decode())
        await claim_nothing(source, clock)
        await settled(lambda: storage.count() == 0)
        assert caplog.text.count("whose text cannot be read") == 2

    @pytest.mark.parametrize("attempts", [3, 4])
    async def test_a_delete_that_fails_is_repeated_and_in_the_end_logged(
        self,
        attempts: int,
        source: AzureTaskSource,
        clock: WorkerClock,
        create: Any,
        storage: StorageView,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        create(retries=0)
        delete = source._storage.delete
        left = attempts

        async def fail(*message: Any) -> None:
            nonlocal left
            left -= 1
            if left:
                from taskqueue_client.errors import Attempted, ConnectionFailed

                raise ConnectionFailed(Attempted("deleteMessage", "DELETE", "http://127.0.0.1"), "cut")
            await delete(*message)

        monkeypatch.setattr(source._storage, "delete", fail)
        monkeypatch.setattr("taskqueue_client.legacy._DELETE_WAIT", 0.01)
        clock.release()
        assert len(await source.claim(1)) == 1
        if attempts == 3:
            await settled(lambda: storage.count() == 0)
        else:
            await settled(lambda: "cannot delete the message " in caplog.text)
            assert (left, storage.count()) == (1, 1)

    async def test_a_delete_that_takes_too_long_does_not_keep_the_worker_from_ending(
        self, world: World, task_queue_id: str, create: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create(retries=0)
        canceled = asyncio.Event()

        async def hang(*_: object) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                canceled.set()

        monkeypatch.setattr("taskqueue_client.legacy._DELETE_WAIT", 0.01)
        async with source_of(world, task_queue_id, WorkerClock(held=True)) as source:
            monkeypatch.setattr(source._storage, "delete", hang)
            assert len(await source.claim(1)) == 1
        await asyncio.wait_for(canceled.wait(), WAIT)

    async def test_the_runs_that_are_remembered_have_a_limit(
        self, source: AzureTaskSource, create: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("taskqueue_client.legacy._MOST_REMEMBERED", 1)
        create()
        create()
        claims = [*await source.claim(1), *await source.claim(1)]
        assert [task_id for task_id, _ in source._claimed] == ids(claims)[1:]

    @pytest.mark.parametrize(
        ("response", "error"),
        [
            (Say(200, b"<html>"), "HTTP 200 with an unreadable response: not XML: "),
            (
                Say(500, b"<Error/>"),
                "HTTP 500: the storage queue did not respond with 2xx",
            ),
        ],
    )
    async def test_a_response_that_is_not_that_of_a_storage_queue_is_an_error_without_the_signature(
        self, source: AzureTaskSource, response: Say, error: str
    ) -> None:
        with ScriptedServer() as server:
            server.otherwise = response
            queue = PollQueue(signed_poll_url=f"{server.root_url}/q?sig=s3cret", signed_delete_url="")
            with pytest.raises(UnreadableResponse) as caught:
                await source._storage.poll(queue, 1)
        assert error in str(caught.value)
        assert "s3cret" not in str(caught.value)


class TestUrls:
    async def test_are_replaced_before_they_expire_whatever_the_clock_of_the_worker_says(
        self, world: World, task_queue_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = MovableClock(start=1_000_000_000, held=True)
        async with source_of(world, task_queue_id, wrong) as source:
            for minutes, replaced in ((0, True), (24, False), (1, True), (24, False), (1, True)):
                wrong.advance(minutes=minutes)
                with requests_noted(world.local) as requests:
                    await claim_nothing_at_once(source, wrong, monkeypatch)
                assert any("/poll-task-url/" in each.path for each in requests) is replaced

    async def test_that_have_expired_are_replaced_and_no_signature_is_shown(
        self, source: AzureTaskSource, create: Any, azurite: Azurite
    ) -> None:
        task_id = create()
        queues = await source._current_queues()
        source._queues = [
            replace(each, signed_poll_url=expired(azurite, each.signed_poll_url)) for each in queues
        ]
        with pytest.raises(UrlRefused, match="refused the signed URL") as caught:
            await source.claim(1)
        assert "sig=" not in str(caught.value) + repr(caught.value)
        assert ids(await source.claim(1)) == [task_id]

    async def test_of_a_storage_queue_that_is_gone_are_replaced(
        self,
        source: AzureTaskSource,
        storage: StorageView,
        clock: WorkerClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        await claim_nothing_at_once(source, clock, monkeypatch)
        storage.service.delete_queue(storage.names["7"])
        with pytest.raises(UrlRefused, match="HTTP 404: the storage refused"):
            await source.claim(1)
        await claim_nothing_at_once(source, clock, monkeypatch)

    async def test_from_a_deployment_without_legacy_polling_are_an_error(
        self, task_queue_id: str, clock: WorkerClock
    ) -> None:
        with LocalQueue() as local:
            world = World(local)
            async with source_of(world, task_queue_id, clock) as source:
                with pytest.raises(NotFound):
                    await source.claim(1)
            world.close()

    async def test_need_their_scope(self, azurite: Azurite, task_queue_id: str, clock: WorkerClock) -> None:
        client = Client("worker", "secret-of-the-worker", ["queue:claim-task:*"])
        with LocalQueue(
            clients=[client], anonymous_scopes=[], legacy_azure=azurite.connection_string
        ) as local:
            world = World(local)
            credentials = Credentials(client.client_id, client.access_token)
            async with source_of(world, task_queue_id, clock, credentials=credentials) as source:
                with pytest.raises(InsufficientScopes, match="poll-task-urls"):
                    await source.claim(1)
            world.close()

    @pytest.mark.parametrize("hours", [-3, 3])
    async def test_work_though_the_clock_of_the_worker_is_wrong(
        self, world: World, task_queue_id: str, create: Any, hours: int
    ) -> None:
        task_id = create()
        wrong = MovableClock(start=datetime.now(UTC).timestamp() + hours * 3600)
        async with source_of(world, task_queue_id, wrong) as source:
            assert ids(await source.claim(1)) == [task_id]


async def claim_nothing_at_once(
    source: AzureTaskSource, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim; the polls must find nothing. Leave out the pause after them."""

    async def no_pause(_: float) -> None:
        pass

    monkeypatch.setattr(clock, "sleep_async", no_pause)
    assert await source.claim(1) == []


def expired(azurite: Azurite, url: str) -> str:
    """Return the URL with a right signature that expired a minute ago."""
    from azure.storage.queue import QueueSasPermissions, generate_queue_sas

    from tests.legacy.azurite import ACCOUNT, KEY

    assert url.startswith(azurite.endpoint)
    name = url.removeprefix(azurite.endpoint).split("/")[1]
    ended = datetime.now(UTC) - timedelta(minutes=1)
    signature = generate_queue_sas(
        *(ACCOUNT, name, KEY), permission=QueueSasPermissions(process=True), expiry=ended
    )
    return f"{url.partition('?')[0]}?visibilitytimeout=300&{signature}"
