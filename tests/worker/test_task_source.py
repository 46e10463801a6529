"""Custom task sources: what `WorkerLoop` and a source promise each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from taskqueue_client import Credentials
from taskqueue_client.errors import InsufficientScopes, ServerError
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Respond
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker import (
    SourceContext,
    TaskRun,
    TaskSource,
    TaskSourceFactory,
    WorkerLoop,
    shutdown,
)
from taskqueue_client.worker.claims import keeper
from tests.worker.queue_world import TASK_QUEUE_ID, WAIT, World, until
from tests.worker.worker_world import Working


class Builder(WorkerLoop):
    def run_task(self, task: TaskRun) -> None:
        pass


class ByListing:
    """A source that lists the pending tasks and claims them one by one."""

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self.counts: list[int] = []
        self.stopped = asyncio.Event()
        self.is_closed = False

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        self.counts.append(count)
        queue, who = self.context.queue, self.context.identity
        page = await queue.list_pending_tasks(who.task_queue_id, limit=count)
        return [
            await queue.claim_task(
                each.task_id, each.run_id, worker_group=who.worker_group, worker_id=who.worker_id
            )
            for each in page.tasks
        ]

    def stop(self) -> None:
        self.stopped.set()

    async def close(self) -> None:
        self.is_closed = True


class ClaimsWhenStopped(ByListing):
    """A source that claims only when the worker shuts down."""

    def __init__(self, context: SourceContext) -> None:
        super().__init__(context)
        self.called = threading.Event()

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        self.called.set()
        await self.stopped.wait()
        return await super().claim(count)


class Hanging(ClaimsWhenStopped):
    """A source whose claims never end."""

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        self.called.set()
        await asyncio.Event().wait()
        return await super().claim(count)


class Blocking(ClaimsWhenStopped):
    """A source that blocks the loop of reclaims."""

    def __init__(self, context: SourceContext) -> None:
        super().__init__(context)
        self.let_go = threading.Event()

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        del count
        self.called.set()
        self.let_go.wait()
        return []


class IgnoringCancellation(Blocking):
    """A source whose claims go on when they are canceled."""

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        self.called.set()
        while not self.let_go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return await super().claim(count)


class CancelsItsRequest(ClaimsWhenStopped):
    """A source whose claim raises CancelledError when the worker shuts down."""

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        del count
        self.request = asyncio.ensure_future(self.stopped.wait())
        self.called.set()
        await self.request
        return []

    def stop(self) -> None:
        self.request.cancel()


class FailsOnceAndHangs(Hanging):
    """A source whose first claim ends at once, and the second only when the worker shuts down."""

    async def claim(self, count: int) -> Sequence[TaskClaim]:
        if not self.counts:
            return await super(ClaimsWhenStopped, self).claim(count)
        self.called.set()
        await self.stopped.wait()
        return []


class FailsToClose(ByListing):
    async def close(self) -> None:
        message = "closing failed"
        raise RuntimeError(message)


def builder(
    world: World,
    make_source: TaskSourceFactory,
    *,
    max_tasks: int | None = None,
    max_idle: float | None = None,
) -> Builder:
    return Builder(
        root_url=world.local.root_url,
        credentials=world.local.credentials,
        task_source=make_source,
        task_queue_id=TASK_QUEUE_ID,
        worker_group="group",
        worker_id="worker",
        concurrency=2,
        max_tasks=max_tasks,
        max_idle=max_idle,
    )


class Made:
    """Makes the sources of a worker, and keeps them for the test."""

    def __init__(self, kind: type[ByListing]) -> None:
        self._kind = kind
        self.sources: list[ByListing] = []

    def __call__(self, context: SourceContext) -> TaskSource:
        self.sources.append(self._kind(context))
        return self.sources[-1]

    def called(self) -> None:
        """Wait until the first source is claiming."""
        until(lambda: self.sources)
        source = self.sources[0]
        assert isinstance(source, ClaimsWhenStopped)
        assert source.called.wait(WAIT)


class TestWorkersWithASourceOfTheirOwn:
    def test_run_what_it_claims_and_ask_for_no_more_than_there_is_room_for(self, world: World) -> None:
        tasks = [world.create() for _ in range(3)]
        make = Made(ByListing)
        with Working(world, builder(world, make, max_tasks=3)) as working:
            working.wait_for_end()
        assert [world.status(each).state for each in tasks] == ["completed"] * 3
        assert all(1 <= count <= 2 for count in make.sources[0].counts)
        assert make.sources[0].is_closed

    def test_end_some_time_after_max_idle_although_a_claim_after_a_failed_one_tells_nothing(
        self, world: World
    ) -> None:
        world.local.faults.add(Respond(endpoint="queue.listPendingTasks", status=503))
        make = Made(FailsOnceAndHangs)
        worker = builder(world, make, max_idle=5.0)
        worker.clock = clock = world.local.clock
        started = clock.monotonic()

        def has_ended(working: Working) -> bool:
            clock.advance(seconds=0.5)
            return not working.is_alive(0.03)

        with Working(world, worker) as working:
            until(lambda: has_ended(working))
            with pytest.raises(ServerError):
                working.wait_for_end()
        assert 30 < clock.monotonic() - started < 60

    def test_make_a_new_source_in_each_session(self, world: World) -> None:
        make = Made(ByListing)
        worker = builder(world, make, max_tasks=1)
        for _ in range(2):
            world.create()
            with Working(world, worker) as working:
                working.wait_for_end()
        first, second = make.sources
        assert first.is_closed
        assert second.is_closed

    def test_run_what_it_claimed_during_their_shutdown(self, world: World) -> None:
        task_id = world.create()
        make = Made(ClaimsWhenStopped)
        with Working(world, builder(world, make)) as working:
            make.called()
            working.worker.shutdown(within=WAIT)
            working.wait_for_end()
        assert world.run(task_id).reason_resolved == "worker-shutdown"

    def test_hand_back_what_it_claims_during_a_second_request_to_shut_down(self, world: World) -> None:
        task_id = world.create()
        make = Made(ClaimsWhenStopped)
        with Working(world, builder(world, make)) as working:
            make.called()
            working.worker.shutdown()
            working.worker.shutdown()
            working.wait_for_end()
        assert world.run(task_id).reason_resolved == "worker-shutdown"

    def test_do_not_wait_long_for_it_after_a_second_request_to_shut_down(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutdown, "HURRIED", 10 * WAIT)  # after this, a worker ends, whatever hangs
        make = Made(Hanging)
        with Working(world, builder(world, make)) as working:
            make.called()
            working.worker.shutdown()
            working.worker.shutdown()
            working.wait_for_end()
        assert make.sources[0].stopped.is_set()
        assert make.sources[0].is_closed

    @pytest.mark.parametrize("kind", [Blocking, IgnoringCancellation])
    def test_end_without_it_if_it_hangs_in_spite_of_a_second_request_to_shut_down(
        self,
        world: World,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        kind: type[Blocking],
    ) -> None:
        monkeypatch.setattr(shutdown, "HURRIED", 0.1)
        monkeypatch.setattr(keeper, "TIME_TO_STOP", 0.1)
        make = Made(kind)
        with Working(world, builder(world, make)) as working:
            make.called()
            working.worker.shutdown()
            working.worker.shutdown()
            try:
                working.wait_for_end()
            finally:
                for source in make.sources:
                    assert isinstance(source, kind)
                    source.let_go.set()
        assert "not waiting any longer" in caplog.text

    def test_drain_without_an_error_if_it_cancels_its_request_when_it_is_stopped(self, world: World) -> None:
        make = Made(CancelsItsRequest)
        with Working(world, builder(world, make)) as working:
            make.called()
            working.worker.shutdown()
            working.wait_for_end()
        assert make.sources[0].is_closed

    def test_end_if_its_first_call_is_refused(self) -> None:
        client = Client("worker", "secret-of-the-worker", ["queue:pending-list:*"])
        with LocalQueue(clients=[client], anonymous_scopes=[]) as local:
            world = World(local)
            world.create()
            worker = builder(world, ByListing)
            worker.credentials = Credentials(client.client_id, client.access_token)
            with (
                pytest.raises(InsufficientScopes, match="claim-task"),
                Working(world, worker) as working,
            ):
                working.wait_for_end()
            world.close()

    def test_end_with_its_bug_after_their_runs(self, world: World) -> None:
        class Wrong(ByListing):
            async def claim(self, count: int) -> Sequence[TaskClaim]:
                raise ZeroDivisionError(count)

        with pytest.raises(ZeroDivisionError), Working(world, builder(world, Wrong)) as working:
            working.wait_for_end()

    @pytest.mark.parametrize("raised", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
    def test_end_with_an_error_if_it_raises_what_ends_a_task_or_a_loop(
        self, world: World, raised: type[BaseException]
    ) -> None:
        """Without one, a worker would end as if it had been told to, or interrupt its runs."""

        class Wrong(ByListing):
            async def claim(self, count: int) -> Sequence[TaskClaim]:
                raise raised(count)

        error = pytest.raises(RuntimeError, match=f"^the task source raised {raised.__name__}$")
        with error, Working(world, builder(world, Wrong)) as working:
            working.wait_for_end()

    def test_end_all_the_same_if_it_fails_to_close(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.create()
        with Working(world, builder(world, FailsToClose, max_tasks=1)) as working:
            working.wait_for_end()
        assert "the task source failed to close" in caplog.text
        assert "closing failed" in caplog.text
