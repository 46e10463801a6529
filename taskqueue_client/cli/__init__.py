"""The `taskqueue` command: the group of subcommands."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from taskqueue_client._version import __version__

if TYPE_CHECKING:  # never true, but PyInstaller puts into an executable what is imported here
    from . import artifacts as artifacts
    from . import doctor as doctor
    from . import listen as listen
    from . import local as local
    from . import log as log
    from . import status as status
    from . import submit as submit
    from . import task_actions as task_actions
    from . import work as work

_COMMANDS = {
    "artifacts": ("artifacts", "command", "List and download the artifacts of a task."),
    "cancel": ("task_actions", "cancel", "Cancel tasks, or a whole task group."),
    "doctor": ("doctor", "command", "Check connection, credentials, scopes and clock, and name problems."),
    "listen": ("listen", "command", "Print the Queue's messages as they are published."),
    "local": ("local", "command", "Run a Taskcluster Queue on this machine."),
    "log": ("log", "command", "Print the log of a task, and follow it while the task runs."),
    "priority": ("task_actions", "priority", "Change the priority of tasks, or of a whole task group."),
    "quarantine": ("task_actions", "quarantine", "Give a worker no tasks for a while."),
    "rerun": ("task_actions", "rerun", "Add a run to resolved tasks."),
    "retrigger": ("task_actions", "retrigger", "Create copies of tasks, with new ids."),
    "schedule": ("task_actions", "schedule", "Schedule tasks without waiting for their dependencies."),
    "signed-url": ("artifacts", "signed_url", "Make a URL that gives access to an artifact for a while."),
    "status": ("status", "command", "Show the state of tasks, or of a task group."),
    "submit": ("submit", "command", "Create a task, or a graph of tasks, from a YAML or JSON file."),
    "watch": ("status", "watch", "Follow tasks, or a task group, until they are resolved."),
    "work": ("work", "command", "Run a worker."),
}
"""Each subcommand's module, function and line of help. A module is imported when its command is run."""

_EPILOG = """\b
Exit statuses:
  0    done; tasks that were waited for are completed
  1    a task that was waited for is not completed, or a part of the command failed
  2    wrong command line, file or environment
  3    the Queue refused
  4    no response from the Queue or its storage
  130  interrupted; 143 by SIGTERM, 129 by SIGHUP
"""

_BY_SIGNAL = 128  # the exit status of a command that a signal ends is this, plus the number of the signal
_SHUTTING_DOWN = frozenset({"local", "work"})  # the commands that handle signals themselves

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals that end a command as Ctrl-C does; Windows has only one of them."""


class _LazyGroup(click.Group):
    """Subcommands whose modules are imported when they are run; errors in one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, function, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in sorted(_COMMANDS.items())])

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _failures():  # printing --help and --version may fail
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> object:
        with _failures():
            return super().invoke(ctx)


class _Ended(KeyboardInterrupt):
    """A signal that ends a command as Ctrl-C does, with its number as the argument."""


@contextmanager
def _interrupted_by_signals() -> Generator[None]:
    """Let signals interrupt a command, not kill it: it removes partial files, says what it may have changed.

    A signal that the parent process ignores, as `nohup` does, stays ignored.
    """

    def end(number: int, _: object) -> None:
        raise _Ended(number)

    is_main = threading.current_thread() is threading.main_thread()
    chosen = [each for each in ENDING if is_main and signal.getsignal(each) is signal.SIG_DFL]
    for each in chosen:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in chosen:
            signal.signal(each, signal.SIG_DFL)


@contextmanager
def _failures() -> Generator[None]:
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except KeyboardInterrupt as error:
        click.echo("Interrupted.", err=True)
        number = error.args[0] if isinstance(error, _Ended) else signal.SIGINT
        raise click.exceptions.Exit(_BY_SIGNAL + number) from None
    except Exception as error:
        from .failures import failure_of  # noqa: PLC0415 - needs the client, which takes time to import

        failure = failure_of(error)
        if failure is None:
            raise
        raise failure from error


@click.group(cls=_LazyGroup, epilog=_EPILOG)
@click.version_option(__version__)
@click.pass_context
def taskqueue(ctx: click.Context) -> None:
    """Submit tasks to a Taskcluster Queue, watch them, work on them, and run a Queue on this machine.

    The environment names the Queue: TASKCLUSTER_ROOT_URL with the credentials in TASKCLUSTER_CLIENT_ID,
    TASKCLUSTER_ACCESS_TOKEN and, for temporary credentials, TASKCLUSTER_CERTIFICATE; or
    TASKCLUSTER_PROXY_URL, a proxy that adds credentials. `taskqueue local` runs a Queue on this machine.

    With --json, a command prints JSON, one value per line. An error is one line on standard error, after the
    usage if the command line is wrong.
    """
    if ctx.invoked_subcommand not in _SHUTTING_DOWN:
        ctx.with_resource(_interrupted_by_signals())
