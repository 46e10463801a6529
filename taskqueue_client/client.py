"""`Queue`, the synchronous client."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Self, TypeVar

import requests

from taskqueue_client._arguments import check_kind
from taskqueue_client._client_base import ClientBase, Deferred
from taskqueue_client._protocol.api_responses import ResponseRefused, TransportFailed
from taskqueue_client._protocol.conversation import Call, called, performed, streamed
from taskqueue_client._protocol.paging import iterated
from taskqueue_client._protocol.wire import Attempt, attempts
from taskqueue_client._transport.synchronous import SyncTransport

from . import calls

if TYPE_CHECKING:
    from .aio import AsyncQueue
    from .artifacts import chain_verification, download_methods, many_uploads, records, uploading

R = TypeVar("R")


class Queue(ClientBase[requests.Session]):
    """The Queue's synchronous client.

    May be used from many threads at once. Use it as a context manager, or call `close`.

    Args:
        root_url: The deployment's root URL, such as `https://tc.example.com`.
        credentials: The credentials to sign calls with; None for calls that need no scopes.
        session: A session to send API calls with: its adapters, proxies, headers and CA bundle are used, and
            it is never closed. By default the client opens connections with the environment's settings.
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
    task = called(calls.task)
    tasks = called(calls.tasks)
    iter_tasks = iterated(calls.iter_tasks)
    statuses = called(calls.statuses)
    iter_statuses = iterated(calls.iter_statuses)
    status = called(calls.status)
    list_dependent_tasks = called(calls.list_dependent_tasks)
    iter_dependent_tasks = iterated(calls.iter_dependent_tasks)
    create_task = called(calls.create_task)
    schedule_task = called(calls.schedule_task)
    rerun_task = called(calls.rerun_task)
    cancel_task = called(calls.cancel_task)
    change_task_priority = called(calls.change_task_priority)

    # Task groups
    list_task_group = called(calls.list_task_group)
    iter_task_group = iterated(calls.iter_task_group)
    get_task_group = called(calls.get_task_group)
    seal_task_group = called(calls.seal_task_group)
    cancel_task_group = called(calls.cancel_task_group)
    change_task_group_priority = called(calls.change_task_group_priority)

    # Claims and reports of workers
    claim_work = called(calls.claim_work)
    claim_task = called(calls.claim_task)
    reclaim_task = called(calls.reclaim_task)
    report_completed = called(calls.report_completed)
    report_failed = called(calls.report_failed)
    report_exception = called(calls.report_exception)

    # Artifacts
    create_artifact = called(calls.create_artifact)
    finish_artifact = called(calls.finish_artifact)
    get_artifact = called(calls.get_artifact)
    get_latest_artifact = called(calls.get_latest_artifact)
    artifact = called(calls.artifact)
    latest_artifact = called(calls.latest_artifact)
    list_artifacts = called(calls.list_artifacts)
    iter_artifacts = iterated(calls.iter_artifacts)
    list_latest_artifacts = called(calls.list_latest_artifacts)
    iter_latest_artifacts = iterated(calls.iter_latest_artifacts)
    artifact_info = called(calls.artifact_info)
    latest_artifact_info = called(calls.latest_artifact_info)

    # Transfers of artifacts: several calls, and requests to storage services
    if TYPE_CHECKING:
        upload_artifact = performed(uploading.upload_artifact)
        upload_artifacts = performed(many_uploads.upload_artifacts)
        download_artifact = performed(download_methods.download_artifact)
        stream_artifact = streamed(download_methods.stream_artifact)
        verify_chain_of_trust = performed(chain_verification.verify_chain_of_trust)
        create_reference_artifact = performed(records.create_reference_artifact)
        create_link_artifact = performed(records.create_link_artifact)
        create_error_artifact = performed(records.create_error_artifact)
    else:
        upload_artifact = Deferred("taskqueue_client.artifacts.uploading", performed)
        upload_artifacts = Deferred("taskqueue_client.artifacts.many_uploads", performed)
        download_artifact = Deferred("taskqueue_client.artifacts.download_methods", performed)
        stream_artifact = Deferred("taskqueue_client.artifacts.download_methods", streamed)
        verify_chain_of_trust = Deferred("taskqueue_client.artifacts.chain_verification", performed)
        create_reference_artifact = Deferred("taskqueue_client.artifacts.records", performed)
        create_link_artifact = Deferred("taskqueue_client.artifacts.records", performed)
        create_error_artifact = Deferred("taskqueue_client.artifacts.records", performed)

    # Task queues and workers
    pending_tasks = called(calls.pending_tasks)
    task_queue_counts = called(calls.task_queue_counts)
    task_queue_counts_batch = called(calls.task_queue_counts_batch)
    list_pending_tasks = called(calls.list_pending_tasks)
    iter_pending_tasks = iterated(calls.iter_pending_tasks)
    list_claimed_tasks = called(calls.list_claimed_tasks)
    iter_claimed_tasks = iterated(calls.iter_claimed_tasks)
    list_task_queues = called(calls.list_task_queues)
    iter_task_queues = iterated(calls.iter_task_queues)
    get_task_queue = called(calls.get_task_queue)
    list_provisioners = called(calls.list_provisioners)
    iter_provisioners = iterated(calls.iter_provisioners)
    get_provisioner = called(calls.get_provisioner)
    list_worker_types = called(calls.list_worker_types)
    iter_worker_types = iterated(calls.iter_worker_types)
    get_worker_type = called(calls.get_worker_type)
    list_workers = called(calls.list_workers)
    iter_workers = iterated(calls.iter_workers)
    get_worker = called(calls.get_worker)
    quarantine_worker = called(calls.quarantine_worker)
    declare_worker = called(calls.declare_worker)

    # Monitoring
    ping = called(calls.ping)
    lbheartbeat = called(calls.lbheartbeat)
    heartbeat = called(calls.heartbeat)
    version = called(calls.version)

    # The object service, which stores artifacts of the storage type `object`
    create_upload = called(calls.create_upload)
    finish_upload = called(calls.finish_upload)
    start_download = called(calls.start_download)
    object_metadata = called(calls.object_metadata)
    download_object = called(calls.download_object)

    # The auth service
    test_authenticate = called(calls.test_authenticate)
    test_authenticate_get = called(calls.test_authenticate_get)
    current_scopes = called(calls.current_scopes)

    def _open(self, session: requests.Session | None) -> None:
        check_kind("session", session, requests.Session | None)
        self._transport = SyncTransport(session, self.root_url, self._network)

    def close(self) -> None:
        """Close the client's own connections; a later call opens new ones."""
        for storage in list(self._storages.values()):
            storage.close()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _for_event_loop(self) -> AbstractAsyncContextManager[AsyncQueue] | None:
        """Return an `AsyncQueue` with this client's settings for a new event loop.

        None if only this client can send: over an injected session, or through a SOCKS proxy.
        """
        if not self._transport.owns_session or self._network.has_socks():
            return None
        from .aio import beside  # noqa: PLC0415 - imports aiohttp, which takes 200 ms

        return beside(self)

    def send(self, call: Call[R], /) -> R:
        """Make a call that a function of `taskqueue_client.calls` returned, and return its response.

        `calls.create_task` and the `iter_…` functions return no `Call`: use the methods of these names.

        Raises:
            InvalidArgument: The call cannot be sent.
            CallFailed: The call failed; see `taskqueue_client.errors`.
        """
        steps = attempts(self._wire, self._retries, call, self._spans, check=self._check_definitions)
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Attempt):
                    self._clock.sleep(step)
                    step = next(steps)
                    continue
                try:
                    response = self._transport.request(*step)
                except (TransportFailed, ResponseRefused) as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(response)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return] # StopIteration is not generic
