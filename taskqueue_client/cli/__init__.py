"""The `taskqueue` command.

Exit statuses: 0, done, and the tasks that were waited for are completed; 1, one of them is not, or a part
of what was asked for failed; 2, wrong command line, file or environment; 3, the Queue refused; 4, no answer
from the Queue or its storage; 130, interrupted.
"""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "artifacts": "List and download the artifacts of a task.",
    "cancel": "Cancel tasks, or a whole task group.",
    "doctor": "Check root URL, credentials, scopes and clock, and say what is wrong.",
    "listen": "Print the Queue's messages as they come.",
    "local": "Run a Taskcluster Queue on this machine.",
    "log": "Print the log of a task, and follow it while the task runs.",
    "rerun": "Run tasks again.",
    "signed-url": "Make a URL that lets anybody fetch an artifact for a while.",
    "status": "Show where a task, or a task group, stands.",
    "submit": "Create a task, or a graph of tasks, from a YAML or JSON file.",
    "watch": "Follow a task, or a task group, until it is resolved.",
    "work": "Run a worker.",
}
"""One line of help for each subcommand; its module is imported when it is run."""

_EPILOG = """\b
Exit statuses:
  0    done; tasks that were waited for are completed
  1    a task that was waited for is not, or a part of what was asked for failed
  2    wrong command line, file or environment
  3    the Queue refused
  4    no answer from the Queue or its storage
  130  interrupted
"""

_INTERRUPTED = 130


class _LazyGroup(click.Group):
    """Subcommands whose modules are imported when they are needed; errors in one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"taskqueue_client.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(_INTERRUPTED)
        except Exception as error:
            from .failures import failure_of  # noqa: PLC0415 - needs the client, which takes time to import

            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error


@click.group(cls=_LazyGroup, name="taskqueue", epilog=_EPILOG)
@click.version_option(package_name="taskqueue_client")
def main() -> None:
    """Submit tasks to a Taskcluster Queue, watch them, work on them, and run a Queue at home.

    The Queue is the one that TASKCLUSTER_ROOT_URL names, with the credentials in TASKCLUSTER_CLIENT_ID,
    TASKCLUSTER_ACCESS_TOKEN and, of temporary ones, TASKCLUSTER_CERTIFICATE; or, without credentials, a
    proxy that TASKCLUSTER_PROXY_URL names. Where there is none, `taskqueue local` runs one here.

    With --json, a command prints JSON, one value in each line. Errors are one line on standard error, after
    the usage if the command line is wrong.
    """
