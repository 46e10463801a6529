"""`taskqueue work`."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from taskqueue_client.worker.loop import WorkerLoop

from .connection import connect_with_credentials
from .failures import Failure
from .output import json_option


@click.command()
@click.argument("worker", metavar="MODULE:CLASS")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML or TOML.",
)
@click.option("--task-queue-id", help="Where work is claimed: PROVISIONER/WORKER_TYPE.")
@click.option("--worker-group", help="The worker's group, such as a region.")
@click.option("--worker-id", help="The worker's name within the group.")
@click.option("--concurrency", type=int, help="How many runs are worked on at a time.")
@click.option("--max-tasks", type=int, help="Leave after so many runs.")
@click.option("--max-idle", type=float, help="Leave after so many seconds without work.")
@click.option(
    "--metrics-port", type=int, help="Serve /metrics, /live and /ready on this port; 0 takes a free one."
)
@json_option
def command(worker: str, config_file: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Run the worker CLASS of MODULE until it is told to leave.

    Settings come from options, before variables such as TASKQUEUE_CONCURRENCY, before the file, which may
    have all of them. Modules are looked for in this directory, too. SIGTERM and Ctrl-C let runs end for as
    long as `graceful_shutdown_timeout` says, a second one stops them. Logs go to standard error, as text or,
    with --json, as an object for each line.
    """
    _log_to_stderr(as_json=as_json)
    connect_with_credentials().close()  # says what is missing
    _worker_class(worker)(config_file=config_file, **settings).run()


def _worker_class(name: str) -> type[WorkerLoop]:
    module_name, _, class_name = name.partition(":")
    if not (module_name and class_name) or module_name.startswith("."):
        message = f"{name!r} is no worker: write MODULE:CLASS, such as my_workers.build:Builder"
        raise Failure(message)
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        message = f"cannot import {module_name!r}: {error}; to see where: python -c 'import {module_name}'"
        raise Failure(message) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, WorkerLoop)):
        message = f"{class_name!r} in {module_name} is no subclass of WorkerLoop"
        raise Failure(message)
    if inspect.isabstract(found):
        message = f"{class_name!r} in {module_name} lacks {', '.join(sorted(found.__abstractmethods__))}"
        raise Failure(message)
    return found


def _log_to_stderr(*, as_json: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """A log record as a line of JSON, with the task and the run that it is about, if it is about one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("task_id", "run_id"):
            if (value := getattr(record, name, None)) is not None:
                document[name] = value
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)
