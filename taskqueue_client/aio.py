"""`AsyncQueue`, the asynchronous client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import aiohttp

from taskqueue_client._arguments import check_kind
from taskqueue_client._client_base import ClientBase, Deferred, with_attributes
from taskqueue_client._protocol.api_responses import ResponseRefused, TransportFailed
from taskqueue_client._protocol.conversation import Call, called_async, performed_async, streamed_async
from taskqueue_client._protocol.paging import iterated_async
from taskqueue_client._protocol.wire import Attempt, attempts
from taskqueue_client._transport.asynchronous import AsyncTransport, InjectedSessionTransport, own_transport

from . import calls

if TYPE_CHECKING:
    from .artifacts import chain_verification, download_methods, many_uploads, records, uploading

R = TypeVar("R")


class AsyncQueue(ClientBase[aiohttp.ClientSession]):
    """The Queue's asynchronous client.

    Use it as an async context manager, or `await close()`; a closed client cannot be used again. A client
    belongs to the event loop of its first call.

    Args:
        root_url: The deployment's root URL, such as `https://tc.example.com`.
        credentials: The credentials to sign calls with; None for calls that need no scopes.
        session: A session to send API calls with, which is never closed. By default the client opens
            connections with the environment's settings.
        retry: How often, and for how long, calls are attempted.
        check_definitions: Whether to check a task definition before it is sent.
        artifact_storage: The default storage of uploads: `s3`, or `object` for the object service.
        clock: The source of time; a test may pass a `MovableClock`.
        tracing: Whether to make an OpenTelemetry span for each attempt at a call (extra `otel`).

    Raises:
        InvalidArgument: The URL or the credentials are malformed, or the environment's proxy or CA bundle
            cannot be used.
        ImportError: `tracing` is on, and opentelemetry-api is not installed.
    """

    # Tasks
    task = called_async(calls.task)
    tasks = called_async(calls.tasks)
    iter_tasks = iterated_async(calls.iter_tasks)
    statuses = called_async(calls.statuses)
    iter_statuses = iterated_async(calls.iter_statuses)
    status = called_async(calls.status)
    list_dependent_tasks = called_async(calls.list_dependent_tasks)
    iter_dependent_tasks = iterated_async(calls.iter_dependent_tasks)
    create_task = called_async(calls.create_task)
    schedule_task = called_async(calls.schedule_task)
    rerun_task = called_async(calls.rerun_task)
    cancel_task = called_async(calls.cancel_task)
    change_task_priority = called_async(calls.change_task_priority)

    # Task groups
    list_task_group = called_async(calls.list_task_group)
    iter_task_group = iterated_async(calls.iter_task_group)
    get_task_group = called_async(calls.get_task_group)
    seal_task_group = called_async(calls.seal_task_group)
    cancel_task_group = called_async(calls.cancel_task_group)
    change_task_group_priority = called_async(calls.change_task_group_priority)

    # Claims and reports of workers
    claim_work = called_async(calls.claim_work)
    claim_task = called_async(calls.claim_task)
    reclaim_task = called_async(calls.reclaim_task)
    report_completed = called_async(calls.report_completed)
    report_failed = called_async(calls.report_failed)
    report_exception = called_async(calls.report_exception)

    # Artifacts
    create_artifact = called_async(calls.create_artifact)
    finish_artifact = called_async(calls.finish_artifact)
    get_artifact = called_async(calls.get_artifact)
    get_latest_artifact = called_async(calls.get_latest_artifact)
    artifact = called_async(calls.artifact)
    latest_artifact = called_async(calls.latest_artifact)
    list_artifacts = called_async(calls.list_artifacts)
    iter_artifacts = iterated_async(calls.iter_artifacts)
    list_latest_artifacts = called_async(calls.list_latest_artifacts)
    iter_latest_artifacts = iterated_async(calls.iter_latest_artifacts)
    artifact_info = called_async(calls.artifact_info)
    latest_artifact_info = called_async(calls.latest_artifact_info)

    # Transfers of artifacts: several calls, and requests to storage services
    if TYPE_CHECKING:
        upload_artifact = performed_async(uploading.upload_artifact)
        upload_artifacts = performed_async(many_uploads.upload_artifacts)
        download_artifact = performed_async(download_methods.download_artifact)
        stream_artifact = streamed_async(download_methods.stream_artifact)
        verify_chain_of_trust = performed_async(chain_verification.verify_chain_of_trust)
        create_reference_artifact = performed_async(records.create_reference_artifact)
        create_link_artifact = performed_async(records.create_link_artifact)
        create_error_artifact = performed_async(records.create_error_artifact)
    else:
        upload_artifact = Deferred("taskqueue_client.artifacts.uploading", performed_async)
        upload_artifacts = Deferred("taskqueue_client.artifacts.many_uploads", performed_async)
        download_artifact = Deferred("taskqueue_client.artifacts.download_methods", performed_async)
        stream_artifact = Deferred("taskqueue_client.artifacts.download_methods", streamed_async)
        verify_chain_of_trust = Deferred("taskqueue_client.artifacts.chain_verification", performed_async)
        create_reference_artifact = Deferred("taskqueue_client.artifacts.records", performed_async)
        create_link_artifact = Deferred("taskqueue_client.artifacts.records", performed_async)
        create_error_artifact = Deferred("taskqueue_client.artifacts.records", performed_async)

    # Task queues and workers
    pending_tasks = called_async(calls.pending_tasks)
    task_queue_counts = called_async(calls.task_queue_counts)
    task_queue_counts_batch = called_async(calls.task_queue_counts_batch)
    list_pending_tasks = called_async(calls.list_pending_tasks)
    iter_pending_tasks = iterated_async(calls.iter_pending_tasks)
    list_claimed_tasks = called_async(calls.list_claimed_tasks)
    iter_claimed_tasks = iterated_async(calls.iter_claimed_tasks)
    list_task_queues = called_async(calls.list_task_queues)
    iter_task_queues = iterated_async(calls.iter_task_queues)
    get_task_queue = called_async(calls.get_task_queue)
    list_provisioners = called_async(calls.list_provisioners)
    iter_provisioners = iterated_async(calls.iter_provisioners)
    get_provisioner = called_async(calls.get_provisioner)
    list_worker_types = called_async(calls.list_worker_types)
    iter_worker_types = iterated_async(calls.iter_worker_types)
    get_worker_type = called_async(calls.get_worker_type)
    list_workers = called_async(calls.list_workers)
    iter_workers = iterated_async(calls.iter_workers)
    get_worker = called_async(calls.get_worker)
    quarantine_worker = called_async(calls.quarantine_worker)
    declare_worker = called_async(calls.declare_worker)

    # Monitoring
    ping = called_async(calls.ping)
    lbheartbeat = called_async(calls.lbheartbeat)
    heartbeat = called_async(calls.heartbeat)
    version = called_async(calls.version)

    # The object service, which stores artifacts of the storage type `object`
    create_upload = called_async(calls.create_upload)
    finish_upload = called_async(calls.finish_upload)
    start_download = called_async(calls.start_download)
    object_metadata = called_async(calls.object_metadata)
    download_object = called_async(calls.download_object)

    # The auth service
    test_authenticate = called_async(calls.test_authenticate)
    test_authenticate_get = called_async(calls.test_authenticate_get)
    current_scopes = called_async(calls.current_scopes)

    def _for_event_loop(self) -> None:
        """Return None: this client belongs to an event loop already. See `Queue._for_event_loop`."""

    def _open(self, session: aiohttp.ClientSession | None) -> None:
        check_kind("session", session, aiohttp.ClientSession | None)
        if session is not None:
            self._transport: AsyncTransport = InjectedSessionTransport(session)
            return
        self._network.check(self.root_url)
        self._transport = own_transport(self._network)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Self]:
        """Open separate connections for this copy of another client, and close them at the end."""
        self._transport = own_transport(self._network)
        try:
            yield self
        finally:
            await self._transport.aclose()
            await self._storage().leave_loop()

    async def close(self) -> None:
        """Close the client's own connections.

        Later calls raise `ClientUnusable`, unless the client has an injected session that is still open.
        """
        for storage in list(self._storages.values()):
            await storage.aclose()
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, call: Call[R], /) -> R:
        """Make a call that a function of `taskqueue_client.calls` returned, and return its response.

        `calls.create_task` and the `iter_…` functions return no `Call`: use the methods of these names.

        Raises:
            InvalidArgument: The call cannot be sent.
            ClientUnusable: The client is closed, belongs to another event loop, or no event loop is running.
            CallFailed: The call failed; see `taskqueue_client.errors`.
        """
        steps = attempts(self._wire, self._retries, call, self._spans, check=self._check_definitions)
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Attempt):
                    await self._clock.sleep_async(step)
                    step = next(steps)
                    continue
                try:
                    response = await self._transport.request(*step)
                except (TransportFailed, ResponseRefused) as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(response)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return] # StopIteration is not generic


def beside(queue: ClientBase[Any]) -> AbstractAsyncContextManager[AsyncQueue]:
    """Return an `AsyncQueue` with the settings of another client, and with separate connections."""
    return with_attributes(AsyncQueue, queue)._connected()  # noqa: SLF001 - this is one of its methods  # pyright: ignore[reportPrivateUsage]
