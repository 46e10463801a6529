"""Exceptions of the commands, shown as one line that says what to do, and their exit statuses."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from http import HTTPStatus

import click

from taskqueue_client import errors
from taskqueue_client._arguments import printable, some_of
from taskqueue_client._protocol.threads_and_tasks import NO_THREAD, RAISE_LIMIT
from taskqueue_client._transport.connection_errors import UNTRUSTED
from taskqueue_client._transport.network import NetworkSettings, proxy_variable
from taskqueue_client.artifacts import ArtifactError
from taskqueue_client.scopes import in_words

_EXPIRED = re.compile(r"has expired|\.expiry < now")
"""The texts of the auth service about expired clients and certificates."""

_OF_OUTPUT = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})
"""The errors of standard output, such as one on a full disk. Those of other files have a file name."""


_FEW = 20  # the most tasks in an error


class ExitStatus(IntEnum):
    """How a command ended; the group's help says the same."""

    DONE = 0
    NOT_COMPLETED = 1
    WRONG_USE = 2
    REFUSED = 3
    NO_RESPONSE = 4


class Failure(click.ClickException):
    """Ends a command with an error message; if one file has several problems, with further lines."""

    def __init__(
        self, message: str, status: ExitStatus = ExitStatus.WRONG_USE, details: Sequence[str] = ()
    ) -> None:
        lines = [printable(" ".join(line.split())) for line in (message, *details)]
        super().__init__("\n  ".join(lines))
        self.exit_code = int(status)  # type: ignore[misc] # click has it as a class's, and reads the instance's


def failure_of(error: Exception) -> Failure | None:
    """Return the failure to show for an error.

    None if it is a defect of this program, or if the reader of the output has ended (`| head`): click then
    ends the program without a message.
    """
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, OSError) and error.filename is None and error.errno in _OF_OUTPUT:
        message = f"cannot write to standard output: {error.strerror}"
        return Failure(message, ExitStatus.NOT_COMPLETED)
    if isinstance(error, (errors.TaskQueueError, OSError)):
        return Failure(in_one_line(error) + _effect(error), status_of(error))
    if isinstance(error, RecursionError):
        return Failure("the input is nested too deeply")
    if str(error) == NO_THREAD:
        return Failure(f"the system starts no more threads: {RAISE_LIMIT}", ExitStatus.NOT_COMPLETED)
    return None


def _effect(error: Exception) -> str:
    """Return a remark if a call without a response may have changed something; else an empty str."""
    if isinstance(error, errors.CallFailed) and error.attempted.outcome_unknown:
        return "" if error.attempted.method == "GET" else f"; {error.endpoint} may have taken effect"
    return ""


def status_of(error: BaseException | None) -> ExitStatus:
    """Return the exit status of a command that an error ends."""
    if isinstance(error, errors.ApiError) and not isinstance(error, errors.ServerError):
        return ExitStatus.REFUSED
    is_remote = isinstance(error, (errors.CallFailed, ArtifactError))
    return ExitStatus.NO_RESPONSE if is_remote else ExitStatus.WRONG_USE


def done_for_all(task_ids: Sequence[str], act: Callable[[str], object]) -> bool:
    """Call `act` for each task, even if the Queue refuses another one; return whether it refused none.

    Raises:
        CallFailed: The call for the only task failed.
        Failure: The Queue refused the credentials, failed itself or did not respond; names the task, and
            those for which `act` was not called.
    """
    was_refused = False
    for index, task_id in enumerate(task_ids):
        try:
            act(task_id)
        except errors.CallFailed as error:
            if len(task_ids) == 1:
                raise
            if not _is_about_one_task(error):
                message = f"{task_id}: {in_one_line(error)}{_effect(error)}{not_tried(task_ids[index + 1 :])}"
                raise Failure(message, status_of(error)) from error
            was_refused = True
            click.echo(f"Error: {task_id}: {in_one_line(error)}", err=True)
    return not was_refused


def not_tried(task_ids: Sequence[str]) -> str:
    """Return a remark such as `; not tried: A, B`; an empty str without tasks."""
    return f"; not tried: {some_of(task_ids, _FEW)}" if task_ids else ""


def _is_about_one_task(error: errors.CallFailed) -> bool:
    """Return whether the Queue has refused a call for a reason that other tasks need not share."""
    of_all = (errors.AuthenticationFailed, errors.ServerError)
    return isinstance(error, errors.ApiError) and not isinstance(error, of_all)


def in_one_line(error: BaseException | None) -> str:
    """Return an error as one printable line: what is wrong and, if known, what to do."""
    if isinstance(error, errors.InvalidDefinition):
        text = "; ".join(map(str, error.problems))
    else:
        text = _of_call(error) if isinstance(error, errors.CallFailed) else str(error)
    notes: list[str] = getattr(error, "__notes__", [])
    return printable(" ".join("; ".join([text, *notes]).split()))


def _of_call(error: errors.CallFailed) -> str:
    if isinstance(error, errors.ErrorArtifact):
        return f"an error artifact, without content: {error.reason}: {error.message}"
    if isinstance(error, errors.ConnectionFailed):
        return f"cannot reach {_root_url(error)} ({error.reason}): check {_suspects(error)}"
    if isinstance(error, errors.UnreadableResponse):
        return _of_another_server(error, f"an unreadable response ({error.reason})")
    if isinstance(error, errors.ServerError) or (isinstance(error, errors.ApiError) and error.code):
        return _of_response(error)
    if isinstance(error, errors.ApiError):
        return _without_code(error)
    return str(error)


def _without_code(error: errors.ApiError) -> str:
    if error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return f"cannot reach {_root_url(error)}: {error.message}"
    said = " ".join(error.message.split())
    if isinstance(error, errors.TooManyRequests):
        return f"{_root_url(error)} gets too many requests (HTTP {error.status}: {said}): try later"
    return _of_another_server(error, f"no error code of Taskcluster ({said})")


def _suspects(error: errors.ConnectionFailed) -> str:
    if UNTRUSTED in error.reason:
        return f"{_variables(error)} and the trusted certificates (REQUESTS_CA_BUNDLE)"
    return f"{_variables(error)} and the network"


def _variables(error: errors.CallFailed) -> str:
    """Return the names of the variables that say where a call was sent."""
    url = error.attempted.url
    server = "TASKCLUSTER_PROXY_URL" if os.environ.get("TASKCLUSTER_PROXY_URL") else "TASKCLUSTER_ROOT_URL"
    proxy = f", {proxy_variable(url)}" if NetworkSettings().proxy(url, socks=True) else ""
    return f"{server}{proxy}"


def _of_response(error: errors.ApiError) -> str:
    first = error.message.strip().partition("\n")[0]
    if isinstance(error, errors.InsufficientScopes):
        missing = first if error.missing is None else in_words(error.missing)
        caller = errors.caller_in(error.message)
        return f"{caller}missing scope: {missing}; use credentials that have it"
    if isinstance(error, errors.AuthenticationFailed) and _EXPIRED.search(first):
        return f"the credentials have expired ({first}): get new ones"
    if isinstance(error, errors.AuthenticationFailed):
        return (
            f"the credentials are not accepted ({first}): "
            "check TASKCLUSTER_CLIENT_ID, _ACCESS_TOKEN and, for temporary ones, _CERTIFICATE"
        )
    if isinstance(error, errors.NotFound):
        return f"not found: {first}"
    if isinstance(error, errors.ServerError):
        return f"{_root_url(error)} is in trouble (HTTP {error.status}: {first}): try later"
    return f"refused: {first}"


def _of_another_server(error: errors.ApiError | errors.UnreadableResponse, response: str) -> str:
    return (
        f"{_root_url(error)} responded to {error.endpoint} with HTTP {error.status} and {response}: "
        f"check {_variables(error)}"
    )


def _root_url(error: errors.CallFailed) -> str:
    return error.attempted.url.partition("/api/")[0]
