"""A web service that reads tasks: its requests share one client with temporary credentials.

    python -m examples.web_service

`GET /tasks/TASK_ID` responds with the status of a task.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta

from aiohttp import web

from taskqueue_client import AsyncQueue, Credentials, temporary_credentials
from taskqueue_client.errors import CallFailed, InvalidArgument, ResourceNotFound

QUEUE = web.AppKey("queue", AsyncQueue)


def reader(issuer: Credentials, lifetime: timedelta) -> Credentials:
    """Return credentials that can only read."""
    return temporary_credentials(issuer, ["queue:status:*"], lifetime=lifetime)


async def replace_credentials(queue: AsyncQueue, issuer: Credentials, lifetime: timedelta) -> None:
    """Replace the credentials of the client twice in their lifetime; calls under way are not disturbed."""
    while True:
        queue.credentials = reader(issuer, lifetime)
        await asyncio.sleep(lifetime.total_seconds() / 2)


async def status(request: web.Request) -> web.Response:
    """Respond with the status of a task."""
    try:
        found = await request.app[QUEUE].status(request.match_info["task_id"])
    except InvalidArgument as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    except ResourceNotFound as error:
        raise web.HTTPNotFound(text=error.message) from error
    except CallFailed as error:
        raise web.HTTPBadGateway(text=str(error)) from error
    return web.json_response(found.status.to_dict())


def service(issuer: Credentials, lifetime: timedelta = timedelta(hours=1)) -> web.Application:
    """Return the service, whose client has credentials that `issuer` issues."""

    async def connect(app: web.Application) -> AsyncIterator[None]:
        async with AsyncQueue.from_env() as app[QUEUE]:
            replacement = asyncio.create_task(replace_credentials(app[QUEUE], issuer, lifetime))
            yield
            replacement.cancel()

    app = web.Application()
    app.cleanup_ctx.append(connect)
    app.router.add_get("/tasks/{task_id}", status)
    return app


if __name__ == "__main__":
    issuer = Credentials(os.environ["TASKCLUSTER_CLIENT_ID"], os.environ["TASKCLUSTER_ACCESS_TOKEN"])
    web.run_app(service(issuer), host="127.0.0.1", port=8080)
