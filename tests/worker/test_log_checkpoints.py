"""Checkpoints: a task's log is uploaded while the task runs, at a bounded cost."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import threading
import weakref
import zlib
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import requests

from benchmarks.capacity import virtual_time
from benchmarks.capacity.virtual_time import VirtualClock
from taskqueue_client.artifacts import content
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.errors import CallFailed
from taskqueue_client.local.faults import Respond
from taskqueue_client.worker.claims import claiming
from taskqueue_client.worker.commands import task_log
from taskqueue_client.worker.commands.task_log import LONG_LINE, LogView, Output, TaskLog
from taskqueue_client.worker.outcomes import TaskFailed
from taskqueue_client.worker.run import log_checkpoints
from taskqueue_client.worker.run.log_checkpoints import CompressedLog, LogCheckpoints, first_after
from taskqueue_client.worker.run.run_resources import RunResources
from taskqueue_client.worker.run.task_run import TaskRun
from tests.artifacts.conftest import file_size_limit
from tests.worker.queue_world import WAIT, World, until
from tests.worker.request_log import Request, requests_noted
from tests.worker.run_outcomes import reasons
from tests.worker.worker_world import Working, log_of, work, worker_for

LOG = "public/logs/live_backing.log"


@contextmanager
def log_in(directory: Path) -> Generator[tuple[TaskLog, CompressedLog]]:
    log = TaskLog(directory / "task.log", SystemClock())
    compressed = CompressedLog(log)
    try:
        yield log, compressed
    finally:
        compressed.remove()
        log.remove()
        assert not list(directory.iterdir())


def packed(compressed: CompressedLog) -> bytes:
    with closing(compressed.checkpoint()) as view:
        return view.read()


def unpacked(content: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    text = decompressor.decompress(content)
    assert decompressor.eof
    assert not decompressor.unused_data
    return text


def text_of(log: TaskLog) -> bytes:
    with closing(log.checkpoint()) as view:
        return view.read()


def nothing(_: str) -> None:
    return None


def noise(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(count).hex().encode() + b"\n"


class TestCompressedLog:
    @pytest.mark.parametrize("kind", ["link", "FIFO"])
    @pytest.mark.parametrize("count", [0, 1])
    def test_what_a_task_has_put_in_the_place_of_the_stream_is_an_error(
        self, tmp_path: Path, kind: str, count: int
    ) -> None:
        """No thread may wait for ever at a FIFO, and nothing may be written to the target of a link."""
        target = tmp_path / "target"
        target.write_text("theirs")
        errors: list[OSError] = []
        log = TaskLog(tmp_path / "task.log", SystemClock())
        compressed, stream = CompressedLog(log), tmp_path / "task.log.gz"

        def checkpoint() -> None:
            try:
                compressed.checkpoint()
            except OSError as error:
                errors.append(error)

        log.say("first")
        for _ in range(count):
            packed(compressed)
            stream.unlink()
            log.say("second")
        if kind == "link":
            stream.symlink_to(target)
        else:
            os.mkfifo(stream)
        thread = threading.Thread(target=checkpoint, daemon=True)
        thread.start()
        thread.join(WAIT)
        assert errors
        assert compressed.is_broken
        compressed.remove()
        log.remove()
        assert [each.read_text() for each in tmp_path.iterdir()] == ["theirs"]

    @pytest.mark.parametrize("has_isal", [True, False])
    def test_each_checkpoint_is_valid_gzip_and_begins_with_the_one_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_isal: bool
    ) -> None:
        if not has_isal:
            monkeypatch.setattr(content, "isal", nothing)
        with log_in(tmp_path) as (log, compressed):
            output, before = Output(log), b""
            for seed in range(5):
                output.write(noise(30_000, seed))
                after = packed(compressed)
                assert unpacked(after) == text_of(log)
                stable = max(len(before) - 10, 0)  # without the end: checksum and length
                assert after[:stable] == before[:stable]
                before = after

    def test_only_what_is_new_is_read_and_compressed(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (log, compressed):
            Output(log).write(noise(100_000, 1))
            packed(compressed)
            log.path.write_bytes(b"x" * log.path.stat().st_size)  # what was compressed is not read again
            log.say("more")
            assert unpacked(packed(compressed)).endswith(b"INFO more\n")
            assert noise(100_000, 1) in unpacked(packed(compressed))

    def test_between_checkpoints_there_is_neither_an_open_file_nor_a_compressor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They take memory, and a worker may have a thousand runs that wait."""
        made: list[weakref.ref[Compressor]] = []

        class Compressor:
            def __init__(self, wbits: int) -> None:
                inner = zlib.compressobj(wbits=wbits)
                self.compress, self.flush = inner.compress, inner.flush
                made.append(weakref.ref(self))

        def library(_: str) -> SimpleNamespace:
            return SimpleNamespace(compressobj=Compressor, crc32=zlib.crc32)

        monkeypatch.setattr(content, "isal", library)
        with log_in(tmp_path) as (log, compressed):
            for number in range(2):
                log.say(f"line {number}")
                packed(compressed)
                assert [each() for each in made] == [None] * (2 * number + 2)
                opened = [each.path for each in psutil.Process().open_files()]
                assert str(tmp_path / "task.log.gz") not in opened

    def test_a_stream_that_could_not_be_written_is_not_used_again(self, tmp_path: Path) -> None:
        log = TaskLog(tmp_path / "task.log", SystemClock())
        compressed = CompressedLog(log)
        log.say("one")
        with file_size_limit(0), pytest.raises(OSError, match="File too large"):
            compressed.checkpoint()
        with pytest.raises(OSError, match="incomplete"):
            compressed.checkpoint()
        assert compressed.is_broken
        compressed.remove()
        log.remove()

    def test_a_stream_whose_file_somebody_else_has_removed_is_not_used_again(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (log, compressed):
            log.say("one")
            packed(compressed)
            (tmp_path / "task.log.gz").unlink()
            log.say("two")
            with pytest.raises(FileNotFoundError):
                compressed.checkpoint()
            assert compressed.is_broken

    def test_a_long_line_without_an_end_is_part_of_checkpoints(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (log, compressed):
            output = Output(log)
            output.write(b"short")
            assert unpacked(packed(compressed)) == b""
            output.write(b"x" * LONG_LINE)
            assert unpacked(packed(compressed)).endswith(b"short" + b"x" * LONG_LINE)
            output.write(b"y\n")
            assert unpacked(packed(compressed)).endswith(b"short" + b"x" * LONG_LINE + b"y\n")


class Uploads:
    """Takes checkpoints, and notes when each came and how large it was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.moments: list[float] = []
        self.sizes: list[int] = []
        self.error: Exception | None = None

    async def take(self, view: LogView) -> None:
        self.moments.append(self._clock.monotonic())
        self.sizes.append(view.size)
        if self.error is not None:
            raise self.error


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the work of threads in the event loop, so that virtual time does not pass meanwhile."""

    async def at_once(function: Any, *args: Any) -> Any:
        return function(*args)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


@pytest.fixture
def first_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_checkpoints, "FIRST_BETWEEN", (0.0, 0.0))


def uploads_during(compressed: CompressedLog, run: Callable[[Uploads], Awaitable[None]]) -> Uploads:
    """Return the checkpoints that are uploaded while `run` runs, in virtual time."""

    async def main() -> Uploads:
        uploads = Uploads(VirtualClock())
        checkpoints = LogCheckpoints("a run", lambda: compressed, uploads.take, VirtualClock())
        checkpoints.start(10.0)
        await run(uploads)
        await checkpoints.stop()
        return uploads

    return virtual_time.run(main)


def moments_of_run(compressed: CompressedLog, interval: float, lasts: float) -> list[float]:
    """Return when a run uploads its log, which grows all the time, in seconds from the start of the run."""

    async def main() -> list[float]:
        uploads = Uploads(VirtualClock())
        checkpoints = LogCheckpoints("a run", lambda: compressed, uploads.take, VirtualClock())
        checkpoints.start(interval)
        for _ in range(round(lasts * 10)):
            compressed.log.say("a line")
            await asyncio.sleep(0.1)
        await checkpoints.stop()
        await asyncio.sleep(3600)
        return uploads.moments

    return virtual_time.run(main)


@pytest.mark.usefixtures("no_threads")
class TestFirst:
    @pytest.mark.parametrize("interval", [20.0, 1.5])
    def test_the_first_checkpoint_comes_within_ten_seconds_or_a_shorter_interval(
        self, tmp_path: Path, interval: float
    ) -> None:
        firsts: list[float] = []
        with log_in(tmp_path) as (log, _):
            for _ in range(20):
                first, second, third = moments_of_run(CompressedLog(log), interval, lasts=70)[:3]
                firsts.append(first)
                assert (second - first, third - second) == pytest.approx((interval, 1.5 * interval))
        assert min(firsts) >= 1.25
        assert max(firsts) <= min(interval, 10) + 0.001

    def test_runs_that_start_together_upload_their_logs_at_different_times(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (log, _):
            firsts = [moments_of_run(CompressedLog(log), 10.0, lasts=11)[0] for _ in range(40)]
        assert min(firsts) < 5 < max(firsts)

    @pytest.mark.parametrize(("outage", "latest"), [(5.0, 10.0), (60.0, 60.0)])
    def test_after_an_outage_the_first_checkpoints_are_spread_over_as_long_as_it_lasted(
        self, outage: float, latest: float
    ) -> None:
        firsts = [first_after(10.0, outage) for _ in range(1000)]
        assert min(firsts) >= 1.25
        assert 0.9 * latest < max(firsts) <= latest

    def test_an_interval_of_less_than_a_second_is_the_time_of_the_first_checkpoint_too(
        self, tmp_path: Path
    ) -> None:
        with log_in(tmp_path) as (_, compressed):
            assert moments_of_run(compressed, 0.5, lasts=30)[:3] == pytest.approx([0.5, 1.0, 1.75])

    def test_a_run_of_a_second_has_no_checkpoint_and_compresses_nothing(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (_, compressed):
            assert moments_of_run(compressed, 10.0, lasts=1.2) == []
            assert compressed.size == 0


@pytest.mark.usefixtures("no_threads", "first_at_once")
class TestIntervals:
    def test_intervals_grow_from_10_s_to_a_minute(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (log, compressed):

            async def run(uploads: Uploads) -> None:
                del uploads
                for _ in range(300):
                    log.say("a line")
                    await asyncio.sleep(1)

            moments = uploads_during(compressed, run).moments
        gaps = [round(b - a) for a, b in pairwise(moments)]
        assert gaps[:5] == [10, 15, 22, 34, 51]
        assert set(gaps[5:]) == {60}

    def test_nothing_is_uploaded_unless_the_log_has_grown(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (log, compressed):

            async def run(uploads: Uploads) -> None:
                log.say("a line")
                await asyncio.sleep(100)
                assert len(uploads.sizes) == 1
                log.say("another")
                await asyncio.sleep(11)
                assert len(uploads.sizes) == 2

            uploads_during(compressed, run)

    @pytest.mark.parametrize(("share", "least"), [(1, 6), (4, 12), (16, 15)])
    def test_checkpoints_send_no_more_than_the_run_has_earned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int, least: int
    ) -> None:
        """However well the log compresses: one of `share` lines is noise."""
        for name, value in (("AT_ONCE", 5_000), ("PACE", 1_000), ("MOST", 1_000_000)):
            monkeypatch.setattr(log_checkpoints, name, value)
        with log_in(tmp_path) as (log, compressed):

            async def run(uploads: Uploads) -> None:
                for number in range(600):
                    Output(log).write(noise(500, number if number % share == 0 else 0))
                    await asyncio.sleep(2)
                    assert sum(uploads.sizes) <= min(5_000 + 1_000 * 2 * (number + 1), 1_000_000)

            assert len(uploads_during(compressed, run).sizes) >= least

    def test_a_log_that_grows_faster_than_its_budget_is_uploaded_at_once_and_at_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_checkpoints, "AT_ONCE", 10_000)
        monkeypatch.setattr(log_checkpoints, "PACE", 10)
        with log_in(tmp_path) as (log, compressed):

            async def run(_: Uploads) -> None:
                for number in range(300):
                    Output(log).write(noise(2_000, number))
                    await asyncio.sleep(1)

            sizes = uploads_during(compressed, run).sizes
            assert len(sizes) == 1
            assert sum(sizes) <= 0.01 * len(packed(compressed))

    def test_a_very_large_log_is_uploaded_when_what_was_sent_is_at_most_the_promised_share_of_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_checkpoints, "MOST", 10_000)
        with log_in(tmp_path) as (log, compressed):

            async def run(_: Uploads) -> None:
                for number in range(2_000):
                    Output(log).write(noise(500, number))
                    await asyncio.sleep(2)

            sizes = uploads_during(compressed, run).sizes
        large = [at for at in range(len(sizes)) if sum(sizes[: at + 1]) > 10_000]
        assert len(large) >= 2
        for at in large:
            assert sum(sizes[:at]) <= 0.3 * sizes[at]

    def test_a_full_disk_is_logged_once_and_ends_the_checkpoints(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = TaskLog(tmp_path / "task.log", SystemClock())
        compressed = CompressedLog(log)

        async def run(uploads: Uploads) -> None:
            del uploads
            for _ in range(100):
                log.say("a line")
                await asyncio.sleep(1)

        with file_size_limit(0):
            assert uploads_during(compressed, run).sizes == []
        compressed.remove()
        log.remove()
        assert ["File too large" in each for each in caplog.messages] == [True]

    def test_an_upload_that_fails_is_logged_and_the_next_one_is_made(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with log_in(tmp_path) as (log, compressed):

            async def run(uploads: Uploads) -> None:
                uploads.error = RuntimeError("no storage today")
                log.say("a line")
                await asyncio.sleep(1)
                uploads.error = None
                await asyncio.sleep(11)

            assert len(uploads_during(compressed, run).sizes) == 2
        assert caplog.messages == ["cannot upload a checkpoint of the log of run a run: no storage today"]

    def test_uploads_that_fail_in_an_outage_are_one_line_and_their_success_another(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "taskqueue_client.worker")
        with log_in(tmp_path) as (log, compressed):

            async def run(uploads: Uploads) -> None:
                uploads.error = RuntimeError("no storage today")
                log.say("a line")
                await asyncio.sleep(35)
                uploads.error = None
                await asyncio.sleep(30)

            uploads_during(compressed, run)
        failed, succeeded = caplog.messages
        assert failed == "cannot upload a checkpoint of the log of run a run: no storage today"
        expected = "uploaded a checkpoint of the log of run a run after [34] failed attempts"
        assert re.fullmatch(expected, succeeded)

    def test_between_checkpoints_a_run_has_no_asyncio_task(self, tmp_path: Path) -> None:
        with log_in(tmp_path) as (log, compressed):

            async def run(uploads: Uploads) -> None:
                log.say("a line")
                await asyncio.sleep(5)
                assert len(uploads.sizes) == 1
                assert len(asyncio.all_tasks()) == 1

            uploads_during(compressed, run)


class Paused:
    """A handler that logs the texts that the test gives it, until the test ends it."""

    def __init__(self) -> None:
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self.say = self._texts.put

    def end(self) -> None:
        self._texts.put(None)

    def __call__(self, task: TaskRun) -> None:
        while (text := self._texts.get(timeout=WAIT)) is not None:
            task.log.info("%s", text)


def log_so_far(world: World, task_id: str) -> str:
    """Return the log to which the link leads; empty if there is no link yet."""
    try:
        return log_of(world, task_id)
    except (CallFailed, requests.HTTPError):
        return ""


def shows(world: World, task_id: str, text: str) -> bool:
    return text in log_so_far(world, task_id)


def header_of_log(name: str, world: World, task_id: str) -> str | None:
    url = world.queue.artifact(task_id, 0, LOG).url
    assert url is not None
    return requests.get(url, timeout=WAIT).headers.get(name)


def uploads_in(made: list[Request]) -> int:
    return len([each for each in made if each.method == "PUT" and each.path.startswith("/storage/")])


class TestRuns:
    def test_the_log_can_be_read_while_the_task_runs_and_is_complete_in_the_end(self, world: World) -> None:
        task_id, handler = world.create(), Paused()
        with Working(world, worker_for(world, handler, max_tasks=1, log_checkpoint_interval=0.02)) as working:
            for number in range(3):
                handler.say(f"line {number}")
                until(partial(shows, world, task_id, f"line {number}"))
            handler.end()
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]
        assert [line for line in log_of(world, task_id).splitlines() if "line" in line][2].endswith("line 2")
        assert log_of(world, task_id).endswith("the handler succeeded\n")
        assert header_of_log("Content-Encoding", world, task_id) == "gzip"

    def test_a_cdn_keeps_the_whole_log_and_no_part_of_it(self, world: World) -> None:
        task_id, handler = world.create(), Paused()
        with Working(world, worker_for(world, handler, max_tasks=1, log_checkpoint_interval=0.02)) as working:
            handler.say("a line")
            until(partial(shows, world, task_id, "a line"))
            assert header_of_log("Cache-Control", world, task_id) == "private, no-store"
            handler.end()
            working.wait_for_end()
        assert header_of_log("Cache-Control", world, task_id) is None

    def test_the_link_leads_to_the_log_from_the_start_though_the_handler_has_written_nothing(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_checkpoints, "FIRST_BETWEEN", (0.0, 0.0))
        task_id, handler = world.create(), Paused()
        with Working(world, worker_for(world, handler, max_tasks=1, log_checkpoint_interval=3600)) as working:
            until(partial(shows, world, task_id, f"run 0 of task {task_id}, on worker group/worker"))
            handler.say("a line")
            handler.end()
            working.wait_for_end()
        assert log_of(world, task_id).endswith("the handler succeeded\n")

    def test_a_run_that_ends_before_its_first_checkpoint_uploads_its_log_once(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_checkpoints, "FIRST_BETWEEN", (WAIT, WAIT))
        world.create()
        with requests_noted(world.local) as made:
            work(world, lambda task: task.log.info("a line"), log_checkpoint_interval=WAIT)
        assert uploads_in(made) == 1

    def test_a_run_that_is_claimed_after_an_outage_knows_how_long_that_was(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def noted(_: float, outage: float) -> float:
            outages.append(outage)
            return WAIT

        outages: list[float] = []
        monkeypatch.setattr(claiming, "BACKOFF_FIRST", 0.01)
        monkeypatch.setattr(log_checkpoints, "first_after", noted)
        world.create()
        world.local.faults.add(Respond("queue.claimWork", 3, status=503))
        work(world, lambda _: None, log_checkpoint_interval=WAIT)
        assert len(outages) == 1
        assert 0.03 <= outages[0] < WAIT

    def test_zero_means_that_the_log_is_uploaded_only_at_the_end(self, world: World) -> None:
        world.create()
        with requests_noted(world.local) as made:
            work(world, lambda task: task.run_command(["true"]), log_checkpoint_interval=0)
        assert uploads_in(made) == 1

    @pytest.mark.parametrize("end", ["\n", "\r"])
    def test_the_log_is_closed_after_its_upload(
        self, world: World, monkeypatch: pytest.MonkeyPatch, end: str
    ) -> None:
        views: list[LogView] = []

        class Noted(LogView):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                views.append(self)

        def handler(task: TaskRun) -> None:
            task.run_command(["printf", f"some progress{end}"])

        monkeypatch.setattr(task_log, "LogView", Noted)
        world.create()
        work(world, handler, log_checkpoint_interval=0)
        assert views
        assert all(view.closed for view in views)

    def test_a_canceled_run_has_its_log_up_to_then(self, world: World) -> None:
        task_id, canceled = world.create(), threading.Event()

        def handler(task: TaskRun) -> None:
            task.log.info("before")
            assert task.canceled.wait(WAIT)
            canceled.set()

        with Working(world, worker_for(world, handler, max_tasks=1, log_checkpoint_interval=0.02)) as working:
            until(lambda: "before" in log_so_far(world, task_id))
            world.queue.cancel_task(task_id)
            working.wait_for_end()
        assert canceled.is_set()
        assert "before" in log_of(world, task_id)

    def test_the_log_at_the_end_shows_only_the_last_state_of_progress_that_checkpoints_show(
        self, world: World
    ) -> None:
        task_id, seen = world.create(), threading.Event()

        def handler(task: TaskRun) -> None:
            task.run_command("printf '10%%\\r20%%\\rdone\\n'", shell=True)
            assert seen.wait(WAIT)

        with Working(world, worker_for(world, handler, max_tasks=1, log_checkpoint_interval=0.02)) as working:
            until(lambda: "10%\r20%\rdone" in log_so_far(world, task_id))
            seen.set()
            working.wait_for_end()
        assert " done" in log_of(world, task_id)
        assert "20%\r" not in log_of(world, task_id)

    def test_secrets_are_masked_in_checkpoints(self, world: World) -> None:
        task_id, seen = world.create(), threading.Event()

        def handler(task: TaskRun) -> None:
            task.register_secret("hunter2hunter2")
            task.run_command("echo the secret is hunter2hunter2", shell=True)
            assert seen.wait(WAIT)

        with Working(world, worker_for(world, handler, max_tasks=1, log_checkpoint_interval=0.02)) as working:
            until(lambda: "the secret is [masked]" in log_so_far(world, task_id))
            assert "hunter2" not in log_of(world, task_id)
            seen.set()
            working.wait_for_end()

    def test_a_storage_that_refuses_checkpoints_does_not_disturb_the_run(self, world: World) -> None:
        task_id, handler = world.create(), Paused()
        world.local.faults.add(Respond(endpoint="storage.put", status=403))
        with Working(world, worker_for(world, handler, max_tasks=1, log_checkpoint_interval=0.02)) as working:
            handler.say("a line")
            world.until_struck()
            handler.say("another")
            handler.end()
            working.wait_for_end()
        assert reasons(world, task_id) == ["completed"]
        assert "another" in log_of(world, task_id)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_whose_checkpoints_cannot_begin_ends_as_usual(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    asked = threading.Event()

    def broken(_: RunResources) -> CompressedLog:
        asked.set()
        raise MemoryError

    monkeypatch.setattr(RunResources, "compress_log", broken)
    task_id = world.create()

    def handler(task: TaskRun) -> None:
        del task
        assert asked.wait(WAIT) is True
        if fails:
            message = "it failed"
            raise TaskFailed(message)

    work(world, handler, log_checkpoint_interval=0.02)
    assert world.run(task_id).reason_resolved == ("failed" if fails else "completed")
    assert f"cannot checkpoint the log of run {task_id}/0: " in caplog.text
