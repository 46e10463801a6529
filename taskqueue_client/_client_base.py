"""The base class of both clients: options, credentials, signed URLs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from taskqueue_client import _arguments as arguments
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import PolicyRetries, Retries, RetryPolicy
from taskqueue_client._protocol.wire import Wire
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client.clock import Clock, SystemClock
from taskqueue_client.credentials import Credentials, from_environment
from taskqueue_client.definitions import StorageName

if TYPE_CHECKING:
    from taskqueue_client._protocol.call_spans import CallSpans
    from taskqueue_client.artifacts.storage import Storage
    from taskqueue_client.artifacts.transfers import TransferSettings

SIGNED_URL_LIFETIME = timedelta(minutes=15)
"""The default lifetime of a signed URL, which is that of the official clients."""


class Options(TypedDict, total=False):
    """The arguments of `with_options`: new values for fields of the client's `RetryPolicy`."""

    attempts: int
    timeout: float
    wait_initial: float
    wait_max: float
    wait_jitter: float
    connect_timeout: float
    read_timeout: float
    min_rate: float
    min_rate_window: float


class Deferred:
    """A method of a client. Its module takes time to import, and is imported on first use of the method."""

    def __init__(self, module: str, make_method: Callable[[Any], Any]) -> None:
        self._module = module
        self._make_method = make_method

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        method = self._make_method(getattr(import_module(self._module), self._name))
        setattr(self._owner, self._name, method)
        return getattr(owner if instance is None else instance, self._name)


T = TypeVar("T")
SessionT = TypeVar("SessionT")
ClientT = TypeVar("ClientT", bound="ClientBase[Any]")


def with_attributes(kind: type[T], of: object) -> T:
    """Return an object of class `kind` with the attributes of `of`; faster than `copy.copy`."""
    other = object.__new__(kind)
    other.__dict__.update(of.__dict__)
    return other


class ClientOptions(TypedDict, Generic[SessionT], total=False):
    """The options of both clients, which `from_env` takes as well; see `Queue`."""

    session: SessionT | None
    retry: RetryPolicy | None
    check_definitions: bool
    artifact_storage: StorageName
    clock: Clock | None
    tracing: bool


def _call_spans(root_url: str) -> CallSpans:
    from taskqueue_client._protocol.call_spans import CallSpans  # noqa: PLC0415 - only if tracing is on

    return CallSpans(root_url)


def share_time(first: ClientBase[Any], second: ClientBase[Any]) -> None:
    """Let both clients of a deployment know its time as soon as one of them does."""
    second._wire.share_time(first._wire)  # noqa: SLF001 - this is one of their methods  # pyright: ignore[reportPrivateUsage]


def known_time(client: ClientBase[Any]) -> float:
    """Return the service's time in seconds since the epoch; NaN before the first response.

    `ClientBase.now` returns this machine's time until then.
    """
    return client._wire.known_server_time()  # noqa: SLF001 - as above  # pyright: ignore[reportPrivateUsage]


def with_retries(client: ClientT, retries: Retries) -> ClientT:
    """Return a client that retries as `retries` says, with the same credentials and the same connections."""
    other = with_attributes(type(client), client)
    other._retries = retries  # noqa: SLF001 - as above  # pyright: ignore[reportPrivateUsage]
    return other


class ClientBase(ABC, Generic[SessionT]):
    """The base class of `Queue` and `AsyncQueue`, which describe the arguments."""

    def __init__(
        self,
        root_url: str,
        credentials: Credentials | None = None,
        *,
        session: SessionT | None = None,
        retry: RetryPolicy | None = None,
        check_definitions: bool = True,
        artifact_storage: StorageName = "s3",
        clock: Clock | None = None,
        tracing: bool = False,
    ) -> None:
        arguments.check_kinds(
            locals(), retry=RetryPolicy | None, check_definitions=bool, clock=Clock | None, tracing=bool
        )
        arguments.one_of("artifact_storage", artifact_storage, ["s3", "object"])
        self._artifact_storage: StorageName = artifact_storage
        self._clock = SystemClock() if clock is None else clock
        self._wire = Wire(root_url, credentials, self._clock)
        self._policy = RetryPolicy() if retry is None else retry
        self._retries: Retries = PolicyRetries(self._policy)
        self._check_definitions = check_definitions
        self._network = NetworkSettings()
        # The `Storage` of the first transfer, which all copies share. `setdefault` of a dict needs no lock.
        self._storages: dict[type[Storage], Storage] = {}
        self._spans = _call_spans(self.root_url) if tracing else None
        self._open(session)

    @abstractmethod
    def _open(self, session: SessionT | None) -> None:
        """Make the transport."""

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **options: Unpack[ClientOptions[SessionT]]
    ) -> Self:
        """Return a client with the deployment and the credentials of the environment.

        If `TASKCLUSTER_PROXY_URL` is set, the client uses that URL without credentials. Otherwise it uses
        `TASKCLUSTER_ROOT_URL` with `TASKCLUSTER_CLIENT_ID`, `TASKCLUSTER_ACCESS_TOKEN` and
        `TASKCLUSTER_CERTIFICATE`. An empty variable counts as unset.

        Args:
            environ: The environment variables; `os.environ` by default.
            options: The options of the constructor: `session`, `retry`, `check_definitions`,
                `artifact_storage`, `clock` and `tracing`.

        Raises:
            InvalidArgument: Neither URL is set, a part of the credentials is missing, or a value is
                malformed.
        """
        root_url, credentials = from_environment(environ)
        return cls(root_url, credentials, **options)

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name} cannot be pickled or copied, as it has open connections: make another one in each "
            f"process, for example by {name}.from_env(), or use with_credentials() or with_options()"
        )

    @property
    def root_url(self) -> str:
        """The deployment's root URL."""
        return self._wire.root_url

    @property
    def credentials(self) -> Credentials | None:
        """The credentials that sign calls; may be replaced at any time, from any thread.

        Each later attempt uses the new credentials, including retries of calls that have begun.
        """
        return self._wire.credentials

    @credentials.setter
    def credentials(self, credentials: Credentials | None) -> None:
        self._wire.credentials = credentials

    def now(self) -> datetime:
        """Return the service's time; this machine's time before the first response.

        The difference of the clocks is measured at the first response, at the next one after this machine's
        clock was set or the machine was suspended, and whenever credentials are refused.
        `from_now("1 day", queue.now())` and `task_definition(…, created=queue.now())` return dates that
        the Queue accepts even if this machine's clock is wrong.
        """
        return datetime.fromtimestamp(self._wire.server_time(), UTC)

    def with_options(self, *, tracing: bool | None = None, **options: Unpack[Options]) -> Self:
        """Return a client with another retry policy, the same credentials and the same connections.

        `queue.with_options(attempts=1).status(task_id)` sets the policy for one call.

        Args:
            tracing: Turn spans for calls on or off; None: as in this client.
            options: New values of the policy.

        Raises:
            InvalidArgument: A value is out of range.
        """
        arguments.check_kind("tracing", tracing, bool | None)
        other = with_attributes(type(self), self)
        other._policy = replace(self._policy, **options)  # noqa: SLF001 - an object of this class
        other._retries = PolicyRetries(other._policy)  # noqa: SLF001 - as above
        if tracing is not None:
            other._spans = _call_spans(self.root_url) if tracing else None  # noqa: SLF001 - as above
        return other

    def with_credentials(self, credentials: Credentials | None) -> Self:
        """Return a client with other credentials and the same connections.

        A worker has such a client for each claimed run. Replacing the credentials of one client does not
        change the others. Closing one closes the connections of all: close only the original, at the end.

        Raises:
            InvalidArgument: The credentials are malformed.
        """
        other = with_attributes(type(self), self)
        other._wire = with_attributes(Wire, self._wire)  # noqa: SLF001 - an object of this class
        other.credentials = credentials
        return other

    def signed_url(self, call: Call[Any], *, lifetime: timedelta = SIGNED_URL_LIFETIME) -> str:
        """Return a URL that anybody may GET without credentials until it expires.

        Args:
            call: The call, as a function of `taskqueue_client.calls` returns it:
                `queue.signed_url(calls.get_latest_artifact(task_id, "private/log.txt"))`.
            lifetime: The time until the URL expires; 15 minutes by default.

        Raises:
            InvalidArgument: The call is not a GET, the client has no credentials, the lifetime is not
                positive, or the URL is longer than the 4096 characters that the Queue accepts.
        """
        arguments.check_kind("lifetime", lifetime, timedelta)
        return self._wire.signed_url(call, lifetime.total_seconds())

    @property
    def _transfer_settings(self) -> TransferSettings:
        """The settings of this client that transfers of artifacts use."""
        from taskqueue_client.artifacts.transfers import TransferSettings  # noqa: PLC0415 - imported with the first transfer

        wire = self._wire
        return TransferSettings(
            self._storage(),
            self._policy,
            self._retries,
            self._clock,
            wire.server_time,
            wire.attempted,
            self._artifact_storage,
        )

    def _storage(self) -> Storage:
        """Return the connections for uploads to and downloads from storage services."""
        from taskqueue_client.artifacts.storage import Storage  # noqa: PLC0415 - imported with the first transfer

        return self._storages.get(Storage) or self._storages.setdefault(Storage, Storage(self._network))

    def __repr__(self) -> str:
        if not hasattr(self, "_wire"):  # a traceback may show the local variables of `__init__`
            return super().__repr__()
        return f"<{type(self).__name__} {self.root_url} {self.credentials!r}>"
