"""The typed clients beside the bare transports and beside the official clients."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import statistics
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import mohawk
import msgspec
import requests
import taskcluster
import taskcluster.aio
from yarl import URL

from benchmarks.canned import canned_server, certificate_and_bundle
from benchmarks.inputs import Inputs, input_sets
from benchmarks.measure import ROUNDS, Row, at_least, at_most, compare, possible, seconds, slowest, worst
from taskqueue_client import AsyncQueue, Credentials, Queue, temporary_credentials
from taskqueue_client._protocol.wire import Origin, Signer, nonce
from taskqueue_client.definitions import TaskDefinition
from taskqueue_client.models import ClaimWorkResponse

TASK = "Y9IplizWTj-eOJfHEC71Rw"
CREDENTIALS = Credentials("benchmark/client", "a-token-of-some-forty-characters-length-abc")
CALLS = 250
FEW = 10
"""Calls in a round of the official client, each of which takes much longer."""

AT_ONCE = 16
BATCHES = 20


def sync_http() -> Iterator[Row]:
    with canned_server() as root_url, Queue(root_url, CREDENTIALS) as queue, requests.Session() as session:
        url = f"{root_url}/api/queue/v1/task/{TASK}"
        ratio = compare(
            _times(lambda: queue.status(TASK), CALLS),
            _times(lambda: session.get(f"{url}/status").json(), CALLS),
        )
        yield at_most("synchronous status, time", "bare requests.Session", ratio, 0.5)

        def creating(inputs: Inputs) -> float:
            bodies = _bodies(inputs)
            return compare(
                _times(lambda: queue.create_task(TASK, next(bodies)), CALLS),
                _times(lambda: session.put(url, json=next(bodies)).json(), CALLS),
            )

        yield at_most("synchronous create_task, time", "bare requests.Session", worst(creating), 0.6, 0.98)


def sync_https() -> Iterator[Row]:
    with certificate_and_bundle() as (certificate, bundle), canned_server(certificate) as root_url:
        os.environ["REQUESTS_CA_BUNDLE"] = str(bundle)
        official = taskcluster.Queue(_official(root_url))

        def faster(ours: Callable[[], Any], theirs: Callable[[], Any]) -> float:
            return CALLS / FEW * compare(_times(theirs, FEW), _times(ours, CALLS))

        with Queue(root_url, CREDENTIALS) as queue:
            ratio = faster(lambda: queue.status(TASK), lambda: official.status(TASK))
            yield at_least("synchronous status, https, speed", "official Queue", ratio, 40)

            def creating(inputs: Inputs) -> float:
                bodies = _bodies(inputs)
                return faster(
                    lambda: queue.create_task(TASK, next(bodies)),
                    lambda: official.createTask(TASK, next(bodies)),
                )

            yield at_least("synchronous create_task, https, speed", "official Queue", slowest(creating), 40)


Ask = Callable[[], Awaitable[Any]]


def async_http() -> list[Row]:
    with canned_server() as root_url:
        return asyncio.run(_async_http(root_url))


async def _async_http(root_url: str) -> list[Row]:
    url = f"{root_url}/api/queue/v1/task/{TASK}"
    async with (
        AsyncQueue(root_url, CREDENTIALS) as queue,
        AsyncQueue(root_url, CREDENTIALS, check_definitions=False) as unchecked,
        aiohttp.ClientSession() as session,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as leanest,
        taskcluster.aio.createSession() as their_session,
    ):
        official = taskcluster.aio.Queue(_official(root_url), session=their_session)
        every = [
            await _compared_status(queue, session, leanest, official, f"{url}/status"),
            *[await _compared_create(queue, session, leanest, official, url, each) for each in input_sets()],
        ]
        bodies = _bodies(Inputs(0))
        without = await _compare_async(
            lambda: unchecked.create_task(TASK, next(bodies)),
            lambda: _json(session.put(url, json=next(bodies))),
        )
    against_bare, faster, floor, ceiling = zip(*every[1:], strict=True)
    return [
        *_async_rows("status", every[0], 2.8),
        *_async_rows("create_task", (max(against_bare), min(faster), max(floor), min(ceiling)), 5, 5.0, 1.1),
        possible("… AsyncQueue without the check of the definition", "bare aiohttp", without),
    ]


def _async_rows(
    what: str,
    figures: Sequence[float],
    goal: float,
    before_bare: float | None = None,
    before_official: float | None = None,
) -> Iterator[Row]:
    against_bare, faster, floor, ceiling = figures
    title = f"asynchronous {what}, {AT_ONCE} at a time"
    yield at_most(f"{title}, time", "bare aiohttp", against_bare, 0.8, before_bare)
    yield possible("… aiohttp with the least code, signed", "bare aiohttp", floor)
    yield at_least(f"{title}, speed", "official aio.Queue", faster, goal, before_official)
    yield possible("… aiohttp with the least code, signed", "official aio.Queue", ceiling)


async def _compared_status(
    queue: AsyncQueue,
    session: aiohttp.ClientSession,
    leanest: aiohttp.ClientSession,
    official: Any,
    url: str,
) -> tuple[float, float, float, float]:
    return await _compared(
        lambda: queue.status(TASK),
        lambda: _json(session.get(url)),
        lambda: official.status(TASK),
        _least(leanest, "GET", url),
    )


async def _compared_create(
    queue: AsyncQueue,
    session: aiohttp.ClientSession,
    leanest: aiohttp.ClientSession,
    official: Any,
    url: str,
    inputs: Inputs,
) -> tuple[float, float, float, float]:
    bodies = _bodies(inputs)
    return await _compared(
        lambda: queue.create_task(TASK, next(bodies)),
        lambda: _json(session.put(url, json=next(bodies))),
        lambda: official.createTask(TASK, next(bodies)),
        _least(leanest, "PUT", url, bodies),
    )


async def _json(asking: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> Any:
    async with asking as response:
        return await response.json()


def _least(
    session: aiohttp.ClientSession, method: str, url: str, bodies: Iterator[TaskDefinition] | None = None
) -> Ask:
    """Return a signed call with the least code on aiohttp: nothing is checked, timed or decoded."""
    signer, where, forever = Signer(CREDENTIALS), URL(url, encoded=True), aiohttp.ClientTimeout()
    origin, kind = Origin.of(url), "" if bodies is None else "application/json"

    async def ask() -> bytes:
        body = b"" if bodies is None else msgspec.json.encode(next(bodies))
        signature = signer.header(
            method,
            origin,
            where.raw_path,
            timestamp=int(time.time()),
            nonce=nonce(),
            content_type=kind,
            body=body,
        )
        headers = {"Authorization": signature} | ({"Content-Type": kind} if kind else {})
        response = await session.request(method, where, data=body or None, headers=headers, timeout=forever)
        return await response.read()

    return ask


async def _compared(ours: Ask, bare: Ask, official: Ask, least: Ask) -> tuple[float, float, float, float]:
    """Return ratios of times: ours/bare, official/ours, least/bare, official/least."""
    return (
        await _compare_async(ours, bare),
        await _compare_async(official, ours),
        await _compare_async(least, bare),
        await _compare_async(official, least),
    )


async def _compare_async(ours: Ask, theirs: Ask, rounds: int = ROUNDS) -> float:
    await _batches(ours)
    await _batches(theirs)
    return statistics.median([await _batches(ours) / await _batches(theirs) for _ in range(rounds)])


async def _batches(work: Ask) -> float:
    """Return the seconds in which each of AT_ONCE workers makes its calls, one after the other."""
    loop = asyncio.get_running_loop()

    async def worker() -> None:
        for _ in range(BATCHES):
            await work()

    started = loop.time()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return loop.time() - started


def signing() -> Iterator[Row]:
    credentials = temporary_credentials(CREDENTIALS, ["queue:get-task:*", "queue:create-task:*"], name="a/b")
    signer, origin, body = Signer(credentials), Origin("tc.example.com", "443"), b"x" * 2048
    url = f"/api/queue/v1/task/{TASK}"
    key, ext = credentials.access_token.encode(), signer.ext

    def ours() -> None:
        signer.header(
            "PUT",
            origin,
            url,
            timestamp=1_795_252_853,
            nonce=nonce(),
            content_type="application/json",
            body=body,
        )

    def theirs() -> None:
        mohawk.Sender(
            {"id": credentials.client_id, "key": credentials.access_token, "algorithm": "sha256"},
            f"https://tc.example.com{url}",
            "PUT",
            content=body,
            content_type="application/json",
            ext=ext,
        )

    def bare() -> str:
        hashed = b64encode(
            hashlib.sha256(b"hawk.1.payload\napplication/json\n" + body + b"\n").digest()
        ).decode()
        fresh = nonce()
        text = f"hawk.1.header\n1795252853\n{fresh}\nPUT\n{url}\ntc.example.com\n443\n{hashed}\n{ext}\n"
        mac = b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
        return f'Hawk mac="{mac}", hash="{hashed}", id="a/b", ts="1795252853", nonce="{fresh}", ext="{ext}"'

    yield at_least(
        "sign 2 kB with certificate", "mohawk", compare(_times(theirs, 300), _times(ours, 300)), 30
    )
    yield at_most(
        "sign 2 kB with certificate", "bare hmac", compare(_times(ours, 5000), _times(bare, 5000)), 1.5
    )


def imports() -> Iterator[Row]:
    for what, module, limit in (
        ("taskqueue_client.Queue", "requests", 50),
        ("taskqueue_client.AsyncQueue", "aiohttp", 40),
    ):
        package, _, name = what.rpartition(".")
        ours = f"from {package} import {name}"
        theirs = f"import {module}"
        _import_time(ours)  # compiles the byte code
        more = statistics.median(_import_time(ours) - _import_time(theirs) for _ in range(9)) * 1000
        yield at_most(f"import {name}, ms more", f"import {module}", more, limit)
    program = str(Path(sys.executable).with_name("taskqueue"))
    ratio = compare(
        lambda: subprocess.run([program, "--help"], check=True, stdout=subprocess.DEVNULL),
        lambda: subprocess.run([sys.executable, "-c", "import click"], check=True),
    )
    yield at_most("taskqueue --help, time", 'python -c "import click"', ratio, 3)


def _import_time(statement: str) -> float:
    """Return the time of an import from byte code: pip has compiled that of installed packages."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return seconds(lambda: subprocess.run([sys.executable, "-c", statement], check=True, env=environ))


def decoding() -> Iterator[Row]:
    decoder = msgspec.json.Decoder(ClaimWorkResponse)

    def ratio(inputs: Inputs) -> float:
        (claims,) = inputs.claims(1, tasks=32)
        return compare(_times(lambda: decoder.decode(claims), 300), _times(lambda: json.loads(claims), 300))

    yield at_most("decode 32 claims of 5 kB, time", "json.loads", worst(ratio), 0.35)


def _official(root_url: str) -> dict[str, Any]:
    credentials = {"clientId": CREDENTIALS.client_id, "accessToken": CREDENTIALS.access_token}
    return {"rootUrl": root_url, "credentials": credentials}


def _bodies(inputs: Inputs) -> Iterator[TaskDefinition]:
    return cycle(inputs.definitions(400))


def _times(work: Callable[[], Any], times: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated
