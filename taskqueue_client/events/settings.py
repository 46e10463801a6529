"""Where the broker is, and who we are there."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from taskqueue_client.errors import InvalidArgument

_PORTS: Final = {"amqps": 5671, "amqp": 5672}
_IGNORED: Final = frozenset({"frameMax", "channelMax"})
"""Parameters of other clients' URLs; both sides negotiate these numbers anyway."""
_ALLOWED: Final = (
    "amqps://user:password@host:port/vhost (or amqp://), percent-encoded, "
    "with no parameters but heartbeat and cafile"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulseSettings:
    """How to reach the RabbitMQ that the Queue publishes to ("Pulse").

    Neither `str()` nor `repr()` shows the password.

    Attributes:
        host: Its name or address.
        user: The RabbitMQ user; queues are named after it.
        password: Its password.
        vhost: The virtual host.
        tls: Encrypt, and check the server's certificate.
        port: 5671 with TLS and 5672 without, unless given.
        ca_file: A PEM file of the authorities to trust instead of the system's.
        heartbeat: Seconds between signs of life on an idle connection.
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
        """The port that is connected to."""
        return self.port or _PORTS[self.scheme]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """The settings in `PULSE_URL`.

        Raises:
            InvalidArgument: The variable is not set, or is not an AMQP URL.
        """
        url = environ.get("PULSE_URL")
        if not url:
            raise InvalidArgument("PULSE_URL", url, _ALLOWED)
        return cls._of_url("PULSE_URL", url)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The settings in an AMQP URL.

        Args:
            url: `amqps://user:password@host:port/vhost`, each part percent-encoded. A path that is
                empty or `/` means the virtual host `/`. Parameters: `heartbeat` and `cafile`.

        Raises:
            InvalidArgument: It is not; the error does not show the URL.
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
        """What checks the server's certificate; None without TLS.

        Raises:
            OSError: The file of authorities cannot be read.
        """
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # which does not say which file
            raise OSError(error.errno, error.strerror, self.ca_file) from error
