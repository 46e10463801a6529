"""Responses that are nested deeper than Python can read: claims are read as deep as possible."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from taskqueue_client.errors import UnreadableResponse
from taskqueue_client.models import TaskClaim
from taskqueue_client.models._base import CUT_OFF, DEEPEST, cut
from tests.client.scripted import Say, ScriptedServer
from tests.words.test_models import CLAIM

TASK = "fN1SbArXTPSVFNUvaOlinQ"
TOO_DEEP = 50_000
"""Levels of nesting that no Python reads; only Python before 3.12 does not read 1,000."""


def nested(levels: int) -> bytes:
    """Return lists and objects nested in turn, with brackets in strings."""
    opening, closing = b'{"]\\"}[":"[{\\"", "\xc3\xa9":[', b"]}"
    return opening * (levels // 2) + b"null" + closing * (levels // 2)


def claim_with(payload: bytes) -> bytes:
    document = {**CLAIM, "task": {"payload": "HERE", "extra": {"after": [1]}}}
    return msgspec.json.encode(document).replace(b'"HERE"', payload)


def levels_of(value: Any) -> tuple[int, Any]:
    """Return how deep a value is nested along its last members, and the innermost value."""
    levels = 0
    while value is not None and not isinstance(value, str):
        value = [*value.values()][-1] if hasattr(value, "values") else value[-1]
        levels += 1
    return levels, value


@pytest.mark.parametrize("levels", [1000, TOO_DEEP])
def test_one_deep_payload_does_no_harm_to_the_other_claims(
    client: Any, server: ScriptedServer, levels: int
) -> None:
    plain = claim_with(b'{"a":1}')
    server.otherwise = Say(200, b'{"tasks":[' + b",".join([plain, claim_with(nested(levels)), plain]) + b"]}")
    first, deep, last = client.claim_work("p/w", worker_group="g", worker_id="w", tasks=3).tasks
    assert first == last
    assert first.task == {"payload": {"a": 1}, "extra": {"after": [1]}}
    assert deep.credentials == first.credentials
    assert deep.task["extra"] == {"after": [1]}
    found, bottom = levels_of(deep.task["payload"])
    assert (found, bottom) == (levels, None) or (DEEPEST - 10 < found < DEEPEST and bottom == CUT_OFF)


def test_a_deep_payload_of_a_task_claimed_by_its_id_is_read_too(client: Any, server: ScriptedServer) -> None:
    server.otherwise = Say(200, claim_with(nested(TOO_DEEP)))
    claim = client.claim_task(TASK, 0, worker_group="g", worker_id="w")
    assert levels_of(claim.task["payload"])[1] == CUT_OFF


def test_a_claim_that_was_read_when_more_levels_were_possible_is_read_later() -> None:
    """Since Python 3.14, the number of levels depends on the stack that is left."""
    claim = msgspec.json.decode(claim_with(b"1"), type=TaskClaim)
    later = msgspec.structs.replace(claim, task_json=msgspec.Raw(nested(TOO_DEEP)))
    for task in (later.task, later.to_dict()["task"]):
        assert levels_of(task)[1] == CUT_OFF


@pytest.mark.parametrize(
    ("method", "arguments", "response"),
    [
        ("task", [TASK], b'{"payload":%s}'),
        ("tasks", [[TASK]], b'{"tasks":[{"taskId":"x","task":{"payload":%s}}]}'),
    ],
    ids=["task", "tasks"],
)
def test_a_definition_is_never_handed_out_in_part(
    client: Any, server: ScriptedServer, method: str, arguments: list[Any], response: bytes
) -> None:
    server.otherwise = Say(200, response % nested(TOO_DEEP))
    with pytest.raises(UnreadableResponse, match="nested deeper than this Python can read"):
        getattr(client, method)(*arguments)


@pytest.mark.parametrize("cut_short", [b'{"tasks":[%s', b'{"tasks":[{"task":"\\%s'], ids=["value", "text"])
def test_a_claim_that_is_cut_short_is_unreadable(
    client: Any, server: ScriptedServer, cut_short: bytes
) -> None:
    server.otherwise = Say(200, cut_short % nested(TOO_DEEP)[:-1])
    with pytest.raises(UnreadableResponse):
        client.claim_work("p/w", worker_group="g", worker_id="w")


@pytest.mark.parametrize(("levels", "kept"), [(DEEPEST, True), (DEEPEST + 2, False)])
def test_only_a_value_that_is_too_deep_is_changed(levels: int, kept: bool) -> None:  # noqa: FBT001 - of the test
    document = nested(levels)
    assert (cut(document) == document) == kept
