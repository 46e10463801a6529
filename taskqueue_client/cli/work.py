"""`taskqueue work`: runs a worker, with an option for each setting."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from taskqueue_client.artifacts import ArtifactError
from taskqueue_client.errors import CallFailed
from taskqueue_client.events.settings import PulseSettings
from taskqueue_client.worker.commands.linux_processes import heed_sigterm
from taskqueue_client.worker.commands.masking import Secrets
from taskqueue_client.worker.config import WorkerConfig, meaning_of
from taskqueue_client.worker.config_sources import setting_of_text
from taskqueue_client.worker.loop import WorkerLoop, check_has_settings
from taskqueue_client.worker.outcomes import InternalError
from taskqueue_client.worker.session import report_error
from taskqueue_client.worker.worker_log import LogFormatter, log, log_handler
from taskqueue_client.worker.worker_runner import JsonFormatter, RunnerLog, WorkerRunner

from .arguments import connect_with_credentials
from .failures import ExitStatus, Failure, failure_of, in_one_line, status_of
from .output import json_option

F = TypeVar("F", bound=Callable[..., object])


def _setting_options(command: F) -> F:
    for each in reversed(fields(WorkerConfig)):
        option = f"--{each.name.replace('_', '-')}"
        meaning = meaning_of(each).replace("`", "")
        if isinstance(each.default, bool):
            add = click.option(f"{option}/--no-{option[2:]}", default=None, help=meaning)
        else:
            add = click.option(option, metavar="VALUE", help=meaning)
        command = add(command)
    return command


@click.command()
@click.argument("worker", metavar="MODULE:CLASS")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with settings, in YAML or TOML.",
)
@_setting_options
@click.option(
    "--worker-runner",
    is_flag=True,
    help="Speak the worker-runner protocol on standard input and output, as a child of start-worker.",
)
@click.option(
    "--task-source",
    type=click.Choice(["queue", "azure"]),
    default="queue",
    show_default=True,
    help="Where claims come from: claimWork, or legacy polling of Azure storage queues.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The form of the log; json is the same as --json.",
)
@json_option
def command(
    worker: str,
    config_file: Path | None,
    *,
    worker_runner: bool,
    task_source: str,
    log_format: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run the worker CLASS of MODULE until it is stopped.

    Options override variables such as TASKQUEUE_CONCURRENCY, which override the file. Modules are also
    searched in the current directory. With PULSE_URL, messages of that RabbitMQ stop canceled runs at once.
    SIGTERM or Ctrl-C shuts down gracefully within `graceful_shutdown_timeout`; a second one stops the runs.
    Logs go to standard error, as text or, with --log-format json, as an object per line.

    The exit status is 1 after `max_internal_errors` or an error of the machine or the network: restart the
    worker. It is 2 for a wrong setting and 3 if the Queue refused claim requests, at the start or at
    `max_idle`: correct the configuration.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may ignore it: exit codes would be lost
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a parent may block signals that shut the worker down
    heed_sigterm()  # from here on, as the import of the worker's module may take long
    runner = WorkerRunner.on_stdio() if worker_runner else None
    as_json = as_json or log_format == "json"
    handler = _set_up_logs(runner, as_json=as_json)
    with _errors_logged(handler) if as_json and runner is None else nullcontext():
        with _errors_reported(runner, secrets := Secrets()), connect_with_credentials() as queue:
            if queue.credentials is not None:
                secrets.add_credentials(queue.credentials)
            given: dict[str, Any] = {
                name: setting_of_text(name, value) if isinstance(value, str) else value
                for name, value in settings.items()
            }
            pulse = PulseSettings.from_env() if os.environ.get("PULSE_URL") else None
            if task_source == "azure":
                from taskqueue_client.legacy import AzureTaskSource  # noqa: PLC0415 - few workers poll

                given["task_source"] = AzureTaskSource
            given.update(config_file=config_file, runner=runner, pulse=pulse)
            made = _made(_worker_class(worker, given), given)
        if as_json:
            handler.setFormatter(JsonFormatter(made.config.worker_id))
        with _errors_of_machine():
            made.run()


def _made(kind: type[WorkerLoop], given: dict[str, Any]) -> WorkerLoop:
    with _errors_of_machine():
        try:
            made = kind(**given)
        except ImportError as error:
            raise Failure(str(error)) from error  # names the extra
    try:
        check_has_settings(made)
    except RuntimeError as error:
        raise Failure(str(error)) from error
    return made


@contextmanager
def _errors_reported(runner: WorkerRunner | None, secrets: Secrets) -> Generator[None]:
    """Report an error to worker-runner that ends the command before the worker runs, and reports its own."""
    try:
        yield
    except Exception as error:
        if runner is not None:
            runner.start(on_termination=_ignore, on_credentials=_ignore, on_closed=_ignore)
            report_error(runner, error, secrets)
            runner.flush()
        raise


def _ignore(*_: object) -> None:
    """Ignore a message of the runner: no worker runs that it could change."""


@contextmanager
def _errors_logged(handler: logging.Handler) -> Generator[None]:
    """Write the error that ends the command as JSON: programs that read the worker's log expect nothing else.

    It does not pass through loggers, which the program may have configured otherwise.
    """
    try:
        yield
    except Exception as error:
        failure = error if isinstance(error, Failure) else failure_of(error)
        if failure is None and isinstance(error, (click.ClickException, click.exceptions.Exit)):
            raise
        values: dict[str, object] = {"name": log.name, "levelname": "ERROR", "levelno": logging.ERROR}
        if failure is None:
            trace = (type(error), error, error.__traceback__)
            values.update(msg=f"{type(error).__name__}: {error}", exc_info=trace)
        else:
            values.update(msg=failure.message)
        handler.handle(logging.makeLogRecord(values))
        status = ExitStatus.NOT_COMPLETED if failure is None else failure.exit_code
        raise click.exceptions.Exit(status) from error


@contextmanager
def _errors_of_machine() -> Generator[None]:
    """End with status 1 after an error of the machine or the network, as a restart may help."""
    try:
        yield
    except (InternalError, OSError, CallFailed, ArtifactError) as error:
        if status_of(error) is ExitStatus.REFUSED:
            raise
        raise Failure(in_one_line(error), ExitStatus.NOT_COMPLETED) from error


def _worker_class(name: str, given: Mapping[str, object]) -> type[WorkerLoop]:
    """Return the worker class with this name; fail unless it takes the arguments `given`."""
    module_name, _, class_name = name.partition(":")
    if not (module_name and class_name) or module_name.startswith(".") or module_name.endswith(".py"):
        example = "my_workers.build:Builder for a class in my_workers/build.py"
        raise Failure(f"{name!r} is not a worker; expected MODULE:CLASS, such as {example}")
    sys.path.insert(0, _current_directory())
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, OSError) as error:
        message = f"cannot import {module_name!r}: {error}; see python -c 'import {module_name}'"
        status = ExitStatus.NOT_COMPLETED if isinstance(error, OSError) else ExitStatus.WRONG_USE
        raise Failure(message, status) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, WorkerLoop)):
        finding = "does not exist" if found is None else "is not a subclass of WorkerLoop"
        raise Failure(f"{class_name!r} in {module_name} {finding}")
    if inspect.isabstract(found):
        raise Failure(f"{class_name!r} in {module_name} lacks {', '.join(sorted(found.__abstractmethods__))}")
    try:
        inspect.signature(found).bind(**given)
    except TypeError as error:
        rule = "must take **settings, and need no other argument"
        raise Failure(f"the __init__ of {class_name!r} in {module_name} {rule}: {error}") from error
    return found


def _current_directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError as error:
        raise Failure(
            "the current directory, in which modules are searched, was removed; start in another one"
        ) from error


def _set_up_logs(runner: WorkerRunner | None, *, as_json: bool) -> logging.Handler:
    handler = log_handler() if runner is None else RunnerLog(runner)
    handler.setFormatter(JsonFormatter() if as_json else LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it logs tracebacks of lost connections otherwise
    return handler
