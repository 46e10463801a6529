"""`taskqueue doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum

import click
import msgspec

from taskqueue_client.client import Queue
from taskqueue_client.credentials import certificate_of
from taskqueue_client.errors import CallFailed, InvalidArgument
from taskqueue_client.scopes import ScopeExpression, unsatisfied

from .connection import connect
from .failures import ExitStatus, Failure, in_one_line
from .output import json_option, print_json

_TOLERATED_SKEW = 60.0
"""Seconds; Hawk refuses a call that is a minute off, and the clients correct for it."""

_SOON = 15 * 60.0
"""Seconds before their end at which temporary credentials are worth a word."""


class Verdict(StrEnum):
    """How a check came out."""

    GOOD = "good"
    NOTE = "note"
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """What a check found, in plain words."""

    check: str
    verdict: Verdict
    message: str


@click.command()
@click.argument("task_queue_id", required=False)
@click.option("--worker-group", default="*", show_default=True, help="The group of the worker to check for.")
@click.option("--worker-id", default="*", show_default=True, help="The id of the worker to check for.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, task_queue_id: str | None, worker_group: str, worker_id: str, *, as_json: bool
) -> None:
    """Check root URL, credentials and clock and, of TASK_QUEUE_ID, the scopes to submit and to work.

    The exit status is 0 if nothing is wrong. With --json, prints an object for each check, with `verdict`:
    `good`, `note` or `wrong`.
    """
    worst = ExitStatus.DONE
    for finding in findings(task_queue_id, f"{worker_group}/{worker_id}"):
        if finding.verdict is Verdict.WRONG:
            worst = ExitStatus.NOT_COMPLETED
        if as_json:
            print_json(finding)
        else:
            click.secho(f"{finding.verdict:<6}", fg=_COLOURS[finding.verdict], nl=False)
            click.echo(f"{finding.check}: {finding.message}")
    ctx.exit(worst)


_COLOURS = {Verdict.GOOD: "green", Verdict.NOTE: "yellow", Verdict.WRONG: "red"}


def findings(task_queue_id: str | None, worker: str) -> Iterator[Finding]:
    """Check one thing after another, as far as it makes sense."""
    try:
        queue = connect()
    except (Failure, InvalidArgument) as error:
        message = error.message if isinstance(error, Failure) else in_one_line(error)
        yield Finding("environment", Verdict.WRONG, message)
        return
    with queue:
        yield Finding("root URL", Verdict.GOOD, queue.root_url)
        try:
            queue.with_options(attempts=2).ping()
        except CallFailed as error:
            yield Finding("service", Verdict.WRONG, in_one_line(error))
            return
        yield Finding("service", Verdict.GOOD, "the Queue answers")
        yield _clock(queue)
        yield from _credentials(queue)
        yield from _scopes(queue, task_queue_id, worker)


def _clock(queue: Queue) -> Finding:
    skew = (queue.now() - datetime.now(UTC)).total_seconds()
    if abs(skew) <= _TOLERATED_SKEW:
        return Finding("clock", Verdict.GOOD, "this machine's clock agrees with the service's to a minute")
    which = "behind" if skew > 0 else "ahead of"
    message = f"this machine's clock is {abs(skew):.0f} s {which} the service's: set it (NTP)"
    return Finding("clock", Verdict.WRONG, message)


def _credentials(queue: Queue) -> Iterator[Finding]:
    credentials = queue.credentials
    if os.environ.get("TASKCLUSTER_PROXY_URL"):
        yield Finding("credentials", Verdict.NOTE, "TASKCLUSTER_PROXY_URL is set: its proxy adds its own")
        return
    if credentials is None:
        message = "none: TASKCLUSTER_CLIENT_ID and TASKCLUSTER_ACCESS_TOKEN are not set; reading may work"
        yield Finding("credentials", Verdict.NOTE, message)
        return
    try:
        count = len(queue.current_scopes().scopes)
    except CallFailed as error:
        yield Finding("credentials", Verdict.WRONG, in_one_line(error))
    else:
        message = f"client {credentials.client_id!r} is accepted; number of scopes: {count}"
        yield Finding("credentials", Verdict.GOOD, message)
    if credentials.certificate is not None:
        yield _certificate(credentials.certificate, queue.now())


def _certificate(text: str, now: datetime) -> Finding:
    expiry = certificate_of(text).get("expiry")
    left = (expiry / 1000 if isinstance(expiry, (int, float)) else 0) - now.timestamp()
    if left <= 0:
        message = "the temporary credentials have expired: get new ones"
        return Finding("certificate", Verdict.WRONG, message)
    verdict = Verdict.NOTE if left < _SOON else Verdict.GOOD
    return Finding("certificate", verdict, f"the temporary credentials last {left / 60:.0f} more minutes")


def _scopes(queue: Queue, task_queue_id: str | None, worker: str) -> Iterator[Finding]:
    if task_queue_id is None:
        yield Finding("scopes", Verdict.NOTE, "give a task queue's id to have the scopes for it checked")
        return
    try:
        counts = queue.task_queue_counts(task_queue_id)
        held = queue.current_scopes().scopes
    except (CallFailed, InvalidArgument) as error:
        yield Finding("task queue", Verdict.WRONG, in_one_line(error))
        return
    waiting = f"{counts.pending_tasks} tasks wait, {counts.claimed_tasks} are claimed"
    yield Finding("task queue", Verdict.GOOD, f"{task_queue_id}: {waiting}")
    yield _allowed("to submit", to_submit(task_queue_id), held)
    yield _allowed("to work", to_work(task_queue_id, worker), held)


def to_submit(task_queue_id: str) -> ScopeExpression:
    """What the Queue asks of whoever creates a task without routes, scopes, scheduler and project."""
    return {
        "AllOf": [
            f"queue:create-task:lowest:{task_queue_id}",
            "queue:create-task:project:none",
            "queue:scheduler-id:-",
        ]
    }


def to_work(task_queue_id: str, worker: str) -> ScopeExpression:
    """What the Queue asks of whoever claims work."""
    return {"AllOf": [f"queue:claim-work:{task_queue_id}", f"queue:worker-id:{worker}"]}


def _allowed(what: str, expression: ScopeExpression, held: list[str]) -> Finding:
    missing = unsatisfied(expression, held)
    if missing is None:
        return Finding(f"scopes {what}", Verdict.GOOD, "held")
    names = [missing] if isinstance(missing, str) else missing["AllOf"]
    message = f"missing: {', '.join(names)}"
    return Finding(f"scopes {what}", Verdict.NOTE, message)
