"""`taskqueue doctor`: checks of the connection, clock, credentials, scopes, Pulse and storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial

import click
import msgspec

from taskqueue_client import errors
from taskqueue_client._arguments import some_of
from taskqueue_client._protocol.retry import is_foreign
from taskqueue_client._transport.network import SOCKS_PROXIES, NetworkSettings
from taskqueue_client.artifacts import ArtifactError
from taskqueue_client.client import Queue
from taskqueue_client.credentials import Credentials, expires_at
from taskqueue_client.events import Listener, PulseSettings, task_exception
from taskqueue_client.models import Priority, StorageType
from taskqueue_client.scopes import ScopeExpression, in_words, leaves, satisfies, unsatisfied
from taskqueue_client.worker.config import worker_id_of

from .arguments import connect, slug_id
from .failures import ExitStatus, Failure, in_one_line
from .listen import UntilConnected, leave_logging_to_on_state
from .output import duration, in_utc, json_option, print_json

_TOLERATED_SKEW = 60.0  # seconds of clock skew that are not reported; the clients correct for skew
_SOON = 15 * 60.0  # seconds before the end of temporary credentials at which the verdict becomes a note
_LONG = 10 * 60.0  # seconds that tasks may be pending while none is claimed, as while a machine starts
_FEW = 3  # how many workers in quarantine are named


class Verdict(StrEnum):
    """The result of a check."""

    GOOD = "good"
    NOTE = "note"
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """One check and its result."""

    check: str
    verdict: Verdict
    message: str


Result = tuple[Verdict, str]
"""The verdict and the message of a finding."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The task queues, worker and task to check, beyond the connection and the credentials."""

    task_queue_ids: tuple[str, ...] = ()
    worker_group: str | None = None
    worker_id: str | None = None
    task_id: str | None = None


_COLORS = {Verdict.GOOD: "green", Verdict.NOTE: "yellow", Verdict.WRONG: "red"}


def _listed(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return task queues that are separated as in a worker's settings."""
    return tuple((text or "").replace(",", " ").split())


@click.command()
@click.argument(
    "task_queue_ids",
    metavar="[TASK_QUEUE_ID]",
    required=False,
    envvar="TASKQUEUE_TASK_QUEUE_ID",
    callback=_listed,
)
@click.option("--worker-group", envvar="TASKQUEUE_WORKER_GROUP", help="The worker's group.")
@click.option("--worker-id", envvar="TASKQUEUE_WORKER_ID", help="The worker's id.")
@click.option(
    "--task",
    "task_id",
    type=slug_id,
    metavar="ID",
    help="A task with artifacts, to check downloads from storage.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    as_json: bool,
    task_queue_ids: tuple[str, ...],
    worker_id: str | None,
    **subject: str | None,
) -> None:
    """Check connection, clock, credentials, Pulse and, for TASK_QUEUE_ID, the scopes to submit and to work.

    Several task queues are separated by commas. With --worker-group and --worker-id, missing scopes to work
    and a quarantine of the worker are wrong; without them, workers in quarantine are named. With --task, the
    storage of artifacts is checked as well. Nothing is created or claimed. The exit status is 0 if nothing is
    wrong. With --json, prints an object for each check, with `verdict`: `good`, `note` or `wrong`.
    """
    worst = ExitStatus.DONE
    worker_id = worker_id_of(worker_id)  # as the worker's own settings do
    for finding in findings(Subject(task_queue_ids, worker_id=worker_id, **subject)):
        if finding.verdict is Verdict.WRONG:
            worst = ExitStatus.NOT_COMPLETED
        if as_json:
            print_json(finding)
        else:
            is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
            colors = False if is_plain else None  # None: only on a terminal
            click.secho(f"{finding.verdict:<6}", fg=_COLORS[finding.verdict], nl=False, color=colors)
            click.echo(f"{finding.check}: {finding.message}")
    ctx.exit(worst)


def findings(subject: Subject) -> Iterator[Finding]:
    """Check one thing after the other; without a response from the Queue, stop there."""
    try:
        queue = connect()
        yield Finding("root URL", Verdict.GOOD, queue.root_url)
        yield from _network(queue.root_url)
    except (Failure, errors.InvalidArgument) as error:
        message = error.message if isinstance(error, Failure) else in_one_line(error)
        yield Finding("environment", Verdict.WRONG, message)
        return
    with queue:
        try:
            queue.with_options(attempts=2).ping()
        except errors.CallFailed as error:
            yield Finding("service", Verdict.WRONG, in_one_line(error))
            return
        yield Finding("service", Verdict.GOOD, "the Queue responds")
        yield Finding("clock", *_clock(queue))
        yield from _access(queue, subject)
        yield Finding("pulse", *_pulse(subject))
        yield Finding("storage", *_storage(queue, subject.task_id))


def _network(root_url: str) -> Iterator[Finding]:
    """Name the proxy and the trusted certificates; raises InvalidArgument if one cannot be used."""
    network = NetworkSettings()
    proxy = network.proxy(root_url, socks=True)
    if proxy is not None and proxy.url.startswith(SOCKS_PROXIES):
        yield Finding("proxy", Verdict.NOTE, f"{proxy.url}: AsyncQueue and workers cannot use a SOCKS proxy")
    else:
        yield Finding("proxy", Verdict.GOOD, "none" if proxy is None else proxy.url)
    if root_url.startswith("https:"):
        _ = network.tls
        variables = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
        used = next((f"{name}={os.environ[name]}" for name in variables if os.environ.get(name)), None)
        yield Finding("certificates", Verdict.GOOD, used or "the system's and certifi's")


def _clock(queue: Queue) -> Result:
    skew = (queue.now() - datetime.now(UTC)).total_seconds()
    if abs(skew) <= _TOLERATED_SKEW:
        return Verdict.GOOD, f"this machine's clock agrees with the service's within {_TOLERATED_SKEW:.0f} s"
    which = "behind" if skew > 0 else "ahead of"
    return Verdict.WRONG, f"this machine's clock is {abs(skew):.0f} s {which} the service's: set it (NTP)"


def _access(queue: Queue, subject: Subject) -> Iterator[Finding]:
    credentials = queue.credentials
    if credentials is not None and credentials.certificate is not None:
        certificate = Finding("certificate", *_certificate(credentials, queue.now()))
        yield certificate
        if certificate.verdict is Verdict.WRONG:
            return
    try:
        held = queue.current_scopes().scopes
    except errors.CallFailed as error:
        if is_foreign(error) or not isinstance(error, errors.InsufficientScopes):
            yield Finding("credentials", Verdict.WRONG, in_one_line(error))
            return
        held = None
    yield Finding("credentials", *_credentials(queue, held))
    if not subject.task_queue_ids:
        yield Finding("scopes", Verdict.NOTE, "not checked: give a task queue id")
    for each in subject.task_queue_ids:
        try:
            yield Finding("task queue", *_task_queue(queue, each))
            if subject.worker_group and subject.worker_id:
                yield Finding("worker", *_worker(queue, each, subject.worker_group, subject.worker_id))
            else:
                yield Finding("workers", *_workers(queue, each))
        except (errors.CallFailed, errors.InvalidArgument) as error:
            yield Finding("task queue", Verdict.WRONG, in_one_line(error))
        else:
            yield from _scopes(_holder(queue, held), each, subject)


def _certificate(credentials: Credentials, now: datetime) -> Result:
    expires = expires_at(credentials)
    if expires is None:
        return Verdict.WRONG, "not a certificate of temporary credentials: it has no `expiry`"
    left = expires - now.timestamp()
    if left <= 0:
        return Verdict.WRONG, "the temporary credentials have expired: get new ones"
    verdict = Verdict.NOTE if left < _SOON else Verdict.GOOD
    return verdict, f"the temporary credentials expire in {left / 60:.0f} min"


def _credentials(queue: Queue, held: list[str] | None) -> Result:
    if os.environ.get("TASKCLUSTER_PROXY_URL"):
        return Verdict.NOTE, "TASKCLUSTER_PROXY_URL: the proxy adds credentials; a worker cannot use it"
    if queue.credentials is None:
        message = "TASKCLUSTER_CLIENT_ID and TASKCLUSTER_ACCESS_TOKEN are not set: access to public data only"
        return Verdict.NOTE, message
    client = f"client {queue.credentials.client_id!r} is accepted"
    if held is None:
        return Verdict.NOTE, f"{client}; its scopes cannot be listed without the scope auth:current-scopes"
    return Verdict.GOOD, f"{client}; number of scopes: {len(held)}"


def _task_queue(queue: Queue, task_queue_id: str) -> Result:
    try:
        counts = queue.task_queue_counts(task_queue_id)
    except errors.InsufficientScopes as error:
        return Verdict.NOTE, f"{task_queue_id}: tasks cannot be counted: {in_one_line(error)}"
    message = f"{task_queue_id}: pending tasks: {counts.pending_tasks}, claimed: {counts.claimed_tasks}"
    verdict = Verdict.GOOD
    if counts.pending_tasks and not counts.claimed_tasks and (waiting := _waiting(queue, task_queue_id)):
        message, verdict = f"{message}; the oldest has been pending for {waiting}", Verdict.NOTE
    try:
        queue.get_task_queue(task_queue_id)
    except errors.ResourceNotFound:
        return Verdict.NOTE, f"{message}; no worker has claimed from it lately"
    except errors.InsufficientScopes:
        return verdict, f"{message}; unknown whether workers claim from it"
    return verdict, message


def _waiting(queue: Queue, task_queue_id: str) -> str:
    """Return for how long the oldest task has been pending; an empty str if not for long, or unknown."""
    try:
        oldest = queue.list_pending_tasks(task_queue_id, limit=1).tasks
    except errors.InsufficientScopes:
        return ""
    now = queue.now()
    is_long = oldest and (now - oldest[0].inserted).total_seconds() > _LONG
    return duration(oldest[0].inserted, None, now) if is_long else ""


def _workers(queue: Queue, task_queue_id: str) -> Result:
    """Report the workers of a task queue that are in quarantine."""
    try:
        found = list(queue.iter_workers(task_queue_id, quarantined=True))
    except errors.InsufficientScopes as error:
        return Verdict.NOTE, f"{task_queue_id}: unknown whether one is in quarantine: {in_one_line(error)}"
    named = [
        f"{each.worker_group}/{each.worker_id} until {in_utc(each.quarantine_until)}"
        for each in found
        if each.quarantine_until
    ]
    if not named:
        return Verdict.GOOD, f"{task_queue_id}: none is in quarantine"
    in_quarantine = some_of(named, _FEW)
    return Verdict.NOTE, f"{task_queue_id}: in quarantine, where they get no tasks: {in_quarantine}"


def _worker(queue: Queue, task_queue_id: str, group: str, worker_id: str) -> Result:
    """Report whether the worker is in quarantine: such a worker gets no tasks, and no error says why."""
    name = f"{task_queue_id}: {group}/{worker_id}"
    try:
        worker = queue.get_worker(task_queue_id, worker_group=group, worker_id=worker_id)
    except errors.ResourceNotFound:
        return Verdict.NOTE, f"{name} has not claimed lately"
    except errors.InsufficientScopes as error:
        return Verdict.NOTE, f"{name}: unknown whether it is in quarantine: {in_one_line(error)}"
    until = worker.quarantine_until
    if until is None or until <= queue.now():
        return Verdict.GOOD, f"{name} is not in quarantine"
    message = (
        f"{name} is in quarantine until {in_utc(until)}, and gets no tasks; "
        f"to lift it, run taskqueue quarantine {task_queue_id} {group} {worker_id} --hours 0"
    )
    return Verdict.WRONG, message


Holder = Callable[[str], bool]
"""Returns whether the credentials satisfy a scope."""


def _holder(queue: Queue, held: list[str] | None) -> Holder | None:
    if held is not None:
        return lambda scope: satisfies(held, scope)
    if (credentials := queue.credentials) is None:
        return None
    return lambda scope: _is_authorized(queue, credentials, scope)


def _is_authorized(queue: Queue, credentials: Credentials, scope: str) -> bool:
    """Return whether the service accepts requests restricted to a scope; it refuses the others with 401."""
    restricted = msgspec.structs.replace(credentials, authorized_scopes=[scope])
    try:
        with suppress(errors.InsufficientScopes):  # to look up scopes: the restriction itself was accepted
            queue.with_credentials(restricted).current_scopes()
    except errors.AuthenticationFailed:
        return False
    return True


def _scopes(holds: Holder | None, queue_id: str, subject: Subject) -> Iterator[Finding]:
    if holds is None:
        message = f"{queue_id}: not checked: the scopes of the credentials are not known"
        yield Finding("scopes", Verdict.NOTE, message)
        return
    yield _allowed("to submit", queue_id, scopes_to_submit(queue_id), holds)
    if subject.worker_group and subject.worker_id:
        worker = f"queue:worker-id:{subject.worker_group}/{subject.worker_id}"
        needed = {"AllOf": [f"queue:claim-work:{queue_id}", worker]}
        yield _allowed("to work", queue_id, needed, holds, otherwise=Verdict.WRONG)
        return
    claiming = _allowed("to work", queue_id, f"queue:claim-work:{queue_id}", holds)
    message = f"{claiming.message}; give --worker-group and --worker-id to check queue:worker-id as well"
    yield Finding(claiming.check, Verdict.NOTE, message)


def scopes_to_submit(task_queue_id: str) -> ScopeExpression:
    """Return the scopes to create a task without routes, scopes, scheduler and project."""
    return {
        "AllOf": [
            "queue:create-task:project:none",
            "queue:scheduler-id:-",
            {"AnyOf": [f"queue:create-task:{priority}:{task_queue_id}" for priority in Priority]},
        ]
    }


def _allowed(
    what: str, queue_id: str, expression: ScopeExpression, holds: Holder, *, otherwise: Verdict = Verdict.NOTE
) -> Finding:
    missing = unsatisfied(expression, [scope for scope in leaves(expression) if holds(scope)])
    if missing is None:
        return Finding(f"scopes {what}", Verdict.GOOD, f"{queue_id}: held")
    return Finding(f"scopes {what}", otherwise, f"{queue_id}: missing: {in_words(missing)}")


def _pulse(subject: Subject) -> Result:
    """Connect to the broker and bind as a worker does."""
    leave_logging_to_on_state()
    if not os.environ.get("PULSE_URL"):
        return Verdict.NOTE, "not checked: PULSE_URL is not set"
    try:
        ended = partial(task_exception, worker_group=subject.worker_group, worker_id=subject.worker_id)
        bindings = [ended(task_queue_id=each) for each in subject.task_queue_ids or [None]]
        settings = PulseSettings.from_env()
        with Listener(settings, bindings, on_state=UntilConnected()):
            return Verdict.GOOD, f"{settings}: connected and bound"
    except (errors.BrokerLost, errors.BrokerRefused) as error:
        reason = in_one_line(error).removesuffix(".")  # some texts of RabbitMQ end with a full stop
        return Verdict.WRONG, f"{reason}: check PULSE_URL"
    except (errors.TaskQueueError, OSError, ImportError) as error:  # an OSError if the `cafile` is unreadable
        return Verdict.WRONG, in_one_line(error)


def _storage(queue: Queue, task_id: str | None) -> Result:
    """Download the beginning of an artifact."""
    if task_id is None:
        return Verdict.NOTE, "not checked: give --task, the id of a task with artifacts"
    stored = {StorageType.S3, StorageType.OBJECT}
    try:
        names = [each.name for each in queue.iter_latest_artifacts(task_id) if each.storage_type in stored]
        name = min(names, key=lambda each: not each.startswith("public/"), default=None)  # most may read it
        if name is None:
            message = f"not checked: task {task_id} has no artifact of the storage types s3 and object"
            return Verdict.NOTE, message
        next(iter(queue.stream_artifact(task_id, name)), None)
    except errors.InsufficientScopes as error:
        return Verdict.NOTE, f"not checked: {in_one_line(error)}"
    except (errors.CallFailed, ArtifactError) as error:
        return Verdict.WRONG, in_one_line(error)
    return Verdict.GOOD, f"{name} of task {task_id} can be downloaded"
