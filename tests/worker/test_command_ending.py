"""How commands end: if their run is canceled, by a time limit, a cancelled coroutine or a killed worker."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import FileIO, RawIOBase
from pathlib import Path
from typing import IO, Any

import pytest

from taskqueue_client import slugid
from taskqueue_client.worker.commands import (
    command_process,
    guardian_process,
    linux_processes,
    run_processes,
)
from taskqueue_client.worker.commands.command import (
    CommandContext,
    CommandFailed,
    CommandNotStarted,
    CommandTimedOut,
    run_command,
    run_command_async,
)
from taskqueue_client.worker.commands.command_process import ProcessTree, end_processes
from taskqueue_client.worker.commands.linux_processes import ControlGroup, path_of
from taskqueue_client.worker.commands.run_processes import MARK, RunProcesses, kill_marked
from taskqueue_client.worker.outcomes import ClaimLost, InternalError, TaskFailed, WorkerShutdown
from tests.artifacts.conftest import file_size_limit
from tests.worker.queue_world import until
from tests.worker.running_commands import (
    Fifo,
    guardians,
    open_descriptors,
    printed_in,
    text_of,
    wait_for_command_threads,
    wait_until_gone,
)

PATH = {"PATH": os.environ["PATH"]}

IGNORES_SIGTERM = "trap '' TERM; while :; do sleep 1000; done"


@pytest.fixture
def impatient(context: CommandContext) -> CommandContext:
    return replace(context, grace=0.1)


@pytest.fixture
def fifo(tmp_path: Path) -> Fifo:
    return Fifo(tmp_path)


def cancel_when_told(context: CommandContext, fifo: Fifo, script: str) -> list[int]:
    """Run a script; cancel its run as soon as it has written process ids to the FIFO; return the ids."""
    pids: list[int] = []

    def cancel() -> None:
        pids.extend(fifo.numbers())
        context.canceled.cancel(ClaimLost("canceled"))

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(ClaimLost, match=r"^canceled$"):
        run_command(script, context, shell=True)
    canceller.join()
    return pids


def test_a_cancelled_run_s_command_ends_with_all_its_descendants(context: CommandContext, fifo: Fifo) -> None:
    pids = cancel_when_told(context, fifo, f"sleep 1000 & echo $$ $! > {fifo.word}; sleep 1000")
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def test_a_descendant_that_left_the_session_ends_too(context: CommandContext, fifo: Fifo) -> None:
    script = f"setsid sh -c 'echo $$ > {fifo.word}; exec sleep 1000' & wait"
    (pid,) = cancel_when_told(context, fifo, script)
    wait_until_gone(pid)


def test_a_tree_that_ignores_sigterm_is_killed(impatient: CommandContext, fifo: Fifo) -> None:
    script = f"trap '' TERM; sh -c \"{IGNORES_SIGTERM}\" & echo $$ $! > {fifo.word}; {IGNORES_SIGTERM}"
    for pid in cancel_when_told(impatient, fifo, script):
        wait_until_gone(pid)
    assert "signal SIGKILL" in text_of(impatient)


def test_a_command_can_clean_up_and_say_so_when_it_is_asked_to_end(
    context: CommandContext, fifo: Fifo
) -> None:
    # the child is forked before the trap is set: until it becomes `sleep`, it would have the trap, too
    script = f"sleep 1000 & trap 'echo cleaned up; exit 0' TERM; echo $$ > {fifo.word}; wait"
    cancel_when_told(context, fifo, script)
    assert "cleaned up" in printed_in(context)
    assert "exit code 0" in text_of(context)


def test_a_command_can_print_more_than_a_pipe_holds_when_it_is_asked_to_end(
    context: CommandContext, fifo: Fifo
) -> None:
    script = f"sleep 1000 & trap 'head -c 300000 /dev/zero; exit 0' TERM; echo $$ > {fifo.word}; wait"
    cancel_when_told(context, fifo, script)
    assert "exit code 0" in text_of(context)


@contextmanager
def shell(script: str, argument: str) -> Generator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """Yield a shell that leads a session and has printed an empty line, its standard input and output."""
    command = ["sh", "-c", script, "sh", argument]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        try:
            yield process, process.stdin, process.stdout
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def end_and_do(process: subprocess.Popen[str], *meanwhile: Callable[[], object]) -> None:
    """End a shell with its children; call the next of `meanwhile` after each look for processes."""
    rest = iter(meanwhile)

    def wait() -> None:
        next(rest, os.getpid)()

    end_processes(ProcessTree(process.pid).survivors, 30, wait)


def test_a_process_that_cannot_be_killed_does_not_count_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_process, "GONE_WITHIN", 0)
    with subprocess.Popen(["sleep", "1000"]) as process:
        assert end_processes(lambda: [process.pid], 0, os.getpid) == 0


def test_a_process_of_another_user_does_not_keep_the_others_from_being_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_process, "GONE_WITHIN", 0)
    send = os.kill

    with subprocess.Popen(["sleep", "1000"]) as others, subprocess.Popen(["sleep", "1000"]) as process:

        def kill(pid: int, number: int) -> None:
            if pid == others.pid:
                raise PermissionError
            send(pid, number)

        monkeypatch.setattr(os, "kill", kill)
        try:
            end_processes(lambda: [others.pid, process.pid], 0, os.getpid)
        finally:
            for each in (others, process):
                send(each.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGTERM


def test_processes_that_were_asked_to_end_and_those_that_were_killed_count_as_ended() -> None:
    stubborn = "trap '' TERM; echo; exec sleep 1000"
    with (
        subprocess.Popen(["sleep", "1000"]) as asked,
        subprocess.Popen(["sh", "-c", stubborn], stdout=subprocess.PIPE) as killed,
    ):
        assert killed.stdout is not None
        killed.stdout.readline()

        def living() -> list[int]:
            return [each.pid for each in (asked, killed) if each.poll() is None]

        try:
            assert end_processes(living, 0, asked.wait) == 2
        finally:
            for each in (asked, killed):
                each.kill()


def test_a_command_that_proc_does_not_show_is_ended_too(
    context: CommandContext, fifo: Fifo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if /proc is mounted with `hidepid`, and the command has changed its user."""

    def shown() -> Iterator[linux_processes.Process]:
        return iter([])

    monkeypatch.setattr(linux_processes, "living", shown)
    (pid,) = cancel_when_told(context, fifo, f"echo $$ > {fifo.word}; exec sleep 1000")
    assert "signal SIGTERM" in text_of(context)
    wait_until_gone(pid)


def test_a_look_at_a_process_group_sends_no_signal() -> None:
    with shell("trap 'exit 1' HUP; trap 'exit 0' TERM; echo; read line", "") as (process, _, _):
        assert ProcessTree(process.pid).has_group()
        process.terminate()
        assert process.wait(30) == 0


def test_programs_that_a_command_starts_to_clean_up_are_not_asked_to_end() -> None:
    script = "sleep 1000 & trap 'sh -c \"$1\"; exit 0' TERM; echo; wait"
    with shell(script, "echo starts; read line; echo has cleaned up") as (process, entry, output):
        end_and_do(process, output.readline, os.getpid, entry.close)
        assert output.read() == "has cleaned up\n"
        assert process.wait(30) == 0


def test_a_program_that_was_started_to_clean_up_is_asked_to_end_once_its_parent_has_ended() -> None:
    script = "sleep 1000 & trap 'sh -c \"$1\" & read line; exit 0' TERM; echo; wait"
    left = "sleep 1000 & trap 'echo was asked; exit 0' TERM; echo starts; wait"
    with shell(script, left) as (process, entry, output):
        end_and_do(process, output.readline, entry.close, process.wait)
        assert output.read() == "was asked\n"


def test_a_stopped_process_can_clean_up_when_it_is_asked_to_end() -> None:
    script = "trap 'echo has cleaned up; exit 0' TERM; echo; kill -STOP $$; :"
    with shell(script, "") as (process, _, output):
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        end_and_do(process)
        assert output.read() == "has cleaned up\n"
        assert process.wait(30) == 0


def test_a_command_is_not_started_in_a_run_that_is_cancelled(context: CommandContext) -> None:
    context.canceled.cancel(WorkerShutdown("leaving"))
    with pytest.raises(WorkerShutdown):
        run_command(["touch", "started"], context)
    assert not (context.work_directory / "started").exists()


@pytest.mark.parametrize("timeout", [0.2, "0 minutes"])
def test_a_command_over_its_time_limit_is_ended_and_the_task_has_failed(
    context: CommandContext, timeout: float | str
) -> None:
    with pytest.raises(TaskFailed, match="took longer than its time limit") as caught:
        run_command(["sleep", "1000"], context, timeout=timeout, check=False)
    assert isinstance(caught.value, CommandTimedOut)
    assert caught.value.result.signal == signal.SIGTERM


def test_a_command_that_prints_without_a_pause_is_ended_in_time(context: CommandContext) -> None:
    with pytest.raises(CommandTimedOut):
        run_command(["yes"], context, timeout=0.2)


def test_processes_that_a_command_leaves_in_its_group_are_ended_and_logged(
    context: CommandContext, fifo: Fifo
) -> None:
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(fifo.numbers)
        run_command(f"sleep 1000 & echo $! > {fifo.word}", context, shell=True)
    wait_until_gone(told.result()[0])
    assert "WARNING ended processes that /bin/sh had left running" in text_of(context)


def daemon(script: str) -> str:
    """Return a command that leaves a process running in another session, without its parent."""
    return f"setsid sh -c {shlex.quote(script)} & read x < left"


def start_daemon(context: CommandContext, fifo: Fifo, *, keep_children: bool = False) -> int:
    """Have a command leave a daemon running; return its process id."""
    os.mkfifo(context.work_directory / "left")
    script = f"echo > left; echo $$ > {fifo.word}; exec sleep 1000 >/dev/null 2>&1"
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(fifo.numbers)
        run_command(daemon(script), context, shell=True, keep_children=keep_children)
    (pid,) = told.result()
    return pid


@pytest.fixture
def no_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> None:
        """Create none, as if this process may not."""

    monkeypatch.setattr(ControlGroup, "create", none)


@pytest.mark.usefixtures("no_control_groups")
def test_a_daemon_that_a_command_has_left_is_ended_with_the_run_by_the_mark_in_its_environment(
    context: CommandContext, fifo: Fifo, tmp_path: Path
) -> None:
    pid = start_daemon(context, fifo)
    assert RunProcesses(f"{tmp_path}/another", context.guardian).end(0) == 0
    os.kill(pid, 0)  # it is still running between commands
    assert context.processes.end(30) == 1
    wait_until_gone(pid)
    assert context.processes.end(30) == 0


def test_commands_that_have_left_a_process_do_not_end_at_once(context: CommandContext, fifo: Fifo) -> None:
    pid = start_daemon(context, fifo)
    assert not context.processes.end_at_once()
    os.kill(pid, 0)
    with pytest.raises(InternalError, match="no more commands can be run"):
        run_command(["true"], context)
    assert context.processes.end(30) == 1


def test_commands_that_have_left_no_process_end_at_once(context: CommandContext) -> None:
    run_command(["true"], context)
    assert context.processes.end_at_once()
    assert not ControlGroup.existing(context.guardian.control_groups)
    assert context.processes.end(30) == 0
    with pytest.raises(InternalError, match="no more commands can be run"):
        run_command(["true"], context)


@pytest.mark.usefixtures("no_control_groups")
def test_a_process_with_a_large_environment_is_found(context: CommandContext, tmp_path: Path) -> None:
    processes = RunProcesses(f"{tmp_path}/large", context.guardian)
    processes.watch()
    padding = {f"PADDING_{number}": "x" * 100_000 for number in range(3)}
    with subprocess.Popen(["sleep", "1000"], env={**padding, **processes.variable}) as process:
        assert processes.end(30) == 1
    assert process.returncode == -signal.SIGTERM


@pytest.mark.usefixtures("no_control_groups")
def test_only_processes_that_have_started_since_the_run_are_looked_at(
    context: CommandContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_marked(f"{tmp_path}/nobody")
    processes = RunProcesses(f"{tmp_path}/later", context.guardian)
    processes.watch()
    looked_at: list[int] = []
    look = linux_processes.environment

    def note_and_look(pid: int) -> bytes:
        looked_at.append(pid)
        return look(pid)

    monkeypatch.setattr(linux_processes, "environment", note_and_look)
    with subprocess.Popen(["sleep", "1000"], env=processes.variable) as process:
        assert processes.end(30) == 1
    assert process.pid in looked_at
    assert os.getppid() not in looked_at


def test_a_process_with_the_pid_of_one_that_has_ended_is_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux_processes, "PROC", tmp_path)
    listing = linux_processes.Listing()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    for name in ("1", "77"):
        (tmp_path / name).mkdir()
    assert listing.look(1) == {1, 77}
    assert listing.look(2) == set()
    (tmp_path / "77").rename(tmp_path / "ended")  # kept, so that the new directory has another inode
    (tmp_path / "77").mkdir()
    assert listing.look(3) == {77}
    assert listing.look(3) == {77}
    assert listing.look(4) == set()


def list_only(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    def pids(_: int) -> Iterator[int]:
        return iter([pid])

    monkeypatch.setattr(linux_processes, "pids", pids)


def test_a_process_that_is_about_to_start_its_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):  # about half have no environment yet when Popen returns
        mark = f"{os.getpid()}-starting-{number}"
        with subprocess.Popen(["sleep", "1000"], env={MARK: mark}) as process:
            list_only(monkeypatch, process.pid)  # so that no time passes before it is looked at
            try:
                kill_marked(mark)
                assert process.poll() == -signal.SIGTERM
            finally:
                process.kill()


def hide_environments(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Refuse the first `times` reads of environments; return the list to which each read is added."""
    looks = list[str]()

    def open_or_refuse(path: str, *_: object, **__: object) -> FileIO:
        if path.endswith("/environ"):
            looks.append(path)
            if len(looks) <= times:
                raise PermissionError
        return FileIO(path)

    monkeypatch.setattr(linux_processes, "open", open_or_refuse, raising=False)
    return looks


def test_a_child_that_is_hidden_until_its_program_has_started_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As are children of a protected worker, unless it may trace any process."""
    mark = f"{os.getpid()}-hidden-at-first"
    with subprocess.Popen(["sleep", "1000"], env={MARK: mark}) as process:
        list_only(monkeypatch, process.pid)
        hide_environments(monkeypatch, times=3)
        try:
            kill_marked(mark)
            assert process.poll() == -signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize("other", ["user", "age"])
def test_another_user_s_or_older_process_that_is_hidden_is_looked_at_only_once(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        list_only(monkeypatch, process.pid)
        looks = hide_environments(monkeypatch, times=1000)
        if other == "user":
            monkeypatch.setattr(os, "getuid", lambda: 54321)
        else:
            monkeypatch.setattr(linux_processes, "STARTING", 0)
        try:
            kill_marked("any")
            assert len(looks) == 1
        finally:
            process.kill()


def test_a_process_that_starts_its_program_while_it_is_looked_at_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = f"{os.getpid()}-starts-meanwhile"
    script = ["sh", "-c", "read line; exec sleep 1000"]
    with subprocess.Popen(script, env={MARK: mark, **PATH}, stdin=subprocess.PIPE) as process:
        directory = Path(f"/proc/{process.pid}")

        def open_and_start(path: str, *_: object, **__: object) -> FileIO:
            opened = FileIO(path)
            if path == f"{directory}/environ" and process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
                while not (directory / "cmdline").read_bytes().startswith(b"sleep") or not has_environment():
                    pass
            return opened

        def has_environment() -> bool:
            return mark.encode() in (directory / "environ").read_bytes()

        monkeypatch.setattr(linux_processes, "open", open_and_start, raising=False)
        list_only(monkeypatch, process.pid)
        try:
            kill_marked(mark)
            assert process.poll() == -signal.SIGTERM
        finally:
            process.kill()


def test_a_process_whose_parent_ends_while_processes_are_looked_for_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, mark = linux_processes.environment, f"{os.getpid()}-forks-meanwhile"
    script = ["sh", "-c", "read line; sleep 1000 >&- 2>&- & echo $!"]
    with subprocess.Popen(
        script, env={MARK: mark, **PATH}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        daemons: list[int] = []

        def let_end_and_look(pid: int) -> bytes:
            if pid == process.pid and not daemons:
                daemons.append(int(process.communicate()[0]))
            return look(pid)

        monkeypatch.setattr(linux_processes, "environment", let_end_and_look)
        kill_marked(mark)
    (daemon,) = daemons
    try:
        wait_until_gone(daemon)
    finally:
        with suppress(ProcessLookupError):
            os.kill(daemon, signal.SIGKILL)


@pytest.mark.usefixtures("no_control_groups")
def test_a_daemon_that_cannot_be_looked_for_without_free_descriptors_ends_with_the_worker(
    context: CommandContext, fifo: Fifo
) -> None:
    pid = start_daemon(context, fifo)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            context.processes.end(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    context.guardian.close()
    wait_until_gone(pid)


@pytest.mark.usefixtures("no_control_groups")
def test_a_daemon_of_a_run_that_the_worker_gives_up_ends_with_the_worker(
    context: CommandContext, fifo: Fifo
) -> None:
    pid = start_daemon(context, fifo)
    context.guardian.close()
    wait_until_gone(pid)


@pytest.mark.usefixtures("no_control_groups")
def test_a_daemon_that_ignores_sigterm_is_killed(context: CommandContext, fifo: Fifo) -> None:
    os.mkfifo(context.work_directory / "left")
    script = f"trap '' TERM; echo > left; echo $$ > {fifo.word}; while :; do sleep 1000; done"
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(fifo.numbers)
        run_command(daemon(script), context, shell=True)
    (pid,) = told.result()
    assert context.processes.end(0.1) >= 1
    wait_until_gone(pid)


@pytest.fixture
def control_groups() -> None:
    """Skip the test if this process may not create control groups."""
    new_control_group().remove()


def new_control_group() -> ControlGroup:
    group = ControlGroup.create(f"taskqueue-{slugid()}")
    if group is None:
        pytest.skip("this process may not create control groups (version 2)")
    return group


def start_daemon_without_environment(context: CommandContext, fifo: Fifo) -> int:
    os.mkfifo(context.work_directory / "left")
    script = f"env -i {daemon(f'echo > left; echo $$ > {fifo.word}; exec sleep 1000')}"
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(fifo.numbers)
        run_command(script, context, shell=True)
    (pid,) = told.result()
    return pid


@pytest.mark.usefixtures("control_groups")
def test_a_daemon_that_has_cleared_its_environment_is_ended_by_its_control_group(
    context: CommandContext, fifo: Fifo
) -> None:
    pid = start_daemon_without_environment(context, fifo)
    assert context.processes.end(30) == 1
    wait_until_gone(pid)


@pytest.mark.usefixtures("control_groups")
def test_a_daemon_that_has_cleared_its_environment_ends_with_the_worker(
    context: CommandContext, fifo: Fifo
) -> None:
    pid = start_daemon_without_environment(context, fifo)
    group = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("/")[2]
    context.guardian.close()
    wait_until_gone(pid)
    assert group.startswith(context.guardian.control_groups)
    assert not Path(path_of(group) or "").exists()


@pytest.mark.usefixtures("control_groups")
def test_a_daemon_that_has_cleared_its_environment_is_killed_by_the_next_worker(
    context: CommandContext, fifo: Fifo, tmp_path: Path
) -> None:
    """As if both the worker and its guardian process were killed."""
    pid = start_daemon_without_environment(context, fifo)
    group = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition("/")[2]
    kill_marked(f"{tmp_path}/another/")
    assert Path(f"/proc/{pid}").exists()
    kill_marked(f"{tmp_path}/")
    wait_until_gone(pid)
    assert not Path(path_of(group) or "").exists()


def group_of_this_thread() -> str:
    return Path("/proc/thread-self/cgroup").read_text()


@pytest.mark.usefixtures("control_groups")
@pytest.mark.parametrize("program", ["true", "no-such-program"])
def test_a_thread_that_has_started_a_command_is_in_the_workers_control_group_again(
    context: CommandContext, program: str
) -> None:
    before = group_of_this_thread()
    with suppress(CommandNotStarted):
        run_command([program], context)
    assert group_of_this_thread() == before


def test_what_a_thread_starts_is_in_its_control_group_but_the_thread_does_not_count() -> None:
    group = new_control_group()
    script = "env -i setsid sh -c 'sleep 1000 & echo $$ $!; wait' & wait"
    with group.entered():
        assert group.processes() == []
        process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        descendants = [int(each) for each in process.stdout.readline().split()]
        found = group.processes()
        group.remove()
    for pid in descendants:
        wait_until_gone(pid)
    group.remove()
    assert found == sorted([process.pid, *descendants])
    assert not Path(group.path).exists()


BOMB = "while :; do sleep 0.01 & done"


def test_a_process_that_starts_others_without_end_is_killed_with_its_control_group() -> None:
    group = new_control_group()
    command = ["sh", "-c", f"env -i setsid sh -c '{BOMB}' & echo; wait"]
    with group.entered():
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        group.remove()
    assert group.processes() == []
    assert not Path(group.path).exists()


def test_a_guardian_kills_a_process_that_starts_others_without_end() -> None:
    group = new_control_group()
    with group.entered():
        process = subprocess.Popen(["sh", "-c", f"echo; {BOMB}"], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        guardian_process._kill_group(group.path, 0)  # pyright: ignore[reportPrivateUsage]
    assert group.processes() == []
    group.remove()


def test_commands_can_be_started_when_their_control_group_is_gone() -> None:
    group = new_control_group()
    group.remove()
    before = group_of_this_thread()
    with group.entered():
        assert group_of_this_thread() == before
        assert subprocess.run(["true"], check=True).returncode == 0


def test_a_control_group_in_which_processes_could_not_be_is_not_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel refuses threaded groups beside others that have processes, except in the root."""
    new_control_group().remove()

    def refuse(path: str, _: bytes) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported", path)

    monkeypatch.setattr(linux_processes, "_write", refuse)
    name = f"taskqueue-{slugid()}"
    assert ControlGroup.create(name) is None
    assert ControlGroup.existing(name) == []


def test_the_processes_of_a_control_group_are_unknown_with_the_proc_of_another_pid_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = new_control_group()
    with group.entered():
        process = subprocess.Popen(["sleep", "1000"])
    with process, monkeypatch.context() as patched:
        patched.setattr(linux_processes, "PROC", tmp_path)
        (tmp_path / "self").symlink_to("1")
        (tmp_path / str(process.pid)).mkdir()
        (tmp_path / f"{process.pid}/status").write_text(f"Name:\tother\nTgid:\t{process.pid}\n")
        found = group.processes()
        process.kill()
    group.remove()
    assert found == []


IN_ITS_GROUP = """
import sys
from taskqueue_client.worker.commands.linux_processes import ControlGroup

with ControlGroup(sys.argv[1]).entered():
    print(flush=True)
    print(sys.stdin.readline())
"""


def test_a_guardian_leaves_a_thread_of_the_worker_in_a_control_group_alone() -> None:
    group = new_control_group()
    command = [sys.executable, "-c", IN_ITS_GROUP, group.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert guardian_process._kill_group(group.path, worker.pid)  # pyright: ignore[reportPrivateUsage]
        output, _ = worker.communicate(b"alive\n", 30)
    group.remove()
    assert output == b"alive\n\n"


BESIDE_A_MOUNT = """
import os, subprocess, sys
from taskqueue_client import TaskRun, WorkerLoop
from taskqueue_client.testing import run_handler

class Worker(WorkerLoop):
    def run_task(self, task: TaskRun) -> None:
        task.run_command(["true"])

place = os.fsencode(sys.argv[1]) + b"/caf\\xe9 \\x0b"  # Latin-1, and what is a line's end for str.splitlines
os.mkdir(place)
subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
print(run_handler(Worker, {}).outcome)
"""


def test_a_file_system_may_be_mounted_at_a_path_of_any_bytes(tmp_path: Path) -> None:
    namespaces = ["unshare", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*namespaces, "true"], check=False).returncode:
        pytest.skip("this user cannot make namespaces, in which to mount something")
    strict = ["-X", "warn_default_encoding", "-W", "error"]  # text files must be opened with an encoding
    program: list[str | Path] = [*namespaces, sys.executable, *strict, "-c", BESIDE_A_MOUNT, tmp_path]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "completed\n"


def test_a_daemon_is_kept_on_request(context: CommandContext, fifo: Fifo) -> None:
    pid = start_daemon(context, fifo, keep_children=True)
    try:
        assert context.processes.end(0) == 0
        context.guardian.close()
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_child_in_the_command_s_group_is_kept_on_request(context: CommandContext, fifo: Fifo) -> None:
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(fifo.numbers)
        script = f"sleep 1000 >/dev/null 2>&1 & echo $! > {fifo.word}"
        run_command(script, context, shell=True, keep_children=True)
    (pid,) = told.result()
    assert pid in [each.pid for each in linux_processes.living()]  # so it is not a zombie
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("shown", ["missing", "empty", "foreign"])
def test_without_a_proc_of_its_own_a_worker_ends_the_process_group(
    context: CommandContext, fifo: Fifo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """In a chroot, /proc may be empty. In a PID namespace, it may have the ids of the outer namespace."""
    monkeypatch.setattr(linux_processes, "PROC", tmp_path / shown)
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign" / "1").mkdir(parents=True)
    (tmp_path / "foreign" / "self").symlink_to("1")
    for pid in cancel_when_told(context, fifo, f"sleep 1000 & echo $$ $! > {fifo.word}; sleep 1000"):
        wait_until_gone(pid)
    assert context.processes.end(0) == 0


FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=[1000]).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], start_new_session=True) as process:
        stat, tree = Path(f"/proc/{process.pid}/stat"), ProcessTree(process.pid)
        try:
            until(lambda: " Z " in stat.read_text())
            found = tree.survivors()
        finally:
            process.kill()
    assert found == [process.pid]
    assert tree.survivors() == []


def test_a_zombie_does_not_count_as_alive() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    tree = ProcessTree(child.pid)
    assert tree.has_group()
    assert tree.survivors() == []
    child.wait()


def test_a_zombie_that_a_command_leaves_is_not_reported_as_a_process_that_was_ended(
    context: CommandContext, adopting_orphans: None, tmp_path: Path
) -> None:
    del adopting_orphans
    fork = "import os; pid = os.fork() or os._exit(0); os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)"
    noted = tmp_path / "pid"
    run_command([sys.executable, "-c", f"{fork}; open({str(noted)!r}, 'w').write(str(pid))"], context)
    os.waitpid(int(noted.read_text()), 0)
    assert "had left running" not in text_of(context)


@pytest.fixture
def adopting_orphans() -> Iterator[None]:
    """Make this process adopt orphans and leave them zombies, as the first process of a container does."""
    subreaper, libc = 36, ctypes.CDLL(None)
    libc.prctl(subreaper, 1, 0, 0, 0)
    yield
    libc.prctl(subreaper, 0, 0, 0, 0)


def test_parents_precede_their_children_so_that_they_get_the_signal_first(fifo: Fifo) -> None:
    child = 'if [ $1 -gt 0 ]; then sh -c "$0" "$0" $(($1 - 1)) & else sleep 1000 & fi'
    script = f"{child}; echo $$ >> {fifo.word}; wait"
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


def test_a_parent_precedes_a_child_that_has_left_the_session() -> None:
    with shell("setsid sh -c 'echo; exec sleep 1000' & wait", "") as (process, _, _):
        survivors = ProcessTree(process.pid).survivors()
        end_and_do(process)
    assert survivors[0] == process.pid
    assert len(survivors) == 2


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


async def test_a_command_whose_awaiting_is_cancelled_has_ended_when_the_cancellation_is_raised(
    context: CommandContext, fifo: Fifo
) -> None:
    script = f"trap '' TERM; echo $$ > {fifo.word}; sleep 1000"
    impatient = replace(context, grace=0.1)
    command = asyncio.create_task(run_command_async(script, impatient, shell=True))
    (pid,) = await asyncio.to_thread(fifo.numbers)
    command.cancel()
    await asyncio.sleep(0)
    command.cancel()  # also if it is cancelled twice, the command has ended
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
        script = f"echo x > {fifo.word}; read y < release"
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
sys.path.insert(0, {package!r})
from pathlib import Path
from dataclasses import replace
from tests.worker.running_commands import context_in
from taskqueue_client.worker.outcomes import Canceled
from taskqueue_client.worker.commands.command import run_command
{before}
class Followed(Canceled):
    def is_set(self):  # first asked when the command is watched
        Path({watched!r}).write_text("1\\n")
        self.is_set = super().is_set
        return False
with context_in(Path({directory!r})) as context:
    context = replace(context, canceled=Followed())
    run_command(r"sh -c 'echo $$ $PPID > {fifo}; exec sleep 1000'", context, shell=True)
"""


@pytest.fixture
def watched(tmp_path: Path) -> Fifo:
    """Return a FIFO that gets a line as soon as the worker watches its command."""
    (tmp_path / "watched").mkdir()
    return Fifo(tmp_path / "watched")


@pytest.fixture
def start_worker(
    tmp_path: Path, fifo: Fifo, watched: Fifo
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Return a function that starts a process, which runs a command; kill what is left at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(before: str = "", package: Path = Path(__file__).parent) -> subprocess.Popen[bytes]:
        code = WORKER.format(
            package=str(package),
            directory=str(tmp_path),
            fifo=fifo.word,
            watched=str(watched.path),
            before=before,
        )
        started.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        return started[-1]

    yield start
    for each in started:
        os.killpg(each.pid, signal.SIGKILL)  # not reaped yet, so no other group has its number
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


def test_a_command_of_a_worker_in_a_zip_file_is_killed_too(
    start_worker: Callable[..., subprocess.Popen[bytes]], fifo: Fifo, watched: Fifo, zipped_package: Path
) -> None:
    worker = start_worker(package=zipped_package)
    pids = fifo.numbers()
    watched.numbers()
    worker.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_a_killed_worker_s_command_is_killed_even_if_a_child_of_the_worker_lives_on(
    start_worker: Callable[[str], subprocess.Popen[bytes]], fifo: Fifo, watched: Fifo
) -> None:
    """The child inherits the worker's end of the pipe to the guardian."""
    fork = """
from taskqueue_client.worker.commands.run_processes import Guardian
import os, signal
add = Guardian.add
def add_and_fork(self, group):
    add(self, group)
    if os.fork() == 0:
        signal.pause()
Guardian.add = add_and_fork
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
from taskqueue_client.worker.commands.run_processes import Guardian
import signal
def stop(self, group):
    signal.pause()
Guardian.add = stop
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


def test_a_guardian_outlives_signals_that_ask_all_processes_of_a_service_to_end(
    context: CommandContext,
) -> None:
    """The worker gets these signals, too, and may finish its runs."""
    run_command(["true"], context)
    guardian = context.guardian._process  # pyright: ignore[reportPrivateUsage]
    assert guardian is not None
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        guardian.send_signal(number)
    context.guardian.close()
    assert guardian.returncode == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_guardian_that_somebody_has_stopped_does_not_keep_the_worker_from_ending(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_processes, "GUARDIAN_ENDS_WITHIN", 0.1)
    run_command(["true"], context)
    guardian = context.guardian._process  # pyright: ignore[reportPrivateUsage]
    assert guardian is not None
    guardian.send_signal(signal.SIGSTOP)
    context.guardian.close()
    assert guardian.returncode == -signal.SIGKILL


def test_a_guardian_that_somebody_has_stopped_does_not_block_commands(context: CommandContext) -> None:
    run_command(["true"], context)
    (stopped,) = guardians()
    os.kill(stopped, signal.SIGSTOP)
    groups = range(2**30, 2**30 + 2_500)  # larger than any process id
    for _ in range(2):  # 10,000 changes are more than a pipe would hold
        for each in groups:
            context.guardian.add(each)
        for each in groups:
            context.guardian.remove(each)
    os.kill(stopped, signal.SIGCONT)
    context.guardian.close()


WITHOUT_STANDARD_INPUT = """
import os, sys
from pathlib import Path
from tests.worker.running_commands import context_in
with context_in(Path(sys.argv[1])) as context:
    os.close(0)
    context.guardian.begin_run("NAME=run")  # the first file that it opens has the number 0
    context.guardian.end_run("NAME=run")
"""


def test_a_guardian_works_though_the_worker_has_no_standard_input(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_STANDARD_INPUT, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_a_guardian_ends_though_a_child_of_the_worker_has_its_input_open(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As children do that a handler has forked."""
    held: list[int] = []
    start = run_processes._started  # pyright: ignore[reportPrivateUsage]

    def start_and_hold(*args: Any) -> subprocess.Popen[bytes]:
        process = start(*args)
        assert process.stdin is not None
        held.append(os.dup(process.stdin.fileno()))
        return process

    monkeypatch.setattr(run_processes, "_started", start_and_hold)
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
    for _ in range(2):
        assert run_command(["true"], context).exit_code == 0
    assert caplog.text.count("commands will outlive this worker if it is killed") == 1


def test_where_new_system_calls_are_forbidden_a_guardian_does_without(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in old container engines, which forbid system calls that they do not know."""

    def forbidden(_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    monkeypatch.setattr(os, "memfd_create", forbidden)
    assert run_command(["true"], context).exit_code == 0
    assert len(guardians()) == 1
    assert caplog.text == ""


def test_on_a_full_disk_commands_run_and_a_warning_says_what_that_means(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(_: str) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    for _ in range(2):
        with file_size_limit(0):
            assert run_command(["true"], context).exit_code == 0
    assert len(guardians()) == 1
    assert caplog.text.count("commands may outlive this worker if it is killed") == 1


def test_a_guardian_never_takes_a_number_for_all_processes(tmp_path: Path) -> None:
    """Killing group 1 would kill all processes, and 0 the guardian's own; no command has these numbers."""
    stored = [0, 1, 2**30]
    path = tmp_path / "groups"
    path.write_bytes(b"".join(each.to_bytes(guardian_process.GROUP_SIZE, "little") for each in stored))
    with path.open("rb") as file:
        assert guardian_process._groups(file.fileno()) == [2**30]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "lines", [["0::/"], ["30 23 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw"]], ids=["no mount", "version 1"]
)
def test_without_control_groups_of_version_2_there_is_no_path_of_one(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    def shown(_: str) -> list[str]:
        return lines

    linux_processes._own_control_group.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(linux_processes, "_lines", shown)
    assert path_of("name") is None
    linux_processes._own_control_group.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_a_guardian_needs_no_control_groups(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Control groups are found by /proc, which other systems do not have."""

    def none() -> None:
        raise FileNotFoundError

    monkeypatch.setattr(linux_processes, "_own_control_group", none)
    assert run_command(["true"], context).exit_code == 0
    assert len(guardians()) == 1
    assert caplog.text == ""


def test_a_guardian_kills_nothing_by_the_ids_of_another_pid_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(_: str) -> str:
        return "1"

    with subprocess.Popen(["sleep", "1000"], env={"MARK": "own"}) as process:
        monkeypatch.setattr(os, "readlink", found)
        assert not guardian_process._kill_marked((b"MARK=own",))  # pyright: ignore[reportPrivateUsage]
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_program_that_is_not_python_is_not_started_as_a_guardian(
    context: CommandContext,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: object,
) -> None:
    """Such a program, started as a guardian, would be a second worker."""
    monkeypatch.setattr(sys, name, value, raising=False)
    assert run_command(["true"], context).exit_code == 0
    assert guardians() == []
    assert "sys.executable is not a Python interpreter" in caplog.text


class EndedMeanwhile(RunProcesses):
    """The processes of a run that ends while a thread that its handler has left behind starts a command."""

    def watch(self) -> None:
        super().watch()
        self.end(0)


def test_a_command_that_starts_when_its_run_has_just_ended_is_ended(
    context: CommandContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, ended = list[int](), list[int]()
    monkeypatch.setattr(context.guardian, "add", started.append)
    monkeypatch.setattr(context.guardian, "remove", ended.append)
    processes = EndedMeanwhile(f"{tmp_path}/{slugid()}", context.guardian)
    with pytest.raises(InternalError, match=r"^the handler has ended: no more commands can be run$"):
        run_command(["sleep", "2"], replace(context, processes=processes))
    (pid,) = started
    assert ended == started
    wait_until_gone(pid)


@pytest.mark.usefixtures("control_groups")
def test_a_run_that_ends_while_a_command_starts_leaves_no_control_group(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run cannot remove its group, as the thread that starts the command is in it."""
    start = subprocess.Popen.__init__

    def end_and_start(*args: Any, **options: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(context.processes.end, 0).result() == 0
        assert ControlGroup.existing(context.guardian.control_groups)
        start(*args, **options)

    context.processes.watch()  # it starts the guardian process
    monkeypatch.setattr(subprocess.Popen, "__init__", end_and_start)
    with pytest.raises(InternalError, match=r"^the handler has ended: no more commands can be run$"):
        run_command(["sleep", "1000"], context)
    assert ControlGroup.existing(context.guardian.control_groups) == []


@pytest.mark.usefixtures("control_groups")
def test_a_control_group_that_cannot_be_removed_with_its_run_is_removed_when_another_run_begins(
    context: CommandContext,
) -> None:
    """A process of another user, which cannot be killed, keeps it; so does a thread of this process."""
    context.processes.watch()
    with context.processes.entered():
        context.processes.end(0)
    (left,) = ControlGroup.existing(context.guardian.control_groups)
    another = RunProcesses(f"{context.work_directory}/{slugid()}", context.guardian)
    another.watch()
    (group,) = ControlGroup.existing(context.guardian.control_groups)
    another.end(0)
    assert group.path != left.path


@pytest.mark.usefixtures("control_groups")
def test_a_command_that_ends_with_its_run_leaves_daemons_their_time_to_end(
    context: CommandContext, fifo: Fifo
) -> None:
    for name in ("left", "continue"):
        os.mkfifo(context.work_directory / name)
    cleaned_up = Fifo(context.work_directory)
    clean_up = f"echo $$ > {fifo.word}; read x < continue; echo 1 > {cleaned_up.word}; exit"
    script = f"sleep 1000 & trap {shlex.quote(clean_up)} TERM; echo > left; wait"
    run_command(daemon(script), context, shell=True)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(context.processes.end, 30)
        (pid,) = fifo.numbers()
        context.processes.remove_left()  # as the thread of another command, which has just ended, too
        with (context.work_directory / "continue").open("r+b", buffering=0) as told:
            told.write(b"\n")
            assert cleaned_up.numbers() == [1]
            ended.result()
    wait_until_gone(pid)


def test_no_command_is_started_when_its_run_has_ended(context: CommandContext) -> None:
    context.processes.end(0)
    with pytest.raises(InternalError, match=r"^the handler has ended: no more commands can be run$"):
        run_command(["touch", "started"], context)
    assert not (context.work_directory / "started").exists()
