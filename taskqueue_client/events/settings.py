"""The broker to connect to, and what a listener declares there."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from taskqueue_client.errors import InvalidArgument

from .exchanges import Binding

LONGEST_NAME: Final = 255
"""The longest name of an AMQP queue, in bytes."""
MOST_PREFETCHED: Final = 65_535
"""The largest prefetch count that AMQP can express."""

_PORTS: Final = {"amqps": 5671, "amqp": 5672}
_IGNORED: Final = frozenset({"frameMax", "channelMax"})
"""URL parameters of other clients that are accepted and ignored: both sides negotiate these numbers."""
_ALLOWED: Final = (
    "amqps://user:password@host:port/vhost (or amqp://), percent-encoded, "
    "with no parameters but heartbeat and cafile"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseSettings:
    """Connection settings of the RabbitMQ that the Queue publishes to ("Pulse").

    `str()` and `repr()` never show the password.

    Attributes:
        host: Name or address of the broker.
        user: The RabbitMQ user; queue names contain it.
        password: The user's password.
        vhost: The virtual host.
        tls: Encrypt the connection and verify the broker's certificate.
        port: Default: 5671 with TLS, 5672 without.
        ca_file: PEM file with the CA certificates to trust instead of the system's.
        heartbeat: Seconds between AMQP heartbeats.
    """

    host: str
    user: str
    password: str = field(repr=False)
    vhost: str = "/"
    tls: bool = True
    port: int | None = None
    ca_file: str | None = None
    heartbeat: int = 60

    def __str__(self) -> str:
        vhost = quote(self.vhost, safe="")
        return f"{self.scheme}://{quote(self.user, safe='')}:***@{self.host}:{self.effective_port}/{vhost}"

    @property
    def scheme(self) -> str:
        """`amqps` or `amqp`."""
        return "amqps" if self.tls else "amqp"

    @property
    def effective_port(self) -> int:
        """The port to connect to: `port`, or the default of the scheme."""
        return self.port or _PORTS[self.scheme]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the settings from the environment variable `PULSE_URL`.

        Raises:
            InvalidArgument: `PULSE_URL` is not set or is not an AMQP URL.
        """
        url = environ.get("PULSE_URL")
        if not url:
            raise InvalidArgument("PULSE_URL", url, _ALLOWED)
        return cls._of_url("PULSE_URL", url)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read the settings from an AMQP URL.

        Args:
            url: `amqps://user:password@host:port/vhost`, each part percent-encoded. An empty path and
                `/` both mean the virtual host `/`. Parameters: `heartbeat` and `cafile`.

        Raises:
            InvalidArgument: `url` is not an AMQP URL; the error does not show the URL.
        """
        return cls._of_url("url", url)

    @classmethod
    def _of_url(cls, argument: str, url: str) -> Self:
        try:
            return cls._of_parts(urlsplit(url))
        except ValueError as error:
            problem = error.allowed if isinstance(error, InvalidArgument) else _ALLOWED
        raise InvalidArgument(argument, "<not shown>", problem)

    @classmethod
    def _of_parts(cls, parts: SplitResult) -> Self:
        parameters = {name: value for name, value in parse_qsl(parts.query) if name not in _IGNORED}
        if unknown := parameters.keys() - {"heartbeat", "cafile"}:
            raise InvalidArgument("url", "<not shown>", f"{_ALLOWED}, not {', '.join(sorted(unknown))}")
        if parts.scheme not in _PORTS or not (parts.hostname and parts.username and parts.password):
            raise InvalidArgument("url", "<not shown>", _ALLOWED)
        return cls(
            host=parts.hostname,
            user=unquote(parts.username),
            password=unquote(parts.password),
            vhost=unquote(parts.path[1:]) or "/",
            tls=parts.scheme == "amqps",
            port=parts.port,
            heartbeat=int(parameters.get("heartbeat", "60")),
            ca_file=parameters.get("cafile"),
        )

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings; None without TLS.

        Raises:
            OSError: `ca_file` cannot be read.
        """
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # its message lacks the file name
            raise OSError(error.errno, error.strerror, self.ca_file) from error


@dataclass(frozen=True, slots=True)
class Plan:
    """The queue and bindings that each session of a listener declares at the broker.

    Attributes:
        settings: The broker.
        queue: The full name of a durable queue, or None for a queue that ends with its session.
        bindings: The bindings of the queue.
        prefetch: The largest number of unacknowledged messages.
    """

    settings: PulseSettings
    queue: str | None
    bindings: Sequence[Binding]
    prefetch: int


def make_plan(
    settings: PulseSettings, bindings: Iterable[Binding | Iterable[Binding]], queue: str | None, prefetch: int
) -> Plan:
    """Check the arguments of a listener before it connects.

    Raises:
        InvalidArgument: `bindings` is empty, or `queue` or `prefetch` is not allowed.
    """
    flat = [one for each in bindings for one in ([each] if isinstance(each, Binding) else each)]
    if not flat:
        raise InvalidArgument("bindings", flat, "one binding or more")
    if not 1 <= prefetch <= MOST_PREFETCHED:
        raise InvalidArgument("prefetch", prefetch, f"1 to {MOST_PREFETCHED}")
    return Plan(settings, None if queue is None else _full_name(settings.user, queue), flat, prefetch)


def _full_name(user: str, queue: str) -> str:
    """Return `queue/<user>/<queue>`: Pulse permits a user only queues with this prefix."""
    full_name = f"queue/{user}/{queue}"
    if not queue or queue.startswith("queue/") or len(full_name.encode()) > LONGEST_NAME:
        allowed = f"the part after queue/{user}/; the full name has at most {LONGEST_NAME} bytes"
        raise InvalidArgument("queue", queue, allowed)
    return full_name
