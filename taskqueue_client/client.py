"""`Queue`: the endpoints over requests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import requests
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.connectionpool import ConnectionPool
from urllib3.exceptions import ReadTimeoutError

from . import calls
from ._call import Call, blocking
from ._deferred import Deferred
from ._paging import iterated
from ._retry import RetryPolicy, schedule
from ._transport import USER_AGENT, Client, environment_proxy
from ._wire import Answer, Attempts, Request
from .clock import Clock
from .credentials import Credentials
from .errors import CallFailed, CallTimedOut, ConnectionFailed, InvalidArgument

if TYPE_CHECKING:
    from .artifacts import blocking as transfers
    from .artifacts import records
    from .artifacts.steps import StorageName

R = TypeVar("R")

POOL_SIZE = 32
"""Idle connections that are kept for the threads of one client; a worker has fewer busy ones."""


class Queue(Client):
    """The Queue, one blocking call at a time.

    May be used from many threads at once. Use it as a context manager, or `close` it; a later call opens
    new connections.

    Args:
        root_url: The deployment's root URL, such as `https://tc.example.com`.
        credentials: What calls are signed with; None for what everybody may do.
        session: A session to send through, with its adapters, proxies, headers and CA bundle. It is
            never closed here. The client makes its own when left out.
        retry: How often and how long calls are tried.
        check_definitions: Check a task definition before it is sent.
        artifact_storage: Where artifacts are uploaded to unless a call says otherwise: `s3`, or `object`
            for the object service.
        clock: Where time comes from; a test may hold it.

    Raises:
        InvalidArgument: The URL or the credentials are malformed, or the environment's proxy or CA bundle
            cannot be used.
    """

    # Tasks
    task = blocking(calls.task)
    tasks = blocking(calls.tasks)
    iter_tasks = iterated(calls.iter_tasks)
    statuses = blocking(calls.statuses)
    iter_statuses = iterated(calls.iter_statuses)
    status = blocking(calls.status)
    list_dependent_tasks = blocking(calls.list_dependent_tasks)
    iter_dependent_tasks = iterated(calls.iter_dependent_tasks)
    create_task = blocking(calls.create_task)
    schedule_task = blocking(calls.schedule_task)
    rerun_task = blocking(calls.rerun_task)
    cancel_task = blocking(calls.cancel_task)
    change_task_priority = blocking(calls.change_task_priority)

    # Task groups
    list_task_group = blocking(calls.list_task_group)
    iter_task_group = iterated(calls.iter_task_group)
    get_task_group = blocking(calls.get_task_group)
    seal_task_group = blocking(calls.seal_task_group)
    cancel_task_group = blocking(calls.cancel_task_group)
    change_task_group_priority = blocking(calls.change_task_group_priority)

    # What a worker does
    claim_work = blocking(calls.claim_work)
    claim_task = blocking(calls.claim_task)
    reclaim_task = blocking(calls.reclaim_task)
    report_completed = blocking(calls.report_completed)
    report_failed = blocking(calls.report_failed)
    report_exception = blocking(calls.report_exception)

    # Artifacts
    create_artifact = blocking(calls.create_artifact)
    finish_artifact = blocking(calls.finish_artifact)
    get_artifact = blocking(calls.get_artifact)
    get_latest_artifact = blocking(calls.get_latest_artifact)
    artifact = blocking(calls.artifact)
    latest_artifact = blocking(calls.latest_artifact)
    list_artifacts = blocking(calls.list_artifacts)
    iter_artifacts = iterated(calls.iter_artifacts)
    list_latest_artifacts = blocking(calls.list_latest_artifacts)
    iter_latest_artifacts = iterated(calls.iter_latest_artifacts)
    artifact_info = blocking(calls.artifact_info)
    latest_artifact_info = blocking(calls.latest_artifact_info)

    # Whole transfers of artifacts, of several calls and the storage's requests each
    if TYPE_CHECKING:
        upload_artifact = transfers.upload_artifact
        upload_artifacts = transfers.upload_artifacts
        download_artifact = transfers.download_artifact
        stream_artifact = transfers.stream_artifact
        create_reference_artifact = blocking(records.create_reference_artifact)
        create_link_artifact = blocking(records.create_link_artifact)
        create_error_artifact = blocking(records.create_error_artifact)
    else:
        upload_artifact = Deferred("taskqueue_client.artifacts.blocking")
        upload_artifacts = Deferred("taskqueue_client.artifacts.blocking")
        download_artifact = Deferred("taskqueue_client.artifacts.blocking")
        stream_artifact = Deferred("taskqueue_client.artifacts.blocking")
        create_reference_artifact = Deferred("taskqueue_client.artifacts.records", blocking)
        create_link_artifact = Deferred("taskqueue_client.artifacts.records", blocking)
        create_error_artifact = Deferred("taskqueue_client.artifacts.records", blocking)

    # Task queues and workers
    pending_tasks = blocking(calls.pending_tasks)
    task_queue_counts = blocking(calls.task_queue_counts)
    list_pending_tasks = blocking(calls.list_pending_tasks)
    iter_pending_tasks = iterated(calls.iter_pending_tasks)
    list_claimed_tasks = blocking(calls.list_claimed_tasks)
    iter_claimed_tasks = iterated(calls.iter_claimed_tasks)
    list_task_queues = blocking(calls.list_task_queues)
    iter_task_queues = iterated(calls.iter_task_queues)
    get_task_queue = blocking(calls.get_task_queue)
    list_provisioners = blocking(calls.list_provisioners)
    iter_provisioners = iterated(calls.iter_provisioners)
    get_provisioner = blocking(calls.get_provisioner)
    list_worker_types = blocking(calls.list_worker_types)
    iter_worker_types = iterated(calls.iter_worker_types)
    get_worker_type = blocking(calls.get_worker_type)
    list_workers = blocking(calls.list_workers)
    iter_workers = iterated(calls.iter_workers)
    get_worker = blocking(calls.get_worker)
    quarantine_worker = blocking(calls.quarantine_worker)
    declare_worker = blocking(calls.declare_worker)

    # Monitoring
    ping = blocking(calls.ping)
    lbheartbeat = blocking(calls.lbheartbeat)
    heartbeat = blocking(calls.heartbeat)
    version = blocking(calls.version)

    # The object service, which keeps artifacts of the storage type `object`
    create_upload = blocking(calls.create_upload)
    finish_upload = blocking(calls.finish_upload)
    start_download = blocking(calls.start_download)
    object_metadata = blocking(calls.object_metadata)
    download_object = blocking(calls.download_object)

    # The auth service
    test_authenticate = blocking(calls.test_authenticate)
    test_authenticate_get = blocking(calls.test_authenticate_get)
    current_scopes = blocking(calls.current_scopes)

    def __init__(
        self,
        root_url: str,
        credentials: Credentials | None = None,
        *,
        session: requests.Session | None = None,
        retry: RetryPolicy | None = None,
        check_definitions: bool = True,
        artifact_storage: StorageName = "s3",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            root_url,
            credentials,
            retry=retry,
            check_definitions=check_definitions,
            artifact_storage=artifact_storage,
            clock=clock,
        )
        self._owns_session = session is None
        self._session = _new_session() if session is None else session
        # The environment's proxies and CA bundle are looked up here, once, and not for every call.
        self._settings: dict[str, Any] = {
            **self._session.merge_environment_settings(self.root_url, {}, False, None, None)  # noqa: FBT003 - requests' own signature
        }
        bundle = self._settings["verify"]
        if isinstance(bundle, str) and self.root_url.startswith("https:") and not Path(bundle).exists():
            raise InvalidArgument("ca_bundle", bundle, "a file or folder of certificates")
        if self._owns_session and self._settings["proxies"]:
            environment_proxy(self.root_url, _proxy_schemes(), _PROXIES_IN_WORDS)

    def close(self) -> None:
        """Close the connections of the client's own session, and those to storage.

        A later call opens new ones.
        """
        self._storage.close()
        if self._owns_session:
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, call: Call[R], /) -> R:
        """Make a call that a function of `taskqueue_client.calls` describes.

        Raises:
            InvalidArgument: The call cannot be sent.
            CallFailed: It did not give its answer; see `taskqueue_client.errors`.
        """
        if call.check is not None:
            self._check(call)
        started = self._clock.monotonic()
        try:
            return self._send_once(call, self._policy.attempt_timeouts(call, 0.0))
        except CallFailed as error:
            return self._send_again(call, Attempts(self._clock, started), error)

    def _send_again(self, call: Call[R], attempts: Attempts, first: CallFailed) -> R:
        """Go on after the `first` failure, for as long as tenacity says."""
        import tenacity  # noqa: PLC0415 - costs 40 ms, and most programs never need it

        failures = [first]

        def attempt() -> R:
            while True:
                try:
                    if failures:
                        raise failures.pop()
                    timeouts = self._policy.attempt_timeouts(call, attempts.elapsed())
                    return self._send_once(call, timeouts)
                except CallFailed as error:
                    attempts.failed(error)
                    if not self._wire.is_stale(error, attempts):
                        raise

        when = schedule(self._policy, call, attempts.elapsed)
        return tenacity.Retrying(sleep=self._clock.sleep, **when)(attempt)

    def _send_once(self, call: Call[R], timeouts: tuple[float, float]) -> R:
        request = self._wire.encode(call)
        try:
            answer = self._exchange(request, timeouts)
        except OSError as error:  # requests' own errors, and those about a CA bundle
            cause = _innermost(error)
            timed_out = isinstance(error, requests.Timeout) or isinstance(cause, ReadTimeoutError)
            failed = CallTimedOut if timed_out else ConnectionFailed
            _forget_request(error)
            raise failed(self._wire.attempted(call), f"{type(cause).__name__}: {cause}") from error
        return self._wire.decode(call, answer)

    def _exchange(self, request: Request, timeouts: tuple[float, float]) -> Answer:
        """Send through the session's adapter: `Session.request` reads the environment for every call."""
        prepared = requests.PreparedRequest()
        prepared.method = request.method
        prepared.url = request.url
        prepared.headers = CaseInsensitiveDict[Any]({**self._session.headers, **request.headers})
        if not self._owns_session:
            _drop_unsent(prepared.headers, request)
        if request.body is not None or request.method != "GET":
            prepared.headers["Content-Length"] = str(len(request.body or b""))
        prepared.body = request.body
        adapter = self._session.get_adapter(request.url)
        response = adapter.send(prepared, timeout=timeouts, **self._settings)
        return Answer(response.status_code, response.headers, response.content)


_PROXIES_IN_WORDS = "an http:// or https:// URL with a host; or a socks URL, if PySocks is installed"


def _proxy_schemes() -> tuple[str, ...]:
    socks = ("socks4", "socks4a", "socks5", "socks5h") if find_spec("socks") else ()
    return ("http", "https", *socks)


class _OneOrigin(HTTPAdapter):
    """Sends to one origin, with the same settings every time, and so looks for its pool only once."""

    _pool: ConnectionPool | None = None

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> ConnectionPool:
        if self._pool is None:
            self._pool = super().get_connection_with_tls_context(*args, **kwargs)
        return self._pool

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:
        """What follows the host, taken from the URL as it was signed."""
        if proxies or request.url is None:
            return super().request_url(request, proxies)
        return "/" + request.url.split("/", 3)[3]

    def build_response(self, req: requests.PreparedRequest, resp: Any) -> requests.Response:
        """The answer without the cookies in it, and without a guess at the encoding of its text."""
        response = requests.Response()
        response.request, response.raw = req, resp
        response.status_code, response.headers = resp.status, resp.headers
        return response

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._pool = None
        super().close()


def _new_session() -> requests.Session:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, _OneOrigin(pool_connections=1, pool_maxsize=POOL_SIZE, max_retries=0))
    session.headers = CaseInsensitiveDict(
        {
            "User-Agent": USER_AGENT,
            "Accept-Encoding": session.headers["Accept-Encoding"],
        }
    )
    return session


def _drop_unsent(headers: CaseInsensitiveDict[Any], request: Request) -> None:
    """Drop an injected session's headers that are not to be sent.

    None stands for no header, as in `Session.request`; and the signature of a call without a body says
    that there is no content type.
    """
    if request.body is None:
        headers.pop("Content-Type", None)
    for name in [name for name, value in headers.items() if value is None]:
        del headers[name]


def _forget_request(error: OSError) -> None:
    """Take our request, and so the signature, out of an error that people will log."""
    if isinstance(error, requests.RequestException):
        error.request = error.response = None


def _innermost(error: BaseException) -> BaseException:
    """What really went wrong: requests wraps urllib3's errors, which repeat the URL, several times."""
    while True:
        inner = getattr(error, "reason", None) or next(
            (each for each in error.args if isinstance(each, BaseException)), None
        )
        if not isinstance(inner, BaseException):
            return error
        error = inner
