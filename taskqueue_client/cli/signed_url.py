"""`taskqueue signed-url`."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from taskqueue_client import calls
from taskqueue_client._dates import instant
from taskqueue_client.definitions import from_now
from taskqueue_client.errors import InvalidArgument

from .arguments import run_option, task_argument
from .connection import connect_with_credentials
from .failures import Failure
from .output import json_option, print_either


@click.command()
@task_argument
@click.argument("name")
@run_option
@click.option(
    "--lifetime", default="15 minutes", show_default=True, help='How long it works, like "2 hours".'
)
@json_option
def command(task_id: str, name: str, run_id: int | None, lifetime: str, *, as_json: bool) -> None:
    """Make a URL that lets anybody fetch the artifact NAME of a task for a while.

    Whoever has the URL needs no credentials: treat it as a secret. With --json, prints an object with `url`
    and `expires`.
    """
    with connect_with_credentials() as queue:
        now = datetime.now(UTC)
        if queue.credentials is None:
            message = "a proxy's credentials cannot sign a URL: set TASKCLUSTER_ROOT_URL and credentials"
            raise Failure(message)
        call = (
            calls.get_latest_artifact(task_id, name)
            if run_id is None
            else calls.get_artifact(task_id, run_id, name)
        )
        expires = _expiry(lifetime, now)
        url = queue.signed_url(call, lifetime=expires - now)
    print_either({"url": url, "expires": expires}, url, as_json=as_json)


def _expiry(lifetime: str, now: datetime) -> datetime:
    try:
        moment = instant(from_now(lifetime, now))
    except InvalidArgument as error:
        message = f"--lifetime: {lifetime!r}: must be {error.allowed}"
        raise Failure(message) from error
    return moment or now
