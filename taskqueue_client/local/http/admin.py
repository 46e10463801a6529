"""Routes for tests in other processes: the clock, faults, and the removal of workers.

They exist only when the server is given a secret, which requests carry as `Authorization: Bearer …`.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec.structs import astuple

from taskqueue_client.clock import MovableClock
from taskqueue_client.local.engine import BackgroundWork
from taskqueue_client.local.faults import Faults
from taskqueue_client.local.refusal import refuse

from .request_bodies import read_body
from .responses import finish, json_response, not_found

LONGEST_STEP = 366 * 24 * 60 * 60
"""How far the clock moves in one request, in seconds."""


class _NoBody(msgspec.Struct, forbid_unknown_fields=True):
    """No body, or `{}`."""


class _ClockStep(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_STEP)]


class _ClockShift(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[float, msgspec.Meta(ge=-LONGEST_STEP, le=LONGEST_STEP)]


class _RemovedWorker(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    task_queue_id: str
    worker_group: str
    worker_id: str


_Route = tuple[type[Any], Callable[[Any], object], Callable[[], dict[str, Any]]]
"""The type of the body, the action, and what returns the response after the action."""


class Admin:
    """The admin routes."""

    def __init__(self, secret: str, clock: MovableClock, faults: Faults, background: BackgroundWork) -> None:
        self._secret = secret.encode()
        self._clock = clock
        self._faults = faults
        self._background = background
        remove = background.worker_removed
        self._routes: dict[tuple[str, str], _Route] = {
            ("GET", "/admin/clock"): (_NoBody, lambda _: None, self._time),
            ("POST", "/admin/clock/advance"): (_ClockStep, lambda by: clock.advance(by.seconds), self._time),
            ("POST", "/admin/clock/hold"): (_NoBody, lambda _: clock.hold(), self._time),
            ("POST", "/admin/clock/release"): (_NoBody, lambda _: clock.release(), self._time),
            ("POST", "/admin/clock/shift"): (_ClockShift, self._shift, lambda: {"now": faults.now()}),
            ("GET", "/admin/faults"): (_NoBody, lambda _: None, self._waiting),
            ("POST", "/admin/faults"): (dict, faults.add_json, self._waiting),
            ("DELETE", "/admin/faults"): (_NoBody, lambda _: faults.clear(), self._waiting),
            ("POST", "/admin/worker-removed"): (_RemovedWorker, lambda gone: remove(*astuple(gone)), dict),
            ("POST", "/admin/run-expirers"): (_NoBody, self._run_expirers, dict),
        }

    async def respond(self, request: web.BaseRequest) -> web.Response:
        """Respond to one request, which must carry the secret."""
        self._check_secret(request.headers.get("Authorization", ""))
        route = self._routes.get((request.method, request.raw_path))
        if route is None:
            return finish(request, not_found())
        kind, act, shown = route
        try:
            act(msgspec.json.decode(await read_body(request) or b"{}", type=kind))
            return finish(request, json_response(shown()))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            refuse("InputError", str(error))

    def _check_secret(self, header: str) -> None:
        scheme, _, given = header.partition(" ")
        is_right = hmac.compare_digest(given.encode(errors="replace"), self._secret)
        if not (is_right and scheme.lower() == "bearer"):
            need = "The admin routes need the header `Authorization: Bearer <admin secret>`"
            refuse("AuthenticationFailed", need)

    def _time(self) -> dict[str, float]:
        return {"now": self._clock.now()}

    def _waiting(self) -> dict[str, Any]:
        return {"faults": self._faults.waiting()}

    def _run_expirers(self, _: object) -> None:
        while self._background.expire():
            pass

    def _shift(self, body: _ClockShift) -> None:
        self._faults.clock_shift = body.seconds
