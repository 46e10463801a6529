"""What both clients do alike around their transports: options, credentials, signed URLs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ._call import Call
from ._retry import RetryPolicy
from ._version import __version__
from ._wire import Wire
from .clock import Clock, SystemClock
from .credentials import Credentials, from_environment
from .errors import InvalidArgument

if TYPE_CHECKING:
    from .artifacts.steps import Settings, StorageName
    from .artifacts.storage import Storage

USER_AGENT = f"taskqueue_client/{__version__}"

SIGNED_URL_LIFETIME = timedelta(minutes=15)
"""How long a signed URL works unless asked otherwise: as long as the official clients' ones."""


def environment_proxy(root_url: str, schemes: Collection[str], allowed: str) -> str | None:
    """The URL of the proxy that the environment names for calls to `root_url`; None if it names none.

    Args:
        root_url: Where calls go.
        schemes: Those of proxies that the caller can send through.
        allowed: The same in words.

    Raises:
        InvalidArgument: It is no URL of such a proxy; names the variable.
    """
    target = urlsplit(root_url)
    proxies = {} if proxy_bypass(target.netloc) else getproxies()
    named = next((kind for kind in (target.scheme, "all") if proxies.get(kind)), None)
    if named is None:
        return None
    proxy = proxies[named] if "://" in proxies[named] else f"http://{proxies[named]}"
    if not _is_proxy(proxy, schemes):
        scheme, _, rest = proxy.partition("://")
        shown = f"{scheme}://{rest.rpartition('@')[2]}"  # without a user and password
        raise InvalidArgument(f"{named.upper()}_PROXY", shown, allowed)
    return proxy


def _is_proxy(url: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return False


class Options(TypedDict, total=False):
    """What `with_options` changes: a new value for fields of the client's `RetryPolicy`."""

    attempts: int
    timeout: float
    wait_initial: float
    wait_max: float
    wait_jitter: float
    connect_timeout: float
    read_timeout: float


class _SharedStorage:
    """The storage of a client and of the copies made of it: there is none until the first transfer."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._storage: Storage | None = None

    def get(self) -> Storage:
        from .artifacts.storage import Storage  # noqa: PLC0415 - imported with the first transfer

        with self._lock:
            if self._storage is None:
                self._storage = Storage()
            return self._storage

    def close(self) -> None:
        if self._storage is not None:
            self._storage.close()


T = TypeVar("T")


def _twin(of: T) -> T:
    """`copy.copy`, in a fraction of its time: workers make several for each run."""
    other = object.__new__(type(of))
    other.__dict__.update(of.__dict__)
    return other


class Client:
    """What `Queue` and `AsyncQueue` have in common.

    Args:
        root_url: The deployment's root URL, such as `https://tc.example.com`.
        credentials: What calls are signed with; None for what everybody may do.
        retry: How often and how long calls are tried.
        check_definitions: Check a task definition before it is sent.
        artifact_storage: Where artifacts are uploaded to unless a call says otherwise.
        clock: Where time comes from; a test may hold it.

    Raises:
        InvalidArgument: The URL, the credentials or the name of the storage is malformed.
    """

    def __init__(
        self,
        root_url: str,
        credentials: Credentials | None = None,
        *,
        retry: RetryPolicy | None = None,
        check_definitions: bool = True,
        artifact_storage: StorageName = "s3",
        clock: Clock | None = None,
    ) -> None:
        if artifact_storage not in {"s3", "object"}:
            raise InvalidArgument("artifact_storage", artifact_storage, "'s3' or 'object'")
        self._artifact_storage: StorageName = artifact_storage
        self._clock = SystemClock() if clock is None else clock
        self._wire = Wire(root_url, credentials, self._clock)
        self._policy = RetryPolicy() if retry is None else retry
        self._check_definitions = check_definitions
        self._storage = _SharedStorage()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """A client for the deployment, and with the credentials, that the environment names.

        `TASKCLUSTER_PROXY_URL`, if set, is used without credentials. Otherwise `TASKCLUSTER_ROOT_URL`
        with `TASKCLUSTER_CLIENT_ID`, `TASKCLUSTER_ACCESS_TOKEN` and `TASKCLUSTER_CERTIFICATE`. An
        empty variable counts as unset.

        Args:
            environ: Where to look instead of `os.environ`.

        Raises:
            InvalidArgument: Neither URL is set, or a part of the credentials is missing or malformed.
        """
        root_url, credentials = from_environment(environ)
        return cls(root_url, credentials)

    @property
    def root_url(self) -> str:
        """The deployment's root URL."""
        return self._wire.root_url

    @property
    def credentials(self) -> Credentials | None:
        """What calls are signed with; may be replaced at any time, from any thread.

        Every attempt that begins afterwards, of calls under way too, uses the new ones.
        """
        return self._wire.credentials

    @credentials.setter
    def credentials(self, credentials: Credentials | None) -> None:
        self._wire.credentials = credentials

    def now(self) -> datetime:
        """The service's time, as its last answers told it; this machine's until there is one.

        `from_now("1 day", queue.now())` and `task_definition(…, created=queue.now())` make dates that
        the Queue accepts though this machine's clock is wrong.
        """
        return datetime.fromtimestamp(self._wire.server_time(), UTC)

    def with_options(self, **options: Unpack[Options]) -> Self:
        """The same client (session, credentials and all) with another retry policy.

        `queue.with_options(attempts=1).status(task_id)` sets it for one call.

        Raises:
            InvalidArgument: A value is out of range.
        """
        other = _twin(self)
        other._policy = replace(self._policy, **options)  # noqa: SLF001 - it is one of us
        return other

    def with_credentials(self, credentials: Credentials | None) -> Self:
        """A client for somebody else, over the same connections.

        A worker has one for each run that it holds. Replacing the credentials of one changes no other.

        Raises:
            InvalidArgument: The credentials are malformed.
        """
        other = _twin(self)
        other._wire = _twin(self._wire)  # noqa: SLF001 - it is one of us
        other.credentials = credentials
        return other

    def signed_url(self, call: Call[Any], *, lifetime: timedelta = SIGNED_URL_LIFETIME) -> str:
        """A URL that lets anybody make one GET call until it expires, without credentials.

        Args:
            call: What may be called, made by a function of `taskqueue_client.calls`:
                `queue.signed_url(calls.get_latest_artifact(task_id, "private/log.txt"))`.
            lifetime: How long the URL works.

        Raises:
            InvalidArgument: The call is no GET, there are no credentials, the lifetime is not
                positive, or the URL would be longer than the 4096 characters that the Queue reads.
        """
        if not isinstance(lifetime, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance] # says the caller
            raise InvalidArgument("lifetime", lifetime, "a timedelta")
        return self._wire.signed_url(call, lifetime.total_seconds())

    @property
    def storage(self) -> Storage:
        """The connections over which artifacts go to storage services and come from there."""
        return self._storage.get()

    @property
    def transfer_settings(self) -> Settings:
        """What transfers of artifacts need to know of this client."""
        from .artifacts.steps import Settings  # noqa: PLC0415 - imported with the first transfer

        return Settings(self._policy, self._clock, self._wire.server_time, self._artifact_storage)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.root_url} {self.credentials!r}>"

    def _check(self, call: Call[Any]) -> None:
        if self._check_definitions and call.check is not None:
            call.check(self._wire.known_server_time())
