"""`taskqueue log`: all of a log, once, also while it grows."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from random import Random

import pytest

from taskqueue_client import Queue, slugid
from taskqueue_client.artifacts import StreamInterrupted
from taskqueue_client.artifacts.buffers import Block
from taskqueue_client.artifacts.storage import Incoming
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.cli.log import FollowedLog
from taskqueue_client.clock import SystemClock
from taskqueue_client.definitions import from_now
from taskqueue_client.testing import TaskFactory
from tests.cli.command import run, run_json
from tests.cli.command import running as running_command

pytestmark = pytest.mark.usefixtures("deployment")

Running = tuple[str, Queue]
LIVE = "public/logs/live.log"
BACKING = "public/logs/live_backing.log"
EXPIRES = from_now("1 hour")


def write(running: Running, text: str, *, compress: bool | None = None) -> None:
    """Make the log so far known, as a worker does at a checkpoint."""
    task_id, run_client = running
    run_client.upload_artifact(task_id, 0, BACKING, text.encode(), expires=EXPIRES, compress=compress)
    run_client.create_link_artifact(task_id, 0, LIVE, BACKING, expires=EXPIRES)


class Looks(SystemClock):
    """Does the next of some things between two looks at a log, instead of waiting."""

    def __init__(self, *between: Callable[[], object]) -> None:
        self._between = iter(between)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        next(self._between)()


@pytest.fixture
def transferred(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the storage sent, of each body that was read."""
    sizes: list[int] = []
    blocks_of = Incoming.blocks

    def counted(incoming: Incoming, *, is_impatient: bool = False) -> Iterator[Block]:
        number = len(sizes)
        sizes.append(0)
        for block in blocks_of(incoming, is_impatient=is_impatient):
            sizes[number] += len(block)
            yield block

    monkeypatch.setattr(Incoming, "blocks", counted)
    return sizes


def followed(running: Running, queue: Queue, *between: Callable[[], object]) -> str:
    """What is written of a log while these things happen between the looks; then the run is resolved."""
    task_id, run_client = running
    written: list[bytes] = []
    looks = Looks(*between, lambda: run_client.report_completed(task_id, 0))
    FollowedLog(queue, task_id, 0, LIVE, written.append).print(1.0, looks)
    return b"".join(written).decode()


def test_of_a_log_that_grows_only_what_is_new_is_transferred(
    running: Running, queue: Queue, transferred: list[int]
) -> None:
    lines = [f"{Random(number).random()}\n" * 100 for number in range(3)]
    logs = ["".join(lines[: number + 1]) for number in range(3)]
    write(running, logs[0], compress=False)
    grows = [lambda log=log: write(running, log, compress=False) for log in logs[1:]]
    assert followed(running, queue, *grows) == logs[2]
    assert transferred[0] == len(lines[0])
    assert (
        sum(transferred[1:]) == len(lines[1]) + len(lines[2]) + 4
    )  # of each look its first and last old byte


def test_a_compressed_log_is_transferred_again_only_if_it_has_grown(
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
    assert len(transferred) == 3  # the second look learns what the others compare


def test_a_log_that_is_shorter_for_being_compressed_is_printed_to_its_end(
    running: Running, queue: Queue
) -> None:
    write(running, "one\n" * 200, compress=False)
    whole = "one\n" * 300
    assert followed(running, queue, lambda: write(running, whole, compress=True)) == whole


def test_a_log_in_the_object_service_is_printed_once(running: Running, queue: Queue) -> None:
    task_id, run_client = running
    run_client.upload_artifact(task_id, 0, LIVE, b"one\ntwo\n", expires=EXPIRES, storage="object")
    assert followed(running, queue, lambda: None) == "one\ntwo\n"


def test_a_log_may_move_while_it_is_followed(running: Running, queue: Queue) -> None:
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


def test_a_log_that_grows_is_printed_bit_by_bit_until_the_run_is_resolved(running: Running) -> None:
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


def test_a_pending_task_s_log_is_waited_for(queue: Queue, task_factory: TaskFactory) -> None:
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


def test_without_following_what_is_there_is_printed(running: Running) -> None:
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
    assert result.stderr == f"Error: run 0 of task {task_id} has no artifact {LIVE}\n"


def test_a_run_that_does_not_exist_is_an_error_that_names_the_last(running: Running) -> None:
    result = run("log", running[0], "--run", "3")
    assert result.exit_code == ExitStatus.REFUSED
    assert "has no run 3; its last is 0" in result.stderr


def test_what_an_interruption_left_out_comes_with_the_next_look(
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


def test_ctrl_c_ends_it_in_one_line(running: Running) -> None:
    write(running, "one\n")
    with running_command("log", running[0]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "Interrupted.\n")
