"""The processes of a campaign, the queue and the workers: starting, ending and disturbing them."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from .chaos_proxy import PROXY_HOST, QUEUE_HOST

GROUP = "campaign"
TOKEN = "of-the-campaign"
ADMIN_SECRET = "of-the-admin"
_READY_SECONDS = 60


class HandlerEvent(NamedTuple):
    """A worker's record of a handler call."""

    event: str
    worker: str
    task_id: str
    run_id: int
    t: float


class Sample(NamedTuple):
    """A measurement of a process: its memory in MB, or the number of its objects."""

    process: str
    t: float
    value: float


class Place(NamedTuple):
    """The directory, the addresses and the names that a campaign uses.

    Attributes:
        directory: Where it writes everything.
        port: The port of the queue and of the proxy.
        task_queue_id: The task queue of its tasks.
        broker: The URL of the broker.
        wire: The URL by which the campaign reaches the broker, through a connection that faults cut.
        lease: How long a claim lasts, in seconds.
    """

    directory: Path
    port: int
    task_queue_id: str
    broker: str
    wire: str
    lease: float

    @property
    def database(self) -> Path:
        return self.directory / "queue.sqlite"

    @property
    def work(self) -> Path:
        return self.directory / "work"

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    @property
    def root_url(self) -> str:
        return f"http://{PROXY_HOST}:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of every process."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TASK")}
        return {
            **inherited,
            "TMPDIR": str(self.temporary),
            "TASKCLUSTER_ROOT_URL": self.root_url,
            "TASKCLUSTER_CLIENT_ID": "local",
            "TASKCLUSTER_ACCESS_TOKEN": TOKEN,
            "TASKQUEUE_LOCAL_ADMIN_SECRET": ADMIN_SECRET,
            "TASKQUEUE_LOCAL_AMQP": self.wire,
            "PYTHONUNBUFFERED": "1",
        }


class Member:
    """A process of the campaign.

    Attributes:
        name: The worker's id, or `queue`.
        expected_end: Whether the campaign has ended the process.
        logging: Set when the process has logged something: from then on, a worker handles SIGTERM.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.started = time.time()
        self.expected_end = False
        self.logging = asyncio.Event()
        self.readers: list[asyncio.Task[None]] = []
        self.info = psutil.Process(process.pid)

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def tell(self, command: str) -> None:
        """Write a line to the standard input of the process."""
        stdin = self.process.stdin
        if stdin is not None and self.alive:
            with suppress(OSError):
                stdin.write(f"{command}\n".encode())

    async def kill(self) -> None:
        """Kill the process, and return when it has ended."""
        self.expected_end = True
        self.signal(signal.SIGKILL)
        await self.wait()

    async def wait(self) -> int:
        status = await self.process.wait()
        await asyncio.gather(*self.readers)
        return status

    def limit_files(self, size: int) -> None:
        """Make writes of this process beyond a file size fail, as on a full disk."""
        with suppress(psutil.NoSuchProcess):
            self.info.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def memory(self) -> float | None:
        """Return the memory of the process in MB; None if the process has ended."""
        with suppress(psutil.Error):
            return self.info.memory_info().rss / 1e6
        return None


class Fleet:
    """The queue and the workers.

    Args:
        place: Their directory and addresses.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.workers: dict[str, Member] = {}
        self._queue: Member | None = None
        self._awaiting: dict[str, bool] = {}
        self.events: list[HandlerEvent] = []
        self.objects: list[Sample] = []
        self.unexpected: list[str] = []
        """What processes did that they must not: end by themselves, shut down late, or leave something."""
        self.generations: dict[str, int] = {}

    @property
    def the_queue(self) -> Member:
        """The queue's process."""
        assert self._queue is not None
        return self._queue

    async def start_queue(self) -> None:
        """Start the queue; return when it accepts requests."""
        place = self.place
        options = ["--host", QUEUE_HOST, "--port", str(place.port), "--db", str(place.database), "--no-page"]
        options += ["--access-token", TOKEN, "--claim-timeout", str(place.lease), "--json"]
        self._queue = member = await self._start("queue", ["-m", "taskqueue_client", "local", *options])
        assert member.process.stdout is not None
        line = await asyncio.wait_for(member.process.stdout.readline(), _READY_SECONDS)
        if not line:
            message = f"the queue did not start: see {place.directory / 'queue.log'}"
            raise RuntimeError(message)

    async def start_worker(self, slot: str, *, awaiting: bool) -> None:
        """Start the first worker of a slot; its handlers are asynchronous if `awaiting`."""
        self._awaiting[slot] = awaiting
        await self.restart_worker(slot)

    async def restart_worker(self, slot: str) -> None:
        """Start the next worker of a slot, with a new worker id."""
        place = self.place
        self.generations[slot] = generation = self.generations.get(slot, 0) + 1
        name = f"{slot}-{generation}"
        settings = {
            "task_queue_id": place.task_queue_id,
            "worker_group": GROUP,
            "worker_id": name,
            "concurrency": 8,
            "graceful_shutdown_timeout": place.lease / 6,
            "termination_grace": 1,
            "max_internal_errors": 0,
            "cancellation_poll_interval": 2,
        }
        given = {
            "awaiting": self._awaiting[slot],
            "pulse": place.wire,
            "work_directory": str(place.work),
            "settings": settings,
        }
        command = ["-m", "tests.campaign.campaign_worker", json.dumps(given)]
        member = await self._start(name, command)
        self.workers[slot] = member
        member.readers.append(asyncio.create_task(self._listen(member)))

    async def _start(self, name: str, command: list[str]) -> Member:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.place.environment,
            limit=1 << 20,
            start_new_session=True,  # Ctrl-C reaches only the campaign, which ends the processes in order
        )
        member = Member(name, process)
        member.readers.append(asyncio.create_task(self._save_log(member)))
        return member

    async def _save_log(self, member: Member) -> None:
        """Write to a file what a process logs, which cannot do so itself while its disk is full."""
        assert member.process.stderr is not None
        path = self.place.directory / f"{member.name}.log"
        with path.open("ab") as file:
            while chunk := await member.process.stderr.read(1 << 16):
                file.write(chunk)
                member.logging.set()
        member.logging.set()

    async def _listen(self, member: Member) -> None:
        assert member.process.stdout is not None
        async for line in member.process.stdout:
            said = json.loads(line)
            if "task" in said:
                event = HandlerEvent(said["event"], member.name, said["task"], said["run"], said["t"])
                self.events.append(event)
            elif said["event"] == "objects":
                self.objects.append(Sample(f"{member.name} ({member.process.pid})", said["t"], said["count"]))
            elif said["event"] == "stopped" and said["after"] != said["before"]:
                self.unexpected.append(f"{member.name} left {said['after']}, began with {said['before']}")

    def set_clock(self, slot: str, offset: float) -> None:
        """Set the wall clock of a worker."""
        self.workers[slot].tell(f"clock {offset}")

    def count_objects(self) -> None:
        """Tell the workers to count their objects."""
        for each in self.workers.values():
            each.tell("objects")

    async def terminate(self, slot: str) -> None:
        """Shut a worker down; note it in `unexpected` if it does not end in time, or not with status 0."""
        member = self.workers[slot]
        member.expected_end = True
        with suppress(TimeoutError):
            await asyncio.wait_for(member.logging.wait(), _READY_SECONDS)
        member.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.place.lease / 6 + 45):
                status = await member.wait()
        except TimeoutError:
            self.unexpected.append(f"{member.name} did not shut down in time")
            await member.kill()
            return
        worked = any(each.worker == member.name for each in self.events)
        if status not in {0, -signal.SIGKILL} and (worked or status != -signal.SIGTERM):
            self.unexpected.append(f"{member.name} shut down with status {status}")

    async def stop_queue(self) -> None:
        """Shut the queue down, and wait for its end without a time limit."""
        self.the_queue.expected_end = True
        self.the_queue.signal(signal.SIGTERM)
        await self.the_queue.wait()

    def members(self) -> list[Member]:
        """Return the current worker of each slot, and the queue."""
        return [*self.workers.values(), *([] if self._queue is None else [self._queue])]

    async def kill_all(self) -> None:
        """Kill the processes that are alive."""
        for each in self.members():
            if each.alive:
                each.signal(signal.SIGCONT)
                await each.kill()
