"""Signatures and docstrings of a client's methods at run time, for help(), frameworks and documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, get_args, get_type_hints

import pytest

from taskqueue_client import AsyncQueue, Queue, calls, events, graph
from taskqueue_client._protocol.conversation import (
    Conversation,
    Item,
    Work,
    performed,
    performed_async,
    streamed,
    streamed_async,
)
from taskqueue_client.artifacts import download_methods, records
from taskqueue_client.models import (
    Artifact,
    CreateArtifactResponse,
    Provisioner,
    TaskAndStatus,
    TaskStatusResponse,
    WorkerType,
)

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
    arguments = [name for name in inspect.signature(DESCRIBED[name]).parameters if name != "client"]
    assert [*signature.parameters] == ["self", *arguments]
    response = get_args(get_type_hints(DESCRIBED[name])["return"])[-1]
    walked: Any = Iterator if kind is Queue else AsyncIterator
    assert hints["return"] == (walked[response] if name.startswith("iter_") else response)


@pytest.mark.parametrize("name", [each for each in dir(Queue) if not each.startswith("_")])
@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_help_describes_no_argument_that_a_method_does_not_have(
    kind: type[Queue | AsyncQueue], name: str
) -> None:
    _, _, about = (inspect.getdoc(getattr(kind, name)) or "").partition("\nArgs:\n")
    named = re.findall(r"^    (\w+): ", about.partition("\n\n")[0], re.MULTILINE)
    assert not named or set(named) <= inspect.signature(getattr(kind, name)).parameters.keys()


@pytest.mark.parametrize(
    "name", [each for each in DESCRIBED if "limit" in inspect.signature(DESCRIBED[each]).parameters]
)
def test_help_says_what_the_limit_of_a_list_means(name: str) -> None:
    assert re.search("`limit`|    limit: ", inspect.getdoc(getattr(Queue, name)) or "")


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_the_type_hint_of_a_response_is_the_type_that_a_caller_gets(kind: type[Queue | AsyncQueue]) -> None:
    """Checks a call, a conversation, a conversation that is imported late, and an empty response."""
    returned = {name: get_type_hints(getattr(kind, name))["return"] for name in DESCRIBED}
    assert returned["status"] is TaskStatusResponse
    assert returned["create_task"] is TaskStatusResponse
    assert returned["create_link_artifact"] is CreateArtifactResponse
    assert returned["task"] == dict[str, Any]
    assert returned["finish_artifact"] is type(None)
    iterator: Any = Iterator if kind is Queue else AsyncIterator
    assert returned["iter_artifacts"] == iterator[Artifact]
    assert returned["iter_dependent_tasks"] == iterator[TaskAndStatus]
    assert returned["iter_provisioners"] == iterator[Provisioner]
    assert returned["iter_worker_types"] == iterator[WorkerType]


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_stream_yields_bytes_and_has_the_parameters_of_its_description(
    kind: type[Queue | AsyncQueue],
) -> None:
    signature = inspect.signature(kind.stream_artifact)
    assert signature.return_annotation == (Generator if kind is Queue else AsyncGenerator)[bytes]
    own, *others = signature.parameters.values()
    assert (own.name, own.kind) == ("self", inspect.Parameter.POSITIONAL_ONLY)
    described = inspect.signature(download_methods.stream_artifact, eval_str=True)
    assert others == [*described.parameters.values()][1:]


def described(client: object, /, name: str, *, limit: int = 3) -> Conversation[int]:
    """Describe."""
    del client, name, limit
    return (yield from Work(int))


def described_stream(client: object, /, name: str) -> Conversation[None]:
    """Describe a stream."""
    del client
    yield from Item(name.encode())


@pytest.mark.parametrize("make", [performed, performed_async])
def test_a_method_has_the_documentation_the_parameters_and_the_result_of_its_description(
    make: Callable[[Any], Any],
) -> None:
    method = make(described)
    assert method.__doc__ == "Describe."
    assert str(inspect.signature(method)) == "(self, /, name: str, *, limit: int = 3) -> int"
    assert get_type_hints(method) == {"name": str, "limit": int, "return": int}


@pytest.mark.parametrize(("make", "kind"), [(streamed, Generator), (streamed_async, AsyncGenerator)])
def test_a_method_that_gives_a_stream_gives_bytes(make: Callable[[Any], Any], kind: Any) -> None:
    method = make(described_stream)
    assert inspect.signature(method).return_annotation == kind[bytes]
    assert [*inspect.signature(method).parameters] == ["self", "name"]
    assert get_type_hints(method) == {"name": str, "return": kind[bytes]}


@pytest.mark.parametrize(
    ("plain", "asynchronous"),
    [
        (getattr(module, name.removesuffix("_async")), getattr(module, name))
        for module in (events, graph)
        for name in module.__all__
        if name.endswith("_async")
    ],
)
def test_functions_for_both_clients_have_the_same_parameters(
    plain: Callable[..., Any], asynchronous: Callable[..., Any]
) -> None:
    first, second = (
        [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]
        for function in (plain, asynchronous)
    )
    assert first == second
    assert first[0][0] == "queue"
