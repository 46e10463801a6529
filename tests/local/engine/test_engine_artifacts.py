"""Artifacts: creation, replacement, finishing, reading and listing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client.local.engine.pages import encode_index
from taskqueue_client.local.engine.task_artifacts import ErrorContent, Redirect
from taskqueue_client.slugid import slugid
from tests.local.engine.engine_world import GROUP, HOUR, WORKER, Asker, refused

if TYPE_CHECKING:
    from tests.local.engine.engine_world import World

MINUTE = 60
REQUESTS: dict[str, dict[str, Any]] = {
    "s3": {"contentType": "text/plain"},
    "object": {"contentType": "text/plain"},
    "reference": {"contentType": "text/html", "url": "https://x.org/page"},
    "link": {"artifact": "public/target"},
    "error": {"reason": "file-missing-on-worker", "message": "no such file"},
}
NAME = "public/some"


def put(world: World, task_id: str, storage_type: str, name: str = NAME, **more: Any) -> dict[str, Any]:
    return world.artifact(task_id, name, storage_type, **{**REQUESTS[storage_type], **more})


def upload(world: World, task_id: str, name: str = NAME, **more: Any) -> None:
    """Create, upload and finish an object artifact."""
    response = put(world, task_id, "object", name, **more)
    terms = {key: response[key] for key in ("projectId", "uploadId", "expires")}
    methods = {"dataInline": {"contentType": "text/plain", "objectData": "aGk="}}
    body = {**terms, "proposedUploadMethods": methods}
    world.storage.objects.create_upload(world.caller, response["name"], body)
    finish = {"projectId": terms["projectId"], "uploadId": terms["uploadId"]}
    world.storage.objects.finish_upload(world.caller, response["name"], finish)
    world.engine.finish_artifact(task_id, 0, name, {"uploadId": terms["uploadId"]})


def test_an_s3_artifact_gets_a_url_to_put_to_and_no_message(world: World) -> None:
    task_id = world.running()
    world.sent()
    response = put(world, task_id, "s3")
    assert list(response) == ["storageType", "contentType", "expires", "putUrl"]
    assert response["expires"] == world.now(45 * MINUTE)
    assert f"{task_id}/0/public/some" in response["putUrl"]
    assert world.sent() == []


def test_an_object_artifact_gets_what_the_object_service_asks_for(world: World) -> None:
    task_id = world.running()
    world.sent()
    response = put(world, task_id, "object", expires=world.now(30 * HOUR))
    assert list(response) == ["storageType", "name", "projectId", "uploadId", "expires", "credentials"]
    assert response["name"] == f"t/{task_id}/0/public/some"
    credentials = response["credentials"]
    assert credentials["clientId"] == f"artifact-upload/{task_id}/0/on/{GROUP}/{WORKER}"
    certificate = json.loads(credentials["certificate"])
    assert certificate["scopes"] == [f"object:upload:proj:{response['name']}"]
    assert certificate["expiry"] - certificate["start"] == 24 * HOUR * 1000
    assert world.sent() == []


@pytest.mark.parametrize("storage_type", ["reference", "link", "error"])
def test_other_artifacts_are_announced_at_once(world: World, storage_type: str) -> None:
    task_id = world.running()
    world.sent()
    assert put(world, task_id, storage_type) == {"storageType": storage_type}
    (message,) = world.taken()
    content_type = REQUESTS[storage_type].get("contentType", "application/binary")
    assert message.body["artifact"] == {
        "storageType": storage_type,
        "name": NAME,
        "expires": world.now(HOUR),
        "contentType": content_type,
    }
    assert list(message.body) == ["status", "artifact", "workerGroup", "workerId", "runId", "version"]


def test_problems_of_a_new_artifact_are_reported_in_order(world: World) -> None:
    past = {"expires": world.now(-15 * MINUTE - 1)}
    assert "expires" in refused(put, world, slugid(), "s3", **past).message
    assert refused(put, world, slugid(), "s3").message == "Task not found"
    task_id = world.create()
    assert (
        refused(world.artifact, task_id, NAME, "s3", run_id=1, contentType="a/b").message == "Run not found"
    )
    assert "never claimed" in refused(put, world, task_id, "s3").message
    world.claim(task_id)
    late = {"expires": world.now(48 * HOUR + 1)}
    assert "after" in refused(put, world, task_id, "s3", **late).message
    world.engine.report_completed(world.caller, task_id, 0, {})
    assert refused(put, world, task_id, "s3", **late).code == "InputError"
    assert refused(put, world, task_id, "s3").code == "RequestConflict"


def test_dates_at_their_bounds_pass(world: World) -> None:
    task_id = world.running()
    for expires in (world.now(-15 * MINUTE), world.now(48 * HOUR)):
        put(world, task_id, "s3", expires=expires)
        assert world.engine.artifact_info(task_id, 0, NAME)["expires"] == expires


def test_a_run_that_ended_by_exception_takes_artifacts_for_25_minutes(world: World) -> None:
    task_id = world.running()
    world.fail(task_id, "internal-error")
    world.clock.advance(25 * MINUTE - 0.001)
    put(world, task_id, "error")
    world.clock.advance(0.001)
    assert refused(put, world, task_id, "error").status == 409


@pytest.mark.parametrize("storage_type", ["s3", "reference", "link", "error"])
def test_creating_an_artifact_again_extends_its_life(world: World, storage_type: str) -> None:
    task_id = world.running()
    put(world, task_id, storage_type)
    world.sent()
    put(world, task_id, storage_type, expires=world.now(2 * HOUR))
    assert world.engine.artifact_info(task_id, 0, NAME)["expires"] == world.now(2 * HOUR)
    assert world.sent() == ([] if storage_type == "s3" else ["artifact-created"])
    assert refused(put, world, task_id, storage_type, expires=world.now(2 * HOUR - 1)).status == 409


def test_a_reference_may_point_elsewhere_and_become_a_link(world: World) -> None:
    task_id = world.running()
    put(world, task_id, "reference")
    put(world, task_id, "reference", url="https://x.org/other")
    assert world.engine.artifact(world.caller, task_id, 0, NAME)["url"] == "https://x.org/other"
    put(world, task_id, "link")
    info = world.engine.artifact_info(task_id, 0, NAME)
    assert (info["storageType"], info["contentType"]) == ("link", "text/html")


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        ("s3", "s3", {"contentType": "other/type"}),
        ("reference", "reference", {"contentType": "other/type"}),
        ("link", "link", {"artifact": "public/elsewhere"}),
        ("error", "error", {"message": "other"}),
        ("error", "error", {"reason": "too-large-file-on-worker"}),
        ("link", "reference", {}),
        ("s3", "error", {}),
        ("object", "object", {}),
        ("object", "s3", {}),
    ],
)
def test_an_artifact_that_differs_from_an_earlier_one_is_a_conflict(
    world: World, first: str, second: str, change: dict[str, str]
) -> None:
    task_id = world.running()
    put(world, task_id, first)
    assert refused(put, world, task_id, second, **change).status == 409


def test_the_first_content_length_is_kept(world: World) -> None:
    task_id = world.running()
    put(world, task_id, "s3", contentLength=12)
    put(world, task_id, "s3", contentLength=99)
    info = world.engine.artifact_info(task_id, 0, NAME)
    assert info == {
        "storageType": "s3",
        "name": NAME,
        "expires": world.now(HOUR),
        "contentType": "text/plain",
        "contentLength": 12,
    }


def test_an_empty_content_type_means_binary(world: World) -> None:
    task_id = world.running()
    assert put(world, task_id, "s3", contentType="")["contentType"] == "application/binary"


def test_names_longer_than_responses_allow_are_refused(world: World) -> None:
    task_id = world.running()
    assert refused(put, world, task_id, "s3", "n" * 1025).code == "InputError"
    put(world, task_id, "s3", "n" * 1024)


@pytest.mark.parametrize("storage_type", ["s3", "object"])
def test_a_content_length_must_fit_into_64_bits(world: World, storage_type: str) -> None:
    task_id = world.running()
    for length in (2**63, 1e300):
        refusal = refused(put, world, task_id, storage_type, contentLength=length)
        assert refusal.code == "InputError"
    put(world, task_id, storage_type, contentLength=2**62)
    (listed,) = world.engine.list_artifacts(task_id, 0, None, 10)["artifacts"]
    assert listed["contentLength"] == 2**62


def test_an_object_is_read_only_after_it_was_finished(world: World) -> None:
    task_id = world.running()
    upload_id = put(world, task_id, "object")["uploadId"]
    engine, args = world.engine, (task_id, 0, NAME)
    assert refused(engine.artifact, world.caller, *args).status == 404
    assert refused(engine.artifact_info, *args).status == 404
    assert len(engine.list_artifacts(task_id, 0, None, 10)["artifacts"]) == 1
    assert refused(engine.finish_artifact, *args, {"uploadId": slugid()}).code == "InputError"
    refusal = refused(engine.finish_artifact, *args, {"uploadId": upload_id})
    assert refusal.message == "Object storing artifact data does not exist"


@pytest.mark.parametrize("length", [{}, {"contentLength": 2}])
def test_a_finished_object_is_announced_and_can_be_read(world: World, length: dict[str, Any]) -> None:
    task_id = world.running()
    world.sent()
    upload(world, task_id, **length)
    (message,) = world.taken()
    assert set(message.body["artifact"]) == {"storageType", "name", "expires", "contentType"}
    response = world.engine.artifact(world.caller, task_id, 0, NAME)
    assert list(response) == ["storageType", "name", "credentials"]
    assert response["credentials"]["clientId"] == f"artifact-download/{task_id}/0/{NAME}"
    certificate = json.loads(response["credentials"]["certificate"])
    assert certificate["scopes"] == [f"object:download:{response['name']}"]
    assert certificate["expiry"] - certificate["start"] == HOUR * 1000
    redirect = world.engine.get_artifact(world.caller, task_id, 0, NAME)
    assert isinstance(redirect, Redirect)
    assert redirect.storage_type == "object"


def test_finishing_again_is_fine_whatever_the_upload_id(world: World) -> None:
    task_id = world.running()
    upload(world, task_id)
    world.engine.report_completed(world.caller, task_id, 0, {})
    world.sent()
    world.engine.finish_artifact(task_id, 0, NAME, {"uploadId": slugid()})
    assert world.sent() == ["artifact-created"]


def test_only_objects_are_finished(world: World) -> None:
    task_id = world.running()
    body = {"uploadId": slugid()}
    assert refused(world.engine.finish_artifact, task_id, 0, NAME, body).status == 404
    put(world, task_id, "s3")
    assert refused(world.engine.finish_artifact, task_id, 0, NAME, body).code == "InputError"


def test_content_is_found_by_storage_type(world: World) -> None:
    task_id = world.running()
    engine, caller = world.engine, world.caller
    put(world, task_id, "error", "e")
    put(world, task_id, "reference", "r")
    put(world, task_id, "s3", "s")
    assert engine.get_artifact(caller, task_id, 0, "e") == ErrorContent(
        "file-missing-on-worker", "no such file"
    )
    assert engine.artifact(caller, task_id, 0, "e") == {"storageType": "error", **REQUESTS["error"]}
    assert engine.get_artifact(caller, task_id, 0, "r") == Redirect("https://x.org/page", "reference")
    assert engine.artifact(caller, task_id, 0, "s")["storageType"] == "s3"
    assert isinstance(engine.get_latest_artifact(caller, task_id, "s"), Redirect)
    assert engine.latest_artifact(caller, task_id, "r")["url"] == "https://x.org/page"
    assert engine.latest_artifact_info(task_id, "r")["storageType"] == "reference"


def test_links_are_followed_with_scopes_asked_for_each_name(world: World) -> None:
    task_id = world.running()
    put(world, task_id, "reference", "private/end")
    put(world, task_id, "link", "public/b", artifact="private/end")
    put(world, task_id, "link", "public/a", artifact="public/b")
    world.caller.asked.clear()
    found = world.engine.get_artifact(world.caller, task_id, 0, "public/a")
    assert found == Redirect("https://x.org/page", "reference")
    assert world.caller.asked[-1] == {"names": ["public/a", "public/b", "private/end"]}
    assert world.engine.artifact_info(task_id, 0, "public/a")["storageType"] == "link"


def test_links_in_a_circle_and_into_nothing_are_refused(world: World) -> None:
    task_id = world.running()
    put(world, task_id, "link", "a", artifact="b")
    assert refused(world.engine.artifact, world.caller, task_id, 0, "a").status == 404
    put(world, task_id, "link", "b", artifact="a")
    assert refused(world.engine.artifact, world.caller, task_id, 0, "a").code == "InputError"
    put(world, task_id, "link", "self", artifact="self")
    assert refused(world.engine.artifact, world.caller, task_id, 0, "self").code == "InputError"


def test_scopes_are_checked_before_the_artifact_and_for_the_latest_run_after_the_task(world: World) -> None:
    engine, nobody = world.engine, Asker(refuse=True)
    assert refused(engine.get_artifact, nobody, slugid(), 0, NAME).status == 403
    assert refused(engine.artifact, nobody, slugid(), 0, NAME).status == 403
    assert refused(engine.get_latest_artifact, nobody, slugid(), NAME).status == 403
    assert refused(engine.latest_artifact, nobody, slugid(), NAME).status == 404


def test_an_expired_artifact_is_gone_but_still_shown(world: World) -> None:
    task_id = world.running()
    put(world, task_id, "reference")
    world.clock.advance(HOUR + 1)
    assert refused(world.engine.get_artifact, world.caller, task_id, 0, NAME).status == 410
    assert world.engine.artifact_info(task_id, 0, NAME)["name"] == NAME
    assert len(world.engine.list_artifacts(task_id, 0, None, 10)["artifacts"]) == 1


def test_latest_means_the_highest_run(world: World) -> None:
    task_id = world.running()
    put(world, task_id, "reference")
    world.fail(task_id, "worker-shutdown")
    assert world.engine.list_latest_artifacts(task_id, None, 10) == {"artifacts": []}
    assert refused(world.engine.latest_artifact_info, task_id, NAME).status == 404


def test_a_task_without_runs_has_no_artifacts(world: World) -> None:
    task_id = slugid()
    world.create(task_id, dependencies=[task_id])
    engine = world.engine
    for missing in (slugid(), task_id):
        assert refused(engine.list_artifacts, missing, 0, None, 10).status == 404
        assert refused(engine.list_latest_artifacts, missing, None, 10).status == 404
        assert refused(engine.latest_artifact_info, missing, NAME).status == 404
    assert refused(engine.artifact_info, task_id, 10**40, NAME).status == 404


def test_artifacts_are_listed_by_name_page_by_page(world: World) -> None:
    task_id = world.running()
    names = ["public/b", "public/A", "public/a", "Public/c", "private/x"]
    for name in names:
        put(world, task_id, "reference", name)
    engine = world.engine
    first = engine.list_artifacts(task_id, 0, None, 2)
    second = engine.list_artifacts(task_id, 0, first["continuationToken"], 2)
    third = engine.list_artifacts(task_id, 0, second["continuationToken"], 2)
    listed = [item["name"] for page in (first, second, third) for item in page["artifacts"]]
    assert listed == ["private/x", "public/a", "public/A", "public/b", "Public/c"]
    assert "continuationToken" not in third
    assert engine.list_artifacts(task_id, 0, "rubbish", 2) == first
    assert engine.list_artifacts(task_id, 0, None, 0) == {"artifacts": []}


def test_a_token_of_another_task_or_run_gives_the_whole_list_or_nothing(world: World) -> None:
    task_id = world.running(taskGroupId=slugid())
    put(world, task_id, "reference", "public/a")
    put(world, task_id, "reference", "public/b")
    whole = world.engine.list_artifacts(task_id, 0, None, 10)

    def names(*key: str | int) -> list[str]:
        page = world.engine.list_artifacts(task_id, 0, encode_index(*key), 10)
        return [item["name"] for item in page["artifacts"]]

    assert names(task_id, 0, "public/a") == ["public/b"]
    assert names(task_id, 0, "") == [item["name"] for item in whole["artifacts"]]
    assert names(task_id, -1, "public/z") == names("-" * 22, 5, "public/z") == ["public/a", "public/b"]
    assert names(task_id, 1, "") == names("z" * 23, 0, "") == []


def test_data_of_expired_s3_artifacts_is_removed_by_night(world: World) -> None:
    task_id = world.running()
    put(world, task_id, "s3")
    put(world, task_id, "s3", "private/some")
    world.clock.advance(hours=24)
    assert world.engine.list_artifacts(task_id, 0, None, 10) == {"artifacts": []}
