"""The typed clients against the bare transports and against the official clients.

`python -m benchmarks.client` prints the table of ratios.
"""

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
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import mohawk
import msgspec
import requests
import taskcluster
import taskcluster.aio
from yarl import URL

from benchmarks.canned import STATUS, canned_server, certificate_and_bundle
from benchmarks.measure import ROUNDS, Row, at_least, at_most, compare, seconds
from taskqueue_client import AsyncQueue, Credentials, Queue, temporary_credentials
from taskqueue_client.definitions import TaskDefinition, task_definition
from taskqueue_client.hawk import Origin, Signer, nonce
from taskqueue_client.models import ClaimWorkResponse

TASK = "Y9IplizWTj-eOJfHEC71Rw"
CREDENTIALS = Credentials("benchmark/client", "a-token-of-some-forty-characters-length-abc")
DEFINITION = task_definition(
    "prov/wt", {"command": ["x" * 2000]}, name="n", owner="o@example.com", source="https://example.com"
)
CALLS = 400
AT_ONCE = 16
BATCHES = 40


def sync_http(root_url: str) -> Iterator[Row]:
    with Queue(root_url, CREDENTIALS) as queue, requests.Session() as session:
        url = f"{root_url}/api/queue/v1/task/{TASK}"
        pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "status": (lambda: queue.status(TASK), lambda: session.get(f"{url}/status").json()),
            "create_task (2.5 kB)": (
                lambda: queue.create_task(TASK, DEFINITION),
                lambda: session.put(url, json=DEFINITION).json(),
            ),
        }
        for what, (ours, bare) in pairs.items():
            ratio = compare(_times(ours, CALLS), _times(bare, CALLS))
            yield at_most(f"sync {what}, http", "bare requests.Session", ratio, 0.75)


def sync_https() -> Iterator[Row]:
    with certificate_and_bundle() as (certificate, bundle), canned_server(certificate) as root_url:
        os.environ["REQUESTS_CA_BUNDLE"] = str(bundle)
        official = taskcluster.Queue({"rootUrl": root_url, "credentials": _official()})
        with Queue(root_url, CREDENTIALS) as queue:
            pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
                "status": (lambda: queue.status(TASK), lambda: official.status(TASK)),
                "create_task": (
                    lambda: queue.create_task(TASK, DEFINITION),
                    lambda: official.createTask(TASK, DEFINITION),
                ),
            }
            for what, (ours, theirs) in pairs.items():
                ratio = 40 * compare(_times(theirs, 10), _times(ours, CALLS), rounds=5)
                yield at_least(f"sync {what}, https, calls/s", "official Queue", ratio, 35)
        del os.environ["REQUESTS_CA_BUNDLE"]


async def async_http(root_url: str) -> list[Row]:
    url = f"{root_url}/api/queue/v1/task/{TASK}"
    async with (
        AsyncQueue(root_url, CREDENTIALS) as queue,
        aiohttp.ClientSession() as session,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as leanest,
        taskcluster.aio.createSession() as their_session,
    ):
        official = taskcluster.aio.Queue(
            {"rootUrl": root_url, "credentials": _official()}, session=their_session
        )

        async def bare_status() -> Any:
            async with session.get(f"{url}/status") as response:
                return await response.json()

        async def bare_create() -> Any:
            async with session.put(url, json=DEFINITION) as response:
                return await response.json()

        signer, origin, forever = Signer(CREDENTIALS), Origin.of(root_url), aiohttp.ClientTimeout()

        def ceiling(method: str, to: str, definition: TaskDefinition | None = None) -> Callable[[], Any]:
            """What aiohttp sends with the least, signed: nothing is checked, timed or decoded."""
            where, kind = URL(to, encoded=True), "" if definition is None else "application/json"

            async def ask() -> bytes:
                body = None if definition is None else msgspec.json.encode(definition)
                signature = signer.header(
                    method,
                    origin,
                    where.raw_path,
                    timestamp=int(time.time()),
                    nonce=nonce(),
                    content_type=kind,
                    body=body or b"",
                )
                headers = {"Authorization": signature} | ({"Content-Type": kind} if kind else {})
                answer = await leanest.request(method, where, data=body, headers=headers, timeout=forever)
                return await answer.read()

            return ask

        rows: list[Row] = []
        for what, ours, bare, theirs, least, limit, goal in (
            (
                "status",
                lambda: queue.status(TASK),
                bare_status,
                lambda: official.status(TASK),
                ceiling("GET", f"{url}/status"),
                1.15,
                2.8,
            ),
            (
                "create_task (2.5 kB)",
                lambda: queue.create_task(TASK, DEFINITION),
                bare_create,
                lambda: official.createTask(TASK, DEFINITION),
                ceiling("PUT", url, DEFINITION),
                1.2,
                5,
            ),
        ):
            against_bare = await _compare_async(ours, bare)
            rows.append(at_most(f"async {what}, {AT_ONCE} at a time", "bare aiohttp", against_bare, limit))
            faster = await _compare_async(theirs, ours, rounds=3)
            rows.append(at_least(f"async {what}, calls/s", "official aio.Queue", faster, goal))
            possible = await _compare_async(theirs, least, rounds=3)
            rows.append(
                at_least(f"  aiohttp could reach, signed, {what[:11]}", "official aio.Queue", possible, 0)
            )
        return rows


async def _compare_async(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int = ROUNDS) -> float:
    await _batches(ours)
    await _batches(theirs)
    return statistics.median([await _batches(ours) / await _batches(theirs) for _ in range(rounds)])


async def _batches(work: Callable[[], Awaitable[Any]]) -> float:
    """Seconds that AT_ONCE workers take for their calls, one after the other each."""
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
        _import_time(ours)  # compiles
        more = statistics.median(_import_time(ours) - _import_time(theirs) for _ in range(9)) * 1000
        yield at_most(f"import {name}, ms more", f"import {module}", more, limit)


def _import_time(statement: str) -> float:
    """From byte code, as an installed package is imported: pip has compiled that of the others."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return seconds(lambda: subprocess.run([sys.executable, "-c", statement], check=True, env=environ))


def decoding() -> Iterator[Row]:
    status = json.loads(_claim_status())
    claim = {
        "status": status,
        "runId": 0,
        "workerGroup": "wg",
        "workerId": "w1",
        "takenUntil": "2026-11-21T09:20:53.649+00:00",
        "task": DEFINITION,
        "credentials": {"clientId": "a", "accessToken": "b" * 43, "certificate": "{}" * 300},
    }
    answer = json.dumps({"tasks": [claim] * 32}, indent=2).encode()
    decoder = msgspec.json.Decoder(ClaimWorkResponse)
    ratio = compare(_times(lambda: decoder.decode(answer), 300), _times(lambda: json.loads(answer), 300))
    yield at_most("decode 32 claims", "json.loads", ratio, 0.6)


def _claim_status() -> bytes:
    return json.dumps(json.loads(STATUS)["status"]).encode()


def _official() -> dict[str, str]:
    return {"clientId": CREDENTIALS.client_id, "accessToken": CREDENTIALS.access_token}


def _times(work: Callable[[], Any], times: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated


def main() -> None:
    with canned_server() as root_url:
        for row in sync_http(root_url):
            print(row, flush=True)
        for row in asyncio.run(async_http(root_url)):
            print(row, flush=True)
    for part in (sync_https, signing, imports, decoding):
        for row in part():
            print(row, flush=True)


if __name__ == "__main__":
    main()
