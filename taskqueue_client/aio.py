"""`AsyncQueue`: the endpoints over aiohttp."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from weakref import finalize

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from . import calls
from ._call import Call, awaited
from ._deferred import Deferred
from ._paging import async_iterated
from ._retry import RetryPolicy, schedule
from ._transport import USER_AGENT, Client, environment_proxy
from ._wire import Answer, Attempts, Request
from .clock import Clock
from .credentials import Credentials
from .errors import CallFailed, CallTimedOut, ClientUnusable, ConnectionFailed, InvalidArgument

if TYPE_CHECKING:
    from .artifacts import awaited as transfers
    from .artifacts import records
    from .artifacts.steps import StorageName

R = TypeVar("R")
Headers = dict[str, str]
Middlewares = tuple[aiohttp.ClientMiddlewareType, ...]

POOL_SIZE = 100
"""Connections that one client opens at most; further calls wait for one."""

_PROXIES = ("http", "https")
_PROXIES_IN_WORDS = "an http:// or https:// URL with a host: aiohttp knows no other proxies"


class AsyncQueue(Client):
    """The Queue, awaited.

    Use it as an async context manager, or `await close()`; that is the end of it. It belongs to the event
    loop of its first call.

    Args:
        root_url: The deployment's root URL, such as `https://tc.example.com`.
        credentials: What calls are signed with; None for what everybody may do.
        session: A session to send through. It is never closed here. The client makes its own when
            left out, with the proxy and CA bundle of the environment.
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
    task = awaited(calls.task)
    tasks = awaited(calls.tasks)
    iter_tasks = async_iterated(calls.iter_tasks)
    statuses = awaited(calls.statuses)
    iter_statuses = async_iterated(calls.iter_statuses)
    status = awaited(calls.status)
    list_dependent_tasks = awaited(calls.list_dependent_tasks)
    iter_dependent_tasks = async_iterated(calls.iter_dependent_tasks)
    create_task = awaited(calls.create_task)
    schedule_task = awaited(calls.schedule_task)
    rerun_task = awaited(calls.rerun_task)
    cancel_task = awaited(calls.cancel_task)
    change_task_priority = awaited(calls.change_task_priority)

    # Task groups
    list_task_group = awaited(calls.list_task_group)
    iter_task_group = async_iterated(calls.iter_task_group)
    get_task_group = awaited(calls.get_task_group)
    seal_task_group = awaited(calls.seal_task_group)
    cancel_task_group = awaited(calls.cancel_task_group)
    change_task_group_priority = awaited(calls.change_task_group_priority)

    # What a worker does
    claim_work = awaited(calls.claim_work)
    claim_task = awaited(calls.claim_task)
    reclaim_task = awaited(calls.reclaim_task)
    report_completed = awaited(calls.report_completed)
    report_failed = awaited(calls.report_failed)
    report_exception = awaited(calls.report_exception)

    # Artifacts
    create_artifact = awaited(calls.create_artifact)
    finish_artifact = awaited(calls.finish_artifact)
    get_artifact = awaited(calls.get_artifact)
    get_latest_artifact = awaited(calls.get_latest_artifact)
    artifact = awaited(calls.artifact)
    latest_artifact = awaited(calls.latest_artifact)
    list_artifacts = awaited(calls.list_artifacts)
    iter_artifacts = async_iterated(calls.iter_artifacts)
    list_latest_artifacts = awaited(calls.list_latest_artifacts)
    iter_latest_artifacts = async_iterated(calls.iter_latest_artifacts)
    artifact_info = awaited(calls.artifact_info)
    latest_artifact_info = awaited(calls.latest_artifact_info)

    # Whole transfers of artifacts, of several calls and the storage's requests each
    if TYPE_CHECKING:
        upload_artifact = transfers.upload_artifact
        upload_artifacts = transfers.upload_artifacts
        download_artifact = transfers.download_artifact
        stream_artifact = transfers.stream_artifact
        create_reference_artifact = awaited(records.create_reference_artifact)
        create_link_artifact = awaited(records.create_link_artifact)
        create_error_artifact = awaited(records.create_error_artifact)
    else:
        upload_artifact = Deferred("taskqueue_client.artifacts.awaited")
        upload_artifacts = Deferred("taskqueue_client.artifacts.awaited")
        download_artifact = Deferred("taskqueue_client.artifacts.awaited")
        stream_artifact = Deferred("taskqueue_client.artifacts.awaited")
        create_reference_artifact = Deferred("taskqueue_client.artifacts.records", awaited)
        create_link_artifact = Deferred("taskqueue_client.artifacts.records", awaited)
        create_error_artifact = Deferred("taskqueue_client.artifacts.records", awaited)

    # Task queues and workers
    pending_tasks = awaited(calls.pending_tasks)
    task_queue_counts = awaited(calls.task_queue_counts)
    list_pending_tasks = awaited(calls.list_pending_tasks)
    iter_pending_tasks = async_iterated(calls.iter_pending_tasks)
    list_claimed_tasks = awaited(calls.list_claimed_tasks)
    iter_claimed_tasks = async_iterated(calls.iter_claimed_tasks)
    list_task_queues = awaited(calls.list_task_queues)
    iter_task_queues = async_iterated(calls.iter_task_queues)
    get_task_queue = awaited(calls.get_task_queue)
    list_provisioners = awaited(calls.list_provisioners)
    iter_provisioners = async_iterated(calls.iter_provisioners)
    get_provisioner = awaited(calls.get_provisioner)
    list_worker_types = awaited(calls.list_worker_types)
    iter_worker_types = async_iterated(calls.iter_worker_types)
    get_worker_type = awaited(calls.get_worker_type)
    list_workers = awaited(calls.list_workers)
    iter_workers = async_iterated(calls.iter_workers)
    get_worker = awaited(calls.get_worker)
    quarantine_worker = awaited(calls.quarantine_worker)
    declare_worker = awaited(calls.declare_worker)

    # Monitoring
    ping = awaited(calls.ping)
    lbheartbeat = awaited(calls.lbheartbeat)
    heartbeat = awaited(calls.heartbeat)
    version = awaited(calls.version)

    # The object service, which keeps artifacts of the storage type `object`
    create_upload = awaited(calls.create_upload)
    finish_upload = awaited(calls.finish_upload)
    start_download = awaited(calls.start_download)
    object_metadata = awaited(calls.object_metadata)
    download_object = awaited(calls.download_object)

    # The auth service
    test_authenticate = awaited(calls.test_authenticate)
    test_authenticate_get = awaited(calls.test_authenticate_get)
    current_scopes = awaited(calls.current_scopes)

    def __init__(
        self,
        root_url: str,
        credentials: Credentials | None = None,
        *,
        session: aiohttp.ClientSession | None = None,
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
        self._sessions = _Injected(session) if session is not None else _Owned(self.root_url)

    async def close(self) -> None:
        """Close the connections of the client's own session, and those to storage.

        A call afterwards is a `ClientUnusable`, unless the session is somebody else's and still open.
        """
        self._storage.close()
        await self._sessions.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, call: Call[R], /) -> R:
        """Make a call that a function of `taskqueue_client.calls` describes.

        Raises:
            InvalidArgument: The call cannot be sent.
            ClientUnusable: The client is closed, or was used in another event loop before.
            CallFailed: It did not give its answer; see `taskqueue_client.errors`.
        """
        if call.check is not None:
            self._check(call)
        started = self._clock.monotonic()
        try:
            return await self._send_once(call, self._policy.attempt_timeouts(call, 0.0))
        except CallFailed as error:
            return await self._send_again(call, Attempts(self._clock, started), error)

    async def _send_again(self, call: Call[R], attempts: Attempts, first: CallFailed) -> R:
        """Go on after the `first` failure, for as long as tenacity says."""
        import tenacity  # noqa: PLC0415 - costs 40 ms, and most programs never need it

        failures = [first]

        async def attempt() -> R:
            while True:
                try:
                    if failures:
                        raise failures.pop()
                    timeouts = self._policy.attempt_timeouts(call, attempts.elapsed())
                    return await self._send_once(call, timeouts)
                except CallFailed as error:
                    attempts.failed(error)
                    if not self._wire.is_stale(error, attempts):
                        raise

        when = schedule(self._policy, call, attempts.elapsed)
        return await tenacity.AsyncRetrying(sleep=self._clock.sleep_async, **when)(attempt)

    async def _send_once(self, call: Call[R], timeouts: tuple[float, float]) -> R:
        sessions, request = self._sessions, self._wire.encode(call)
        headers, middlewares = sessions.prevailing(request)
        try:
            response = await sessions.get().request(
                request.method,
                URL(request.url, encoded=True),  # sent as it was signed
                data=request.body,
                headers=headers,
                timeout=_timeout(*timeouts),
                skip_auto_headers=_UNSIGNED if request.body is None and request.method != "GET" else None,
                allow_redirects=False,
                proxy=sessions.proxy,
                middlewares=middlewares,
                raise_for_status=False,  # an injected session may want it
            )
            # Its end, or an error on the way there, gives the connection back.
            answer = Answer(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            cause = error.__cause__ if isinstance(error, _SentOnceError) else error
            failed = CallTimedOut if isinstance(cause, TimeoutError) else ConnectionFailed
            _forget_request(error)
            raise failed(self._wire.attempted(call), f"{type(cause).__name__}: {cause}") from error
        return self._wire.decode(call, answer)


def _forget_request(error: BaseException) -> None:
    """Take our headers, and so the signature, out of an error that people will log."""
    if isinstance(error, aiohttp.ClientResponseError):
        url, method, _, real_url = error.request_info
        error.request_info = aiohttp.RequestInfo(url, method, CIMultiDictProxy(CIMultiDict[str]()), real_url)
        error.args = (error.request_info, error.history)


_UNSIGNED = frozenset({"Content-Type"})
"""What aiohttp must not add to a POST or PUT: the signature covers that there is no content type."""


@lru_cache(maxsize=8)
def _timeout(connect: float, read: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)


class _SentOnceError(aiohttp.ClientError):
    """A connection broke; aiohttp knows no reason to send the request again for this one."""


async def _sent_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending GET and PUT a second time when the connection breaks.

    It would do so without a fresh signature, and nobody would know that the outcome of the first
    request is open.
    """
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _SentOnceError from error


_SENT_ONCE: Middlewares = (_sent_once,)


_CLOSED = "this AsyncQueue is closed: make a new one, or close it later"
_ELSEWHERE = "this AsyncQueue belongs to the event loop of its first call: make one for each loop"
_SESSION_CLOSED = "the session of this AsyncQueue is closed: make both anew, or close the session later"
_SESSION_ELSEWHERE = "the session of this AsyncQueue belongs to another event loop: make both for each loop"


class _Injected:
    """Somebody else's session, with somebody else's settings."""

    proxy = None

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        # The argument of a request replaces the session's own, which cannot be read in another way.
        self._middlewares = (*getattr(session, "_middlewares", ()), _sent_once)

    def prevailing(self, sent: Request) -> tuple[Headers, Middlewares]:
        """Put our headers over the session's own ones, which the signature does not cover.

        aiohttp refuses an `Authorization` beside the session's `auth` or an entry of `.netrc`.
        """

        async def ours(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            request.headers.popall("Content-Type", None)
            request.headers.update(sent.headers)
            return await handler(request)

        return {}, (*self._middlewares, ours)

    def get(self) -> aiohttp.ClientSession:
        if self._session.closed:
            raise ClientUnusable(_SESSION_CLOSED)
        running = asyncio.get_running_loop()
        if getattr(self._session, "_loop", running) is not running:  # has no other way to be asked
            raise ClientUnusable(_SESSION_ELSEWHERE)
        return self._session

    async def close(self) -> None:
        """Leave it to its owner."""


class _Owned:
    """A session of the client's own, made in the loop of the first call.

    The environment's proxy and CA bundle are looked up once, and not for every call.
    """

    def __init__(self, root_url: str) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which the session is open
        self._closed = False
        self.proxy = environment_proxy(root_url, _PROXIES, _PROXIES_IN_WORDS)
        self._tls = _tls_settings() if root_url.startswith("https:") else True

    def prevailing(self, sent: Request) -> tuple[Headers, Middlewares]:
        """All headers are ours, and aiohttp sends a POST only once anyhow."""
        return sent.headers, () if sent.method == "POST" else _SENT_ONCE

    def get(self) -> aiohttp.ClientSession:
        if self._session is None or self._loop is not asyncio.get_running_loop():
            return self._open()
        return self._session

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ClientUnusable(_CLOSED)
        if self._session is not None:
            raise ClientUnusable(_ELSEWHERE)
        connector = aiohttp.TCPConnector(limit=POOL_SIZE, ssl=self._tls)
        finalize(self, _abandon, connector)  # runs before any `__del__`, that of the session too
        self._loop = asyncio.get_running_loop()
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": USER_AGENT},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self._session

    async def close(self) -> None:
        self._closed, self._loop = True, None
        if self._session is not None:
            await self._session.close()


def _abandon(connector: aiohttp.BaseConnector) -> None:
    """Close without a warning what nobody closed: the loop may be gone by now."""
    if connector.closed:
        return
    closing = connector.close().__await__()
    with suppress(StopIteration):
        next(closing)  # closes at once; what it would wait for are the goodbyes of TLS
    closing.close()


def _tls_settings() -> ssl.SSLContext | bool:
    """The variables that requests and curl read; without them, the system's store of certificates."""
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if not bundle:
        return True
    try:
        if Path(bundle).is_dir():
            return ssl.create_default_context(capath=bundle)
        return ssl.create_default_context(cafile=bundle)
    except OSError as error:
        raise InvalidArgument("ca_bundle", bundle, f"a file or folder of certificates: {error}") from error
