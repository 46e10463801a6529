"""Each row of the documented differences from the service has a test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import pytest
import requests

from taskqueue_client import Queue, slugid
from taskqueue_client.definitions import task_definition
from taskqueue_client.local import LocalQueue, amqp
from tests.local.engine.engine_world import World
from tests.local.local_http import NO_SUCH_TASK, QUEUE, Wire, payload_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskqueue_client.testing import TaskFactory

HERE = Path(__file__).parent

HELD_BY = {
    "a request body of more than 10 MiB": (
        "http/test_local_bodies.py",
        "test_a_body_over_ten_mebibytes_is_too_large",
    ),
    "the character NUL or a lone surrogate in a JSON string": (
        "http/test_local_bodies.py",
        "test_a_body_that_is_not_json_is_malformed",
    ),
    "a request in an unknown charset or content coding": (
        "http/test_local_negotiation.py",
        "test_an_unknown_request_coding_is_malformed",
    ),
    "a body that is not in the content coding that it names": (
        "http/test_local_negotiation.py",
        "test_a_body_that_is_not_in_its_coding_is_malformed",
    ),
    "a request that is not HTTP, or has a line of more than 16 KiB": (
        "http/test_local_negotiation.py",
        "test_what_is_not_http_is_malformed",
    ),
    "charsets that Python does not have; `br` without the package `brotli`, 1.2 or newer": (
        "http/test_local_negotiation.py",
        "test_an_unknown_charset_is_refused",
    ),
    "`reclaimTask` of a run that was never claimed": (
        "engine/test_engine_claims.py",
        "test_reclaim_is_refused_for_a_run_that_is_missing_resolved_or_not_claimed",
    ),
    "`claimTask` by a worker in quarantine": (
        "engine/test_engine_claims.py",
        "test_claim_task_is_a_conflict_for_a_worker_in_quarantine",
    ),
    "`claimTask`, `finishArtifact`, or reading an artifact, of a run whose number is 2^31 or more": (
        "test_differences.py",
        "test_a_run_whose_number_is_too_large_is_not_found",
    ),
    "`declareWorker` with `expires` in the past, of a worker that is unknown or expired": (
        "test_service_defects.py",
        "test_requests_that_the_service_cannot_digest_get_its_500",
    ),
    "`declareWorker` of a worker type that no task can have, such as `Linux`": (
        "engine/test_engine_workers.py",
        "test_a_worker_of_a_type_that_no_task_can_have_is_not_declared",
    ),
    "a time with `T` and a zone such as `+01` or `+25:00`, or with the second 60": (
        "test_differences.py",
        "test_a_time_that_javascript_cannot_read_is_refused",
    ),
    "`limit=0` on a list": (
        "test_service_defects.py",
        "test_a_limit_of_zero_gets_the_services_500_on_the_lists_that_have_it",
    ),
    "rows of `listPendingTasks` and `listClaimedTasks` with the same millisecond as the last one of a page": (
        "engine/test_engine_workers.py",
        "test_tasks_of_the_same_millisecond_are_listed_once",
    ),
    "the deadline of a task that `createTask` refused for its dependencies": (
        "engine/test_engine_creation.py",
        "test_nothing_is_sent_at_the_deadline_of_a_task_that_was_refused_for_its_dependencies",
    ),
    "a continuation token that is JSON of wrong types": (
        "engine/test_engine_values.py",
        "test_garbage_is_not_an_index_token",
    ),
    "`createArtifact` of an `object` whose name is taken": (
        "test_service_defects.py",
        "test_an_object_artifact_that_is_created_again_is_given_up_and_stays_as_it_is",
    ),
    "`getArtifact` of an `object` whose back end lacks `simple`": (
        "test_variants.py",
        "test_the_queue_cannot_redirect_to_an_object_without_simple_downloads",
    ),
    "`finishArtifact` of an `object` that was created with `contentLength`": (
        "test_differences.py",
        "test_an_object_with_a_content_length_is_finished",
    ),
    "a `contentLength` of 2^63 or more": (
        "engine/test_engine_artifacts.py",
        "test_a_content_length_must_fit_into_64_bits",
    ),
    "an artifact name of more than 1024 characters": (
        "engine/test_engine_artifacts.py",
        "test_names_longer_than_responses_allow_are_refused",
    ),
    "a signed payload hash of the wrong length": (
        "test_differences.py",
        "test_a_payload_hash_of_the_wrong_length_is_an_authentication_failure",
    ),
    "credentials with a client id that has other characters than `A-Z a-z 0-9 ! @ / : . + \\| _ -`,"
    " such as those for an object named `a b`": (
        "http/test_local_authentication.py",
        "test_a_name_outside_the_alphabet_is_refused",
    ),
    "text that is not a content type in `createUpload`": (
        "test_object_service.py",
        "test_text_that_is_not_a_content_type_is_refused_and_nothing_begins",
    ),
    "`null` as a hash in `createUpload` or `finishUpload`": (
        "test_object_service.py",
        "test_a_hash_of_null_is_refused_and_nothing_changes",
    ),
    "overlapping repeats of a report or a reclaim": (
        "test_variants.py",
        "test_a_report_that_is_refused_after_it_was_done_leaves_the_run_resolved",
    ),
    "calls while RabbitMQ is away, other than `createTask`, `rerunTask` and `reportException`": (
        "test_differences.py",
        "test_a_call_does_not_fail_while_the_broker_is_away",
    ),
    "`task` after `changeTaskPriority`": (
        "engine/test_engine_scheduling.py",
        "test_a_changed_priority_shows_everywhere_and_counts_in_the_line",
    ),
    "`changeTaskPriority` right after a resolution": (
        "engine/test_engine_scheduling.py",
        "test_a_task_that_was_resolved_once_keeps_its_priority",
    ),
    "bodies nested deeper than about 450 levels (900 since Python 3.12)": (
        "http/test_local_bodies.py",
        "test_a_body_that_is_nested_too_deep_is_refused_with_the_reason",
    ),
    "`metadata.source` that is a regular expression only in JavaScript, and no URI": (
        "test_differences.py",
        "test_a_source_that_only_one_of_javascript_and_python_reads_is_refused",
    ),
    "texts of messages": (
        "test_differences.py",
        "test_a_text_may_differ_where_status_and_code_do_not",
    ),
    "a `Host` that is neither an address, `localhost` nor the queue's own name": (
        "http/test_local_negotiation.py",
        "test_a_host_that_is_not_this_machines_is_refused",
    ),
    "public S3 artifacts with `%`, `[`, `]`, `\\|`, `\\` or `//` in their names": (
        "test_differences.py",
        "test_public_artifacts_with_any_name_can_be_read",
    ),
    "`.` or `..` between slashes of an artifact's name": (
        "test_differences.py",
        "test_dots_between_slashes_get_a_tilde_in_storage_urls_and_nowhere_else",
    ),
    "`ETag` of stored data of more than 16 MiB, or sent within `createUpload`": (
        "test_buckets.py",
        "test_the_etag_is_the_md5_sum_of_all_but_large_bodies",
    ),
    "a storage PUT without a length, or chunked": (
        "test_buckets.py",
        "test_an_upload_must_announce_its_length",
    ),
    "`NoMatchingBackend`": (
        "test_differences.py",
        "test_every_name_has_a_back_end",
    ),
    "objects of the type `text/html`": (
        "test_object_service.py",
        "test_a_page_can_be_saved_but_not_shown",
    ),
    "objects in web pages of other origins (CORS)": (
        "test_buckets.py",
        "test_a_browser_lets_pages_of_other_origins_use_storage",
    ),
    "`finishUpload` of an object whose data was never uploaded": (
        "test_object_service.py",
        "test_an_object_is_finished_without_data_and_then_has_none",
    ),
    "stored data in a browser": (
        "page/test_page_safety.py",
        "test_an_artifact_that_is_opened_by_its_url_neither_reads_nor_acts",
    ),
    "auth service": (
        "http/test_local_authentication.py",
        "test_looking_up_a_client_needs_its_scope",
    ),
    "nightly jobs": (
        "engine/test_engine_resolvers.py",
        "test_everything_that_has_expired_is_removed_at_ten_past_one",
    ),
    "version endpoints": (
        "http/test_local_responses.py",
        "test_each_service_and_the_process_say_that_they_are_there",
    ),
}
"""For each row of the table, the file and the name of its test."""


def test_the_table_has_a_test_for_each_of_its_rows() -> None:
    page = (HERE.parents[1] / "docs" / "local-queue.md").read_text()
    table = page.split("| what | the service |")[1].split("\n\n")[0]
    rows = [line.removeprefix("| ").split(" | ")[0] for line in table.splitlines()[2:]]
    assert rows == [*HELD_BY]


@pytest.mark.parametrize(("file", "name"), HELD_BY.values())
def test_the_tests_of_the_table_exist(file: str, name: str) -> None:
    assert f"def {name}(" in (HERE / file).read_text()


def test_an_object_with_a_content_length_is_finished() -> None:
    world = World()
    task_id = world.running()
    made = world.artifact(task_id, "public/o", "object", contentType="text/plain", contentLength=1)
    terms: dict[str, Any] = {"projectId": "proj", "uploadId": made["uploadId"], "hashes": {}}
    world.storage.objects.finish_upload(world.caller, f"t/{task_id}/0/public/o", terms)
    assert world.engine.finish_artifact(task_id, 0, "public/o", {"uploadId": made["uploadId"]}) is None
    assert world.engine.artifact_info(task_id, 0, "public/o")["contentLength"] == 1
    world.close()


def test_a_payload_hash_of_the_wrong_length_is_an_authentication_failure(wire: Wire) -> None:
    resource, body = f"{QUEUE}/tasks/status", b"{}"
    short = payload_hash("application/json", body)[:-4]
    header = wire.root.header("POST", resource, wire.host, hash=short)
    headers = {"Content-Type": "application/json", "Authorization": header}
    reply = wire.send("POST", resource, body=body, headers=headers)
    assert (reply.status, reply.json["code"]) == (401, "AuthenticationFailed")


def test_a_run_whose_number_is_too_large_is_not_found(wire: Wire, task_factory: TaskFactory) -> None:
    task = f"{QUEUE}/task/{slugid()}"
    assert wire.json("PUT", task, task_factory(), key=wire.root).status == 200
    worker = {"workerGroup": "g", "workerId": "w"}
    for number in (2**31, 10**30):
        run = f"{task}/runs/{number}"
        assert wire.json("POST", f"{run}/claim", worker, key=wire.root).status == 404
        finish = {"uploadId": slugid()}
        assert wire.json("PUT", f"{run}/artifacts/x", finish, key=wire.root).status == 404
        for verb in ("artifacts", "artifact-content", "artifact-info"):
            assert wire.send("GET", f"{run}/{verb}/public%2Fx", key=wire.root).status == 404


def test_a_source_that_only_one_of_javascript_and_python_reads_is_refused(
    wire: Wire, task_factory: TaskFactory
) -> None:
    definition = task_factory()
    for source, status in (
        ("https://x.org/(?P<a>b)", 400),
        (r"https://x.org/\p{L}", 400),  # a regular expression of JavaScript only
        ("https://x.org/(?<a>b)", 200),
        ("https://[a-z]+", 200),
        ("https://x.org:80/a?b?c#d", 200),
        ("https://x.org:port/(", 200),  # a URI for the service, which reads all after the scheme as a path
        ("https://[x.org]/(", 400),
        ("git@github.com:a/b", 200),
        ("git@github.com:a/c++.git", 400),  # a regular expression of Python only
        (r"git@github.com:a/c\++.git", 200),
        ("git@github.com:a/[c+]+.git", 200),
    ):
        definition["metadata"]["source"] = source
        reply = wire.json("PUT", f"{QUEUE}/task/{slugid()}", definition, key=wire.root)
        assert (source, reply.status) == (source, status)


def test_a_time_that_javascript_cannot_read_is_refused(wire: Wire, task_factory: TaskFactory) -> None:
    definition = task_factory()
    day, _, time_of_day = definition["deadline"].removesuffix("Z").partition("T")
    for given, status in (
        (f"{day}T{time_of_day}+00", 400),
        (f"{day}t{time_of_day}+00", 400),
        (f"{day} {time_of_day}+00", 200),
        (f"{day}\t{time_of_day}+00:00", 200),
        (f"{day}T{time_of_day}+25:00", 400),
        (f"{day}T23:59:60Z", 400),
    ):
        reply = wire.json("PUT", f"{QUEUE}/task/{slugid()}", {**definition, "deadline": given}, key=wire.root)
        assert (reply.status, reply.json.get("code")) == (status, "InputError" if status == 400 else None)


def test_every_name_has_a_back_end(wire: Wire) -> None:
    terms: dict[str, Any] = {"projectId": "p", "expires": "2100-01-01T00:00:00Z", "proposedUploadMethods": {}}
    for name in ("x", "t%2Fx", "no%2Fsuch%2Fprefix"):
        body = {**terms, "uploadId": slugid()}
        assert wire.json("PUT", f"/api/object/v1/upload/{name}", body, key=wire.root).status == 200


@pytest.fixture
def stored(local_queue: LocalQueue) -> Iterator[Callable[[str], tuple[str, str]]]:
    """Uploads a public artifact and downloads it; returns the URLs of storage for PUT and for GET."""
    wire = Wire(local_queue)
    with Queue(local_queue.root_url, local_queue.credentials) as queue:
        task_id = slugid()
        named: Any = {"name": "t", "owner": "o@example.com", "source": "https://example.com"}
        definition = task_definition("test-provisioner/test-worker", {}, **named)
        queue.create_task(task_id, definition)
        queue.claim_work("test-provisioner/test-worker", worker_group="tests", worker_id="one")
        expires = queue.task(task_id)["expires"]

        def store(name: str) -> tuple[str, str]:
            escaped = quote(name, safe="")
            path = f"{QUEUE}/task/{task_id}/runs/0/artifacts/{escaped}"
            terms = {"storageType": "s3", "expires": expires, "contentType": "text/plain"}
            put_url = wire.json("POST", path, terms, key=wire.root).json["putUrl"]
            typed = {"Content-Type": "text/plain"}
            assert requests.put(put_url, data=name.encode(), headers=typed, timeout=30).status_code == 200
            reply = wire.send("GET", path)
            assert reply.status == 303
            assert requests.get(reply.headers["location"], timeout=30).content == name.encode()
            assert queue.download_artifact(task_id, name).content == name.encode()
            return put_url, reply.headers["location"]

        yield store


@pytest.mark.parametrize("name", ["public/50%", "public/[1]", "public/a|b", "public/a\\b", "public//a"])
def test_public_artifacts_with_any_name_can_be_read(stored: Callable[[str], Any], name: str) -> None:
    assert all("/storage/public-bucket/" in url for url in stored(name))


@pytest.mark.parametrize(
    ("name", "kept"),
    [("public/../x", "public/~../x"), ("public/./x", "public/~./x"), ("public/x.",) * 2],
)
def test_dots_between_slashes_get_a_tilde_in_storage_urls_and_nowhere_else(
    stored: Callable[[str], tuple[str, str]], name: str, kept: str
) -> None:
    for url in stored(name):
        assert unquote(urlsplit(url).path).endswith(f"/0/{kept}")


def test_a_call_does_not_fail_while_the_broker_is_away(
    monkeypatch: pytest.MonkeyPatch, task_factory: TaskFactory
) -> None:
    monkeypatch.setattr(amqp, "_PATIENCE", 0.05)
    with (
        LocalQueue(amqp_url="amqp://guest:guest@127.0.0.1:1") as local,  # nobody is there
        Queue(local.root_url, local.credentials) as queue,
    ):
        task_id = slugid()
        queue.create_task(task_id, task_factory())
        assert queue.with_options(attempts=1).cancel_task(task_id).status.state == "exception"


def test_a_text_may_differ_where_status_and_code_do_not(wire: Wire) -> None:
    reply = wire.json("PUT", f"{QUEUE}/task/{NO_SUCH_TASK}", '{"a" 1}', key=wire.root)
    assert (reply.status, reply.json["code"]) == (400, "MalformedPayload")
    assert reply.words.startswith("Failed to parse JSON: ")
    assert "Expected ':' after property name in JSON at position 5" not in reply.words  # V8's, in the service
