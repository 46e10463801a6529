"""The entry point of `taskqueue` and `python -m taskqueue_client`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

_EXTRA = frozenset({"click", "rich", "yaml"})  # the packages of the extra `cli`

_BY_SIGNAL = 128
"""The exit status of a command that a signal ends is this plus the number of the signal."""

LINGERING = 30.0
"""Seconds within which a process has to end after its worker has ended."""


def main() -> None:
    """Run the command; without the extra `cli`, say how to install it."""
    _prepare_streams()
    try:
        _imported()(prog_name="taskqueue")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"taskqueue needs {error.name}: pip install 'taskqueue_client[cli]'")
    except OSError as error:  # of a script for a shell: click writes it before it handles errors
        from taskqueue_client.cli.failures import failure_of  # noqa: PLC0415 - needs the extra

        failure = failure_of(error)
        if failure is not None:
            failure.show()
        sys.exit(1 if failure is None else failure.exit_code)
    except BaseException as ended:
        code = ended.code if isinstance(ended, SystemExit) else 1
        status = code if isinstance(code, int) else int(code is not None)
        if status > _BY_SIGNAL:
            _drop_rest()
            if sys.argv[1:2] != ["work"]:
                os._exit(status)  # after a second Ctrl-C, threads may still wait for the Queue
        if sys.argv[1:2] == ["work"]:  # other commands may wait until their output is read
            end_process_within(LINGERING, status)
            from taskqueue_client.worker.shutdown import SIGNALS  # noqa: PLC0415 - for workers only
            from taskqueue_client.worker.worker_log import drop_unread_output  # noqa: PLC0415 - for workers only

            for number in SIGNALS:  # a second signal would replace the status of a worker that has ended
                signal.signal(number, signal.SIG_IGN)
            drop_unread_output()
        raise
    finally:
        _write_rest()


def _imported() -> Callable[..., object]:
    try:
        from taskqueue_client.cli import taskqueue  # noqa: PLC0415 - the extra may be missing

        if sys.argv[1:2] == ["work"]:
            from taskqueue_client.worker.shutdown import keep_signal_handlers  # noqa: PLC0415 - for workers only

            keep_signal_handlers()
    except KeyboardInterrupt:  # after the import, the command prints this line itself
        sys.stderr.write("Interrupted.\n")
        sys.exit(_BY_SIGNAL + signal.SIGINT)
    return taskqueue


def end_process_within(seconds: float, status: int) -> None:
    """End this process with `status` if it has not ended after `seconds`.

    Python waits for threads of executors, child processes and exit functions: a handler that has left one of
    these behind could keep a worker's process, and its machine, running for ever.
    """

    def end() -> None:
        others = {threading.main_thread(), threading.current_thread()}
        names = ", ".join(each.name for each in threading.enumerate() if each not in others) or "none"
        logging.getLogger("taskqueue_client").warning(
            "ending the process: it still waits for threads (%s), for child processes or for exit functions",
            names,
        )
        os._exit(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    with suppress(RuntimeError):  # the system cannot start another thread
        timer.start()


class _Errors(TextIOWrapper):
    """Standard error. Text that cannot be written is dropped: an exception would replace the exit status."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def _prepare_streams() -> None:
    """Prepare the streams. Closed ones become `/dev/null`, or other files would get their descriptors."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    if hasattr(sys.stderr, "buffer"):  # the stream is open
        sys.stderr = _Errors(sys.stderr.buffer, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the end


def _write_rest() -> None:
    """Write the buffered output, or drop it: at exit, Python would fail again, with another status."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_rest()


def _drop_rest() -> None:
    """Drop the buffered output: an interrupted command would wait until somebody reads it."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


if __name__ == "__main__":
    main()
