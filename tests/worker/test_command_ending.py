"""How commands end: by a cancelled run, a time limit, a cancelled coroutine, a killed worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import RawIOBase
from pathlib import Path

import pytest

from taskqueue_client.worker import guardian, processes
from taskqueue_client.worker.command import (
    CommandContext,
    CommandFailed,
    CommandTimedOut,
    run_command,
    run_command_async,
)
from taskqueue_client.worker.outcomes import ClaimLost, TaskFailed, WorkerShutdown
from taskqueue_client.worker.processes import ProcessTree, kill_marked
from tests.worker.running_commands import (
    Fifo,
    context_in,
    guardians,
    open_descriptors,
    printed_in,
    text_of,
    wait_for_command_threads,
    wait_until_gone,
)

IGNORES_SIGTERM = "trap '' TERM; while :; do sleep 1000; done"


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CommandContext]:
    with context_in(tmp_path) as found:
        yield found


@pytest.fixture
def impatient(context: CommandContext) -> CommandContext:
    return replace(context, grace=0.1)


@pytest.fixture
def fifo(tmp_path: Path) -> Fifo:
    return Fifo(tmp_path)


def cancel_when_told(context: CommandContext, fifo: Fifo, script: str) -> list[int]:
    """Run a script that tells process ids, cancel the run then, and give the ids back."""
    pids: list[int] = []

    def cancel() -> None:
        pids.extend(fifo.numbers())
        context.cancelled.cancel(ClaimLost("canceled"))

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(ClaimLost, match=r"^canceled$"):
        run_command(script, context, shell=True)
    canceller.join()
    return pids


def test_a_cancelled_run_s_command_ends_with_all_its_descendants(context: CommandContext, fifo: Fifo) -> None:
    pids = cancel_when_told(context, fifo, f"sleep 1000 & echo $$ $! > {fifo.path}; sleep 1000")
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def test_a_descendant_that_left_the_session_ends_too(context: CommandContext, fifo: Fifo) -> None:
    script = f"setsid sh -c 'echo $$ > {fifo.path}; exec sleep 1000' & wait"
    (pid,) = cancel_when_told(context, fifo, script)
    wait_until_gone(pid)


def test_a_tree_that_ignores_sigterm_is_killed(impatient: CommandContext, fifo: Fifo) -> None:
    script = f'sh -c "{IGNORES_SIGTERM}" & echo $$ $! > {fifo.path}; {IGNORES_SIGTERM}'
    for pid in cancel_when_told(impatient, fifo, script):
        wait_until_gone(pid)
    assert "signal SIGKILL" in text_of(impatient)


def test_a_command_can_clean_up_and_say_so_when_it_is_asked_to_end(
    context: CommandContext, fifo: Fifo
) -> None:
    # the shell's child is there before the trap, which it would have too until it is `sleep`
    script = f"sleep 1000 & trap 'echo cleaned up; exit 0' TERM; echo $$ > {fifo.path}; wait"
    cancel_when_told(context, fifo, script)
    assert "cleaned up" in printed_in(context)
    assert "exit code 0" in text_of(context)


def test_a_command_is_not_started_in_a_run_that_is_cancelled(context: CommandContext) -> None:
    context.cancelled.cancel(WorkerShutdown("leaving"))
    with pytest.raises(WorkerShutdown):
        run_command(["touch", "started"], context)
    assert not (context.work_directory / "started").exists()


def test_a_command_over_its_time_limit_is_ended_and_the_task_has_failed(context: CommandContext) -> None:
    with pytest.raises(TaskFailed, match="took longer than its time limit") as caught:
        run_command(["sleep", "1000"], context, timeout=0.2, check=False)
    assert isinstance(caught.value, CommandTimedOut)
    assert caught.value.result.signal == signal.SIGTERM


def test_a_command_that_prints_without_a_pause_is_ended_in_time(context: CommandContext) -> None:
    with pytest.raises(CommandTimedOut):
        run_command(["yes"], context, timeout=0.2)


def test_what_a_command_leaves_running_in_its_group_is_ended_and_mentioned(
    context: CommandContext, fifo: Fifo
) -> None:
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(fifo.numbers)
        run_command(f"sleep 1000 & echo $! > {fifo.path}", context, shell=True)
    wait_until_gone(told.result()[0])
    assert "WARNING ended what /bin/sh had left running" in text_of(context)


def test_what_a_run_s_commands_have_left_anywhere_is_found_by_its_variables(
    tmp_path: Path, fifo: Fifo
) -> None:
    mark = {"TASK_ID": f"test-{os.getpid()}", "RUN_ID": "0"}
    with context_in(tmp_path, mark) as context:
        os.mkfifo(context.work_directory / "left")
        daemon = f"setsid sh -c 'echo > left; echo $$ > {fifo.path}; exec sleep 1000' &"
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(fifo.numbers)
            run_command(f"{daemon} read x < left", context, shell=True)
        (pid,) = told.result()
        assert kill_marked({**mark, "RUN_ID": "1"}) == set()
        os.kill(pid, 0)
        assert kill_marked(mark) == set()
        wait_until_gone(pid)


def test_without_proc_the_process_group_is_ended(
    context: CommandContext, fifo: Fifo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path / "no-proc")
    for pid in cancel_when_told(context, fifo, f"sleep 1000 & echo $$ $! > {fifo.path}; sleep 1000"):
        wait_until_gone(pid)
    assert kill_marked({"TASK_ID": "any"}) == set()


def test_a_zombie_that_nobody_waits_for_is_no_survivor() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    tree = ProcessTree(child.pid)
    assert tree.has_group()
    assert tree.survivors() == []
    child.wait()


def test_a_process_comes_before_its_children_so_that_it_is_asked_to_end_first(fifo: Fifo) -> None:
    child = 'if [ $1 -gt 0 ]; then sh -c "$0" "$0" $(($1 - 1)) & else sleep 1000 & fi'
    script = f"{child}; echo $$ >> {fifo.path}; wait"
    told = os.open(fifo.path, os.O_RDWR)
    leader = subprocess.Popen(["sh", "-c", script, script, "9"], start_new_session=True)
    try:
        pids: list[int] = []
        with os.fdopen(told) as lines:
            while len(pids) < 10:
                pids.append(int(lines.readline()))
        survivors = ProcessTree(leader.pid).survivors()
        assert set(pids) < set(survivors)
        for pid in set(pids) - {leader.pid}:
            assert survivors.index(parent_of(pid)) < survivors.index(pid)
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_an_awaited_command_has_the_same_result(context: CommandContext) -> None:
    assert (await run_command_async(["true"], context)).exit_code == 0
    with pytest.raises(CommandFailed, match="exit code 1"):
        await run_command_async(["false"], context)


async def test_an_awaited_command_does_not_block_the_loop(context: CommandContext, fifo: Fifo) -> None:
    command = asyncio.create_task(run_command_async(["cat", fifo.path], context))
    await asyncio.to_thread(fifo.path.write_text, "from the loop\n")
    await command
    assert printed_in(context) == ["from the loop"]


async def test_a_command_is_gone_when_its_awaiting_was_cancelled(context: CommandContext, fifo: Fifo) -> None:
    script = f"trap '' TERM; echo $$ > {fifo.path}; sleep 1000"
    impatient = replace(context, grace=0.1)
    command = asyncio.create_task(run_command_async(script, impatient, shell=True))
    (pid,) = await asyncio.to_thread(fifo.numbers)
    command.cancel()
    await asyncio.sleep(0)
    command.cancel()  # whoever insists still gets an ended command
    with pytest.raises(asyncio.CancelledError):
        await command
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_time_limit_of_the_handler_s_own_ends_the_command(context: CommandContext) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_command_async(["sleep", "1000"], context), 0.2)
    assert "signal SIGTERM" in text_of(context)


async def test_many_commands_run_at_a_time_and_leave_nothing(context: CommandContext, fifo: Fifo) -> None:
    await run_command_async(["true"], context)
    before = open_descriptors()
    release = context.work_directory / "release"
    os.mkfifo(release)
    with fifo.path.open("r+b", buffering=0) as told, release.open("r+b", buffering=0) as released:
        script = f"echo x > {fifo.path}; read y < release"
        commands = [asyncio.create_task(run_command_async(script, context, shell=True)) for _ in range(50)]
        await asyncio.to_thread(_read_lines, told, 50)  # now all of them are running
        released.write(b"y\n" * 50)
        results = await asyncio.gather(*commands)
    assert [each.exit_code for each in results] == [0] * 50
    wait_for_command_threads()
    assert open_descriptors() <= before


def _read_lines(file: RawIOBase, count: int) -> None:
    while count:
        count -= (file.read(100) or b"").count(b"\n")


WORKER = """
import sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
from dataclasses import replace
from tests.worker.running_commands import context_in
from taskqueue_client.worker.cancelled import Cancelled
from taskqueue_client.worker.command import run_command
{before}
class Followed(Cancelled):
    def is_set(self):  # first asked when the command is watched
        Path({watched!r}).write_text("1\\n")
        self.is_set = super().is_set
        return False
with context_in(Path({directory!r})) as context:
    context = replace(context, cancelled=Followed())
    run_command("sh -c 'echo $$ $PPID > {fifo}; exec sleep 1000'", context, shell=True)
"""


@pytest.fixture
def watched(tmp_path: Path) -> Fifo:
    """Tells that a worker's command is being watched."""
    (tmp_path / "watched").mkdir()
    return Fifo(tmp_path / "watched")


@pytest.fixture
def start_worker(
    tmp_path: Path, fifo: Fifo, watched: Fifo
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a process that runs a command; what it leaves is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(before: str = "") -> subprocess.Popen[bytes]:
        code = WORKER.format(
            tests=str(Path(__file__).parent),
            directory=str(tmp_path),
            fifo=fifo.path,
            watched=str(watched.path),
            before=before,
        )
        started.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        return started[-1]

    yield start
    for each in started:
        os.killpg(each.pid, signal.SIGKILL)  # not reaped yet, so that it is still this very group
        each.wait()


def test_a_killed_worker_s_command_is_killed(
    start_worker: Callable[[str], subprocess.Popen[bytes]], fifo: Fifo, watched: Fifo
) -> None:
    worker = start_worker("")
    pids = fifo.numbers()
    watched.numbers()
    worker.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_a_killed_worker_s_command_is_killed_even_if_a_child_of_the_worker_lives_on(
    start_worker: Callable[[str], subprocess.Popen[bytes]], fifo: Fifo, watched: Fifo
) -> None:
    """A process that was forked later has the worker's end of the guardian's pipe, too."""
    fork = """
from taskqueue_client.worker import guardian
import os, signal
tell = guardian._write
def tell_and_fork(*args):
    tell(*args)
    if os.fork() == 0:
        signal.pause()
guardian._write = tell_and_fork
"""
    worker = start_worker(fork)
    pids = fifo.numbers()
    watched.numbers()
    worker.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_a_command_is_killed_even_if_its_worker_is_killed_while_it_starts(
    start_worker: Callable[[str], subprocess.Popen[bytes]], fifo: Fifo
) -> None:
    stop_before_it_is_known = """
from taskqueue_client.worker.guardian import Guardian
import signal
change = Guardian._change
def stop_or_change(self, *, add=None, remove=None):
    if add and remove:
        signal.pause()
    change(self, add=add, remove=remove)
Guardian._change = stop_or_change
"""
    worker = start_worker(stop_before_it_is_known)
    pids = fifo.numbers()
    worker.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_a_guardian_that_was_killed_is_replaced(context: CommandContext) -> None:
    run_command(["true"], context)
    (first,) = guardians()
    os.kill(first, signal.SIGKILL)
    wait_until_gone(first)
    run_command(["true"], context)
    (second,) = guardians()
    assert second != first
    context.guardian.close()
    assert guardians() == []


def test_a_guardian_ends_though_a_child_of_the_worker_holds_its_input_open(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that a handler has forked."""
    held: list[int] = []
    start = guardian._started  # pyright: ignore[reportPrivateUsage]

    def start_and_hold() -> subprocess.Popen[bytes]:
        process = start()
        assert process.stdin is not None
        held.append(os.dup(process.stdin.fileno()))
        return process

    monkeypatch.setattr(guardian, "_started", start_and_hold)
    run_command(["true"], context)
    closing = threading.Thread(target=context.guardian.close, daemon=True)
    closing.start()
    closing.join(30)
    is_closed = not closing.is_alive()
    for each in held:
        os.close(each)
    assert is_closed
    assert guardians() == []


def test_without_a_guardian_commands_run_and_a_warning_says_what_that_means(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert run_command(["true"], context).exit_code == 0
    assert "commands would outlive this worker if it was killed" in caplog.text
