"""Faults on request, each through a real connection."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import pytest
import requests
from aiohttp import ClientResponse, web

from taskqueue_client import LocalQueue, Queue, errors
from taskqueue_client.clock import MovableClock
from taskqueue_client.local.faults import (
    AnyFault,
    CutDownload,
    CutUpload,
    Delay,
    Drop,
    ExpireUrl,
    FaultInjector,
    Respond,
    RespondWith500,
    SlowDownload,
)
from tests.local.storage_server import Served, serving

RESPOND = {"kind": "respond", "endpoint": "queue.createTask", "status": 500}
ENDPOINTS = {"queue.createTask", "queue.claimWork", "storage.put"}


def make_injector() -> FaultInjector:
    return FaultInjector(MovableClock(held=True), ENDPOINTS)


def put(served: Served, data: bytes = b"data") -> requests.Response:
    return requests.put(served.put_url("public/x"), data=data, timeout=30)


def get(served: Served) -> requests.Response:
    return requests.get(served.get_url("public/x"), timeout=30)


def test_a_fault_strikes_as_often_as_it_says_and_only_its_endpoint() -> None:
    (injector, fault) = (make_injector(), Drop("queue.createTask", times=2))
    injector.faults.add(fault)
    assert injector.match("queue.claimWork") is None
    assert [injector.match("queue.createTask") for _ in range(3)] == [fault, Drop("queue.createTask"), None]


def test_faults_of_one_endpoint_take_turns_in_the_order_they_came() -> None:
    (first, second) = (Respond("queue.*", status=502), Drop("queue.createTask"))
    injector = make_injector()
    injector.faults.add(first)
    injector.faults.add(second)
    assert [injector.match("queue.createTask"), injector.match("queue.createTask")] == [first, second]


def test_waiting_faults_can_be_listed_and_removed() -> None:
    injector = make_injector()
    injector.faults.add_json({"kind": "respond", "endpoint": "queue.createTask", "status": 503, "times": 3})
    injector.match("queue.createTask")
    (waiting,) = injector.faults.waiting()
    assert (waiting["kind"], waiting["status"], waiting["times"]) == ("respond", 503, 2)
    injector.faults.clock_shift = 60
    injector.faults.clear()
    assert (injector.faults.waiting(), injector.faults.clock_shift) == ([], 0)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"kind": "drop", "endpoint": "queue.creatTask"}, "no endpoint is named 'queue.creatTask'"),
        ({"kind": "drop", "endpoint": "queue.createTask", "times": 0}, r">= 1.*\$\.times"),
        ({"kind": "respond", "endpoint": "queue.createTask", "status": 99}, r">= 200.*\$\.status"),
        ({"kind": "respond", "endpoint": "queue.createTask"}, "missing required field `status`"),
        ({"kind": "explode", "endpoint": "queue.createTask"}, r"Invalid value 'explode'.*\$\.kind"),
        ({"kind": "drop", "endpoint": "queue.createTask", "afer": True}, "unknown field `afer`"),
        ({"kind": "delay", "endpoint": "queue.createTask", "seconds": -1}, r">= 0.*\$\.seconds"),
        ({**RESPOND, "headers": {"Retry After": "5"}}, r"matching regex .* - at `key` in `\$\.headers"),
        ({**RESPOND, "headers": {"": "5"}}, r"matching regex .* - at `key` in `\$\.headers"),
        ({**RESPOND, "headers": {"Via": "a\r\nb: c"}}, r"matching regex .* - at `\$\.headers"),
        ([], "Expected `object`"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_the_reason(data: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_injector().faults.add_json(data)


def test_a_fault_from_code_is_checked_like_one_from_json() -> None:
    with pytest.raises(ValueError, match="times"):
        make_injector().faults.add(Drop("queue.createTask", times=0))


@pytest.mark.parametrize("given", ["queue.createTask", Drop, None, {"kind": "drop"}])
def test_what_is_not_a_fault_is_refused_with_an_example(given: Any) -> None:
    with pytest.raises(TypeError, match=r"fault: .* expected a fault such as Drop\('queue.createTask'\)"):
        make_injector().faults.add(given)


@pytest.mark.parametrize("start", ["2026-11-30T12:00:00Z", datetime(2026, 11, 30, tzinfo=UTC)])
def test_a_clock_starts_at_a_number_of_seconds(start: Any) -> None:
    with pytest.raises(TypeError, match=r"start: .* is not valid; expected seconds since the epoch"):
        MovableClock(start)


@pytest.mark.parametrize("given", [{"seconds": "5 minutes"}, {"seconds": timedelta(1)}, {"hours": None}])
def test_a_clock_is_advanced_by_numbers(given: Any) -> None:
    clock = MovableClock()
    with pytest.raises(
        TypeError, match=r"advance: .* expected numbers, such as advance\(60\) or advance\(minutes=1\)"
    ):
        clock.advance(**given)


@pytest.mark.parametrize("after", [False, True])
async def test_an_injected_response_comes_before_or_after_the_change(after: bool) -> None:  # noqa: FBT001  a parameter of the test
    async with serving() as served:
        served.faults.add(Respond("storage.put", status=503, after=after, headers={"Retry-After": "1"}))
        response = await asyncio.to_thread(put, served)
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert "<Code>InternalError</Code>" in response.text
        assert len(served.files()) == (1 if after else 0)
        assert (await asyncio.to_thread(put, served)).status_code == 200


async def test_a_response_can_be_the_page_of_a_load_balancer() -> None:
    async with serving() as served:
        served.faults.add(Respond("storage.get", status=502, html=True))
        response = await asyncio.to_thread(get, served)
    assert (response.status_code, response.headers["Content-Type"]) == (502, "text/html; charset=utf-8")
    assert "<h1>502 Bad Gateway</h1>" in response.text


async def test_a_response_of_a_service_has_the_services_form() -> None:
    injector = make_injector()
    injector.faults.add(Respond("queue.createTask", status=500))

    async def respond(request: web.BaseRequest) -> web.StreamResponse:
        return await injector.respond("queue.createTask", request, respond)

    runner = web.ServerRunner(web.Server(respond))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ((_, port),) = runner.addresses
    got = await asyncio.to_thread(requests.get, f"http://127.0.0.1:{port}", timeout=30)
    await runner.cleanup()
    body = got.json()
    assert (got.status_code, body["code"]) == (500, "InternalServerError")
    assert body["requestInfo"]["method"] == "createTask"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (302, errors.ApiError),
        (409, errors.RequestConflict),
        (424, errors.ErrorArtifact),
        (429, errors.TooManyRequests),
        (503, errors.InternalServerError),
    ],
)
def test_a_client_raises_the_error_of_the_status(status: int, expected: type[errors.ApiError]) -> None:
    with LocalQueue() as local, Queue(local.root_url) as queue:
        local.faults.add(Respond("queue.ping", status=status))
        with pytest.raises(errors.ApiError) as raised:
            queue.with_options(attempts=1).ping()
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    ("text", "expected"), [("", 500), ("key does not exist", 500), ("lone surrogate", 404)]
)
async def test_an_error_of_storage_becomes_a_500_only_if_it_has_the_text(text: str, expected: int) -> None:
    async with serving() as served:
        served.faults.add(RespondWith500("storage.get", instead_of=404, text=text))
        response = await asyncio.to_thread(get, served)
    assert response.status_code == expected
    assert ("<Code>InternalError</Code>" if expected == 500 else "<Code>NoSuchKey</Code>") in response.text


@pytest.mark.parametrize("after", [False, True])
async def test_a_connection_is_dropped_before_or_after_the_change(after: bool) -> None:  # noqa: FBT001  a parameter of the test
    async with serving() as served:
        served.faults.add(Drop("storage.put", after=after))
        with pytest.raises(requests.ConnectionError):
            await asyncio.to_thread(put, served)
        assert len(served.files()) == (1 if after else 0)
        assert (await asyncio.to_thread(put, served)).status_code == 200


@pytest.mark.parametrize("after", [False, True])
async def test_a_delay_lasts_until_the_clock_has_moved(after: bool) -> None:  # noqa: FBT001  a parameter of the test
    async with serving() as served:
        served.faults.add(Delay("storage.put", seconds=600, after=after))
        response = asyncio.create_task(asyncio.to_thread(put, served))
        await served.clock.wait_for_sleeper()
        assert len(served.files()) == (1 if after else 0)
        served.clock.advance(seconds=599)
        assert not response.done()
        served.clock.advance(seconds=1)
        assert (await response).status_code == 200


async def test_a_delay_in_real_time_does_not_need_the_clock() -> None:
    async with serving() as served:
        served.faults.add(Delay("storage.put", seconds=0.05, real_time=True))
        assert (await asyncio.to_thread(put, served)).status_code == 200


async def test_an_upload_is_cut_short_and_leaves_nothing() -> None:
    async with serving() as served:
        served.faults.add(CutUpload("storage.put", at=100_000))
        with pytest.raises(requests.ConnectionError):
            await asyncio.to_thread(put, served, b"x" * 20_000_000)
        assert served.files() == []
        assert (await asyncio.to_thread(put, served)).status_code == 200


@pytest.mark.parametrize("at", [0, 1, 99_999, 2_500_000])
async def test_a_download_is_cut_short_at_the_byte(at: int) -> None:
    async with serving() as served, aiohttp.ClientSession() as session:
        await asyncio.to_thread(put, served, b"x" * 3_000_000)
        served.faults.add(CutDownload("storage.get", at=at))
        async with session.get(served.get_url("public/x")) as response:
            assert response.content_length == 3_000_000
            received: list[bytes] = []
            with pytest.raises(aiohttp.ClientPayloadError):
                await collect(response, received)
            assert len(b"".join(received)) == at
        assert len((await asyncio.to_thread(get, served)).content) == 3_000_000


async def collect(response: ClientResponse, received: list[bytes]) -> None:
    while chunk := await response.content.readany():
        received.append(chunk)


async def test_a_download_that_ends_before_the_cut_is_whole() -> None:
    async with serving() as served:
        await asyncio.to_thread(put, served)
        served.faults.add(CutDownload("storage.get", at=5))
        assert (await asyncio.to_thread(get, served)).content == b"data"


async def test_an_error_can_be_cut_short_as_well() -> None:
    async with serving() as served:
        served.faults.add(CutDownload("storage.get", at=5))
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            await asyncio.to_thread(get, served)


async def test_a_slow_body_comes_as_fast_as_the_clock_moves() -> None:
    async with serving() as served, aiohttp.ClientSession() as session:
        await asyncio.to_thread(put, served, b"abcdefgh")
        served.faults.add(SlowDownload("storage.get", bytes_per_second=3))
        async with session.get(served.get_url("public/x")) as response:
            pieces: list[bytes] = []
            while len(pieces) < 3:
                await served.clock.wait_for_sleeper()
                pieces.append(await response.content.readany())
                served.clock.advance(seconds=1)
            assert pieces == [b"abc", b"def", b"gh"]


@pytest.mark.parametrize(
    "fault", [CutDownload("storage.get", at=1), SlowDownload("storage.get", bytes_per_second=1)]
)
async def test_a_response_to_head_has_no_body_to_send_badly(fault: AnyFault) -> None:
    async with serving() as served:
        await asyncio.to_thread(put, served)
        served.faults.add(fault)
        response = await asyncio.to_thread(requests.head, served.get_url("public/x"), timeout=30)
    assert (response.status_code, response.headers["Content-Length"]) == (200, "4")


async def test_an_upload_url_can_be_over_before_its_time() -> None:
    async with serving() as served:
        served.faults.add(ExpireUrl())
        response = await asyncio.to_thread(put, served)
        assert (response.status_code, "Request has expired" in response.text) == (403, True)
        assert (await asyncio.to_thread(put, served)).status_code == 200


async def test_the_date_is_that_of_the_clock_and_can_be_wrong() -> None:
    async with serving() as served:
        served.faults.clock_shift = -3600
        served.clock.advance(days=2)
        response = await asyncio.to_thread(get, served)
        shown = parsedate_to_datetime(response.headers["Date"]).timestamp()
        assert shown == int(served.clock.now() - 3600) == int(served.faults.now())
