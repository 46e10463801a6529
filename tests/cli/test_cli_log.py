"""`taskqueue log`: all of a log, once, also while it grows."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from taskqueue_client import Queue, slugid
from taskqueue_client._protocol.conversation import converse
from taskqueue_client.artifacts import StreamInterrupted
from taskqueue_client.artifacts.sources import Block, Source
from taskqueue_client.artifacts.storage import Incoming, no_progress
from taskqueue_client.artifacts.transfers import Transfer
from taskqueue_client.artifacts.uploading import RunArtifact, UploadOptions, uploading
from taskqueue_client.cli import log
from taskqueue_client.cli.failures import ExitStatus, Failure
from taskqueue_client.cli.log import COMPARED, FollowedLog
from taskqueue_client.clock import SystemClock
from taskqueue_client.definitions import from_now
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Respond
from taskqueue_client.models import ArtifactContent
from taskqueue_client.testing import TaskFactory
from taskqueue_client.worker.commands.task_log import Output, TaskLog
from taskqueue_client.worker.run.log_checkpoints import CompressedLog
from tests.artifacts.raw_server import RawResponse, RawServer, Request
from tests.cli.command import run, run_json
from tests.cli.command import running as running_command

pytestmark = pytest.mark.usefixtures("deployment")

Running = tuple[str, Queue]
LIVE = "public/logs/live.log"
BACKING = "public/logs/live_backing.log"
EXPIRES = from_now("1 hour")


def write(running: Running, text: str, *, compress: bool | None = None) -> None:
    """Upload the log so far, as a worker does at a checkpoint."""
    task_id, run_client = running
    run_client.upload_artifact(task_id, 0, BACKING, text.encode(), expires=EXPIRES, compress=compress)
    run_client.create_link_artifact(task_id, 0, LIVE, BACKING, expires=EXPIRES)


class Looks(SystemClock):
    """A clock that calls the next of `between` instead of waiting between two looks at a log."""

    def __init__(self, *between: Callable[[], object]) -> None:
        self._between = iter(between)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        next(self._between)()


@pytest.fixture
def transferred(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes that storage sent, of each body that was read."""
    sizes: list[int] = []
    blocks_of = Incoming.blocks

    def counted(incoming: Incoming) -> Iterator[Block]:
        number = len(sizes)
        sizes.append(0)
        for block in blocks_of(incoming):
            sizes[number] += len(block)
            yield block

    monkeypatch.setattr(Incoming, "blocks", counted)
    return sizes


def followed(running: Running, queue: Queue, *between: Callable[[], object]) -> str:
    """Return the output of `log --follow`; call `between` between its requests, and resolve the run then."""
    task_id, run_client = running
    written: list[bytes] = []
    told: list[str] = []
    looks = Looks(*between, lambda: run_client.report_completed(task_id, 0))
    FollowedLog(queue, task_id, 0, LIVE, written.append, told.append).print(1.0, looks)
    return b"".join(written).decode()


def test_only_new_bytes_of_a_growing_log_are_downloaded(
    running: Running, queue: Queue, transferred: list[int]
) -> None:
    lines = [f"{Random(number).random()}\n" * 100 for number in range(3)]
    logs = ["".join(lines[: number + 1]) for number in range(3)]
    write(running, logs[0], compress=False)
    grows = [lambda log=log: write(running, log, compress=False) for log in logs[1:]]
    assert followed(running, queue, *grows) == logs[2]
    assert transferred[0] == len(lines[0])
    assert sum(transferred[1:]) == len(lines[1]) + len(lines[2]) + 2 * COMPARED


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[CompressedLog]:
    """A worker's log with its checkpoints; write lines to `growing.log`."""
    log = TaskLog(tmp_path / "task.log", SystemClock())
    compressed = CompressedLog(log)
    yield compressed
    compressed.remove()
    log.remove()


def checkpoint(running: Running, growing: CompressedLog) -> int:
    """Upload a checkpoint as a worker does; return its bytes."""
    task_id, run_client = running
    with closing(growing.checkpoint()) as view:
        source = Source("log", view, size=view.size, is_gzip=True)
        options = UploadOptions.checked(EXPIRES, None, "s3", None, None, run_client.now)
        artifact = RunArtifact(task_id, 0, BACKING)
        converse(run_client, uploading(Transfer(run_client), artifact, source, options, no_progress))
        run_client.create_link_artifact(task_id, 0, LIVE, BACKING, expires=EXPIRES)
        return view.size


def test_only_new_bytes_of_a_workers_checkpoints_are_downloaded(
    running: Running, queue: Queue, transferred: list[int], growing: CompressedLog
) -> None:
    lines = [Random(number).randbytes(20_000).hex() for number in range(4)]
    sizes: list[int] = []

    def grows() -> None:
        growing.log.say(lines[len(sizes)])
        sizes.append(checkpoint(running, growing))

    grows()
    text = followed(running, queue, grows, grows, grows)
    assert [line.split()[2] for line in text.splitlines()] == lines
    assert sizes[-1] <= sum(transferred) < sizes[-1] + 4 * (COMPARED + 10)


def test_a_progress_bar_is_printed_as_it_comes_and_no_line_twice_or_not_at_all(
    running: Running, queue: Queue, growing: CompressedLog
) -> None:
    """The log at the end has only the last state of each line, so it is shorter."""
    output = Output(growing.log)
    output.write(b"first\n10%\r20%\rdone\nthird\n")
    checkpoint(running, growing)

    def ends() -> None:
        output.write(b"50%\rfourth\nfifth\n")
        with closing(growing.log.finished()) as view:
            write(running, view.read().decode(), compress=True)

    text = followed(running, queue, ends)
    stamp = len("2026-11-21T09:20:53.649Z ")
    printed = [line[stamp:] for line in text.split("\n")]
    assert printed == ["first", "10%\r20%\rdone", "third", "fourth", "fifth", ""]


def told_of(running: Running, queue: Queue, *between: Callable[[], object]) -> list[str]:
    """Follow a log; return the messages about what is waited for, with T for the task's id."""
    task_id, run_client = running
    told: list[str] = []
    looks = Looks(*between, lambda: run_client.report_completed(task_id, 0))
    with suppress(Failure):
        FollowedLog(queue, task_id, 0, LIVE, lambda _: None, told.append).print(1.0, looks)
    return [each.replace(task_id, "T") for each in told]


def test_a_follower_says_once_what_it_waits_for(queue: Queue, task_factory: TaskFactory) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux"))
    running = (task_id, queue)  # a client with all scopes

    def starts() -> None:
        queue.claim_work("proj/linux", worker_group="g", worker_id="w")

    def nothing() -> None:
        pass

    told = told_of(running, queue, nothing, starts, nothing, lambda: write(running, "one\n"), nothing)
    assert told == [
        "waiting: run 0 of task T is pending in the task queue proj/linux",
        "waiting: run 0 of task T is running on worker g/w, which has not uploaded a log yet",
        "waiting: run 0 of task T is running on worker g/w, which uploads new lines now and then",
    ]


def test_a_follower_waits_out_each_outage_says_so_once_and_loses_no_line(
    running: Running, queue: Queue, local_queue: LocalQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    faults, (task_id, run_client) = local_queue.faults, running

    def fails(text: str, operation: str) -> None:
        write(running, text)
        faults.add(Respond(operation, status=503, times=2))

    def ends_and_fails() -> None:
        fails("one\ntwo\nthree\nfour\n", "queue.artifact")
        run_client.report_completed(task_id, 0)

    def nothing() -> None:
        pass

    write(running, "one\n")
    of_status = partial(fails, "one\ntwo\n", "queue.status")
    of_log = partial(fails, "one\ntwo\nthree\n", "queue.artifact")
    until_end: list[Callable[[], object]] = [
        of_status,
        nothing,
        nothing,
        of_log,
        nothing,
        nothing,
        ends_and_fails,
        nothing,
    ]
    printed = followed(running, queue.with_options(attempts=1), *until_end)
    assert (printed, faults.waiting()) == ("one\ntwo\nthree\nfour\n", [])
    notes = capsys.readouterr().err.splitlines()
    trouble = re.escape(f"{local_queue.root_url} is in trouble (HTTP 503")
    assert len(notes) == 3
    assert all(re.fullmatch(f"{trouble}.*; retrying for an hour at most", each) for each in notes)


def test_an_outage_after_the_first_response_is_waited_out(
    running: Running, local_queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id, run_client = running
    write(running, "one\n")
    clock = Looks(lambda: run_client.report_completed(task_id, 0))
    monkeypatch.setattr(log, "connect", lambda: Queue.from_env().with_options(attempts=1))
    monkeypatch.setattr(log, "SystemClock", lambda: clock)
    local_queue.faults.add(Respond("queue.artifact", status=503))
    result = run("log", task_id)
    assert (result.stdout, result.exit_code) == ("one\n", ExitStatus.DONE)
    assert "is in trouble (HTTP 503" in result.stderr


def test_an_outage_before_a_resolved_run_is_printed_is_an_error(
    running: Running, local_queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id, run_client = running
    write(running, "one\n")
    run_client.report_completed(task_id, 0)
    monkeypatch.setattr(log, "connect", lambda: Queue.from_env().with_options(attempts=1))
    local_queue.faults.add(Respond("queue.artifact", status=503))
    result = run("log", task_id)
    assert (result.stdout, result.exit_code) == ("", ExitStatus.NO_RESPONSE)


def test_a_log_whose_content_is_not_there_yet_is_waited_for(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    run_client.create_artifact(
        task_id, 0, BACKING, {"storageType": "s3", "expires": EXPIRES, "contentType": "text/plain"}
    )
    run_client.create_link_artifact(task_id, 0, LIVE, BACKING, expires=EXPIRES)
    write_all = partial(run_client.upload_artifact, task_id, 0, BACKING, b"one\n", expires=EXPIRES)
    assert followed(running, queue, partial(write_all, content_type="text/plain")) == "one\n"


def test_a_log_is_read_from_storage_as_a_cdn_may_have_cached_a_404(
    running: Running, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_storage = queue.artifact

    def in_cdn(task_id: str, run_id: int, name: str) -> ArtifactContent:
        return replace(in_storage(task_id, run_id, name), url=cdn.url)

    with RawServer() as cdn:
        cdn.respond = lambda _: RawResponse(404)
        monkeypatch.setattr(queue, "artifact", in_cdn)
        write(running, "one\n")
        assert followed(running, queue, lambda: write(running, "one\ntwo\n")) == "one\ntwo\n"
        assert not cdn.requests


def test_after_the_end_of_a_worker_that_streamed_its_log_the_uploaded_log_is_printed(
    running: Running, queue: Queue
) -> None:
    task_id, run_client = running
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    run_client.create_reference_artifact(task_id, 0, LIVE, url, expires=EXPIRES, content_type="text/plain")
    run_client.upload_artifact(task_id, 0, BACKING, b"one\n", expires=EXPIRES)
    assert followed(running, queue) == "one\n"


@pytest.mark.usefixtures("without_pauses")
def test_after_the_end_of_a_stream_a_follower_does_not_say_that_there_was_no_log(
    running: Running, queue: Queue
) -> None:
    task_id, run_client = running
    server = RawServer()
    server.respond = lambda _: RawResponse(body=b"one\n")
    with ExitStack() as stream:
        stream.enter_context(server)
        run_client.create_reference_artifact(
            task_id, 0, LIVE, server.url, expires=EXPIRES, content_type="text/plain"
        )
        told = told_of(running, queue, stream.close)
    (words,) = told
    assert words.endswith("is running on worker g/w, which uploads new lines now and then")


@pytest.mark.usefixtures("without_pauses")
def test_after_a_stream_breaks_a_follower_does_not_say_that_there_was_no_log(
    running: Running, queue: Queue
) -> None:
    task_id, run_client = running
    lines = RawResponse(206, (("Preference-Applied", "wait=20"),), body=b"one\n")
    responses = iter([lines])
    with RawServer() as server:
        server.respond = lambda _: next(responses, RawResponse(504))
        run_client.create_reference_artifact(
            task_id, 0, LIVE, server.url, expires=EXPIRES, content_type="text/plain"
        )
        told = told_of(running, queue)
    assert told[-1].endswith("is running on worker g/w, which uploads new lines now and then")


def test_a_web_page_in_place_of_a_stream_is_not_the_log(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    page = (("Content-Type", "text/HTML; charset=utf-8"),)
    with RawServer() as server:
        server.respond = lambda _: RawResponse(headers=page, body=b"<html>\n<p>Please log in</p>\n</html>\n")
        run_client.create_reference_artifact(
            task_id, 0, LIVE, server.url, expires=EXPIRES, content_type="text/plain"
        )
        run_client.upload_artifact(task_id, 0, BACKING, b"one\n", expires=EXPIRES)
        more = partial(run_client.upload_artifact, task_id, 0, BACKING, b"one\ntwo\n", expires=EXPIRES)
        assert followed(running, queue, more) == "one\ntwo\n"


@pytest.mark.parametrize("body", [gzip.compress(b"one\n" * 1000)[:-9], b"not gzip"], ids=["cut", "text"])
def test_a_compressed_log_that_is_cut_off_is_an_error(running: Running, body: bytes) -> None:
    task_id, run_client = running
    with RawServer() as server:
        server.respond = lambda _: RawResponse(headers=(("Content-Encoding", "gzip"),), body=body)
        run_client.create_reference_artifact(
            task_id, 0, BACKING, server.url, expires=EXPIRES, content_type="text/plain"
        )
        run_client.report_completed(task_id, 0)
        result = run("log", task_id, "--name", BACKING)
    assert result.exit_code == ExitStatus.NO_RESPONSE
    assert "gzip" in result.stderr


def test_as_json_the_last_line_of_a_log_that_is_cut_off_is_printed_too(running: Running) -> None:
    task_id, run_client = running
    with RawServer() as server:
        server.respond = lambda _: RawResponse(body=b"one\nkilled", announced=100)
        run_client.create_reference_artifact(
            task_id, 0, BACKING, server.url, expires=EXPIRES, content_type="text/plain"
        )
        run_client.report_completed(task_id, 0)
        result = run("log", task_id, "--name", BACKING, "--json")
    assert result.exit_code == ExitStatus.NO_RESPONSE
    assert list(map(json.loads, result.stdout.splitlines())) == [{"line": "one"}, {"line": "killed"}]


@pytest.mark.parametrize("status", [206, 304])
def test_a_stream_with_nothing_new_does_not_outlast_the_run(
    running: Running, queue: Queue, status: int
) -> None:
    task_id, run_client = running
    applied = ("Preference-Applied", "wait=20")
    waiting = [RawResponse(status, (applied,), body=b"one\n" if status == 206 else b"")] * 5
    responses = iter([RawResponse(206, (applied,), body=b"one\n"), *waiting])
    with RawServer() as server:
        server.respond = lambda _: next(responses, RawResponse(404))
        run_client.create_reference_artifact(
            task_id, 0, LIVE, server.url, expires=EXPIRES, content_type="text/plain"
        )
        told = told_of(running, queue)
    assert len(list(responses)) > 0
    assert told[0] == "run 0 of task T is running; its worker streams the log"


def test_without_following_a_stream_is_not_waited_for(running: Running) -> None:
    task_id, run_client = running

    def grown(request: Request) -> RawResponse:
        lines = b"one\n" * len(server.requests)
        applied = (("Preference-Applied", "wait=20"),) if "Prefer" in request.headers else ()
        return RawResponse(206 if len(server.requests) < 9 else 404, applied, body=lines[-68:])

    with RawServer() as server:
        server.respond = grown
        run_client.create_reference_artifact(
            task_id, 0, LIVE, server.url, expires=EXPIRES, content_type="text/plain"
        )
        result = run("log", task_id, "--no-follow")
    assert (result.stdout, len(server.requests)) == ("one\n", 1)


def test_the_response_of_a_stream_cannot_control_the_terminal(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    with RawServer() as server:
        server.respond = lambda _: RawResponse(status=404, body=b"\x1b[2Jgone\n")
        run_client.create_reference_artifact(
            task_id, 0, LIVE, server.url, expires=EXPIRES, content_type="text/plain"
        )
        run_client.upload_artifact(task_id, 0, BACKING, b"one\n", expires=EXPIRES)
        told = told_of(running, queue, lambda: None)
    assert "gone" in told[0]
    assert all(words.isprintable() for words in told)


def test_a_log_that_was_streamed_and_never_uploaded_is_an_error_that_says_so(
    running: Running, queue: Queue
) -> None:
    task_id, run_client = running
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    run_client.create_reference_artifact(
        task_id, 0, LIVE, url, content_type="text/plain; charset=utf-8", expires=EXPIRES
    )
    run_client.report_completed(task_id, 0)
    hasty = queue.with_options(attempts=1)
    with pytest.raises(Failure, match=r"was not uploaded, and its worker does not stream it any more: GET"):
        FollowedLog(hasty, task_id, 0, LIVE, lambda _: None, lambda _: None).print(1.0, SystemClock())


def test_a_compressed_log_is_downloaded_again_only_if_it_has_grown(
    running: Running, queue: Queue, transferred: list[int]
) -> None:
    first = "".join(f"{Random(number).random()}\n" for number in range(100))
    second = first + first[::-1]
    write(running, first, compress=True)

    def stays() -> None:
        pass

    def grows() -> None:
        write(running, second, compress=True)

    assert followed(running, queue, stays, stays, grows, stays) == second
    assert len(transferred) == 3  # the second look gets the ETag that the others send


def test_a_log_that_becomes_shorter_by_compression_is_printed_completely(
    running: Running, queue: Queue
) -> None:
    write(running, "one\n" * 200, compress=False)
    whole = "one\n" * 300
    assert followed(running, queue, lambda: write(running, whole, compress=True)) == whole


def test_the_last_lines_are_printed_of_a_log_that_its_last_upload_makes_shorter(
    running: Running, queue: Queue
) -> None:
    task_id, run_client = running
    text = "the same line\n" * 1000

    def end() -> None:
        write(running, text + "the last line\n", compress=True)
        run_client.report_completed(task_id, 0)

    write(running, text, compress=False)
    written: list[bytes] = []
    FollowedLog(queue, task_id, 0, LIVE, written.append, lambda _: None).print(1.0, Looks(end))
    assert b"".join(written).decode() == text + "the last line\n"


def test_a_log_in_the_object_service_is_printed_once(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    run_client.upload_artifact(task_id, 0, LIVE, b"one\ntwo\n", expires=EXPIRES, storage="object")
    assert followed(running, queue, lambda: None) == "one\ntwo\n"


def test_a_log_that_moves_to_another_url_is_followed(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    early = "public/early.log"
    run_client.upload_artifact(task_id, 0, early, b"one\n", expires=EXPIRES)
    url = queue.artifact(task_id, 0, early).url
    assert url is not None
    run_client.create_reference_artifact(task_id, 0, LIVE, url, expires=EXPIRES, content_type="text/plain")
    assert followed(running, queue, lambda: write(running, "one\ntwo\n")) == "one\ntwo\n"


def test_the_log_of_a_resolved_task_is_printed_byte_for_byte(running: Running) -> None:
    task_id, run_client = running
    write(running, "one\ntwo, without an end")
    run_client.report_completed(task_id, 0)
    result = run("log", task_id)
    assert result.exit_code == ExitStatus.DONE
    assert result.stdout_bytes == b"one\ntwo, without an end"


def test_a_growing_log_is_followed_until_the_run_is_resolved(running: Running) -> None:
    task_id, run_client = running
    with running_command("log", task_id, "--interval", "0.05") as process:
        assert process.stdout is not None
        write(running, "one\n")
        assert process.stdout.readline() == "one\n"
        write(running, "one\ntwo\n")
        assert process.stdout.readline() == "two\n"
        write(running, "one\ntwo\nthree\n")
        run_client.report_completed(task_id, 0)
        assert process.stdout.read() == "three\n"
        assert process.wait(60) == ExitStatus.DONE


def test_log_waits_until_a_pending_task_starts(queue: Queue, task_factory: TaskFactory) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux"))
    with running_command("log", task_id, "--interval", "0.05") as process:
        (claim,) = queue.claim_work("proj/linux", worker_group="g", worker_id="w").tasks
        run_client = queue.with_credentials(claim.credentials)
        write((task_id, run_client), "begun\n")
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        run_client.report_failed(task_id, 0)
        assert process.wait(60) == ExitStatus.DONE


def test_the_log_of_a_blocked_task_is_not_waited_for(queue: Queue, task_factory: TaskFactory) -> None:
    first, last = slugid(), slugid()
    queue.create_task(first, task_factory(taskQueueId="proj/linux"))
    queue.create_task(last, task_factory(taskQueueId="proj/linux", dependencies=[first]))
    with running_command("log", last, "--interval", "0.05") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"waiting: task {last} is unscheduled\n"
        queue.cancel_task(first)
        assert process.wait(60) == ExitStatus.NOT_COMPLETED
        blocked = f"task {last} is blocked by {first} (test task, exception)"
        assert process.stderr.read() == f"Error: {blocked}\n"


PATIENT = """
from pathlib import Path
from taskqueue_client import WorkerLoop

class Patient(WorkerLoop):
    def run_task(self, task):
        task.log.info("hello")
        Path("gate").read_text()
        task.log.info("good-bye")
"""
CONFIG = """
task_queue_id: proj/linux
worker_group: g
worker_id: w
max_tasks: 1
log_checkpoint_interval: 0.2
"""


def test_the_log_of_a_worker_is_shown_from_the_start_of_its_run(
    queue: Queue, task_factory: TaskFactory, folder: Path
) -> None:
    (folder / "patient.py").write_text(PATIENT)
    (folder / "worker.yml").write_text(CONFIG)
    os.mkfifo(folder / "gate")
    task_id = slugid()
    queue.create_task(task_id, task_factory(taskQueueId="proj/linux"))
    with (
        running_command("work", "patient:Patient", "--config", "worker.yml") as worker,
        running_command("log", task_id, "--interval", "0.05") as follower,
    ):
        assert follower.stdout is not None
        assert follower.stdout.readline().endswith(f"run 0 of task {task_id}, on worker g/w of proj/linux\n")
        assert follower.stdout.readline().endswith("hello\n")
        (folder / "gate").write_text("open")  # the handler waits for this
        worker.communicate(timeout=60)
        assert [line.split()[-1] for line in follower.stdout] == ["good-bye", "succeeded"]


def test_log_without_following_prints_the_current_content(running: Running) -> None:
    write(running, "one\n")
    assert run("log", running[0], "--no-follow").stdout == "one\n"


def test_as_json_each_line_is_an_object(running: Running) -> None:
    write(running, "one\ntwo \N{SNOWMAN}")
    lines = run_json("log", running[0], "--no-follow")
    assert lines == [{"line": "one"}, {"line": "two \N{SNOWMAN}"}]
    assert json.loads(run("log", running[0], "--no-follow", "--json").stdout.splitlines()[0]) == lines[0]


def test_a_run_without_a_log_is_an_error_that_names_it(running: Running) -> None:
    task_id, run_client = running
    run_client.report_completed(task_id, 0)
    result = run("log", task_id)
    assert result.exit_code == ExitStatus.REFUSED
    assert result.stderr == f"Error: run 0 of task {task_id} (completed) has no artifact {LIVE}\n"


def test_the_error_about_a_missing_log_says_that_the_run_is_pending_or_why_it_ended(
    queue: Queue, running: Running
) -> None:
    task_id, run_client = running
    run_client.report_exception(task_id, 0, "worker-shutdown")
    errors = [run("log", task_id, "--no-follow").stderr]
    queue.cancel_task(task_id)
    errors.append(run("log", task_id).stderr)
    named = [f"Error: run 1 of task {task_id} ({reason}) has no" for reason in ("pending", "canceled")]
    assert [each.partition(" artifact ")[0] for each in errors] == named


def test_the_error_about_a_missing_log_of_an_unscheduled_task_names_its_state(
    queue: Queue, task_factory: TaskFactory
) -> None:
    task_id = slugid()
    queue.create_task(task_id, task_factory(dependencies=[task_id]))
    result = run("log", task_id, "--no-follow")
    assert result.stderr == f"Error: run 0 of task {task_id} (unscheduled) has no artifact {LIVE}\n"


def test_a_run_that_does_not_exist_is_an_error_that_names_the_last(running: Running) -> None:
    result = run("log", running[0], "--run", "3")
    assert result.exit_code == ExitStatus.REFUSED
    assert "has no run 3; its latest run is 0" in result.stderr


def test_bytes_missed_by_an_interrupted_download_are_printed_by_the_next_one(
    running: Running, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ("".join(f"{Random(number).random()}\n" for number in range(end)) for end in (100, 200))
    write(running, first, compress=True)

    def interrupted(client: Queue, task_id: str, name: str, *, run_id: int) -> Iterator[bytes]:
        del client, task_id, run_id
        yield second[:3000].encode()
        raise StreamInterrupted(name, 3000)

    uninterrupted = Queue.stream_artifact

    def grows_and_is_replaced_while_it_is_read() -> None:
        write(running, second, compress=True)
        monkeypatch.setattr(Queue, "stream_artifact", interrupted)

    def stays() -> None:
        monkeypatch.setattr(Queue, "stream_artifact", uninterrupted)

    assert followed(running, queue, grows_and_is_replaced_while_it_is_read, stays) == second


def test_ctrl_c_ends_log_with_one_line(running: Running) -> None:
    write(running, "one\n")
    with running_command("log", running[0]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        # Right after the line, Ctrl-C may come while urllib3's response is freed, and Python drops it there.
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting: ")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert errors.splitlines()[-1] == "Interrupted."


def test_the_end_of_a_run_that_is_retried_is_not_taken_for_the_end_of_the_task(
    running: Running, queue: Queue
) -> None:
    task_id, run_client = running
    write(running, "one\n")
    told: list[str] = []
    looks = Looks(lambda: run_client.report_exception(task_id, 0, "worker-shutdown"))
    FollowedLog(queue, task_id, 0, LIVE, lambda _: None, told.append).print(1.0, looks)
    assert told[-1] == (
        f"run 0 of task {task_id} has ended (worker-shutdown), and run 1 is pending; "
        f"to follow it, run taskqueue log {task_id}"
    )


def test_the_retry_of_a_run_that_ended_without_a_log_is_told(running: Running) -> None:
    task_id, run_client = running
    run_client.report_exception(task_id, 0, "worker-shutdown")
    result = run("log", task_id, "--run", "0")
    assert result.exit_code == ExitStatus.REFUSED
    retry, error = result.stderr.splitlines()
    assert retry.endswith(f"run 1 is pending; to follow it, run taskqueue log {task_id}")
    assert error == f"Error: run 0 of task {task_id} (worker-shutdown) has no artifact {LIVE}"


@pytest.mark.parametrize("words", [["log"], ["log", "--json"], ["artifacts", "get", LIVE]])
def test_a_log_that_is_an_error_artifact_is_refused_with_its_reason(
    running: Running, words: list[str]
) -> None:
    task_id, run_client = running
    message = "disk \x1b[2Jfull"
    run_client.create_error_artifact(task_id, 0, LIVE, "file-missing-on-worker", message, expires=EXPIRES)
    run_client.report_failed(task_id, 0)
    command, *options = words
    result = run(command, *options[:1], task_id, *options[1:])
    assert "an error artifact, without content: file-missing-on-worker: disk \ufffd[2Jfull" in result.stderr
    assert "TASKCLUSTER_ROOT_URL" not in result.stderr
    assert result.exit_code == (ExitStatus.REFUSED if command == "log" else ExitStatus.NOT_COMPLETED)
