"""Errors as one line that says what to do, and an exit status."""

from __future__ import annotations

from enum import IntEnum

import click

from taskqueue_client.artifacts import ArtifactError
from taskqueue_client.errors import (
    ApiError,
    AuthenticationFailed,
    CallFailed,
    ConnectionFailed,
    InsufficientScopes,
    InvalidArgument,
    InvalidDefinition,
    NotFound,
    ServerError,
    TaskQueueError,
)
from taskqueue_client.graph import SubmissionFailed


class ExitStatus(IntEnum):
    """How a command ended; the group's help says the same."""

    DONE = 0
    NOT_COMPLETED = 1
    WRONG_USE = 2
    REFUSED = 3
    NO_ANSWER = 4


class Failure(click.ClickException):
    """What ends a command.

    Args:
        message: What is wrong and what to do, in one line.
        status: The exit status.
    """

    def __init__(self, message: str, status: ExitStatus = ExitStatus.WRONG_USE) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = int(status)  # type: ignore[misc] # click has it as a class's, and reads the instance's


def failure_of(error: Exception) -> Failure | None:
    """What an error means to whoever typed the command.

    None if it is a defect of this program, or nobody reads its output any more (`| head`), which click ends
    without a word.
    """
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, (TaskQueueError, OSError)):
        return Failure(in_one_line(error), _status(error))
    if isinstance(error, RecursionError):
        return Failure("what is to be read is nested too deeply")
    return None


def _status(error: BaseException | None) -> ExitStatus:
    if isinstance(error, SubmissionFailed):
        return _status(error.__cause__)
    if isinstance(error, ServerError):
        return ExitStatus.NO_ANSWER
    if isinstance(error, ApiError):
        return ExitStatus.REFUSED
    if isinstance(error, (CallFailed, ArtifactError)):
        return ExitStatus.NO_ANSWER
    return ExitStatus.WRONG_USE


def in_one_line(error: BaseException | None) -> str:
    """What is wrong and, where that is known, what to do."""
    if isinstance(error, SubmissionFailed):
        return _of_submission(error)
    if isinstance(error, InvalidDefinition):
        return "; ".join(map(str, error.problems))
    if isinstance(error, InvalidArgument):
        given = " is not set" if error.given is None or error.given == "" else f": {error.given!r}"
        return f"{error.argument}{given}: must be {error.allowed}"
    if isinstance(error, ConnectionFailed):
        return f"cannot reach {_root_url(error)} ({error.reason}): check TASKCLUSTER_ROOT_URL and the network"
    if isinstance(error, ApiError):
        return _of_answer(error)
    return str(error)


def _of_submission(error: SubmissionFailed) -> str:
    done, every = len(error.created), len(error.graph.tasks)
    line = f"task {error.name!r} was not created: {in_one_line(error.__cause__)}"
    if not done:
        return line
    group = error.graph.task_group_id
    return f"{line} ({done} of {every} tasks were; to cancel them: taskqueue cancel --group {group})"


def _of_answer(error: ApiError) -> str:
    first = error.message.strip().partition("\n")[0]
    if isinstance(error, InsufficientScopes):
        scopes = ", ".join(error.missing_scopes) or first
        return f"not allowed without {scopes}: set credentials that have it, or ask for it"
    if isinstance(error, AuthenticationFailed):
        return f"the credentials are not accepted ({first}): check TASKCLUSTER_CLIENT_ID and _ACCESS_TOKEN"
    if isinstance(error, NotFound):
        return f"not found: {first}"
    if isinstance(error, ServerError):
        return f"{_root_url(error)} is in trouble (HTTP {error.status}: {first}): try later"
    return f"refused: {first}"


def _root_url(error: CallFailed) -> str:
    return error.attempted.url.partition("/api/")[0]
