"""Performs the steps of a transfer on the caller's thread."""

from __future__ import annotations

from contextlib import closing
from typing import Any, TypeVar

from taskqueue_client._call import Call
from taskqueue_client.errors import InvalidArgument

from .cancellation import Cancellation
from .steps import Authorized, Client, Pause, Sending, Step, Steps, Work

R = TypeVar("R")


def perform(client: Client, steps: Steps[R], cancellation: Cancellation | None = None) -> R:
    """The result of a transfer.

    Args:
        client: What calls are made with.
        steps: The transfer.
        cancellation: Lets another thread end it.
    """
    cancellation = cancellation or Cancellation()
    with closing(steps):
        try:
            step = next(steps)
            while True:
                try:
                    result = _result(client, step, cancellation)
                except BaseException as error:  # noqa: BLE001 - the transfer decides what to do about it
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return] # StopIteration is not generic


def _result(client: Client, step: Step, cancellation: Cancellation) -> Any:
    match step:
        case Call():
            return client.send(step)
        case Authorized():
            return client.with_credentials(step.credentials).send(step.call)
        case Work():
            return step.do(client.storage, cancellation)
        case Sending():
            return client.storage.put(step.put, cancellation)
        case Pause():
            return client.transfer_settings.clock.sleep(step.seconds)
        case _:
            allowed = "a path, bytes, a file or an iterable; asynchronous iterables are for AsyncQueue"
            raise InvalidArgument("source", step.blocks, allowed)
