"""The log of a run."""

from __future__ import annotations

import io
import logging
import os
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client.clock import MovableClock
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.commands import task_log
from taskqueue_client.worker.commands.task_log import Output, TaskLog
from tests.artifacts.conftest import file_size_limit
from tests.worker.queue_world import WAIT

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
STAMP = "2026-11-21T12:00:00.000Z "


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOON, held=True)


@pytest.fixture
def log(tmp_path: Path, clock: MovableClock) -> Iterator[TaskLog]:
    """Yield a log that is in its file from the first byte on."""
    task_log = TaskLog(tmp_path / "task.log", clock, kept_in_memory=0)
    yield task_log
    task_log.remove()


def lines_of(log: TaskLog) -> list[str]:
    return log.path.read_text().splitlines() if log.path.exists() else []


def test_each_line_begins_with_the_time(log: TaskLog, clock: MovableClock) -> None:
    with Output(log) as output:
        output.write(b"one\ntwo\n")
        clock.advance(1.5)
        output.write(b"\nthree")
    assert lines_of(log) == [
        "2026-11-21T12:00:00.000Z one",
        "2026-11-21T12:00:00.000Z two",
        "2026-11-21T12:00:01.500Z ",
        "2026-11-21T12:00:01.500Z three",
    ]


def test_a_line_that_comes_in_pieces_has_the_time_of_its_beginning(log: TaskLog, clock: MovableClock) -> None:
    with Output(log) as output:
        output.write(b"one")
        clock.advance(1)
        output.write(b" more\n")
    assert lines_of(log) == [STAMP + "one more"]


def test_messages_have_their_level_and_all_their_lines_a_time(log: TaskLog) -> None:
    log.logger.info("building %s", "target")
    log.logger.debug("two\nlines")
    assert lines_of(log) == [STAMP + "INFO building target", STAMP + "DEBUG two", STAMP + "lines"]


def test_a_traceback_is_in_the_log_and_masked(log: TaskLog) -> None:
    log.secrets.add("hunter2")
    try:
        raise ValueError("hunter2")  # noqa: TRY301 - to be logged below
    except ValueError:
        log.logger.exception("failed")
    assert lines_of(log)[0] == STAMP + "ERROR failed"
    assert lines_of(log)[-1] == STAMP + "ValueError: [masked]"


def test_messages_are_shown_nowhere_else(log: TaskLog, caplog: pytest.LogCaptureFixture) -> None:
    log.logger.error("only here")
    assert not caplog.records


def test_child_loggers_write_to_the_log_alone(log: TaskLog, caplog: pytest.LogCaptureFixture) -> None:
    before = set(logging.Logger.manager.loggerDict)
    log.secrets.add("s3cret")
    log.logger.getChild("step").getChild("part").info("with s3cret")
    assert lines_of(log) == [f"{STAMP}INFO with [masked]"]
    assert caplog.messages == []
    assert set(logging.Logger.manager.loggerDict) == before


def test_the_level_may_be_changed_at_any_time(log: TaskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    child = log.logger.getChild("step")
    for level in (logging.INFO, logging.WARNING, logging.INFO):
        log.logger.setLevel(level)
        log.logger.info("a line at %d", level)
        child.info("a child's at %d", level)
    monkeypatch.setattr(logging.Logger.manager, "disable", logging.INFO)
    log.logger.info("disabled")
    assert lines_of(log) == 2 * [f"{STAMP}INFO a line at 20", f"{STAMP}INFO a child's at 20"]


def test_a_log_leaves_no_logger_behind(tmp_path: Path, clock: MovableClock) -> None:
    before = set(logging.Logger.manager.loggerDict)
    TaskLog(tmp_path / "task.log", clock).remove()
    assert set(logging.Logger.manager.loggerDict) == before


def test_a_writer_that_comes_in_between_gets_a_separate_line(log: TaskLog) -> None:
    first, second = Output(log), Output(log)
    first.write(b"fir")
    second.write(b"second\n")
    first.write(b"st\n")
    log.logger.info("third")
    assert lines_of(log) == [STAMP + "fir", STAMP + "second", STAMP + "st", STAMP + "INFO third"]


def test_secrets_are_masked_in_each_stream_by_itself(log: TaskLog) -> None:
    log.secrets.add("hunter2")
    first, second = Output(log), Output(log)
    first.write(b"hunt")
    second.write(b"hun")
    first.write(b"er2\n")
    second.write(b"ter2\n")
    assert lines_of(log) == [STAMP + "[masked]", STAMP + "[masked]"]


@pytest.mark.parametrize("given", [None, b"hunter2", 7])
def test_a_secret_that_is_not_text_is_refused_without_being_shown(log: TaskLog, given: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        log.secrets.add(given)
    assert str(caught.value) == f"secret: of type {type(given).__name__}; expected a non-empty str"
    assert repr(caught.value) == f"InvalidArgument({str(caught.value)!r})"


def test_a_secret_with_newlines_is_masked_before_times_come_in_between(log: TaskLog) -> None:
    log.secrets.add("a\nb")
    with Output(log) as output:
        output.write(b"<a\nb>\n")
    assert lines_of(log) == [STAMP + "<[masked]>"]


def test_all_bytes_are_written_as_they_come(log: TaskLog) -> None:
    with Output(log) as output:
        output.write(bytes(range(256)))
    stamp = STAMP.encode()
    assert log.path.read_bytes() == stamp + bytes(range(10)) + b"\n" + stamp + bytes(range(11, 256))


def test_a_message_may_contain_characters_that_are_not_unicode(log: TaskLog) -> None:
    log.logger.info("name: %s", os.fsdecode(b"\xff"))
    assert lines_of(log) == [STAMP + r"INFO name: \udcff"]


def test_a_message_whose_arguments_do_not_fit_is_replaced_by_a_line_that_says_so(
    log: TaskLog, capsys: pytest.CaptureFixture[str]
) -> None:
    log.logger.info("%d", "text")
    [line] = lines_of(log)
    assert "ERROR a log record of " in line
    assert ", cannot be formatted: TypeError: %d format" in line
    assert capsys.readouterr().err == ""  # the argument may be a secret


def test_writers_on_many_threads_lose_nothing(log: TaskLog) -> None:
    def write(name: bytes) -> None:
        with Output(log) as output:
            for number in range(200):
                output.write(b"%b %d\n" % (name, number))

    threads = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wanted = {f"{STAMP}{name} {number}" for name in range(8) for number in range(200)}
    assert set(lines_of(log)) == wanted
    assert len(lines_of(log)) == 1600


def test_memory_does_not_grow_with_the_output(log: TaskLog) -> None:
    log.secrets.add("hunter2" * 10)
    chunk = b"hunter2 and more of it\n" * 3000
    tracemalloc.start()
    try:
        with Output(log) as output:
            for _ in range(500):
                output.write(chunk)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_checkpoint_is_the_whole_lines_so_far_and_stays_so(log: TaskLog) -> None:
    output = Output(log)
    output.write(b"one\ntwo\nthr")
    with log.checkpoint() as checkpoint:
        output.write(b"ee\nfour\n")
        wanted = f"{STAMP}one\n{STAMP}two\n".encode()
        assert checkpoint.read() == wanted
        assert checkpoint.seek(0, io.SEEK_END) == checkpoint.tell() == len(wanted)
        assert checkpoint.read(1) == b""
        assert checkpoint.seek(-5, io.SEEK_CUR) == len(wanted) - 5
        assert checkpoint.read(2) == b" t"
        checkpoint.seek(3)
        assert b"".join(iter(lambda: checkpoint.read(7), b"")) == wanted[3:]
    with log.checkpoint() as checkpoint:
        assert checkpoint.read().endswith(b"Z three\n2026-11-21T12:00:00.000Z four\n")


def test_a_checkpoint_before_the_first_line_is_empty(log: TaskLog) -> None:
    Output(log).write(b"begun")
    with log.checkpoint() as checkpoint:
        assert checkpoint.read() == b""


def test_a_log_whose_file_somebody_else_has_removed_is_read_all_the_same(log: TaskLog) -> None:
    Output(log).write(b"one\n")
    log.path.unlink()
    Output(log).write(b"two\n")
    expected = f"{STAMP}one\n{STAMP}two\n".encode()
    with log.checkpoint() as checkpoint, log.finished() as finished:
        assert [checkpoint.read(), finished.read()] == [expected, expected]


def test_views_and_the_writer_do_not_move_each_other(log: TaskLog) -> None:
    Output(log).write(b"one\n")
    with log.checkpoint() as first, log.checkpoint() as second:
        first.seek(len(STAMP))
        assert second.read(len(STAMP)) == STAMP.encode()
        Output(log).write(b"two\n")
        assert (first.read(), second.read()) == (b"one\n", b"one\n")
    assert lines_of(log) == [STAMP + "one", STAMP + "two"]


def test_after_remove_nothing_is_written_and_nothing_raised(log: TaskLog) -> None:
    log.logger.info("before")
    assert log.path.exists()
    log.remove()
    log.remove()
    log.logger.info("after")
    Output(log).write(b"after\n")
    assert not log.path.exists()
    assert log.error is None


def test_a_logger_that_is_asked_for_after_the_end_keeps_nothing_alive(log: TaskLog) -> None:
    log.remove()
    freed = weakref.ref(log.logger.handlers[0])
    assert freed() is None


class TellingClock(MovableClock):
    """Logs a message when it is asked for the time of a line, as a finalizer may that runs then."""

    def __init__(self) -> None:
        super().__init__(NOON, held=True)
        self.tell: Callable[[], object] | None = None

    def now(self) -> float:
        tell, self.tell = self.tell, None
        if tell is not None:
            tell()
        return super().now()


def test_a_message_of_a_finalizer_that_runs_in_the_middle_of_a_line_follows_the_line(tmp_path: Path) -> None:
    clock = TellingClock()
    log = TaskLog(tmp_path / "task.log", clock)
    clock.tell = lambda: log.logger.info("out of the blue")
    writer = threading.Thread(target=log.logger.info, args=["a line"], daemon=True)
    writer.start()
    writer.join(WAIT)
    assert not writer.is_alive()
    with log.checkpoint() as checkpoint:
        assert checkpoint.read().decode().splitlines() == [
            STAMP + "INFO a line",
            STAMP + "INFO out of the blue",
        ]
    log.remove()


def test_a_short_log_is_kept_in_memory(tmp_path: Path, clock: MovableClock) -> None:
    log = TaskLog(tmp_path / "task.log", clock, kept_in_memory=100)
    Output(log).write(b"one\n")
    before = log.checkpoint()
    assert before.read() == f"{STAMP}one\n".encode()
    assert not log.path.exists()
    Output(log).write(b"x" * 70 + b"\n")
    assert lines_of(log) == [STAMP + "one", STAMP + "x" * 70]
    before.seek(0)
    assert before.read() == f"{STAMP}one\n".encode()
    with log.checkpoint() as checkpoint:
        assert checkpoint.read() == log.path.read_bytes()
    log.remove()
    assert not log.path.exists()


@pytest.mark.parametrize("kind", ["link", "FIFO", "file", "directory"])
def test_what_a_task_has_put_in_the_place_of_the_file_is_replaced(
    tmp_path: Path, clock: MovableClock, kind: str
) -> None:
    """Otherwise, the log would be written to the target of a link, or wait for a reader of a FIFO."""
    target, path = tmp_path / "target", tmp_path / "task.log"
    target.write_text("theirs")
    log = TaskLog(path, clock)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
        target.rename(path / "target")
    elif kind == "link":
        path.symlink_to(target)
    else:
        path.hardlink_to(target)
    Output(log).write(b"x" * task_log.KEPT_IN_MEMORY + b"\n")
    with log.checkpoint() as checkpoint:
        assert checkpoint.read().endswith(b"x\n")
    log.remove()
    assert [each.read_text() for each in tmp_path.rglob("*") if each.is_file()] == ["theirs"]


def test_lines_in_memory_are_kept_if_the_disk_has_no_room_for_the_file(
    tmp_path: Path, clock: MovableClock
) -> None:
    """No part of them is in a file until there is room for all."""
    log = TaskLog(tmp_path / "task.log", clock, kept_in_memory=100)
    Output(log).write(b"one\n")
    with file_size_limit(20):
        Output(log).write(b"x" * 80)
        assert not log.path.exists()
    assert log.checkpoint().read() == f"{STAMP}one\n{STAMP}[{80 + len(STAMP)} {CUT}".encode()
    Output(log).write(b"y" * 80 + b"\n")
    lines = lines_of(log)
    assert lines[0] == STAMP + "one"
    assert f"[{80 + len(STAMP)} bytes are missing here" in lines[2]
    assert lines[3] == STAMP + "y" * 80
    log.remove()


def test_a_full_disk_is_stored_as_an_error_and_logged_once(
    tmp_path: Path, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "task.log"
    log = TaskLog(path, clock, kept_in_memory=0)
    with file_size_limit(0):
        log.logger.info("lost")
        Output(log).write(b"lost, too\n")
    log.remove()
    assert isinstance(log.error, OSError)
    assert "File too large" in str(log.error)
    assert [each.getMessage() for each in caplog.records] == [f"the task log {path} is cut: {log.error}"]


def test_when_there_is_space_again_the_log_continues_and_says_how_much_is_missing(log: TaskLog) -> None:
    with Output(log) as output:
        output.write(b"one\n")
        with file_size_limit(40):
            output.write(b"two, of which but the beginning fits\n")
            output.write(b"three\n")
        output.write(b"four\nfive\n")
    lines = lines_of(log)
    assert lines[:2] == [STAMP + "one", STAMP[:11]]
    assert lines[2].startswith(f"{STAMP}[")
    assert "bytes are missing here: [Errno 27] File too large]" in lines[2]
    assert lines[3:] == [STAMP + "four", STAMP + "five"]
    assert log.error is not None


def test_missing_bytes_are_counted(log: TaskLog) -> None:
    output = Output(log)
    with file_size_limit(0):
        output.write(b"x" * 10)
        output.write(b"x" * 5)
    log.logger.info("on")
    assert f"[{2 * len(STAMP) + 15} bytes are missing here" in log.path.read_text()
    assert log.lost == 2 * len(STAMP) + 15


CUT = "bytes are missing here: [Errno 27] File too large]\n"


def test_a_log_that_is_cut_says_so_after_its_last_whole_line_without_a_byte_of_space(log: TaskLog) -> None:
    with file_size_limit(40):
        Output(log).write(b"one\ntwo\n")
        for view in (log.checkpoint(), log.finished()):
            with view:
                assert view.read() == f"{STAMP}one\n{STAMP}[{len(STAMP) + 4} {CUT}".encode()
    assert log.lost == len(STAMP) + 4 - 11  # 11 bytes of this are in the file, but no whole line


def test_progress_is_shown_as_it_comes_and_only_its_last_state_when_the_log_is_finished(
    log: TaskLog,
) -> None:
    with Output(log) as output:
        for chunk in (b"start\n10%\r", b"20%", b"\r30%\r\nwindows\r\n", b"a\r\rb\nend\n"):
            output.write(chunk)
    with log.checkpoint() as so_far:
        states = b"".join(so_far.read().split(STAMP.encode()))
        assert states == b"start\n10%\r20%\r30%\r\nwindows\r\na\r\rb\nend\n"
    with log.finished() as view:
        text = view.read()
        assert text.split(STAMP.encode()) == [b"", b"start\n", b"30%\r\n", b"windows\r\n", b"b\n", b"end\n"]
        assert view.seek(0, io.SEEK_END) == len(text)
        view.seek(7)
        assert b"".join(iter(lambda: view.read(3), b"")) == text[7:]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([b"", b"x", b"yy" * 4]), min_size=1, max_size=5), max_size=6),
    st.integers(1, 40),
)
def test_a_finished_log_has_the_last_state_of_every_line(lines: list[list[bytes]], piece: int) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_log, "_PIECE", piece)
        log = TaskLog(Path(directory) / "log", MovableClock(NOON, held=True), kept_in_memory=100)
        with Output(log) as output:
            output.write(b"".join(b"\r".join(states) + b"|\n" for states in lines))
        with log.finished() as view:
            wanted = b"".join(STAMP.encode() + states[-1] + b"|\n" for states in lines)
            assert view.read() == wanted
        log.remove()


def test_a_program_that_prints_only_carriage_returns_does_not_delay_the_finished_log(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of them once took ten seconds, and two took minutes, all in memory."""
    monkeypatch.setattr(task_log, "_PIECE", 4096)
    with Output(log) as output:
        output.write(b"before" + b"\r" * 400_000 + b"after\n")
    tracemalloc.start()
    try:
        with log.finished() as view:
            assert view.read() == f"{STAMP}after\n".encode()
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_the_memory_for_lines_with_several_states_is_bounded(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million such lines once took 170 MB."""
    monkeypatch.setattr(task_log, "MOST_SHORTENED", 2, raising=False)
    with Output(log) as output:
        output.write(b"a\rb\nplain\n" + b"a\rb\n" * 3)
    with log.finished() as view:
        lines = [b"", b"b\n", b"plain\n", b"b\n", b"a\rb\n", b"a\rb\n"]
        assert view.read().split(STAMP.encode()) == lines


def test_a_log_whose_file_cannot_be_made_keeps_the_error(tmp_path: Path, clock: MovableClock) -> None:
    log = TaskLog(tmp_path / "missing" / "task.log", clock, kept_in_memory=0)
    log.logger.info("lost")
    assert isinstance(log.error, FileNotFoundError)
