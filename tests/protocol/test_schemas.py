"""A definition is accepted if, and only if, the Queue's schema accepts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskqueue_client._arguments import as_message_pack
from taskqueue_client._protocol import schemas
from taskqueue_client._protocol.schemas import check_definition
from taskqueue_client.definitions import TaskDefinition, task_definition
from taskqueue_client.errors import InvalidDefinition
from taskqueue_client.models import Priority
from tests.protocol.calls_contract import SLUGID, needs_contract, validator

MOMENT = "2026-11-21T10:00:00Z"
GOOD: dict[str, Any] = {
    "taskQueueId": "p/w",
    "created": MOMENT,
    "deadline": MOMENT,
    "payload": {},
    "metadata": {"name": "n", "description": "", "owner": "o", "source": "https://example.com"},
}

ACCEPTED_DATES = [
    MOMENT,
    "2026-11-21T10:00:00.000Z",
    "2026-11-21t10:00:00z",
    "2026-11-21 10:00:00.000000000Z",
    "2026-11-21T10:00:00+00:00",
    "2026-11-21T10:00:00+0000",
    "2026-11-21T10:00:00",
    "2028-02-29T10:00:00",
]
"""Forms of a date-time that the real Queue accepts, or that are like accepted ones."""

RARE_DATES = ["2026-11-21T10:00:00+00", "0000-02-29T10:00:00", "2026-11-21T23:59:60"]
"""More such forms, which only the check with jsonschema accepts, not the quick one."""

REFUSED_DATES = [
    "2026-02-29T10:00:00Z",
    "2026-11-31T10:00:00Z",
    "2026-13-01T10:00:00Z",
    "2026-11-21T24:00:00Z",
    "2026-11-21T10:00:60Z",
    "2026-11-21T10:00Z",
    "2026-11-21T10:00:00.Z",
    "2026-11-21",
    MOMENT + "\n",
    "٢٠٢٦-11-21T10:00:00Z",
    "now",
    "",
]


def is_accepted(definition: object) -> bool:
    try:
        check_definition(cast("TaskDefinition", definition), math.nan)
    except InvalidDefinition:
        return False
    return True


def _text(max_size: int | None = None) -> st.SearchStrategy[str]:
    """Any text without NUL, which another rule than the schema refuses."""
    return st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=max_size)


def _texts(pattern: str) -> st.SearchStrategy[object]:
    """Texts that match a pattern, nearly match it, or do not match it at all, and other values."""
    on = st.from_regex(pattern, fullmatch=True)
    nearly = st.builds(str.__add__, on, st.sampled_from(["\n", " ", "-", "/", "é", "*"]))
    return on | nearly | _text(5) | st.integers() | st.none()


def _lists(items: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    several = st.lists(items, max_size=3)
    repeated = several.map(lambda each: [*each, *each])
    many = st.sampled_from([64, 65]).map(lambda count: [str(number) for number in range(count)])
    return several | repeated | many | st.sampled_from([None, "text", 3])


def _not_a_double_star(scope: str) -> bool:
    return not scope.endswith("**")


SLUGIDS = _texts(r"[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]")
IDENTIFIERS = _texts(r"[a-zA-Z0-9-_]{1,38}")
LENGTHS = st.sampled_from([0, 1, 249, 250, 255, 256, 4096, 4097, 32768, 32769])
LONG = LENGTHS.map(lambda length: "ä" * length) | _text(5) | st.integers()
SOURCES = st.sampled_from(["https://", "http://", "ssh://", "git@", "ftp://", "x https://", ""])
SCALARS = st.none() | st.booleans() | st.floats(allow_nan=False) | _text()
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(_text(), SCALARS, max_size=2)
DATES = st.sampled_from(ACCEPTED_DATES + RARE_DATES + REFUSED_DATES) | st.none()

FIELDS: dict[str, st.SearchStrategy[object]] = {
    "provisionerId": IDENTIFIERS,
    "workerType": _texts(r"[a-z]([-a-z0-9]{0,36}[a-z0-9])?"),
    "taskQueueId": _texts(r"[a-zA-Z0-9-_]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?"),
    "schedulerId": IDENTIFIERS,
    "projectId": _texts(r"[a-zA-Z0-9._/-]{1,500}"),
    "taskGroupId": SLUGIDS,
    "dependencies": st.lists(SLUGIDS, max_size=3) | st.just([SLUGID, SLUGID]),
    "requires": st.sampled_from(["all-completed", "all-resolved", "all", 1]),
    "routes": _lists(LONG),
    "priority": st.sampled_from([*Priority, "normal", "High", None]),
    "retries": st.integers(-1, 50) | st.sampled_from([5.0, 5.5, True, "5", None]),
    "created": DATES,
    "deadline": DATES,
    "expires": DATES,
    "scopes": _lists(st.text(st.characters(codec="ascii")).filter(_not_a_double_star)),
    "payload": VALUES,
    "extra": VALUES,
    "tags": st.dictionaries(_text(3), LONG, max_size=2) | VALUES,
    "metadata": st.fixed_dictionaries(
        {"name": LONG, "description": LONG, "owner": LONG},
        optional={"source": st.builds(str.__add__, SOURCES, _text(3)) | LONG, "url": LONG},
    ),
    "unheardOf": VALUES,
}


@st.composite
def changed_definitions(draw: st.DrawFn, base: Mapping[str, Any] = GOOD) -> dict[str, Any]:
    """A valid definition of which one key has another value, is missing, or was added."""
    key = draw(st.sampled_from([*FIELDS]))
    definition = dict(base)
    if key in {"provisionerId", "workerType"}:
        del definition["taskQueueId"]
        definition |= {"provisionerId": "p", "workerType": "w"}
    elif key != "taskQueueId" and draw(st.booleans()):
        return {name: value for name, value in definition.items() if name != key}
    return {**definition, key: draw(FIELDS[key])}


def _is_accepted_date(given: object) -> bool:
    return not isinstance(given, str) or given in ACCEPTED_DATES + RARE_DATES


REAL: dict[str, Any] = {
    **GOOD,
    "taskGroupId": SLUGID,
    "dependencies": [f"{number}{SLUGID[1:]}" for number in range(4)],
    "requires": "all-resolved",
    "routes": ["index.project.linux.latest", "tc-treeherder.v2.project.4f2a"],
    "priority": "very-low",
    "retries": 3,
    "expires": MOMENT,
    "scopes": [f"project:cache:{number}*" for number in range(8)],
    "tags": {"kind": "test", "os": "linux"},
    "extra": {"treeherder": {"tier": 1, "symbol": None, "odd": r"\u0000"}},
}
ITEMS: dict[str, list[object]] = {
    "dependencies": [
        SLUGID,
        f"0{SLUGID[1:]}",
        SLUGID[:-1],
        f"{SLUGID}\n",
        f"{SLUGID}\n{SLUGID}",
        "",
        1,
        None,
    ],
    "routes": ["index.project.linux.latest", "", "a" * 249, "a" * 250, "ä" * 249, "\n", [], None],
    "scopes": ["", "*", " ", "~", "\x7f", "\n", "ä", "\ud7ff", 5, None],
}


@st.composite
def definitions_with_other_items(draw: st.DrawFn) -> dict[str, Any]:
    """A real definition in whose lists some items were added, changed or removed."""
    definition = dict(REAL)
    for key, odd in ITEMS.items():
        items = st.sampled_from([*definition[key], *odd])
        definition[key] = draw(st.just(definition[key]) | st.lists(items, max_size=5))
    return definition


def _judges_alike(definition: dict[str, Any]) -> bool:
    """Whether the contract's schema, `check_definition` and its quick check agree about a definition."""
    formats = jsonschema.FormatChecker(formats=())
    formats.checks("date-time")(_is_accepted_date)
    schema = validator("create-task-request.json", format_checker=formats)
    is_quickly_accepted = schemas._is_valid(definition, as_message_pack(definition), math.nan)  # pyright: ignore[reportPrivateUsage] # what is tested
    is_valid = bool(schema.is_valid(definition))
    is_rare = not {definition.get(key) for key in ("created", "deadline", "expires")}.isdisjoint(RARE_DATES)
    return is_valid == is_accepted(definition) and is_quickly_accepted == (is_valid and not is_rare)


@needs_contract
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changed_definitions() | changed_definitions(REAL) | definitions_with_other_items())
def test_a_definition_is_refused_if_and_only_if_it_is_off_the_queues_schema(
    definition: dict[str, Any],
) -> None:
    assert _judges_alike(definition)


@needs_contract
@pytest.mark.parametrize("retries", [0, 49, 50, -1, 3.0, -0.0, 49.0, 1e1, 3.5, 1e300, 2**64, True, None])
def test_a_whole_number_is_one_however_it_is_written(retries: object) -> None:
    assert _judges_alike({**REAL, "retries": retries})


@pytest.mark.parametrize("key", ["payload", "extra"])
@pytest.mark.parametrize(
    "value", [{"n": None, "text": r"\u0000", "big": 2**70}, {}, {"a": [{"b": None}] * 50}]
)
def test_no_valid_definition_needs_jsonschema(
    key: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(schemas, "_validator", lambda: asked.append("jsonschema"))
    check_definition(cast("TaskDefinition", {**REAL, key: value}), math.nan)
    assert asked == []


@pytest.mark.parametrize("date", ACCEPTED_DATES + RARE_DATES)
def test_each_way_to_write_a_date_time_that_the_queue_takes_is_taken(date: str) -> None:
    assert is_accepted({**GOOD, "created": date})


@pytest.mark.parametrize("date", REFUSED_DATES)
def test_a_text_that_the_queue_does_not_take_as_a_date_time_is_refused(date: str) -> None:
    assert not is_accepted({**GOOD, "created": date})


def test_python_values_that_become_valid_json_are_accepted() -> None:
    moment = datetime(2026, 11, 21, 10, tzinfo=UTC)  # as YAML has it
    given = {**GOOD, "created": moment, "deadline": moment, "priority": Priority.HIGH, "routes": ("a", "b")}
    assert is_accepted(given)


@pytest.mark.parametrize("payload", [{1, 2}, object(), {"a": "\ud800"}, {"a": [object()]}])
def test_values_that_json_cannot_hold_are_refused(payload: object) -> None:
    assert not is_accepted({**GOOD, "payload": payload})


@pytest.mark.parametrize("definition", [None, [], "text", 0])
def test_a_definition_that_is_not_an_object_is_refused(definition: object) -> None:
    assert not is_accepted(definition)


def test_ten_thousand_dependencies_are_taken_and_one_more_is_not() -> None:
    dependencies = [f"{number:08}{SLUGID[8:]}" for number in range(10_001)]
    assert is_accepted({**GOOD, "dependencies": dependencies[:10_000]})
    assert not is_accepted({**GOOD, "dependencies": dependencies})


def test_the_definitions_of_task_definition_are_accepted() -> None:
    made = task_definition("p/w", {}, name="n", owner="o", source="git@example.com:repository")
    assert is_accepted(made)
