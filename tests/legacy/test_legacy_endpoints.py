"""Legacy polling of the local queue: endpoints of both generations, and messages that follow the tasks."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
import pytest
import requests

from taskqueue_client import Credentials, Queue
from taskqueue_client.errors import (
    AuthenticationFailed,
    InputError,
    InsufficientScopes,
    MalformedRequestBody,
    NotFound,
    RequestConflict,
    ResourceNotFound,
)
from taskqueue_client.legacy import PolledClaim, claim_work, poll_task_url, poll_task_urls
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Respond
from tests.legacy.azurite import Azurite
from tests.legacy.storage_view import StorageView
from tests.worker.queue_world import World, iso, until


def get(url: str) -> requests.Response:
    return requests.get(url, timeout=30)


class Polling:
    """The calls of a worker that follows the first draft of legacy polling."""

    def __init__(self, world: World, task_queue_id: str) -> None:
        self._world, self._task_queue_id = world, task_queue_id
        self._url = world.queue.send(poll_task_url(task_queue_id)).signed_poll_task_url

    def message(self) -> str:
        """Poll until a message comes; return the response."""
        found: list[str] = []

        def poll() -> bool:
            found.append(get(self._url).text)
            return "<MessageId>" in found[-1]

        until(poll)
        return found[-1]

    def claim(self, xml_message: str | None, *, worker: str = "w", of: str | None = None) -> PolledClaim:
        claim = self._world.queue.send(
            claim_work(of or self._task_queue_id, worker_group="g", worker_id=worker, xml_message=xml_message)
        )
        assert claim is not None
        return claim


@pytest.fixture
def polling(world: World, task_queue_id: str) -> Polling:
    return Polling(world, task_queue_id)


@pytest.fixture
def create(world: World, task_queue_id: str) -> Callable[..., str]:
    def make(**changes: Any) -> str:
        return world.create(taskQueueId=task_queue_id, **changes)

    return make


def forged(xml: str, change: dict[str, object]) -> str:
    """Return a response to a poll whose message has some other fields."""
    before, _, rest = xml.partition("<MessageText>")
    encoded, _, after = rest.partition("</MessageText>")
    text = {**json.loads(base64.b64decode(encoded)), **change}
    changed = base64.b64encode(json.dumps(text).encode()).decode()
    return f"{before}<MessageText>{changed}</MessageText>{after}"


class TestPollTaskUrls:
    def test_returns_signed_urls_for_seven_queues_with_the_highest_priority_first(
        self, world: World, storage: StorageView, task_queue_id: str
    ) -> None:
        response = world.queue.send(poll_task_urls(task_queue_id))
        assert [urlsplit(each.signed_poll_url).path.split("/")[2] for each in response.queues] == [
            storage.names[each] for each in "7654321"
        ]
        assert all(len(name) <= 63 for name in storage.names.values())
        for each in response.queues:
            assert "visibilitytimeout=300&" in each.signed_poll_url
            assert "/messages/{{messageId}}?popreceipt={{popReceipt}}&" in each.signed_delete_url
            assert get(each.signed_poll_url).status_code == 200

    def test_the_urls_are_valid_from_15_minutes_ago_to_30_minutes_ahead_and_only_for_processing_messages(
        self, world: World, task_queue_id: str
    ) -> None:
        response = world.queue.send(poll_task_urls(task_queue_id))
        signature = parse_qs(urlsplit(response.queues[0].signed_poll_url).query)
        start, end = (datetime.fromisoformat(signature[name][0]) for name in ("st", "se"))
        assert end - start == timedelta(minutes=45)
        assert signature["sp"] == ["p"]
        assert abs(end - response.expires) < timedelta(seconds=30)
        assert abs(response.expires - datetime.now(UTC) - timedelta(minutes=30)) < timedelta(minutes=1)

    def test_faults_strike_the_endpoints_of_both_generations(self, world: World, task_queue_id: str) -> None:
        world.local.faults.add(Respond(endpoint="queue.pollTaskUrls", status=400))
        world.local.faults.add(Respond(endpoint="legacy.pollTaskUrl", status=400))
        with pytest.raises(MalformedRequestBody, match="pollTaskUrls "):
            world.queue.send(poll_task_urls(task_queue_id))
        with pytest.raises(MalformedRequestBody, match="pollTaskUrl "):
            world.queue.send(poll_task_url(task_queue_id))

    def test_a_signature_is_not_in_its_repr(self, world: World, task_queue_id: str) -> None:
        new, old = (
            world.queue.send(poll_task_urls(task_queue_id)),
            world.queue.send(poll_task_url(task_queue_id)),
        )
        assert "sig=" not in repr(new) + repr(old)

    def test_a_changed_url_is_refused_by_the_storage(self, world: World, task_queue_id: str) -> None:
        url = world.queue.send(poll_task_urls(task_queue_id)).queues[0].signed_poll_url
        assert get(url.replace("sp=p", "sp=rap")).status_code == 403
        assert get(url.replace("-7/", "-6/")).status_code == 403

    @pytest.mark.usefixtures("emulator_installed")
    def test_a_storage_that_cannot_be_reached_is_an_internal_error(self, task_queue_id: str) -> None:
        nowhere = Azurite.connection_string_of("http://127.0.0.1:9/devstoreaccount1")
        with LocalQueue(legacy_azure=nowhere) as local, Queue(local.root_url, local.credentials) as queue:
            call = poll_task_urls(task_queue_id)
            with pytest.raises(Exception, match="storage queues cannot be used") as caught:
                queue.with_options(attempts=1).send(call)
            assert "AccountKey" not in str(caught.value)


class TestScopes:
    SETS = (
        (poll_task_urls, ["queue:poll-task-urls:p/w"], True),
        (poll_task_urls, ["queue:poll-task-urls", "assume:worker-type:p/w"], True),
        (poll_task_urls, ["queue:poll-task-urls"], False),
        (poll_task_urls, ["queue:poll-task", "assume:worker-type:p/w"], False),
        (poll_task_urls, ["queue:poll-task-urls:p/other"], False),
        (poll_task_url, ["queue:poll-task", "assume:worker-type:p/w"], True),
        (poll_task_url, ["queue:poll-task"], False),
        (poll_task_url, ["queue:poll-task-urls:p/w"], False),
    )

    @pytest.mark.parametrize(("call", "scopes", "is_enough"), SETS)
    def test_each_generation_has_its_own(
        self, azurite: Azurite, call: Any, scopes: list[str], *, is_enough: bool
    ) -> None:
        with self._queue(azurite, scopes) as queue:
            if is_enough:
                assert queue.send(call("p/w"))
            else:
                with pytest.raises(InsufficientScopes):
                    queue.send(call("p/w"))

    @pytest.mark.parametrize(
        "missing", ["queue:claim-task", "assume:worker-type:p/w", "assume:worker-id:g/i", ""]
    )
    def test_a_claim_of_the_draft_takes_all_three(self, azurite: Azurite, missing: str) -> None:
        scopes = ["queue:claim-task", "assume:worker-type:p/w", "assume:worker-id:g/i"]
        call = claim_work("p/w", worker_group="g", worker_id="i")
        with self._queue(azurite, [each for each in scopes if each != missing]) as queue:
            if missing:
                with pytest.raises(InsufficientScopes):
                    queue.send(call)
            else:
                assert queue.send(call) is None

    def test_without_a_storage_account_the_endpoints_do_not_exist(self) -> None:
        with LocalQueue() as local, Queue(local.root_url, local.credentials) as queue:
            with pytest.raises(NotFound):
                queue.send(poll_task_url("p/w"))
            with pytest.raises(NotFound):
                queue.send(poll_task_urls("p/w"))

    @staticmethod
    def _queue(azurite: Azurite, scopes: list[str]) -> Any:
        client = Client("worker", "secret-of-the-worker", scopes)
        local = LocalQueue(clients=[client], anonymous_scopes=[], legacy_azure=azurite.connection_string)

        class Opened:
            def __enter__(self) -> Queue:
                local.start()
                self._queue = Queue(local.root_url, Credentials(client.client_id, client.access_token))
                return self._queue

            def __exit__(self, *_: object) -> None:
                self._queue.close()
                local.stop()

        return Opened()


class TestMessages:
    def test_are_put_into_the_queue_of_their_priority_until_the_deadline(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        now = datetime.fromtimestamp(world.local.clock.now(), UTC)
        task_id = create(priority="very-high", deadline=iso(now + timedelta(hours=3)))
        until(lambda: storage.runs("6") == [(task_id, 0)])
        assert storage.visible("6")[0].keys() == {"taskId", "runId", "signature"}
        (message,) = storage.service.get_queue_client(storage.names["6"]).peek_messages()
        assert message.inserted_on is not None
        assert message.expires_on is not None
        lifetime = (message.expires_on - message.inserted_on).total_seconds()
        assert 3 * 3600 - 30 <= lifetime <= 3 * 3600 + 1
        assert [storage.count(each) for each in "754321"] == [0] * 6

    def test_about_tasks_from_before_the_first_poll_are_put_then(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        tasks = [create(priority=priority) for priority in ("lowest", "highest")]
        world.queue.send(poll_task_urls(task_queue_id))
        until(lambda: storage.runs("1") + storage.runs("7") == [(each, 0) for each in tasks])

    def test_are_put_again_after_the_database_could_not_be_written_for_a_while(
        self,
        world: World,
        storage: StorageView,
        create: Callable[..., str],
        task_queue_id: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        running = world.local._running
        assert running.legacy is not None
        execute, wake = running.core.store.connection.execute, running.legacy.wake

        def fill_disk() -> None:
            execute("INSERT INTO azure_due (task_id) VALUES ('gone')")
            execute("PRAGMA query_only = ON")
            wake()

        world.local.call(fill_disk)
        until(lambda: "legacy polling failed" in caplog.text)
        world.local.call(lambda: execute("PRAGMA query_only = OFF"))
        task_id = create()
        until(lambda: storage.runs() == [(task_id, 0)])

    def test_that_the_storage_refuses_delay_no_others_and_are_put_by_the_next_check(
        self,
        azurite: Azurite,
        task_queue_id: str,
        storage: StorageView,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        from azure.core.exceptions import HttpResponseError

        from taskqueue_client.local import legacy_messages

        monkeypatch.setattr(legacy_messages, "CHECK_EVERY", 0.05)
        put, refused = legacy_messages.AzureQueues.put, list[str]()

        async def refuse_first(azure: Any, name: str, text: str, **timing: int) -> Any:
            if not refused:
                refused.append(text)
                error = HttpResponseError("one of the request inputs is out of range")
                error.status_code = 400
                raise error
            return await put(azure, name, text, **timing)

        monkeypatch.setattr(legacy_messages.AzureQueues, "put", refuse_first)
        with LocalQueue(legacy_azure=azurite.connection_string) as local:
            world = World(local)
            world.queue.send(poll_task_urls(task_queue_id))
            first, second = (world.create(taskQueueId=task_queue_id) for _ in range(2))
            until(lambda: sorted(storage.runs("1")) == sorted([(first, 0), (second, 0)]))
            world.close()
        assert f"cannot bring the message of task {first} up to date" in caplog.messages

    def test_about_a_task_that_is_not_scheduled_yet_are_not_put(
        self,
        world: World,
        storage: StorageView,
        create: Callable[..., str],
        task_queue_id: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        first = create()
        waiting = create(dependencies=[first])
        world.queue.change_task_priority(waiting, "high")
        last = create()
        until(lambda: sorted(storage.runs("1")) == sorted([(first, 0), (last, 0)]))
        assert storage.count("5") == 0
        assert "legacy polling failed" not in caplog.text

    def test_move_with_the_priority(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        task_id = create()
        until(lambda: storage.count("1"))
        world.queue.change_task_priority(task_id, "high")
        until(lambda: (storage.count("1"), storage.runs("5")) == (0, [(task_id, 0)]))

    def test_are_deleted_when_the_task_is_canceled_or_resolved_by_a_worker_that_does_not_poll(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        canceled, completed = create(), create()
        until(lambda: storage.count() == 2)
        world.queue.cancel_task(canceled)
        (claim,) = world.queue.claim_work(task_queue_id, worker_group="g", worker_id="w").tasks
        assert claim.status.task_id == completed
        with Queue(world.local.root_url, claim.credentials) as worker:
            worker.report_completed(completed, 0)
        until(lambda: storage.count() == 0)

    def test_of_a_claimed_run_are_about_the_next_one_and_hidden_until_the_claim_ends(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        task_id = create()
        until(lambda: storage.runs() == [(task_id, 0)])
        (claim,) = world.queue.claim_work(task_queue_id, worker_group="g", worker_id="w").tasks
        until(lambda: self._maintained(world, task_id) == (1, claim.taken_until))
        assert (storage.visible(), storage.count()) == ([], 1)

        world.local.clock.advance(minutes=10)
        with Queue(world.local.root_url, claim.credentials, clock=world.local.clock) as worker:
            later = worker.reclaim_task(task_id, 0).taken_until
            assert later - claim.taken_until >= timedelta(minutes=10)
            until(lambda: self._maintained(world, task_id) == (1, later))
            assert (storage.visible(), storage.count()) == ([], 1)
            worker.report_exception(task_id, 0, "worker-shutdown")
        until(lambda: storage.runs() == [(task_id, 1)])
        assert storage.count() == 1

    def test_of_a_claimed_run_of_a_task_without_retries_are_deleted(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        create(retries=0)
        until(lambda: storage.count() == 1)
        world.queue.claim_work(task_queue_id, worker_group="g", worker_id="w")
        until(lambda: storage.count() == 0)

    def test_of_the_runs_of_a_removed_worker_can_be_polled_at_once(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        task_id = create()
        (claim,) = world.queue.claim_work(task_queue_id, worker_group="g", worker_id="w").tasks
        until(lambda: self._maintained(world, task_id) == (1, claim.taken_until))
        world.local.remove_worker(task_queue_id, "g", "w")
        until(lambda: storage.runs() == [(task_id, 1)])

    def test_that_somebody_has_polled_are_replaced_by_another_one(
        self,
        polling: Polling,
        world: World,
        storage: StorageView,
        create: Callable[..., str],
        task_queue_id: str,
    ) -> None:
        """The queue cannot update such a message: the poll has replaced the receipt that it knows."""
        first, second = create(retries=0), create()
        until(lambda: storage.count("all") == 2)
        polling.message()
        polling.message()
        world.queue.claim_work(task_queue_id, worker_group="g", worker_id="w", tasks=2)
        until(lambda: self._maintained(world, first) is None)
        until(lambda: (self._maintained(world, second) or (0,))[0] == 1)
        until(lambda: storage.count("all") == 3)  # the two that were polled, and the next run's

    def test_survive_a_restart_of_the_queue_and_are_put_for_what_happened_before_the_end(
        self, own_azurite: Azurite, tmp_path: Path, task_queue_id: str
    ) -> None:
        options = {"legacy_azure": own_azurite.connection_string, "db": str(tmp_path / "queue.sqlite")}
        storage = StorageView(own_azurite, task_queue_id)
        with LocalQueue(**options) as local:  # type: ignore[arg-type]
            world = World(local)
            world.queue.send(poll_task_urls(task_queue_id))
            own_azurite.kill()
            task_id = world.create(taskQueueId=task_queue_id)
            world.close()
        own_azurite.start()
        with LocalQueue(**options):  # type: ignore[arg-type]
            until(lambda: storage.runs() == [(task_id, 0)])
        storage.close()

    @staticmethod
    def _maintained(world: World, task_id: str) -> tuple[int, datetime] | None:
        """Return the run of a message, and when the message becomes visible, as the storage has confirmed."""
        deployment = world.local._deployment
        assert deployment is not None
        row = world.local.call(
            lambda: deployment.core.store.row(
                "SELECT run_id, visible FROM azure_messages WHERE task_id = ?", task_id
            )
        )
        return None if row is None else (row[0], datetime.fromtimestamp(row[1] / 1000, UTC))


class TestClaimsOfTheDraft:
    def test_claim_the_run_of_a_message_as_it_was_polled(
        self, polling: Polling, create: Callable[..., str], storage: StorageView
    ) -> None:
        task_id = create()
        claim = polling.claim(polling.message())
        assert (claim.status.task_id, claim.run_id, claim.worker_id) == (task_id, 0, "w")
        assert claim.status.runs[0].taken_until == claim.taken_until
        assert storage.count("all") == 1

    def test_have_the_five_properties_of_the_draft(
        self, world: World, create: Callable[..., str], task_queue_id: str
    ) -> None:
        create()
        call = claim_work(task_queue_id, worker_group="g", worker_id="w")
        claim = world.queue.send(cast("Any", msgspec.structs.replace(call, returns=dict[str, Any])))
        assert claim.keys() == {"workerGroup", "workerId", "runId", "takenUntil", "status"}

    def test_without_a_message_claim_any_pending_run_or_none(
        self, world: World, polling: Polling, create: Callable[..., str], task_queue_id: str
    ) -> None:
        task_id = create()
        assert polling.claim(None).status.task_id == task_id
        assert world.queue.send(claim_work(task_queue_id, worker_group="g", worker_id="w")) is None

    def test_of_a_worker_in_quarantine_find_nothing(
        self, world: World, polling: Polling, create: Callable[..., str], task_queue_id: str
    ) -> None:
        first, second = create(), create()
        assert polling.claim(None, worker="bad").status.task_id == first
        until_then = world.queue.now() + timedelta(hours=1)
        world.queue.quarantine_worker(
            task_queue_id,
            worker_group="g",
            worker_id="bad",
            quarantine_until=until_then,
            quarantine_info="test",
        )
        call = claim_work(task_queue_id, worker_group="g", worker_id="bad", xml_message=polling.message())
        assert world.queue.send(call) is None
        assert world.status(second).state == "pending"

    def test_repeated_by_the_same_worker_return_the_same_claim(
        self, polling: Polling, create: Callable[..., str]
    ) -> None:
        create()
        message = polling.message()
        first, second = polling.claim(message), polling.claim(message)
        assert (first.run_id, first.taken_until) == (second.run_id, second.taken_until)

    @pytest.mark.parametrize(
        "change",
        [
            {"runId": 1},
            {"signature": ""},
            {"signature": "\u00e9"},
            {"taskId": "fN1SbArXTPSVFNUvaOlinQ"},
        ],
    )
    def test_refuse_a_message_that_the_queue_did_not_sign(
        self, world: World, polling: Polling, create: Callable[..., str], change: dict[str, object]
    ) -> None:
        task_id = create()
        message = polling.message()
        with pytest.raises(AuthenticationFailed, match="not signed"):
            polling.claim(forged(message, change))
        assert world.status(task_id).state == "pending"
        assert polling.claim(message).status.task_id == task_id

    def test_refuse_a_message_that_another_deployment_signed(
        self, azurite: Azurite, polling: Polling, create: Callable[..., str], task_queue_id: str
    ) -> None:
        task_id = create()
        message = polling.message()
        with LocalQueue(legacy_azure=azurite.connection_string) as other:
            world = World(other)
            with pytest.raises(AuthenticationFailed):
                Polling(world, task_queue_id).claim(message)
            world.close()
        assert polling.claim(message).status.task_id == task_id

    @pytest.mark.parametrize(
        "xml",
        [
            "",
            "no XML",
            "<QueueMessagesList/>",
            '<!DOCTYPE x [<!ENTITY a "b">]><QueueMessagesList/>',
            "<QueueMessagesList><QueueMessage><MessageId>1</MessageId></QueueMessage></QueueMessagesList>",
            "\ufffe",
            "<a>" * 100_000,
        ],
    )
    def test_refuse_what_is_not_a_response_to_a_poll(
        self, world: World, task_queue_id: str, xml: str
    ) -> None:
        call = claim_work(task_queue_id, worker_group="g", worker_id="w", xml_message="?")
        raw = json.dumps({"workerGroup": "g", "workerId": "w", "xmlMessage": xml})
        with pytest.raises(InputError, match="xmlMessage"):
            world.queue.send(msgspec.structs.replace(call, body=msgspec.Raw(raw.encode())))

    def test_refuse_a_message_of_another_task_queue(
        self, world: World, polling: Polling, create: Callable[..., str]
    ) -> None:
        task_id = create()
        with pytest.raises(InputError, match="not one of the task queue"):
            polling.claim(polling.message(), of="other/queue")
        assert world.status(task_id).state == "pending"

    def test_refuse_a_message_about_a_task_that_is_gone(
        self, world: World, polling: Polling, create: Callable[..., str]
    ) -> None:
        create()
        message = polling.message()
        world.local.clock.advance(days=400)
        world.local.run_expirers()
        with pytest.raises(ResourceNotFound):
            polling.claim(message)

    def test_refuse_and_delete_a_message_whose_run_has_been_claimed(
        self,
        world: World,
        polling: Polling,
        storage: StorageView,
        create: Callable[..., str],
        task_queue_id: str,
    ) -> None:
        create(retries=0)
        message = polling.message()
        world.queue.claim_work(task_queue_id, worker_group="g", worker_id="modern")
        until(lambda: storage.count("all") == 1)
        with pytest.raises(RequestConflict):
            polling.claim(message)
        until(lambda: storage.count("all") == 0)

    def test_refuse_a_message_whose_run_has_been_claimed_although_it_cannot_be_deleted(
        self,
        world: World,
        polling: Polling,
        create: Callable[..., str],
        task_queue_id: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        from azure.core.exceptions import ServiceRequestError

        from taskqueue_client.local import legacy_messages

        async def fail(*_: object) -> None:
            raise ServiceRequestError("cut")

        task_id = create(retries=0)
        message = polling.message()
        world.queue.claim_work(task_queue_id, worker_group="g", worker_id="modern")
        monkeypatch.setattr(legacy_messages.AzureQueues, "delete", fail)
        with pytest.raises(RequestConflict):
            polling.claim(message)
        assert f"cannot delete a message about task {task_id}: cut" in caplog.messages


class TestExpiredClaims:
    def test_reappear_in_the_storage_before_any_resolver_has_seen_them(
        self, azurite: Azurite, task_queue_id: str
    ) -> None:
        """The resolvers run at each multiple of 5 s; the clock stands between two of them."""
        with LocalQueue(
            legacy_azure=azurite.connection_string, like_production=True, claim_timeout=1
        ) as local:
            world = World(local)
            polling = Polling(world, task_queue_id)
            local.clock.hold()
            local.clock.advance(5 - local.clock.now() % 5 + 0.5)
            task_id = world.create(taskQueueId=task_queue_id)
            assert polling.claim(polling.message()).run_id == 0
            local.clock.advance(2)
            message = polling.message()  # of the next run, which does not exist yet
            assert [run.state for run in world.status(task_id).runs] == ["running"]
            assert polling.claim(message, worker="another").run_id == 1
            assert [run.reason_resolved for run in world.status(task_id).runs] == ["claim-expired", None]
            world.close()

    def test_can_be_claimed_with_claim_task_before_any_resolver_has_seen_them(
        self, azurite: Azurite, task_queue_id: str
    ) -> None:
        with LocalQueue(
            legacy_azure=azurite.connection_string, like_production=True, claim_timeout=1
        ) as local:
            world = World(local)
            local.clock.hold()
            local.clock.advance(5 - local.clock.now() % 5 + 0.5)
            task_id = world.create(taskQueueId=task_queue_id)
            who = {"worker_group": "g", "worker_id": "w"}
            world.queue.claim_task(task_id, 0, **who)
            with pytest.raises(ResourceNotFound):
                world.queue.claim_task(task_id, 1, **who)
            local.clock.advance(2)
            assert world.queue.claim_task(task_id, 1, **who).run_id == 1
            world.close()

    def test_that_the_resolver_saw_first_have_a_message_all_the_same(
        self, world: World, storage: StorageView, create: Callable[..., str], task_queue_id: str
    ) -> None:
        world.queue.send(poll_task_urls(task_queue_id))
        task_id = create()
        until(lambda: storage.runs() == [(task_id, 0)])
        world.queue.claim_work(task_queue_id, worker_group="g", worker_id="w")
        until(lambda: not storage.visible())
        world.local.clock.advance(minutes=20)
        until(lambda: storage.runs() == [(task_id, 1)])


def test_a_receipt_in_a_delete_url_is_uri_encoded() -> None:
    assert quote("a+b/c= d", safe="") == "a%2Bb%2Fc%3D%20d"
