"""The environment of a task's commands.

It is the worker's, without what gives access to anything; then what the handler gives; then what the Queue's
worker environment defines for tasks, which always wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from taskqueue_client.errors import InvalidArgument

CREDENTIALS = frozenset({"TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN", "TASKCLUSTER_CERTIFICATE"})
"""Never in the environment of a command, whoever gives them."""

_PRIVATE_NAME = re.compile(
    r"TASKCLUSTER_(?!INSTANCE_TYPE$|WORKER_LOCATION$).*"
    r"|(TASKQUEUE|PULSE)_.*"
    r"|.*(PASSWORD|PASSWD|PASSPHRASE|SECRET).*|.+_PWD"
    r"|(.*_)?(AUTH|TOKENS?|CREDENTIALS?|(ACCESS|API|PRIVATE)_KEY)(_.*)?"
    r"|NOTIFY_SOCKET",
    re.IGNORECASE,
)
"""Variables that are the worker's own: settings, secrets, and sockets through which it is spoken for."""

_PASSWORD_IN_URL = re.compile(r"://[^/@\s]*:[^/@\s]*@")


def task_variables(task_id: str, run_id: int, task_group_id: str, root_url: str) -> dict[str, str]:
    """The variables that tell a command what it is part of."""
    return {
        "TASK_ID": task_id,
        "RUN_ID": str(run_id),
        "TASK_GROUP_ID": task_group_id,
        "TASKCLUSTER_ROOT_URL": root_url,
    }


def command_environment(
    worker: Mapping[str, str], given: Mapping[str, str], task: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a command.

    A private variable of the worker's that `given` merely repeats, as in `{**os.environ, …}`, is left out;
    with a value of its own it is passed on.

    Args:
        worker: The worker's environment.
        given: What the handler adds.
        task: From `task_variables`.

    Raises:
        InvalidArgument: What is given is no text, or cannot stand in an environment. Shows no value.
    """
    _check(given)
    all_of_it = dict(worker)
    inherited = {name: value for name, value in all_of_it.items() if not _is_private(name, value)}
    added = {
        name: value
        for name, value in given.items()
        if name not in CREDENTIALS and (name in inherited or all_of_it.get(name) != value)
    }
    return {**inherited, **added, **task}


@lru_cache(maxsize=1024)  # it is the same environment for every command
def _is_private(name: str, value: str) -> bool:
    return bool(_PRIVATE_NAME.fullmatch(name) or _PASSWORD_IN_URL.search(value))


def _check(given: Mapping[Any, Any]) -> None:
    for name, value in given.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidArgument("env", name, "names that are texts without = and NUL, not empty")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidArgument(f"env[{name!r}]", "<hidden>", "a text without NUL")
