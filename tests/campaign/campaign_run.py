"""A campaign: starts everything, submits the tasks, injects the faults, and collects the evidence."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import aiormq
import psutil

from taskqueue_client.events import PulseSettings
from taskqueue_client.slugid import slugid
from tests.events.proxy import Proxy

from .chaos_proxy import PROXY_HOST, QUEUE_HOST, ChaosProxy
from .evidence import Evidence, read_artifacts, read_tasks, unknown_files
from .excuses import LATE
from .fault_plan import planned_faults
from .fleet import Fleet, Place, Sample
from .incidents import IncidentLog
from .injector import Injector
from .recorder import RESOLVED, Recorder
from .submitter import Submitter
from .task_plan import MEGABYTE, planned_tasks

_COUNTED = 20
"""Seconds between two counts of the workers' objects."""

_SETTLED = 30.0
"""Seconds that a listener has to start, and that connections have to close."""


class Settings(NamedTuple):
    """The options of a campaign.

    Attributes:
        seed: The seed of the tasks and of the faults.
        seconds: For how long tasks are submitted and faults begin.
        lease: How long a claim lasts, in seconds.
        workers: How many worker processes there are.
        backlog: How many tasks may be active.
        share: The share of exchanges that a fault strikes.
        largest: The size of the largest artifact, in bytes.
        longest: How long the longest handlers take, in seconds.
        broker: The URL of the broker.
    """

    seed: int
    seconds: float
    broker: str
    lease: float = 12
    workers: int = 4
    backlog: int = 120
    share: float = 0.05
    largest: int = 20 * MEGABYTE
    longest: float = 26


class Outcome(NamedTuple):
    """The result of a campaign: the evidence, and what the report shows beside it.

    Attributes:
        evidence: What the checker looks at.
        exchanges: How many requests there were.
        broken: How many of these requests a fault struck.
        reclaims: The time of each successful reclaim, and the worker's id.
        began: When the campaign began.
        database: The file of the queue's database.
    """

    evidence: Evidence
    exchanges: int
    broken: int
    reclaims: list[tuple[float, str]]
    began: float
    database: Path


class Campaign:
    """One campaign.

    Args:
        settings: Its options.
        directory: Where it writes everything; must exist.
        minutely: Called with a line about the state of the campaign each minute.
    """

    def __init__(
        self, settings: Settings, directory: Path, minutely: Callable[[str], object] = lambda _: None
    ) -> None:
        self.settings = settings
        broker = PulseSettings.from_url(settings.broker)
        self.wire = Proxy(broker.host, broker.effective_port)
        self._broker = broker
        self._queue_name = f"campaign-{slugid()}"
        self.log = IncidentLog(directory / "incidents.jsonl", settings.seed)
        self._minutely = minutely
        self.memory: list[Sample] = []
        self._directory = directory

    async def run(self) -> Outcome:
        """Run the campaign to its end."""
        await self.wire.open()
        place = self._place()
        for each in (place.work, place.temporary):
            each.mkdir()
        self.network = network = ChaosProxy(place.port, self.settings.seed, 0, self.log)
        await network.open()
        self.fleet = Fleet(place)
        settings = self.settings
        plan = planned_tasks(settings.seed, longest=settings.longest, largest=settings.largest)
        self.submitter = Submitter(place, plan, settings.backlog, _deadline(settings))
        self.recorder = Recorder(
            PulseSettings.from_url(place.wire), place.task_queue_id, self._queue_name, self.submitter.note
        )
        self.began = time.time()
        try:
            async with self._watched():
                await self._perform(network)
            return self._outcome(place, network)
        finally:
            await self.fleet.kill_all()
            await network.close()
            await self.wire.shut()
            await self._delete_queue()
            self.log.close()

    def _place(self) -> Place:
        broker = self._broker
        wire = f"amqp://{broker.user}:{broker.password}@127.0.0.1:{self.wire.port}/"
        return Place(
            self._directory,
            _free_port(),
            f"{self._queue_name}/w",
            self.settings.broker,
            wire,
            self.settings.lease,
        )

    async def _perform(self, network: ChaosProxy) -> None:
        """Start the processes, inject the faults, and wait until the last message is recorded."""
        await self.fleet.start_queue()
        recording = asyncio.create_task(self.recorder.run())
        await asyncio.wait_for(self.recorder.ready.wait(), _SETTLED)
        slots = [f"w{number}" for number in range(1, self.settings.workers + 1)]
        for number, slot in enumerate(slots):
            await self.fleet.start_worker(slot, awaiting=number % 2 == 1)
        network.share = self.settings.share
        injector = Injector(self.fleet, network, self.wire, self.log)
        seconds = self.settings.seconds
        faults = planned_faults(self.settings.seed, seconds=seconds, lease=self.settings.lease, slots=slots)
        async with asyncio.TaskGroup() as group:
            group.create_task(injector.inject(faults))
            group.create_task(self.submitter.submit_until(time.time() + seconds))
        network.share = 0
        await self.submitter.drain(time.time() + 60 + 6 * self.settings.lease)
        await self.submitter.close()
        await asyncio.gather(*(self.fleet.terminate(slot) for slot in slots))
        await network.close()
        self.fleet.unexpected += await self._connections_left()
        await self.fleet.stop_queue()
        self.recorder.finish()
        await recording

    @asynccontextmanager
    async def _watched(self) -> AsyncGenerator[None]:
        """Record, during the block, the memory of the processes, and when the machine is too busy."""
        watching = (self._sample(), self._watch_machine(), self._tell())
        watchers = [asyncio.create_task(each) for each in watching]
        try:
            yield
        finally:
            for each in watchers:
                each.cancel()

    async def _sample(self) -> None:
        for second in itertools.count():
            await asyncio.sleep(1)
            if second % _COUNTED == 0:
                self.fleet.count_objects()
            for member in self.fleet.members():
                megabytes = member.memory() if member.alive else None
                if megabytes is not None:
                    self.memory.append(
                        Sample(f"{member.name} ({member.process.pid})", time.time(), megabytes)
                    )
                if not member.alive and not member.expected_end:
                    member.expected_end = True
                    self.fleet.unexpected.append(
                        f"{member.name} ended with status {member.process.returncode}"
                    )

    async def _watch_machine(self) -> None:
        while True:
            began = time.time()
            await asyncio.sleep(0.2)
            late = time.time() - began - 0.2
            if late > LATE:
                incident = self.log.add("machine stalled", "machine", detail=f"{late:.1f} s")
                incident.began = began

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(60)
            self._minutely(self._state())

    def _state(self) -> str:
        resolved = sum(each.exchange in RESOLVED for each in self.recorder.messages)
        share = self.network.broken / max(1, self.network.exchanges)
        faults = sum(not each.kind.startswith("exchange") for each in self.log.incidents)
        memory = [f"{each.name} {each.memory() or 0:.0f} MB" for each in self.fleet.members() if each.alive]
        minutes = (time.time() - self.began) / 60
        return (
            f"{minutes:.0f} min: {len(self.submitter.created)} tasks, {resolved} runs resolved,"
            f" {self.network.exchanges} exchanges ({share:.1%} with a fault), {faults} other faults,"
            f" {', '.join(memory)}"
        )

    async def _connections_left(self) -> list[str]:
        """Return the connections that the queue still has although nobody uses it any more."""

        def established() -> list[str]:
            found = self.fleet.the_queue.info.net_connections()
            own = [each for each in found if each.status == "ESTABLISHED" and each.laddr[0] == QUEUE_HOST]
            return [f"connection of the queue from {each.raddr}" for each in own]

        return await _settle(established)

    def _outcome(self, place: Place, network: ChaosProxy) -> Outcome:
        leftovers = [*self.fleet.unexpected, *self.submitter.failures, *self.recorder.unreadable]
        leftovers += _processes_left(place) + _files_left(place)
        evidence = Evidence(
            self.settings.lease,
            self.submitter.created,
            read_tasks(place.database),
            read_artifacts(place.database),
            self.recorder.messages,
            self.fleet.events,
            self.log.incidents,
            self.memory,
            self.fleet.objects,
            leftovers,
        )
        return Outcome(
            evidence, network.exchanges, network.broken, network.reclaims, self.began, place.database
        )

    async def _delete_queue(self) -> None:
        connection = await aiormq.connect(self.settings.broker)
        channel = await connection.channel()
        await channel.queue_delete(f"queue/{self._broker.user}/{self._queue_name}")
        await connection.close()


async def _settle(look: Callable[[], list[str]]) -> list[str]:
    """Wait until `look` finds nothing; return what it still finds after `_SETTLED` seconds."""
    until = time.monotonic() + _SETTLED
    while (found := look()) and time.monotonic() < until:  # noqa: ASYNC110 - no event says that they are gone
        await asyncio.sleep(0.1)
    return found


def _deadline(settings: Settings) -> float:
    """Return the seconds until the deadline of the tasks that must exceed it."""
    return settings.longest / 2 + 10


def _free_port() -> int:
    with socket.create_server((PROXY_HOST, 0)) as found:  # more programs use this address than the other one
        port: int = found.getsockname()[1]
        return port


def _processes_left(place: Place) -> list[str]:
    """Return the processes that have the campaign's directory in their environment."""
    return [f"process {each.pid} {each.name()}" for each in psutil.process_iter() if _belongs(each, place)]


def _belongs(process: psutil.Process, place: Place) -> bool:
    with suppress(psutil.Error, OSError):
        return any(str(place.directory) in value for value in process.environ().values())
    return False


def _files_left(place: Place) -> list[str]:
    kept = [*place.work.rglob("*"), *place.temporary.rglob("*")]
    return [f"file {each}" for each in kept] + [f"file {each}" for each in unknown_files(place.database)]
