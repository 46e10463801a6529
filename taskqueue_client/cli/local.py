"""`taskqueue local`: a queue on this machine, until it is interrupted."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import astuple

from taskqueue_client._transport.network import bypassing_proxies
from taskqueue_client.clock import MovableMachineClock
from taskqueue_client.local import OBJECT_METHODS, PUBLIC_SCOPES, Client, LocalQueue
from taskqueue_client.worker.worker_log import log_handler

from .arguments import duration
from .documents import read_document
from .failures import Failure

_STOP = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


class _ClientEntry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    client_id: str
    access_token: str
    scopes: list[str] = []
    expires: float | None = None
    disabled: bool = False


class _Config(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The content of the file of `--config`."""

    clients: list[_ClientEntry] = []
    roles: dict[str, list[str]] = {}
    anonymous_scopes: list[str] | None = None


def _config(file: str) -> _Config:
    try:
        return msgspec.convert(read_document(Path(file)), _Config)
    except msgspec.ValidationError as error:
        raise click.BadParameter(f"{file}: {error}") from error


def _client_of(given: str) -> Client:
    client_id, _, rest = given.partition("=")
    token, _, scopes = rest.partition("=")
    if not (client_id and token):
        raise click.BadParameter("not a client; expected CLIENT_ID=ACCESS_TOKEN=SCOPE,SCOPE")
    return Client(client_id, token, [scope for scope in scopes.split(",") if scope])


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=0, type=click.IntRange(0, 65535), help="Port to listen on.  [default: a free one]"
)
@click.option("--allow-remote", is_flag=True, help="Listen on an address that other machines can reach.")
@click.option("--db", default=":memory:", show_default=True, help="SQLite file for the state.")
@click.option(
    "--claim-timeout",
    default=1200.0,
    show_default=True,
    type=duration("31 days"),
    help="How long a claim lasts, in seconds or text such as '1 minute'.",
)
@click.option(
    "--max-dependencies", default=10_000, show_default=True, help="Maximum number of dependencies of a task."
)
@click.option("--sign-public-artifacts", is_flag=True, help="Sign the URLs of public artifacts as well.")
@click.option(
    "--object-method",
    "object_methods",
    type=click.Choice(OBJECT_METHODS),
    multiple=True,
    default=OBJECT_METHODS,
    show_default=True,
    help="An upload or download method of the object service; may be repeated.",
)
@click.option(
    "--like-production", is_flag=True, help="Act on deadlines and dependencies as late as the service."
)
@click.option(
    "--amqp",
    "amqp_url",
    envvar="TASKQUEUE_LOCAL_AMQP",
    show_envvar=True,
    help="AMQP URL of the RabbitMQ to publish messages to, and to consume those of worker-manager from.",
)
@click.option(
    "--legacy-azure",
    envvar="TASKQUEUE_LOCAL_LEGACY_AZURE",
    show_envvar=True,
    help="Connection string of a storage account whose queues workers poll.",
)
@click.option(
    "--client-id", default="local", show_default=True, help="Name of the client that has all scopes."
)
@click.option(
    "--access-token",
    envvar="TASKQUEUE_LOCAL_ACCESS_TOKEN",
    show_envvar=True,
    help="Access token of this client.  [default: a random one]",
)
@click.option(
    "--client",
    "clients",
    metavar="ID=TOKEN=SCOPES",
    type=_client_of,
    multiple=True,
    help="Another client, with scopes separated by commas; may be repeated.",
)
@click.option(
    "--config", metavar="FILE", type=_config, help="YAML or JSON with clients, roles and anonymousScopes."
)
@click.option(
    "--admin-secret",
    envvar="TASKQUEUE_LOCAL_ADMIN_SECRET",
    show_envvar=True,
    help="Secret for the admin routes, which exist only with this option.",
)
@click.option(
    "--public/--private",
    default=None,
    help="What callers without credentials may do: as in a public deployment, or nothing.",
)
@click.option(
    "--page/--no-page", default=True, help="Serve a web page that shows the queue.  [default: page]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the settings as one line of JSON.")
def command(
    *,
    clients: tuple[Client, ...],
    config: _Config | None,
    public: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Run a Taskcluster Queue on this machine until it is interrupted.

    Once it accepts requests, it prints the environment variables that point clients to it, as lines of a
    shell: copy them into another terminal. A script runs it in the background, and reads them from a file:

    \b
        rm -f env.sh
        taskqueue local > env.sh 2> queue.log &
        until [ -s env.sh ]; do sleep 0.1; done
        . ./env.sh

    A comment line has the address of a web page that shows what the queue does. Requests are logged to
    standard error.
    """  # noqa: D301 - for click: it leaves the lines of a paragraph that begins with this character as they are
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    stop = _STOP - {signal.SIGHUP} if is_nohup else _STOP
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # before there are threads: `sigwait` gets these signals
    logging.basicConfig(handlers=[log_handler()], level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)  # it logs each request otherwise
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it logs tracebacks of lost connections otherwise
    config = config or _Config()
    try:
        local = LocalQueue(
            clock=MovableMachineClock(),
            clients=[*clients, *(Client(*astuple(each)) for each in config.clients)],
            roles=config.roles,
            anonymous_scopes=_anonymous_scopes(config, public=public),
            **settings,
        )
        local.start()
    except sqlite3.Error as error:
        is_in_use = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
        finding = "another process uses this file; stop it, or use another file" if is_in_use else error
        raise Failure(f"{settings['db']}: {finding}") from None
    except (ValueError, OSError, ImportError) as error:
        raise Failure(str(error)) from None
    try:
        _print_settings(local, as_json=as_json)
        signal.sigwait(stop)
    finally:
        local.stop()


def _anonymous_scopes(config: _Config, *, public: bool | None) -> Sequence[str] | None:
    if public is None:
        return config.anonymous_scopes
    return PUBLIC_SCOPES if public else ()


def _print_settings(local: LocalQueue, *, as_json: bool) -> None:
    settings = {
        "TASKCLUSTER_ROOT_URL": local.root_url,
        "TASKCLUSTER_CLIENT_ID": local.client_id,
        "TASKCLUSTER_ACCESS_TOKEN": local.access_token,
        **bypassing_proxies(local.root_url),
    }
    page = {"page": local.page_url} if local.page_url else {}
    comments = [f"# {name}: {url}" for name, url in page.items()]
    others = "unset TASKCLUSTER_CERTIFICATE TASKCLUSTER_PROXY_URL"  # clients would use those of a deployment
    exports = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    click.echo(json.dumps(settings | page) if as_json else "\n".join([*exports, others, *comments]))
