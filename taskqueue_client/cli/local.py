"""`taskqueue local`: a queue on this machine, until it is interrupted."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from taskqueue_client.clock import MovableClock, SystemClock
from taskqueue_client.local import Client, LocalQueue

from .documents import read_document
from .failures import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

_STOP = {signal.SIGINT, signal.SIGTERM}


class _ClientEntry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    client_id: str
    access_token: str
    scopes: list[str] = []
    expires: float | None = None
    disabled: bool = False


class _Config(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The file behind `--config`."""

    clients: list[_ClientEntry] = []
    roles: dict[str, list[str]] = {}
    anonymous_scopes: list[str] | None = None


class _ConfigFile(click.ParamType[_Config]):
    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Config:
        try:
            return msgspec.convert(read_document(Path(value)), _Config)
        except (OSError, msgspec.ValidationError) as error:
            self.fail(f"{value}: {error}", param, ctx)


class _ClientOption(click.ParamType[Client]):
    name = "id=token=scopes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Client:
        client_id, _, rest = str(value).partition("=")
        token, _, scopes = rest.partition("=")
        if not (client_id and token):
            self.fail("give it as CLIENT_ID=ACCESS_TOKEN=SCOPE,SCOPE", param, ctx)
        return Client(client_id, token, [scope for scope in scopes.split(",") if scope])


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=0, type=click.IntRange(0, 65535), help="Port to listen on.  [default: a free one]"
)
@click.option("--allow-remote", is_flag=True, help="Listen on an address that other machines can reach.")
@click.option("--db", default=":memory:", show_default=True, help="File that the state is kept in.")
@click.option("--claim-timeout", default=1200.0, show_default=True, help="Seconds that a claim lasts.")
@click.option(
    "--like-production", is_flag=True, help="Act on deadlines and dependencies as late as the service."
)
@click.option("--amqp", "amqp_url", envvar="TASKQUEUE_LOCAL_AMQP", help="RabbitMQ to send messages to.")
@click.option("--client-id", default="local", show_default=True, help="A client with the scope `*`.")
@click.option(
    "--access-token", envvar="TASKQUEUE_LOCAL_ACCESS_TOKEN", help="Its token.  [default: a random one]"
)
@click.option("--client", "clients", type=_ClientOption(), multiple=True, help="A further client.")
@click.option("--config", type=_ConfigFile(), help="YAML or JSON with clients, roles and anonymousScopes.")
@click.option("--admin-secret", envvar="TASKQUEUE_LOCAL_ADMIN_SECRET", help="Turns the admin routes on.")
@click.option("--json", "as_json", is_flag=True, help="Print the settings as one line of JSON.")
def command(*, clients: tuple[Client, ...], config: _Config | None, as_json: bool, **settings: Any) -> None:
    """Run a Taskcluster Queue on this machine until it is interrupted.

    As soon as it answers, it prints the environment variables that point clients to it, in the words of a
    shell: copy them into another terminal. A script runs it in the background, and reads them from a file:

    \b
        rm -f env.sh
        taskqueue local > env.sh 2> queue.log &
        until [ -s env.sh ]; do sleep 0.1; done
        . ./env.sh

    Requests are logged to standard error.
    """  # noqa: D301 - for click: it leaves the lines of a paragraph that begins with this character as they are
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)  # before there are threads: these signals are waited for
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    config = config or _Config()
    # a clock that nobody can move follows the machine's, also when a laptop wakes from sleep
    clock = MovableClock() if settings["admin_secret"] else SystemClock()
    try:
        local = LocalQueue(
            clock=clock,
            clients=[*clients, *map(_client, config.clients)],
            roles=config.roles,
            anonymous_scopes=config.anonymous_scopes,
            **settings,
        )
        local.start()
    except sqlite3.Error as error:
        message = f"{settings['db']}: {error}"
        raise Failure(message) from None
    except (ValueError, OSError, ImportError) as error:
        raise Failure(str(error)) from None
    try:
        _print_settings(local, as_json=as_json)
        signal.sigwait(_STOP)
    finally:
        local.stop()


def _client(entry: _ClientEntry) -> Client:
    return Client(entry.client_id, entry.access_token, entry.scopes, entry.expires, entry.disabled)


def _print_settings(local: LocalQueue, *, as_json: bool) -> None:
    settings = {
        "TASKCLUSTER_ROOT_URL": local.root_url,
        "TASKCLUSTER_CLIENT_ID": local.client_id,
        "TASKCLUSTER_ACCESS_TOKEN": local.access_token,
    }
    click.echo(json.dumps(settings) if as_json else _exports(settings))
    sys.stdout.flush()


def _exports(settings: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in settings.items())
