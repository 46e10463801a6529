"""Settings of the connection to the broker, and the AMQP queue and bindings of a listener."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from taskqueue_client import _arguments as arguments
from taskqueue_client.credentials import check_environment
from taskqueue_client.errors import InvalidArgument

from .exchanges import Binding

T = TypeVar("T")

LONGEST_NAME: Final = 255
"""The longest name of an AMQP queue, in bytes."""
MOST_PREFETCHED: Final = 65_535
"""The largest prefetch count that AMQP can express."""

_QUEUE_NAME: Final = re.compile(r"[a-zA-Z0-9_.:@#,/+ -]+")
"""The characters that aiormq sends in the name of a queue."""
_TEXT: Final = re.compile(r"[^\0\ud800-\udfff]*")
_NOT_EMPTY: Final = re.compile(r"[^\0\ud800-\udfff]+")
_NO_NUL: Final = re.compile(r"[^\0]*")
_DECODED: Final = "without NUL and undecodable bytes"
_HOST: Final = re.compile(r"[^\s/@?#]+")
_HIGHEST_PORT: Final = 65_535
_LONGEST_HEARTBEAT: Final = 65_535
_PORTS: Final = {"amqps": 5671, "amqp": 5672}
_BINDINGS: Final = "a list of bindings, such as [events.task_completed(task_queue_id=…)]"
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

    def __post_init__(self) -> None:
        _check_host(self.host)
        _check_text("user", self.user, _NOT_EMPTY, f"the name of a RabbitMQ user, {_DECODED}")
        _check_text("password", self.password, _NOT_EMPTY, f"a str that is not empty, {_DECODED}")
        _check_text("vhost", self.vhost, _TEXT, f"a virtual host, {_DECODED}")
        arguments.check_kind("ca_file", self.ca_file, str | os.PathLike | None)
        _check_text("ca_file", str(self.ca_file), _NO_NUL, "the path of a file, without NUL")
        arguments.check_kind("tls", self.tls, bool)
        if self.port is not None:
            arguments.number("port", self.port, least=1, most=_HIGHEST_PORT)
        arguments.number("heartbeat", self.heartbeat, least=0, most=_LONGEST_HEARTBEAT)

    def __str__(self) -> str:
        vhost = quote(self.vhost, safe="")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{quote(self.user, safe='')}:***@{host}:{self.effective_port}/{vhost}"

    @property
    def scheme(self) -> str:
        """`amqps` or `amqp`."""
        return "amqps" if self.tls else "amqp"

    @property
    def effective_port(self) -> int:
        """The port to connect to: `port`, or the default of the scheme."""
        return self.port or _PORTS[self.scheme]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the settings from the environment variable `PULSE_URL`.

        Args:
            environ: The environment variables; `os.environ` by default.

        Raises:
            InvalidArgument: `PULSE_URL` is not set or is not an AMQP URL.
        """
        check_environment(environ)
        url = (os.environ if environ is None else environ).get("PULSE_URL")
        if not url:
            raise InvalidArgument("PULSE_URL", url, _ALLOWED, "the environment variable is not set")
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
        allowed = _ALLOWED
        with suppress(ValueError, AttributeError, TypeError):  # their messages could contain the password
            parts = urlsplit(url)
            parameters = {name: value for name, value in parse_qsl(parts.query) if name not in _IGNORED}
            if unknown := parameters.keys() - {"heartbeat", "cafile"}:
                allowed = f"{_ALLOWED}, not {', '.join(sorted(unknown))}"
            elif parts.scheme in _PORTS and parts.hostname and parts.username and parts.password:
                try:
                    return cls(
                        host=parts.hostname,
                        user=unquote(parts.username),
                        password=unquote(parts.password),
                        vhost=unquote(parts.path[1:]) or "/",
                        tls=parts.scheme == "amqps",
                        port=_number(lambda: parts.port),
                        heartbeat=_number(lambda: int(parameters.get("heartbeat", "60"))),
                        ca_file=parameters.get("cafile"),
                    )
                except InvalidArgument as error:
                    allowed = f"{_ALLOWED}; as {error.argument.replace('_', '')}, {error.allowed}"
        raise InvalidArgument(argument, "<not shown>", allowed)

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


def _number(read: Callable[[], T]) -> T | int:
    """Return a number of a URL; -1 if it cannot be read, which the check of the settings refuses by name."""
    try:
        return read()
    except ValueError:
        return -1


@dataclass(frozen=True, slots=True)
class Plan:
    """The queue and bindings that each session of a listener declares at the broker.

    Attributes:
        queue: The full name of a durable queue, or None for a queue that ends with its session.
        prefetch: The largest number of unacknowledged messages.
    """

    settings: PulseSettings
    queue: str | None
    bindings: Sequence[Binding]
    prefetch: int


def make_plan(
    settings: PulseSettings, bindings: Iterable[Binding | Iterable[Binding]], queue: str | None, prefetch: int
) -> Plan:
    """Check the arguments of a listener before it connects."""
    arguments.check_kind(
        "settings",
        without_password(settings),
        PulseSettings,
        "PulseSettings, such as PulseSettings.from_url(…)",
    )
    flat: list[Binding] = []
    _check_collection(bindings)
    for each in bindings:
        if not isinstance(each, Binding):
            _check_collection(each)
        flat += [each] if isinstance(each, Binding) else each
    for one in flat:
        arguments.check_kind("bindings", one, Binding, _BINDINGS)
    if not flat:
        raise InvalidArgument("bindings", flat, "one binding or more")
    arguments.number("prefetch", prefetch, least=1, most=MOST_PREFETCHED)
    return Plan(settings, None if queue is None else _full_name(settings.user, queue), flat, prefetch)


def without_password(settings: object) -> object:
    """Return the settings to show in an error, unless they are text: a URL would show its password."""
    return "<not shown>" if isinstance(settings, str | bytes) else settings


def _check_collection(bindings: object) -> None:
    """Raise InvalidArgument for text, an exchange that was not called, or a single binding."""
    if isinstance(bindings, str | bytes) or not isinstance(bindings, Iterable):
        raise InvalidArgument("bindings", bindings, _BINDINGS)


def _check_host(host: str) -> None:
    allowed = "the name or address of the broker, not a URL"
    _check_text("host", host, _HOST, allowed)
    with suppress(UnicodeError):  # Python cannot look up the name, such as one with an empty label
        host.encode("idna")
        return
    raise InvalidArgument("host", "<not shown>", allowed)


def _check_text(argument: str, given: object, pattern: re.Pattern[str], allowed: str) -> None:
    """Raise InvalidArgument, without the value, unless an argument is text that matches."""
    if not isinstance(given, str) or not pattern.fullmatch(given):
        raise InvalidArgument(argument, "<not shown>", allowed)


def _full_name(user: str, queue: str) -> str:
    """Return `queue/<user>/<queue>`: Pulse permits a user only queues with this prefix."""
    arguments.check_kind("queue", queue, str, "a str, or None")
    full_name = f"queue/{user}/{str.__str__(queue)}"  # an enumeration member's value, not its name
    if (
        not _QUEUE_NAME.fullmatch(queue)
        or queue.startswith("queue/")
        or len(full_name.encode()) > LONGEST_NAME
    ):
        allowed = (
            f"the part after queue/{user}/, of a-z A-Z 0-9 _ . : @ # , / + - and space; the full name has at "
            f"most {LONGEST_NAME} bytes"
        )
        raise InvalidArgument("queue", queue, allowed)
    return full_name
