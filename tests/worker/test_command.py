"""Running a command: its output, its result, and its errors."""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from taskqueue_client import TaskRun, WorkerLoop
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.testing import run_handler
from taskqueue_client.worker.commands import command, command_process, linux_processes
from taskqueue_client.worker.commands.command import (
    CommandContext,
    CommandFailed,
    CommandNotStarted,
    CommandOutputTooLarge,
    CommandResult,
    run_command,
)
from taskqueue_client.worker.outcomes import InternalError, TaskFailed
from tests.worker.running_commands import context_in, open_descriptors, printed_in, text_of

LARGE = 1024 * 1024


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_s_output_is_in_the_log_between_what_was_run_and_how_it_ended(
    context: CommandContext,
) -> None:
    result = run_command(["printf", "%s\\n", "one two", "three"], context)
    lines = [line.partition(" ")[2] for line in text_of(context).splitlines()]
    assert lines[:3] == ["INFO $ printf '%s\\n' 'one two' three", "one two", "three"]
    assert lines[3] == f"INFO printf: {result}"


def test_both_streams_are_in_the_log_in_the_order_of_writing(context: CommandContext) -> None:
    run_command("echo 1; echo 2 >&2; echo 3", context, shell=True)
    assert printed_in(context) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("capture", "stdout", "stderr"),
    [(False, None, None), ("stdout", "out\n", None), ("stderr", None, "err\n"), (True, "out\n", "err\n")],
)
def test_captured_streams_are_in_the_result_and_all_output_is_in_the_log(
    context: CommandContext,
    capture: bool | Literal["stdout", "stderr"],  # noqa: FBT001 - a parameter of the test
    stdout: str | None,
    stderr: str | None,
) -> None:
    result = run_command("echo out; echo err >&2", context, shell=True, capture=capture)
    assert (result.stdout, result.stderr) == (stdout, stderr)
    assert sorted(printed_in(context)) == ["err", "out"]


def test_captured_bytes_that_are_not_unicode_survive(context: CommandContext) -> None:
    result = run_command(
        python("import sys; sys.stdout.buffer.write(bytes(range(256)))"), context, capture=True
    )
    assert result.stdout is not None
    assert os.fsencode(result.stdout) == bytes(range(256))


def test_secrets_are_masked_in_the_log_and_not_in_captured_output(context: CommandContext) -> None:
    context.log.secrets.add("hunter2")
    result = run_command(["echo", "hunter2"], context, capture="stdout")
    assert result.stdout == "hunter2\n"
    assert "hunter2" not in text_of(context) + repr(result)


def test_a_command_that_prints_more_than_capture_allows_is_ended_with_an_error_that_says_so(
    context: CommandContext,
) -> None:
    with pytest.raises(CommandOutputTooLarge, match=r"^yes: printed more than the 16777216 bytes") as caught:
        run_command(["yes"], context, capture="stdout", check=False)
    assert isinstance(caught.value, TaskFailed)
    assert caught.value.result.signal == signal.SIGTERM


def test_output_of_the_size_that_capture_allows_is_captured(context: CommandContext) -> None:
    result = run_command(["head", "-c", "16777216", "/dev/zero"], context, capture=True)
    assert result.stdout is not None
    assert len(result.stdout) == 16777216


def test_a_failed_command_s_output_is_with_its_error(context: CommandContext) -> None:
    with pytest.raises(CommandFailed) as caught:
        run_command("echo why >&2; exit 1", context, shell=True, capture="stderr")
    assert caught.value.result.stderr == "why\n"


@pytest.mark.parametrize("given", ["text: ä\n", "text: ä\n".encode(), "x" * 3_000_000])
def test_a_command_reads_its_input(context: CommandContext, given: str | bytes) -> None:
    result = run_command(["cat"], context, input=given, capture="stdout")
    assert result.stdout == (given if isinstance(given, str) else given.decode())


def test_a_command_need_not_read_its_input(context: CommandContext) -> None:
    assert run_command(["true"], context, input="x" * 3_000_000).exit_code == 0


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("capture", "both"),
        ("capture", []),
        ("cwd", "a\0b"),
        ("cwd", "\ud800"),
        ("input", 3),
        ("input", "\ud800"),
        ("timeout", "5"),
        pytest.param("timeout", 10**400, id="timeout-too-large"),
        ("timeout", float("nan")),
        ("timeout", True),
        ("check", None),
        ("keep_children", "no"),
        ("pass_credentials", "false"),
        ("shell", 0),
    ],
)
def test_an_option_that_is_not_valid_is_refused(context: CommandContext, name: str, given: Any) -> None:
    options: Any = {name: given}
    with pytest.raises(InvalidArgument, match=f"^{name}: "):
        run_command(["true"], context, **options)
    assert not text_of(context)


@pytest.mark.parametrize("given", [5, [1], {"a": 1}], ids=["number", "list", "object"])
@pytest.mark.parametrize("option", ["command", "cwd", "input", "secret"])
def test_an_argument_of_the_payload_that_is_not_text_makes_the_payload_malformed(
    option: str, given: Any
) -> None:
    class Builder(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            value = task.payload["value"]
            if option == "secret":
                task.register_secret(value)
            elif option == "command":
                task.run_command(value)
            else:
                options: Any = {option: value}
                task.run_command(["cat"], **options)

    result = run_handler(Builder, {"value": given})
    assert result.outcome == "malformed-payload"
    assert "  $.value" in result.log


def test_a_proxy_is_given_to_a_command_only_if_it_is_true() -> None:
    class Builder(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            with pytest.raises(InvalidArgument, match=r"^plain: 'no' is not valid; expected bool$"):
                task.proxy(plain=task.payload["no"])
            task.run_command(["true"], proxy=task.payload["no"])

    result = run_handler(Builder, {"no": "no"})
    assert result.outcome == "malformed-payload"
    assert '$.no: "no" is not valid; expected bool' in str(result.error)


def test_an_unknown_option_is_refused(context: CommandContext) -> None:
    options: Any = {"time_out": 3}
    with pytest.raises(
        InvalidArgument, match=r"^time_out: unknown argument; the closest known one is timeout$"
    ):
        run_command(["true"], context, **options)
    assert not text_of(context)


@pytest.mark.parametrize("given", [5, b"5", None, "5\0", "\ud800"])
def test_an_argument_that_no_program_can_have_is_named(context: CommandContext, given: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"^command\[1\]: {re.escape(repr(given))} is not valid"):
        run_command(["sleep", given], context)
    assert not text_of(context)


@pytest.mark.parametrize("given", ["echo \0", "echo \ud800"])
def test_a_text_that_no_shell_can_have_is_refused(context: CommandContext, given: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^command: 'echo .* without NUL or lone surrogates$"):
        run_command(given, context, shell=True)
    assert not text_of(context)


def test_without_input_there_is_nothing_to_read(context: CommandContext) -> None:
    assert run_command(["cat"], context).exit_code == 0


def test_nothing_is_expanded_without_a_shell(context: CommandContext) -> None:
    run_command(["echo", "$HOME; *"], context)
    assert printed_in(context) == ["$HOME; *"]


def test_a_command_runs_in_the_work_directory_with_its_own_environment(tmp_path: Path) -> None:
    with context_in(tmp_path, {"TASK_ID": "abc"}) as context:
        run_command("pwd; echo $TASK_ID", context, shell=True)
        (context.work_directory / "sub").mkdir()
        run_command(["pwd"], context, cwd="sub")
        assert printed_in(context) == [str(tmp_path / "work"), "abc", str(tmp_path / "work" / "sub")]


def test_none_is_the_default_of_each_option_that_has_a_value(context: CommandContext) -> None:
    run_command("pwd; cat", context, shell=True, cwd=None, input=None, env=None, timeout=None)
    assert printed_in(context) == [str(context.work_directory)]


def test_a_path_is_an_argument(context: CommandContext) -> None:
    assert run_command(["test", "-d", context.work_directory], context).exit_code == 0


def test_a_command_runs_in_a_separate_session(context: CommandContext) -> None:
    run_command(python("import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))"), context)
    assert printed_in(context) == ["True"]


def test_an_exit_code_that_is_not_0_is_a_failed_task(context: CommandContext) -> None:
    with pytest.raises(TaskFailed, match=r"^/bin/sh: exit code 3$") as caught:
        run_command("exit 3", context, shell=True)
    assert isinstance(caught.value, CommandFailed)
    assert caught.value.result.exit_code == 3


def test_an_exit_code_is_not_an_error_when_it_is_not_checked(context: CommandContext) -> None:
    result = run_command("exit 3", context, shell=True, check=False)
    assert (result.exit_code, result.signal) == (3, None)


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "signal SIGKILL"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")],
)
def test_a_command_ended_by_a_signal_has_failed(context: CommandContext, number: int, words: str) -> None:
    with pytest.raises(CommandFailed, match=words) as caught:
        run_command(python(f"import os; os.kill(os.getpid(), {int(number)})"), context)
    assert (caught.value.result.exit_code, caught.value.result.signal) == (None, number)


@pytest.mark.parametrize(
    ("script", "killed", "said"),
    [
        ("kill -KILL $$", [3, 4], 1),
        ("exit 2", [3, 4], 1),  # such as make, after the kernel has killed a compiler
        ("exit 0", [3, 4], 0),
        ("kill -KILL $$", [3, 3], 0),
        ("kill -KILL $$", [math.nan, 3], 0),  # the first count failed: no descriptor was free
    ],
)
def test_the_log_of_a_command_that_may_have_lacked_memory_says_so(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, script: str, killed: list[float], said: int
) -> None:
    counts = iter(killed)
    monkeypatch.setattr(command, "out_of_memory_kills", lambda: next(counts))
    run_command(["sh", "-c", script], context, check=False)
    assert text_of(context).count("for lack of memory") == said


@pytest.mark.parametrize(
    ("counters", "killed"),
    [("nr_free_pages 1\noom_kill 3\nswap_ra 7\n", 3), ("nr_free_pages 1\n", math.nan), (None, math.nan)],
)
def test_kills_for_lack_of_memory_are_counted_where_the_kernel_reports_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: str | None, killed: float
) -> None:
    monkeypatch.setattr(linux_processes, "COUNTERS", str(tmp_path / "vmstat"))
    if counters is not None:
        (tmp_path / "vmstat").write_text(counters)
    assert linux_processes.out_of_memory_kills() == pytest.approx(killed, nan_ok=True)


def test_an_error_does_not_show_the_arguments_and_the_log_masks_them(context: CommandContext) -> None:
    context.log.secrets.add("correct horse")
    with pytest.raises(CommandFailed) as caught:
        run_command(["false", "correct horse"], context)
    assert "correct" not in f"{caught.value} {caught.value!r}" + text_of(context)


def test_a_secret_with_an_apostrophe_is_masked_in_the_arguments(context: CommandContext) -> None:
    context.log.secrets.add("it's secret")
    run_command(["true", "--password=it's secret", "it's"], context)
    assert "$ true '--password=[masked]' 'it'\"'\"'s'" in text_of(context)


def test_time_and_memory_of_the_descendants_are_measured(context: CommandContext) -> None:
    busy = "import os\nblock = b'x' * 300_000_000\nwhile os.times().user < 0.3: pass"
    result = run_command(f'{shlex.quote(sys.executable)} -c "{busy}"; true', context, shell=True)
    assert result.peak_memory > 300_000_000
    assert 0.1 <= result.user_time <= result.duration * (os.cpu_count() or 1)
    # "at most" if this process has been larger than the command, as after many other tests
    assert re.search(rf"peak memory (at most )?{result.peak_memory / 1e6:.0f} MB", text_of(context))


def test_a_peak_memory_that_may_be_the_worker_s_is_shown_as_an_upper_bound() -> None:
    result = CommandResult(0, None, duration=1.0, user_time=0, system_time=0, peak_memory=1_000_000)
    assert str(result) == "exit code 0 after 1.0 s (user 0.00 s, system 0.00 s, peak memory at most 1 MB)"


@pytest.mark.parametrize("command", [["/no/such/program"], ["/etc/passwd"], ["/"], ["echo", "x" * 3_000_000]])
def test_a_command_that_cannot_be_started_fails_the_task(context: CommandContext, command: list[str]) -> None:
    run_command(["true"], context)  # starts the guardian, and opens the log's file
    before = open_descriptors()
    with pytest.raises(CommandNotStarted, match=f"^{command[0]}: cannot be started: "):
        run_command(command, context)
    assert open_descriptors() <= before


@pytest.mark.parametrize("line", ["#!/no/such/shell", "#!/bin/sh\r"], ids=["missing", "carriage return"])
def test_a_script_whose_interpreter_is_missing_is_not_called_missing(
    context: CommandContext, line: str
) -> None:
    script = context.work_directory / "script"
    script.write_bytes(f"{line}\necho started\n".encode())
    script.chmod(0o755)
    for program in ("./script", str(script)):
        with pytest.raises(CommandNotStarted, match="its interpreter does not exist"):
            run_command([program], context)
    with pytest.raises(CommandNotStarted, match=r"No such file or directory: .*nowhere"):
        run_command([str(script)], context, cwd="nowhere")


def test_a_program_that_is_open_for_writing_is_started_when_it_is_closed(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = context.work_directory / "program"
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    start = subprocess.Popen
    with program.open("a") as writing:

        def close_if_busy(*args: Any, **options: Any) -> Any:
            try:
                return start(*args, **options)
            except OSError:
                writing.close()
                raise

        monkeypatch.setattr(subprocess, "Popen", close_if_busy)
        run_command(["./program"], context)
        assert writing.closed
    assert printed_in(context) == ["started"]


def test_a_missing_directory_fails_the_task(context: CommandContext) -> None:
    with pytest.raises(TaskFailed) as caught:
        run_command(["true"], context, cwd="nowhere")
    path = str(context.work_directory / "nowhere")
    assert str(caught.value) == f"true: cannot be started: [Errno 2] No such file or directory: {path!r}"


@pytest.mark.parametrize(
    ("command", "shell"),
    [([], False), ([""], False), (["a\0b"], False), ("make", False), (["make"], True), ("a\0b", True)],
)
def test_an_invalid_command_is_refused(
    context: CommandContext,
    command: list[str] | str,
    shell: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    with pytest.raises(InvalidArgument, match=r"^command(\[0\])?: "):
        run_command(command, context, shell=shell)
    assert not text_of(context)


def test_a_process_that_ignores_sigchld_and_so_loses_exit_codes_is_an_internal_error(
    context: CommandContext,
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(InternalError, match="SIGCHLD"):
            run_command(["true"], context)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_ten_megabytes_without_a_newline_are_in_the_log(context: CommandContext) -> None:
    run_command(python("import sys; sys.stdout.write('x' * 10_000_000)"), context)
    assert "x" * 10_000_000 in printed_in(context)


def test_all_bytes_are_in_the_log(context: CommandContext) -> None:
    every = bytes(range(256)) * 300
    run_command(python("import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)"), context)
    log = context.log.path.read_bytes()
    stamp = len("2026-11-21T09:20:53.649Z ")
    pieces = [piece[stamp:] for piece in log.split(b"\n")[1:-2]]
    assert b"\n".join(pieces) == every


def test_a_secret_that_is_printed_bit_by_bit_is_masked(context: CommandContext) -> None:
    context.log.secrets.add("hunter2hunter2")
    run_command(
        "for c in h u n t e r 2 h u n t e r 2; do printf $c; done; echo; printf hunter", context, shell=True
    )
    assert printed_in(context) == ["[masked]", "hunter"]


def test_a_process_outside_the_group_with_the_output_open_does_not_delay_the_end_of_the_command(
    context: CommandContext,
) -> None:
    for name in ("left", "end"):
        os.mkfifo(context.work_directory / name)
    # `yes` prints without a pause, so there is always more to read
    printing = "setsid sh -c 'yes & echo > left; read x < end; kill $!' &"
    run_command(f"{printing} read x < left; echo hello", context, shell=True)
    (context.work_directory / "end").write_text("\n")
    assert "hello" in printed_in(context)


FEW_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from tests.worker.running_commands import context_in, open_descriptors
from taskqueue_client.worker.commands.command import run_command
from taskqueue_client.worker.outcomes import InternalError
with context_in(Path(sys.argv[1])) as context:
    run_command(["true"], context)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    for limit in range(3, open_now + 9):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            run_command("sleep 1000 & exit 0", context, shell=True)
            print("ran")
        except InternalError as error:
            print(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert context.processes.end(0) == 0
"""


def test_without_dev_null_a_command_is_an_internal_error_unless_that_is_the_program_or_directory(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(CommandNotStarted, match="Permission denied"):
        run_command([os.devnull], context)
    with pytest.raises(CommandNotStarted, match="Not a directory"):
        run_command(["true"], context, cwd=os.devnull)
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    with pytest.raises(InternalError, match=r"cannot start commands: No such file or directory: .*null"):
        run_command(["true"], context)


def test_without_free_descriptors_a_command_is_an_internal_error_that_says_so_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FEW_DESCRIPTORS, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reason = "Too many open files: raise the limit of open files (`ulimit -n`)"
    refused, ran = f"the worker cannot start commands: {reason}", "ran"
    assert set(done.stdout.splitlines()) == {refused, ran}
    assert done.stdout.splitlines()[-1] == ran


def test_without_free_descriptors_the_input_of_a_command_is_not_written_to_a_disk(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_command(["true"], context)  # starts the guardian

    def none_free(_: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", none_free)
    with pytest.raises(InternalError, match="Too many open files: raise the limit of open files"):
        run_command(["cat"], context, input="secret")


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_an_input_that_the_worker_may_not_store_is_an_internal_error_that_says_so(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, *, is_in_memory: bool
) -> None:
    """A limit of file sizes also stands in for a full disk."""
    run_command(["true"], context)  # starts the guardian
    if not is_in_memory:
        monkeypatch.delattr(os, "memfd_create")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE, before[1]))
    try:
        with pytest.raises(InternalError, match="File too large for its input: raise the limit"):
            run_command(["cat"], context, input=bytes(LARGE + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("shortages", [1, 100_000])
def test_a_moment_without_a_free_process_is_waited_out(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch, shortages: int
) -> None:
    """The shortage is simulated: root, as which these tests may run, has no limit of processes."""
    run_command(["true"], context)  # starts the guardian
    start: Any = subprocess.Popen
    refused = itertools.count()

    def start_if_there_is_room(*args: Any, **options: Any) -> Any:
        if next(refused) < shortages:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start(*args, **options)

    monkeypatch.setattr(command_process, "BUSY", 0.05)
    monkeypatch.setattr(subprocess, "Popen", start_if_there_is_room)
    if shortages == 1:
        assert run_command(["true"], context).exit_code == 0
    else:
        with pytest.raises(InternalError, match="temporarily unavailable: raise the limit of processes"):
            run_command(["true"], context)


def test_a_command_leaves_no_open_descriptors(context: CommandContext) -> None:
    run_command(["true"], context)  # starts the guardian, which stays
    before = open_descriptors()
    run_command("sleep 1000 & exit 1", context, shell=True, check=False)
    assert open_descriptors() <= before


def test_without_process_handles_a_command_ends_all_the_same(
    context: CommandContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    result = run_command("exec >/dev/null 2>&1; true", context, shell=True)  # output ends early
    assert result.exit_code == 0
