"""The object service: scopes for uploads, their terms, and downloads."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sqlite3
from base64 import b64encode
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import requests
from jsonschema import Draft6Validator
from referencing import Registry
from referencing.jsonschema import DRAFT6

from taskqueue_client.local import times
from taskqueue_client.local.auth.auth_service import Caller, Identity
from taskqueue_client.local.refusal import Refusal
from tests.local.storage_server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from pathlib import Path

    from taskqueue_client.local.storage.objects import ObjectService

upload_from_buffer = import_module("taskcluster.aio.upload").uploadFromBuf
download_to_buffer = import_module("taskcluster.aio.download").downloadToBuf

NAME = "t/Nb8VUDCcTNS02ceVc6xVCg/0/public/object.txt"
UPLOAD_ID = "KfulquRSTvuFlelpWwqvpA"
OTHER_UPLOAD_ID = "Dcv0HuwTS6G4lUt3pXJC2w"
SHA256 = {"sha256": hashlib.sha256(b"data").hexdigest()}
SHA512 = {"sha512": hashlib.sha512(b"data").hexdigest()}


class Anyone(Caller):
    """A caller who has all scopes, and remembers which were asked for."""

    def __init__(self) -> None:
        super().__init__(lambda: Identity("anyone", [], math.inf), None, {})
        self.required: list[dict[str, object]] = []

    def require(self, **params: object) -> None:
        self.required.append(params)


class Nobody(Anyone):
    def require(self, **_params: object) -> None:
        code, message = "InsufficientScopes", "no scopes"
        raise Refusal(code, message)


def terms(**changes: Any) -> dict[str, Any]:
    return {
        "projectId": "example-project",
        "uploadId": UPLOAD_ID,
        "expires": "2099-11-22T00:06:59.337Z",
        "proposedUploadMethods": {},
        **changes,
    }


def inline(data: bytes = b"data", content_type: str = "text/plain") -> dict[str, Any]:
    return {"dataInline": {"contentType": content_type, "objectData": b64encode(data).decode()}}


def put_url(length: int, content_type: str = "text/plain") -> dict[str, Any]:
    return {"putUrl": {"contentType": content_type, "contentLength": length}}


def create(objects: ObjectService, **changes: Any) -> dict[str, Any]:
    return objects.create_upload(Anyone(), NAME, terms(**changes))


def finish(objects: ObjectService, **changes: Any) -> dict[str, Any]:
    return objects.finish_upload(
        Anyone(), NAME, {"projectId": "example-project", "uploadId": UPLOAD_ID, **changes}
    )


@contextmanager
def refused(code: str, status: int, message: str = "") -> Generator[None]:
    """Check that the block is refused with this code and status, and a message that contains `message`."""
    with pytest.raises(Refusal) as caught:
        yield
    assert (caught.value.code, caught.value.status) == (code, status)
    assert message in caught.value.message


async def fetch(url: str) -> requests.Response:
    return await asyncio.to_thread(requests.get, url, timeout=30)


@pytest.fixture
async def objects() -> AsyncGenerator[ObjectService]:
    async with serving() as served:
        yield served.storage.objects


async def test_a_small_object_is_stored_at_once_although_a_url_would_do(objects: ObjectService) -> None:
    response = create(objects, proposedUploadMethods={**put_url(4), **inline()})
    finish(objects, hashes=SHA256)
    stored = await fetch(objects.simple_url(NAME))
    agreed = {key: terms()[key] for key in ("projectId", "uploadId", "expires")}
    assert response == {**agreed, "uploadMethod": {"dataInline": True}}
    assert list(response) == ["projectId", "uploadId", "expires", "uploadMethod"]
    assert (stored.content, stored.headers["Content-Type"]) == (b"data", "text/plain")


async def test_an_upload_needs_the_scope_for_its_project_and_name(objects: ObjectService) -> None:
    caller = Anyone()
    objects.create_upload(caller, NAME, terms())
    objects.finish_upload(caller, NAME, {"projectId": "example-project", "uploadId": UPLOAD_ID})
    assert caller.required == [{"projectId": "example-project", "name": NAME}] * 2
    with refused("InsufficientScopes", 403):
        objects.create_upload(Nobody(), "other", terms())
    with refused("InsufficientScopes", 403):
        objects.finish_upload(Nobody(), "other", {"projectId": "p", "uploadId": UPLOAD_ID})
    with refused("ResourceNotFound", 404):
        objects.finish_upload(Anyone(), "other", {"projectId": "p", "uploadId": UPLOAD_ID})


async def test_an_upload_without_a_method_only_fixes_its_terms(objects: ObjectService) -> None:
    assert create(objects)["uploadMethod"] == {}
    assert create(objects, expires="2099-11-22T00:06:59.337000+00:00")["uploadMethod"] == {}


@pytest.mark.parametrize(
    "change",
    [{"uploadId": OTHER_UPLOAD_ID}, {"projectId": "other"}, {"expires": "2099-11-22T00:06:59.338Z"}],
)
async def test_an_upload_goes_on_only_with_the_same_terms(
    objects: ObjectService, change: dict[str, str]
) -> None:
    create(objects)
    with refused("RequestConflict", 409, "Object already exists"):
        create(objects, **change)


async def test_an_upload_id_is_for_one_object_until_its_upload_is_finished(objects: ObjectService) -> None:
    create(objects)
    with refused("RequestConflict", 409, "Object already exists"):
        objects.create_upload(Anyone(), "another", terms())
    with refused("ResourceNotFound", 404):
        objects.finish_upload(Anyone(), "another", {"projectId": "example-project", "uploadId": UPLOAD_ID})
    finish(objects)
    assert objects.create_upload(Anyone(), "another", terms())["uploadId"] == UPLOAD_ID


async def test_the_queue_fixes_the_terms_before_the_upload(objects: ObjectService) -> None:
    objects.lock_upload(NAME, "example-project", UPLOAD_ID, 4_098_989_219_337)
    assert create(objects)["uploadMethod"] == {}
    with refused("RequestConflict", 409):
        objects.lock_upload(NAME, "example-project", OTHER_UPLOAD_ID, 4_098_989_219_337)


async def test_a_finished_object_is_never_uploaded_again(objects: ObjectService) -> None:
    create(objects)
    finish(objects)
    with refused("RequestConflict", 409, "Object already exists"):
        create(objects, proposedUploadMethods=inline(b"other"))


@pytest.mark.parametrize(
    ("text", "data"),
    [
        *(("ZGF0YQ==", b"data"), ("ZGF0YQ", b"data"), ("A" * 10926, bytes(8194))),
        *(("ZG F0\nYQ", b"data"), ("_-8", b"\xff\xef"), ("ZGF0YQ=ZGF0YQ", b"data"), ("ZGF0Y", b"dat")),
        *(("*", b""), ("=ZGF0", b""), ("", b"")),
    ],
)
async def test_data_is_read_as_base64_whatever_else_it_has(text: str, data: bytes) -> None:
    async with serving() as served:
        method = {"dataInline": {"contentType": "text/plain", "objectData": text}}
        create(served.storage.objects, proposedUploadMethods=method)
        finish(served.storage.objects)
        assert (await fetch(served.storage.objects.simple_url(NAME))).content == data


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        ("a/b\r\nX-Evil: 1", "contentType must be printable ASCII"),
        *(
            (text, "contentType must be like text/plain")
            for text in ("", "text", "a/b;", "a/b; c", 'a/b; c="d')
        ),
    ],
)
@pytest.mark.parametrize("method", ["dataInline", "putUrl"])
async def test_text_that_is_not_a_content_type_is_refused_and_nothing_begins(
    objects: ObjectService, method: str, content_type: str, message: str
) -> None:
    proposed = {**inline(content_type=content_type), **put_url(4, content_type)}
    with refused("InputError", 400, message):
        create(objects, proposedUploadMethods={method: proposed[method]})
    assert create(objects, uploadId=OTHER_UPLOAD_ID)["uploadId"] == OTHER_UPLOAD_ID


async def put_with(method: dict[str, Any], data: bytes, **changes: str) -> int:
    headers = {**method["headers"], **{name.replace("_", "-"): text for name, text in changes.items()}}
    response = await asyncio.to_thread(requests.put, method["url"], data=data, headers=headers, timeout=30)
    return response.status_code


async def test_a_put_url_takes_only_the_agreed_type_and_length() -> None:
    async with serving() as served:
        method = create(served.storage.objects, proposedUploadMethods=put_url(4))["uploadMethod"]["putUrl"]
        assert method["headers"] == {
            "Content-Type": "text/plain",
            "Content-Length": "4",
            "Content-Encoding": "identity",
        }
        assert await put_with(method, b"data", Content_Type="text/html") == 403
        assert await put_with(method, b"dat", Content_Length="3") == 403
        assert await put_with(method, b"data") == 200
        finish(served.storage.objects)
        stored = await fetch(served.storage.objects.simple_url(NAME))
    assert (stored.content, stored.headers["Content-Type"]) == (b"data", "text/plain")


async def test_a_put_url_lasts_45_minutes_and_can_be_had_again() -> None:
    async with serving() as served:
        now = int(served.clock.now() * 1000)
        method = create(served.storage.objects, proposedUploadMethods=put_url(4))["uploadMethod"]["putUrl"]
        assert times.parse(method["expires"], "expires") == now + 45 * times.MINUTE
        assert "X-Amz-Expires=2710&" in method["url"]
        served.clock.advance(minutes=46)
        assert await put_with(method, b"data") == 403
        again = create(served.storage.objects, proposedUploadMethods=put_url(4))["uploadMethod"]["putUrl"]
        assert await put_with(again, b"data") == 200


@pytest.mark.parametrize("content_type", ["text/html", "Text/HTML; charset=utf-8"])
async def test_a_page_can_be_saved_but_not_shown(content_type: str) -> None:
    async with serving() as served:
        objects = served.storage.objects
        method = create(objects, proposedUploadMethods=put_url(4, content_type))["uploadMethod"]["putUrl"]
        assert method["headers"]["Content-Disposition"] == "attachment"
        assert await put_with(method, b"data", Content_Disposition="inline") == 403
        assert await put_with(method, b"data") == 200
        finish(objects)
        stored = await fetch(objects.simple_url(NAME))
    assert stored.headers["Content-Disposition"] == "attachment"


async def test_hashes_add_up_and_never_change(objects: ObjectService) -> None:
    create(objects, hashes=SHA256)
    create(objects, hashes=SHA256)
    with refused("RequestConflict", 409, "Content hash already exists with a different value"):
        create(objects, hashes={"sha256": "0" * 64})
    with refused("RequestConflict", 409, "Content hash already exists with a different value"):
        finish(objects, hashes={**SHA512, "sha256": "0" * 64})
    finish(objects, hashes={**SHA512, "md5": "free"})
    assert objects.object(NAME)["hashes"] == {**SHA256, **SHA512, "md5": "free"}


async def test_a_refused_hash_leaves_no_trace(objects: ObjectService) -> None:
    create(objects, hashes=SHA256)
    with refused("RequestConflict", 409):
        create(objects, hashes={**SHA512, "sha256": "0" * 64})
    finish(objects)
    assert objects.object(NAME)["hashes"] == SHA256


async def test_hashes_of_unknown_algorithms_are_kept_as_text(objects: ObjectService) -> None:
    create(objects, hashes={"crc": 5, "parts": {"b": 1.5, "a": [True]}})
    create(objects, hashes={"crc": "5"})
    finish(objects, hashes={"parts": {"a": [True], "b": 1.5}})
    assert objects.object(NAME)["hashes"] == {"crc": "5", "parts": '{"a": [true], "b": 1.5}'}
    assert finish(objects, hashes={"crc": "5"}) == {}
    with refused("RequestConflict", 409, "different hash for algorithm crc"):
        finish(objects, hashes={"crc": 5})


async def test_a_hash_of_null_is_refused_and_nothing_changes(objects: ObjectService) -> None:
    with refused("InputError", 400, "must not be null"):
        create(objects, hashes={**SHA256, "crc": None})
    with refused("ResourceNotFound", 404):
        finish(objects)
    create(objects)
    with refused("InputError", 400, "must not be null"):
        finish(objects, hashes={**SHA256, "crc": None})
    assert not objects.is_finished(NAME)
    finish(objects)
    with refused("RequestConflict", 409, "without hash algorithm crc"):
        finish(objects, hashes={"crc": None})


async def test_finishing_an_object_again_changes_nothing(objects: ObjectService) -> None:
    create(objects)
    assert finish(objects, hashes=SHA256) == {}
    assert (
        finish(objects) == finish(objects, hashes=SHA256) == finish(objects, uploadId=OTHER_UPLOAD_ID) == {}
    )
    with refused("RequestConflict", 409, "without hash algorithm sha512"):
        finish(objects, hashes=SHA512)
    with refused("RequestConflict", 409, "different hash for algorithm sha256"):
        finish(objects, hashes={"sha256": "0" * 64})


async def test_an_object_is_finished_without_data_and_then_has_none(objects: ObjectService) -> None:
    create(objects, proposedUploadMethods=put_url(4))
    assert finish(objects, hashes=SHA256) == {}
    assert (await fetch(objects.simple_url(NAME))).status_code == 404


async def test_finishing_needs_the_terms_of_the_upload(objects: ObjectService) -> None:
    create(objects)
    with refused("InputError", 400, "does not have projectId other"):
        finish(objects, projectId="other")
    with refused("RequestConflict", 409, f"does not have uploadId {OTHER_UPLOAD_ID}"):
        finish(objects, uploadId=OTHER_UPLOAD_ID)
    assert not objects.is_finished(NAME)


async def test_an_object_cannot_be_read_before_it_is_finished(objects: ObjectService) -> None:
    message = f'Object "{NAME}" not found'
    for _ in range(2):
        for read in (objects.object, objects.download, start_download(objects, "getUrl", "simple")):
            with refused("ResourceNotFound", 404, message):
                read(NAME)
        create(objects)


def start_download(objects: ObjectService, *methods: str) -> Callable[[str], dict[str, Any]]:
    body = {"acceptDownloadMethods": dict.fromkeys(methods, True)}
    return lambda name: objects.start_download(name, body)


async def test_a_download_is_by_url_with_hashes_if_the_caller_takes_that() -> None:
    async with serving() as served:
        objects = served.storage.objects
        create(objects, proposedUploadMethods=inline())
        finish(objects, hashes=SHA256)
        response = start_download(objects, "simple", "getUrl")(NAME)
        assert (response["method"], response["hashes"]) == ("getUrl", SHA256)
        now = int(served.clock.now() * 1000)
        assert times.parse(response["expires"], "expires") == now + times.MINUTE
        served.clock.advance(seconds=120)
        assert (await fetch(response["url"])).content == b"data"
        served.clock.advance(seconds=1)
        assert (await fetch(response["url"])).status_code == 403


async def test_a_simple_download_lasts_half_an_hour() -> None:
    async with serving() as served:
        objects = served.storage.objects
        create(objects, proposedUploadMethods=inline())
        finish(objects)
        response = start_download(objects, "simple")(NAME)
        assert set(response) == {"method", "url"}
        served.clock.advance(minutes=30)
        assert (await fetch(response["url"])).content == b"data"
        served.clock.advance(seconds=1)
        assert (await fetch(response["url"])).status_code == 403


async def test_a_download_by_no_method_is_refused(objects: ObjectService) -> None:
    create(objects)
    finish(objects)
    with refused("NoMatchingMethod", 406, "simple, getUrl"):
        start_download(objects)(NAME)


async def test_data_and_terms_of_expired_objects_go() -> None:
    async with serving() as served:
        objects = served.storage.objects
        soon = times.text(int(served.clock.now() * 1000) + times.DAY)
        create(objects, proposedUploadMethods=inline(), expires=soon)
        finish(objects)
        objects.create_upload(Anyone(), "unfinished", terms(uploadId=OTHER_UPLOAD_ID))
        objects.create_upload(Anyone(), "later", terms(proposedUploadMethods=inline()))
        objects.finish_upload(Anyone(), "later", {"projectId": "example-project", "uploadId": UPLOAD_ID})
        objects.expire(int(served.clock.now() * 1000), 500)
        assert len(served.files()) == 2
        served.clock.advance(days=1, seconds=1)
        objects.expire(int(served.clock.now() * 1000), 500)
        assert len(served.files()) == 1
        assert create(objects, uploadId=OTHER_UPLOAD_ID)["uploadMethod"] == {}
        assert objects.object("later")["projectId"] == "example-project"


async def test_data_of_an_expired_object_goes_although_the_first_attempt_failed() -> None:
    async with serving() as served:
        objects, connection = served.storage.objects, served.store.connection
        soon = times.text(int(served.clock.now() * 1000) + times.DAY)
        create(objects, proposedUploadMethods=inline(), expires=soon)
        finish(objects)
        served.clock.advance(days=1, seconds=1)
        connection.execute(
            "CREATE TEMP TRIGGER full BEFORE DELETE ON bodies BEGIN SELECT RAISE(FAIL, 'full'); END"
        )
        with pytest.raises(sqlite3.Error, match="full"):
            objects.expire(int(served.clock.now() * 1000), 500)
        connection.execute("DROP TRIGGER full")
        objects.expire(int(served.clock.now() * 1000), 500)
        assert served.files() == []


async def test_an_object_can_be_removed() -> None:
    async with serving() as served:
        create(served.storage.objects, proposedUploadMethods=inline())
        finish(served.storage.objects)
        assert served.storage.objects.is_finished(NAME)
        served.storage.objects.remove(NAME)
        assert (served.storage.objects.is_finished(NAME), served.files()) == (False, [])
        served.storage.objects.remove(NAME)


class ObjectClient:
    """The interface that the official helpers call, without HTTP."""

    def __init__(self, objects: ObjectService) -> None:
        self._objects = objects

    async def createUpload(self, name: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  the official name
        return self._objects.create_upload(Anyone(), name, json.loads(json.dumps(body, default=bytes.decode)))

    async def finishUpload(self, name: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  the official name
        return self._objects.finish_upload(Anyone(), name, body)

    async def startDownload(self, name: str, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  the official name
        return self._objects.start_download(name, body)


@pytest.mark.parametrize("size", [0, 8191, 8192, 3_000_000])
async def test_the_official_helpers_upload_and_download(objects: ObjectService, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    await upload_from_buffer(
        data=data[:size],
        projectId="example-project",
        name=NAME,
        contentType="application/x-test",
        contentLength=size,
        expires="2099-11-22T00:06:59.337Z",
        uploadId=UPLOAD_ID,
        objectService=ObjectClient(objects),
    )
    (downloaded, content_type) = await download_to_buffer(name=NAME, objectService=ObjectClient(objects))
    assert (bytes(downloaded), content_type) == (data[:size], "application/x-test")


async def test_responses_fit_the_contract(objects: ObjectService, contract: Path) -> None:
    schemas = {
        path.name: json.loads(path.read_text()) for path in (contract / "data/object/schemas").iterdir()
    }
    empty: Registry[Any] = Registry()
    registry = empty.with_resources((each["$id"], DRAFT6.create_resource(each)) for each in schemas.values())

    def check(response: dict[str, Any], name: str) -> None:
        schema = {key: value for key, value in schemas[name].items() if key != "$schema"}
        validator: Any = Draft6Validator(schema, registry=registry)
        validator.validate(response)

    check(create(objects, proposedUploadMethods=put_url(4)), "create-upload-response.json")
    check(create(objects, proposedUploadMethods=inline()), "create-upload-response.json")
    finish(objects, hashes=SHA256)
    check(objects.object(NAME), "get-object-response.json")
    for method in ("getUrl", "simple"):
        check(start_download(objects, method)(NAME), "download-object-response.json")
