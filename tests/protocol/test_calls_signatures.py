"""What help(), frameworks and documentation learn of a client's methods at run time."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest

from taskqueue_client import AsyncQueue, Queue, calls
from taskqueue_client.artifacts import records
from taskqueue_client.models import Artifact, CreateArtifactResponse, TaskStatusResponse

DESCRIBED: dict[str, Callable[..., Any]] = {
    name: function
    for module in (calls, records)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if hasattr(Queue, name)
}


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_hints_and_signature_of_a_method_agree(kind: type[Queue | AsyncQueue], name: str) -> None:
    method = getattr(kind, name)
    signature = inspect.signature(method, eval_str=True)
    hints = get_type_hints(method)
    assert hints == {
        **{each.name: each.annotation for each in signature.parameters.values() if each.name != "self"},
        "return": signature.return_annotation,
    }
    arguments = inspect.signature(DESCRIBED[name]).parameters
    assert [*signature.parameters] == ["self", *arguments]
    answer = get_args(get_type_hints(DESCRIBED[name])["return"])[-1]
    walked: Any = Iterator if kind is Queue else AsyncIterator
    assert hints["return"] == (walked[answer] if name.startswith("iter_") else answer)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_the_hint_of_an_answer_is_what_the_caller_gets(kind: type[Queue | AsyncQueue]) -> None:
    """Of a single call, of a conversation, of one that is imported late, and of an empty answer."""
    returned = {name: get_type_hints(getattr(kind, name))["return"] for name in DESCRIBED}
    assert returned["status"] is TaskStatusResponse
    assert returned["create_task"] is TaskStatusResponse
    assert returned["create_link_artifact"] is CreateArtifactResponse
    assert returned["task"] == dict[str, Any]
    assert returned["finish_artifact"] is type(None)
    assert returned["iter_artifacts"] == (Iterator if kind is Queue else AsyncIterator)[Artifact]
