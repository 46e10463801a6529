"""The declaration of endpoints: the decorator of each handler names its route, scopes and input.

The declarations follow the services' reference, and share nothing with the clients' functions in `calls/`: a
wrong route that clients and local queue share would not be noticed.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from taskqueue_client.scopes import ScopeExpression

LEGACY = "legacy"
"""The service of the legacy endpoints from before the Queue's URLs began with `/api/queue`."""

_QUERY_PARAMETERS = {"token": "continuationToken", "limit": "limit", "quarantined": "quarantined"}
"""The query parameters of endpoints, by the names of their handlers' parameters."""

_PARAMETER = re.compile(r"<(\w+)>")
_STARTED = time.monotonic()


def ping(_service: object) -> dict[str, Any]:
    """Return that the service is alive, and for how many seconds."""
    return {"alive": True, "uptime": time.monotonic() - _STARTED}


def heartbeat(_service: object) -> dict[str, Any]:
    """Return an empty object: the response itself is the heartbeat."""
    return {}


def lbheartbeat(_service: object) -> dict[str, Any]:
    """Return an empty object, as `heartbeat` does, to load balancers."""
    return {}


def version(_service: object) -> dict[str, str]:
    """Return what a source checkout of the service returns."""
    return {"version": "dev", "commit": "", "source": "", "build": ""}


def camel_case(name: str) -> str:
    """Return a name in the spelling of the services, such as `taskId` for `task_id`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


Handler = Callable[..., Any]
"""A function that gets the service's object, and what its other parameters name (see `http.api`)."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of a service's API, version 1.

    Args:
        service: `queue`, `object` or `auth`; or `legacy`, whose endpoints are below `/v1`.
        method: `GET`, `POST` or `PUT`.
        route: The path below `/api/<service>/v1`, with parameters such as `<taskId>`.
        handler: The function or method that handles a call, named like the endpoint in snake_case.
        scopes: The scopes that a caller needs; None if credentials are not checked.
        schema: The schema of the request's body, a key of `REQUEST_SCHEMAS`; None: no body is checked.
        one_segment: Whether the last parameter may contain slashes only as `%2F`.
        tester_scopes: For an endpoint that tests signatures: returns the scopes of its client `tester`,
            given the body.
    """

    service: str
    method: str
    route: str
    handler: Handler
    scopes: ScopeExpression | None = None
    schema: str | None = None
    one_segment: bool = False
    tester_scopes: Callable[[Any], Sequence[str]] | None = None

    @cached_property
    def name(self) -> str:
        """The name in the reference, e.g. `createTask`."""
        return camel_case(self.handler.__name__)

    @cached_property
    def full_name(self) -> str:
        """The name with the service, e.g. `queue.createTask`."""
        return f"{self.service}.{self.name}"

    @cached_property
    def base(self) -> str:
        """The path that the route is below."""
        return "/v1" if self.service == LEGACY else f"/api/{self.service}/v1"

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters in the route."""
        return tuple(_PARAMETER.findall(self.route))

    @cached_property
    def query(self) -> tuple[str, ...]:
        """The query parameters that the endpoint takes."""
        return tuple(_QUERY_PARAMETERS[name] for name in self.argument_names if name in _QUERY_PARAMETERS)

    @cached_property
    def is_checked_first(self) -> bool:
        """Whether the URL alone says which scopes are needed: then they are checked before anything else."""
        return self.scopes is not None and _needs(self.scopes) <= set(self.parameters)

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the handler's parameters after the first one."""
        return tuple(inspect.signature(self.handler).parameters)[1:]


def _needs(expression: ScopeExpression) -> set[str]:
    if isinstance(expression, str):
        return set(_PARAMETER.findall(expression))
    if "for" in expression:
        return {str(expression["in"])}
    (parts,) = expression.values()
    return {name for part in parts for name in _needs(part)}


_Handler = TypeVar("_Handler", bound=Handler)


class Endpoints(list[Endpoint]):
    """The endpoints of a service. If two routes match a path, the one that was declared first handles it."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service
        for handler, route in _HEARTBEATS.items():
            self("GET", route)(handler)

    def __call__(
        self,
        method: str,
        route: str,
        scopes: ScopeExpression | None = None,
        *,
        schema: str | None = None,
        one_segment: bool = False,
        tester_scopes: Callable[[Any], Sequence[str]] | None = None,
    ) -> Callable[[_Handler], _Handler]:
        """Return a decorator that declares an endpoint of a handler; see `Endpoint` for the arguments."""

        def declare(handler: _Handler) -> _Handler:
            about = (scopes, schema and f"{self.service}/v1/{schema}", one_segment, tester_scopes)
            self.append(Endpoint(self.service, method, route, handler, *about))
            return handler

        return declare


_HEARTBEATS: dict[Handler, str] = {
    ping: "/ping",
    lbheartbeat: "/__lbheartbeat__",
    version: "/__version__",
    heartbeat: "/__heartbeat__",
}

queue = Endpoints("queue")
objects = Endpoints("object")
auth = Endpoints("auth")


def each(variable: str, names: str, *scopes: str) -> ScopeExpression:
    """Return an expression that requires all `scopes`, with `<variable>` filled in, for each of `names`."""
    return {"AllOf": [{"for": variable, "in": names, "each": scope} for scope in scopes]}
