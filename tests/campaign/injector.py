"""Injects the planned faults into the processes and the network of a campaign."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import time
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

from tests.events.proxy import Proxy

from .chaos_proxy import QUEUE_HOST, ChaosProxy
from .fault_plan import PlannedFault
from .fleet import ADMIN_SECRET, Fleet, Member
from .incidents import IncidentLog

_FULL = 4096
"""Bytes up to which files can be written on a full disk."""

_UNLIMITED = resource.RLIM_INFINITY
_LARGEST_STEP = 3600.0
_LARGEST_SHIFT = 40.0
"""Seconds by which the queue's clock may be wrong: it refuses signatures that are a minute old."""


class Injector:
    """Injects faults, each at its time.

    Args:
        fleet: The processes.
        network: The proxy between workers and queue.
        wire: The connections to the broker.
        log: Where each fault is noted.
    """

    def __init__(self, fleet: Fleet, network: ChaosProxy, wire: Proxy, log: IncidentLog) -> None:
        self._fleet = fleet
        self._network = network
        self._wire = wire
        self._log = log
        self._queue_lock = asyncio.Lock()
        self._broker_lock = asyncio.Lock()
        self._slot_locks = {slot: asyncio.Lock() for slot in fleet.workers}
        self._kinds: Mapping[str, Callable[[PlannedFault], Coroutine[None, None, None]]] = {
            "worker killed": self._kill_worker,
            "worker terminated": self._terminate_worker,
            "worker stopped": self._stop_worker,
            "worker clock set": self._set_worker_clock,
            "worker disk full": self._fill_worker_disk,
            "queue killed": self._kill_queue,
            "queue stopped": self._stop_queue,
            "queue clock wrong": self._shift_queue_clock,
            "queue disk full": self._fill_queue_disk,
            "network cut": self._cut_network,
            "storage outage": self._stop_storage,
            "broker cut": self._cut_broker,
            "broker silent": self._silence_broker,
        }

    async def inject(self, faults: list[PlannedFault]) -> None:
        """Inject the faults; return when the last one is over and everything runs again."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0, began + fault.at - time.monotonic()))
                group.create_task(self._kinds[fault.kind](fault))

    async def _kill_worker(self, fault: PlannedFault) -> None:
        async with self._slot_locks[fault.target]:
            member = self._fleet.workers[fault.target]
            with self._log.lasting(fault.kind, member.name):
                await member.kill()
            await asyncio.sleep(fault.seconds)
            await self._fleet.restart_worker(fault.target)

    async def _terminate_worker(self, fault: PlannedFault) -> None:
        async with self._slot_locks[fault.target]:
            with self._log.lasting(fault.kind, self._fleet.workers[fault.target].name):
                await self._fleet.terminate(fault.target)
            await self._fleet.restart_worker(fault.target)

    async def _stop_worker(self, fault: PlannedFault) -> None:
        async with self._slot_locks[fault.target]:
            await self._stop(fault, self._fleet.workers[fault.target])

    async def _stop(self, fault: PlannedFault, member: Member) -> None:
        with self._log.lasting(fault.kind, member.name, f"{fault.seconds} s"):
            member.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            member.signal(signal.SIGCONT)

    async def _set_worker_clock(self, fault: PlannedFault) -> None:
        offset = round(_LARGEST_STEP * fault.amount, 1)
        self._log.add(fault.kind, self._fleet.workers[fault.target].name, detail=f"{offset} s")
        self._fleet.set_clock(fault.target, offset)

    async def _fill_worker_disk(self, fault: PlannedFault) -> None:
        async with self._slot_locks[fault.target]:
            await self._fill(fault, self._fleet.workers[fault.target])

    async def _fill(self, fault: PlannedFault, member: Member) -> None:
        with self._log.lasting(fault.kind, member.name, f"{fault.seconds} s"):
            member.limit_files(_FULL)
            await asyncio.sleep(fault.seconds)
            member.limit_files(_UNLIMITED)

    async def _kill_queue(self, fault: PlannedFault) -> None:
        async with self._queue_lock:
            with self._log.lasting(fault.kind, "queue", f"{fault.seconds} s"):
                await self._fleet.the_queue.kill()
                await asyncio.sleep(fault.seconds)
                await self._fleet.start_queue()

    async def _stop_queue(self, fault: PlannedFault) -> None:
        async with self._queue_lock:
            await self._stop(fault, self._fleet.the_queue)

    async def _fill_queue_disk(self, fault: PlannedFault) -> None:
        async with self._queue_lock:
            await self._fill(fault, self._fleet.the_queue)

    async def _shift_queue_clock(self, fault: PlannedFault) -> None:
        shift = round(_LARGEST_SHIFT * fault.amount, 1)
        with self._log.lasting(fault.kind, "queue", f"{shift} s"):
            await self._admin("clock/shift", shift)
            await asyncio.sleep(fault.seconds)
            await self._admin("clock/shift", 0)

    async def _admin(self, route: str, seconds: float) -> None:
        request = urllib.request.Request(
            f"http://{QUEUE_HOST}:{self._network.port}/admin/{route}",
            json.dumps({"seconds": seconds}).encode(),
            {"Authorization": f"Bearer {ADMIN_SECRET}"},
        )
        with suppress(OSError):  # the queue is down; it starts with the right clock
            await asyncio.to_thread(urllib.request.urlopen, request, timeout=30)

    async def _cut_network(self, fault: PlannedFault) -> None:
        with self._log.lasting(fault.kind, "network", f"{fault.seconds} s"):
            self._network.outage = True
            self._network.cut()
            await asyncio.sleep(fault.seconds)
            self._network.outage = False

    async def _stop_storage(self, fault: PlannedFault) -> None:
        with self._log.lasting(fault.kind, "storage", f"{fault.seconds} s"):
            self._network.storage_outage = True
            await asyncio.sleep(fault.seconds)
            self._network.storage_outage = False

    async def _cut_broker(self, fault: PlannedFault) -> None:
        """Cut all connections to the broker, and again at the end; meanwhile, new ones transfer nothing."""
        async with self._broker_lock:
            with self._log.lasting(fault.kind, "broker", f"{fault.seconds} s"):
                self._wire.cut()
                self._wire.silence()
                await asyncio.sleep(fault.seconds)
                self._wire.cut()
                self._wire.speak()

    async def _silence_broker(self, fault: PlannedFault) -> None:
        async with self._broker_lock:
            with self._log.lasting(fault.kind, "broker", f"{fault.seconds} s"):
                self._wire.silence()
                await asyncio.sleep(fault.seconds)
                self._wire.speak()
