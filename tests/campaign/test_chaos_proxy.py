"""The proxy of campaigns breaks the exchanges that it records, and no others."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import ClientError, ClientSession, web

from tests.campaign.chaos_proxy import FAULTS, PROXY_HOST, QUEUE_HOST, STORAGE_FAULTS, ChaosProxy, Head
from tests.campaign.incidents import IncidentLog
from tests.servers import reserved_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it needs more than one loopback address")

TASK_ID = "VmTGS3GlSsuCI_I7_WMYBQ"
LARGE = bytes(range(256)) * 4_000


class Behind:
    """The server behind the proxy: counts the requests that reach it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.canceled = asyncio.Event()
        self.waiting = asyncio.Event()

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/wait":
            return await self._wait()
        try:
            self.bodies.append(await request.read())
        except (ConnectionError, ClientError, web.RequestPayloadError):
            return web.Response(status=400)
        if "/claim-work/" in request.path:
            return web.json_response({"tasks": [{"status": {"taskId": TASK_ID}, "runId": 0}]})
        if request.path.endswith("/reclaim"):
            return web.json_response({"workerId": "w1-1"})
        if request.method == "GET":
            return web.Response(body=LARGE)
        return web.json_response({"url": f"http://{request.host.replace(PROXY_HOST, QUEUE_HOST)}/storage/x"})

    async def _wait(self) -> web.StreamResponse:
        self.waiting.set()
        try:
            return await asyncio.Future()
        finally:
            self.canceled.set()


@pytest.fixture
async def behind() -> Behind:
    return Behind()


@pytest.fixture
async def proxy(behind: Behind, tmp_path: Path) -> AsyncIterator[ChaosProxy]:
    runner = web.ServerRunner(web.Server(behind.respond, handler_cancellation=True))
    await runner.setup()
    with closing(IncidentLog(tmp_path / "incidents.jsonl", 1)) as log, reserved_port(PROXY_HOST) as port:
        await web.TCPSite(runner, QUEUE_HOST, port).start()
        proxy = ChaosProxy(port, 1, 0, log)
        await proxy.open()
        yield proxy
        await proxy.close()
        await runner.cleanup()


@pytest.fixture
async def client(proxy: ChaosProxy) -> AsyncIterator[ClientSession]:
    async with ClientSession(f"http://{PROXY_HOST}:{proxy.port}") as client:
        yield client


def only(proxy: ChaosProxy, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fault strike every exchange."""

    def choose(_: Head) -> tuple[str, float]:
        return fault, 0.0

    monkeypatch.setattr(proxy, "choose", choose)


async def test_an_exchange_without_a_fault_is_forwarded(proxy: ChaosProxy, client: ClientSession) -> None:
    async with client.post("/api", data=b"x") as response:
        assert await response.json() == {"url": f"http://{PROXY_HOST}:{proxy.port}/storage/x"}
    async with client.get("/storage/x") as response:
        assert await response.read() == LARGE
    assert (proxy.exchanges, proxy.broken) == (2, 0)


async def test_a_large_body_arrives_whole(behind: Behind, client: ClientSession) -> None:
    async with client.put("/storage/x", data=LARGE) as response:
        assert response.status == 200
    assert behind.bodies == [LARGE]


@pytest.mark.parametrize(
    ("fault", "reached"), [("request lost", 0), ("response lost", 1), ("response cut", 1), ("reset", 1)]
)
async def test_a_broken_exchange_has_no_response(
    proxy: ChaosProxy,
    behind: Behind,
    client: ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    reached: int,
) -> None:
    only(proxy, fault, monkeypatch)
    with pytest.raises(ClientError):
        async with client.post("/api", data=b"x") as response:
            await response.read()
    assert len(behind.bodies) == reached


@pytest.mark.parametrize(("fault", "reached"), [("502 before", 0), ("502 after", 1)])
async def test_a_bad_gateway_is_a_502_with_a_page_in_html(
    proxy: ChaosProxy,
    behind: Behind,
    client: ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    reached: int,
) -> None:
    only(proxy, fault, monkeypatch)
    async with client.post("/api", data=b"x") as response:
        assert (response.status, response.content_type) == (502, "text/html")
    assert len(behind.bodies) == reached


async def test_a_repeated_request_arrives_twice(
    proxy: ChaosProxy, behind: Behind, client: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(proxy, "repeated", monkeypatch)
    async with client.post("/api", data=b"x") as response:
        assert response.status == 200
    assert behind.bodies == [b"x", b"x"]


async def test_the_creation_of_an_object_is_not_repeated(
    proxy: ChaosProxy, behind: Behind, client: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(proxy, "repeated", monkeypatch)
    body = msgspec.json.encode({"storageType": "object", "expires": "2030-01-01T00:00:00.000Z"})
    async with client.post("/api", data=body) as response:
        assert response.status == 200
    assert behind.bodies == [body]


@pytest.mark.parametrize("path", ["/api", "/storage/x"])
async def test_a_cut_request_does_not_arrive_whole(
    proxy: ChaosProxy, behind: Behind, client: ClientSession, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    only(proxy, "request cut", monkeypatch)
    with pytest.raises(ClientError):
        async with client.put(path, data=LARGE) as response:
            await response.read()
    assert behind.bodies == []


async def test_a_storage_outage_is_a_503(proxy: ChaosProxy, behind: Behind, client: ClientSession) -> None:
    proxy.storage_outage = True
    async with client.put("/storage/x", data=LARGE) as response:
        assert response.status == 503
    async with client.post("/api", data=b"x") as response:
        assert response.status == 200
    assert behind.bodies == [b"x"]


async def test_a_network_outage_refuses_connections(proxy: ChaosProxy, client: ClientSession) -> None:
    proxy.outage = True
    with pytest.raises(ClientError):
        await client.post("/api", data=b"x")


@pytest.mark.parametrize("fault", ["response lost", "response cut", "502 after", "repeated"])
async def test_claims_that_are_not_delivered_are_noted(
    proxy: ChaosProxy, client: ClientSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    only(proxy, fault, monkeypatch)
    with suppress(ClientError):  # most of these faults leave no response
        async with client.post("/api/queue/v1/claim-work/a%2Fb", data=b"{}") as response:
            await response.read()
    await proxy.close()
    lines = [json.loads(line) for line in (tmp_path / "incidents.jsonl").read_text().splitlines()]
    assert [f"{TASK_ID}/0"] in [each.get("runs") for each in lines]
    assert {each["seed"] for each in lines} == {1}


async def test_successful_reclaims_are_noted(proxy: ChaosProxy, client: ClientSession) -> None:
    async with client.post(f"/api/queue/v1/task/{TASK_ID}/runs/0/reclaim") as response:
        assert response.status == 200
    assert [worker for _, worker in proxy.reclaims] == ["w1-1"]


async def test_the_proxy_disconnects_from_the_server_when_the_client_disconnects(
    behind: Behind, client: ClientSession
) -> None:
    waiting = asyncio.create_task(client.post("/wait"))
    await behind.waiting.wait()
    waiting.cancel()
    assert await asyncio.wait_for(behind.canceled.wait(), 30)


async def test_the_share_of_broken_exchanges_is_as_asked(proxy: ChaosProxy) -> None:
    proxy.share = 0.05
    for storage in (False, True) * 5000:
        fault, _ = proxy.choose(Head("PUT /storage/x" if storage else "GET /api", []))
        assert fault in {"", *(STORAGE_FAULTS if storage else FAULTS)}
    assert 0.04 < proxy.broken / proxy.exchanges < 0.06
