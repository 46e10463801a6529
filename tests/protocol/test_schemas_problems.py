"""All problems of a definition are reported at once, with their paths and what is allowed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from taskqueue_client._protocol.schemas import check_definition
from taskqueue_client.definitions import TaskDefinition
from taskqueue_client.errors import InvalidArgument, InvalidDefinition, Problem

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "taskQueueId": "p/w",
    "created": "2026-11-21T10:00:00.000Z",
    "deadline": "2026-11-21T12:00:00.000Z",
    "payload": {},
    "metadata": {"name": "n", "description": "", "owner": "o", "source": "https://example.com"},
}


def problems_of(definition: dict[str, Any], now: float = NOW.timestamp()) -> list[Problem]:
    try:
        check_definition(cast("TaskDefinition", definition), now)
    except InvalidDefinition as invalid:
        return list(invalid.problems)
    return []


def paths_of(definition: dict[str, Any], now: float = NOW.timestamp()) -> list[str]:
    return [problem.path for problem in problems_of(definition, now)]


def from_now(**distance: float) -> str:
    return (NOW + timedelta(**distance)).isoformat()


def test_every_problem_is_listed_with_its_json_path() -> None:
    faulty = {
        **GOOD,
        "payload": [],
        "metadata": {"name": 1, "description": "", "owner": "x" * 256, "two words": ""},
        "routes": ["a", "a", ""],
        "tags": {"it's": 5},
        "scopes": ["good", "bad\n", "all**"],
        "retries": 50,
        "unheardOf": None,
    }
    assert sorted(paths_of(faulty)) == [
        "$.metadata.name",
        "$.metadata.owner",
        "$.metadata.source",
        "$.metadata['two words']",
        "$.payload",
        "$.retries",
        "$.routes",
        "$.routes[2]",
        "$.scopes[1]",
        "$.scopes[2]",
        '$.tags["it\'s"]',
        "$.unheardOf",
    ]


@pytest.mark.parametrize("key", ["created", "deadline", "expires"])
def test_a_datetime_without_a_time_zone_is_refused_as_it_may_be_local(key: str) -> None:
    local = NOW.replace(tzinfo=None)
    assert problems_of({**GOOD, key: local}) == [Problem(f"$.{key}", local, "a datetime with a time zone")]
    assert problems_of({**GOOD, "deadline": NOW}) == []


@pytest.mark.parametrize("odd", ["\0", "a\0b", "\ud800", "b\udfff"])
def test_a_text_that_the_queue_cannot_keep_is_found_wherever_it_stands(odd: str) -> None:
    faulty = {
        **GOOD,
        "payload": {"deep": [{"down": ("fine", odd)}], odd: 1},
        "tags": {"a": odd},
        "metadata": {**GOOD["metadata"], "name": odd},
    }
    paths = ["$.payload.deep[0].down[1]", f"$.payload[{odd!r}]", "$.metadata.name", "$.tags.a"]
    assert paths_of(faulty) == paths
    assert {problem.given for problem in problems_of(faulty)} == {odd}


def test_a_nul_is_one_problem_of_many() -> None:
    assert paths_of({**GOOD, "retries": 50, "extra": {"nul": "\0"}}) == ["$.retries", "$.extra.nul"]


def test_a_backslash_before_u0000_is_not_a_nul() -> None:
    assert paths_of({**GOOD, "payload": {"text": r"\u0000"}}) == []


def test_an_odd_text_is_found_however_deep() -> None:
    payload: dict[str, Any] = {"at last": "\0"}
    for _ in range(400):
        payload = {"in": payload}
    (path,) = paths_of({**GOOD, "payload": payload})
    assert path == f"$.payload{400 * '.in'}['at last']"


def test_a_surrogate_beside_what_json_cannot_hold_is_still_one_error() -> None:
    payload = {"a": "\ud800", "b": object()}
    assert paths_of({**GOOD, "payload": payload}) == ["$.payload.a", "$.payload.b"]


def test_a_value_that_json_does_not_have_is_reported_at_its_path() -> None:
    folder, unknown = Path("/builds"), object()
    payload = {"env": [{"HOME": folder}, 1], "keys": {folder: {"in": unknown}}}
    allowed = "a value that JSON can represent"
    assert problems_of({**GOOD, "payload": payload}) == [
        Problem("$.payload.env[0].HOME", folder, allowed),
        Problem("$.payload.keys['/builds']", folder, allowed),
        Problem("$.payload.keys['/builds'].in", unknown, allowed),
    ]


class Scalar(str):
    """A subclass of str, as libraries for YAML, TOML and templates have."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"a scalar of {len(self)} characters"


class Whole(int):
    pass


class Double(float):
    """A subclass of float, as numpy has."""


def test_texts_and_numbers_of_subclasses_are_sent_as_what_they_are() -> None:
    payload = {Scalar("command"): [Scalar("make\n")], "level": Whole(3), "ratio": Double(0.1)}
    sent = json.loads(check_definition(cast("TaskDefinition", {**GOOD, "payload": payload}), NOW.timestamp()))
    assert sent["payload"] == {"command": ["make\n"], "level": 3, "ratio": 0.1}


def test_problems_with_texts_and_numbers_of_subclasses_are_found() -> None:
    payload = {"a": [Scalar("\0")], "b": Double("nan"), "c": Scalar("\ud800")}
    assert paths_of({**GOOD, "payload": payload}) == ["$.payload.a[0]", "$.payload.c"]
    assert paths_of({**GOOD, "payload": {"b": Double("nan")}}) == ["$.payload.b"]
    unknown = object()
    assert problems_of({**GOOD, "payload": {"a": Scalar("x"), "b": unknown}}) == [
        Problem("$.payload.b", unknown, "a value that JSON can represent")
    ]


def test_some_values_that_json_does_not_have_are_sent_as_text_or_lists() -> None:
    payload = {
        "bytes": b"ab",
        "date": datetime(2026, 11, 21, 10, tzinfo=UTC),
        "duration": timedelta(minutes=90),
        "decimal": Decimal("1.50"),
        "uuid": UUID(int=1),
        "tuple": (1, 2),
        "set": {1},
    }
    sent = json.loads(check_definition(cast("TaskDefinition", {**GOOD, "payload": payload}), math.nan))
    assert sent["payload"] == {
        "bytes": "YWI=",
        "date": "2026-11-21T10:00:00Z",
        "duration": "PT5400S",
        "decimal": "1.50",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "tuple": [1, 2],
        "set": [1],
    }


class Platform(Enum):
    LINUX = "linux"
    WINDOWS = "windows"


def test_sets_are_sent_in_the_same_order_by_each_process() -> None:
    """A decision task that runs again creates its tasks again, in a process with other hashes of strings."""
    names = [f"test-{number:02}" for number in range(20)]
    payload = {
        "tests": set(names),
        "mixed": [{*names, 1, Platform.WINDOWS, Platform.LINUX, frozenset({"a", 2})}],
        "by number": {7: 1},
    }
    for given in (payload, {"tests": payload["tests"]}):
        definition = cast("TaskDefinition", {**GOOD, "payload": given, "scopes": frozenset(names)})
        sent = json.loads(check_definition(definition, math.nan))
        assert (sent["scopes"], sent["payload"]["tests"]) == (names, names)
        assert sent["payload"].get("mixed") in (None, [["linux", *names, "windows", 1, ["a", 2]]])


@dataclass(eq=False)
class Build:
    platforms: frozenset[Platform]
    shards: dict[int, Any]
    name: str | msgspec.UnsetType = msgspec.UNSET


def test_sets_and_keys_in_dataclasses_are_sent_like_those_elsewhere() -> None:
    build = Build(frozenset(Platform), {1: {"a", 2}})
    payload: dict[str, Any] = {"build": build, "builds": [{build}]}
    sent = json.loads(check_definition(cast("TaskDefinition", {**GOOD, "payload": payload}), math.nan))
    expected = {"platforms": ["linux", "windows"], "shards": {"1": ["a", 2]}}
    assert sent["payload"] == {"build": expected, "builds": [[expected]]}


def test_keys_that_yaml_reads_as_booleans_or_null_are_sent_as_json_writes_them() -> None:
    payload = {True: "push", "jobs": [{None: {False: 1}}]}
    sent = json.loads(check_definition(cast("TaskDefinition", {**GOOD, "payload": payload}), math.nan))
    assert sent["payload"] == {"true": "push", "jobs": [{"null": {"false": 1}}]}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"a": [{(1, 2): "x"}]}, "the key (1, 2) has no form in JSON"),
        ({"a": {1: "x", "1": "y"}}, "the keys 1 and '1' are the same in JSON"),
        ({True: "x", "jobs": {"null": 1, None: 2}}, "the keys 'null' and None are the same in JSON"),
    ],
)
def test_keys_that_json_cannot_tell_apart_or_represent_are_named(payload: Any, reason: str) -> None:
    [problem] = problems_of({**GOOD, "payload": payload})
    assert problem.allowed == f"values that JSON can represent ({reason})"


def test_a_value_that_json_does_not_have_in_a_document_that_contains_itself_is_an_error() -> None:
    payload: dict[str, Any] = {"a": Path("/builds")}
    payload["b"] = payload
    assert paths_of({**GOOD, "payload": payload}) == ["$"]


def test_the_error_says_what_was_given_and_what_is_allowed() -> None:
    (problem,) = problems_of({**GOOD, "retries": 50})
    assert problem == Problem("$.retries", 50, "a whole number, 0 to 49")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (None, "null"),
        ([True, "Bär's"], '[true, "Bär\'s"]'),
        ("\x1b[31m\x9b", r'"\u001b[31m\u009b"'),
        ({1, 2}, "{1, 2}"),
    ],
)
def test_a_problem_shows_a_value_as_documents_have_it(given: object, written: str) -> None:
    assert str(Problem("$.a", given, "a number")) == f"$.a: {written} is not valid; expected a number"


def test_the_error_reads_well_and_is_one_about_an_argument() -> None:
    with pytest.raises(InvalidArgument) as invalid:
        check_definition(cast("TaskDefinition", {**GOOD, "payload": None, "retries": -1}), math.nan)
    assert str(invalid.value).splitlines() == [
        "the definition has 2 problems:",
        "  $.retries: -1 is not valid; expected a whole number, 0 to 49",
        "  $.payload: null is not valid; expected an object",
    ]


def test_a_missing_key_is_named() -> None:
    empty = problems_of({})
    assert [problem.path for problem in empty] == [
        "$.created",
        "$.deadline",
        "$.payload",
        "$.metadata",
        "$.taskQueueId",
    ]
    assert all(": missing; expected" in str(problem) for problem in empty)


def test_an_unknown_key_is_named_beside_those_that_are_known() -> None:
    (problem,) = problems_of({**GOOD, "metadata": {**GOOD["metadata"], "url": ""}})
    known = "name, description, owner, source"
    assert str(problem) == f"$.metadata.url: unknown key; known keys: {known}"


def _named(**names: str) -> dict[str, Any]:
    return {**{key: value for key, value in GOOD.items() if key != "taskQueueId"}, **names}


@pytest.mark.parametrize(
    "names",
    [
        {"taskQueueId": "p/w"},
        {"provisionerId": "p", "workerType": "w"},
        {"taskQueueId": "p/w", "provisionerId": "p", "workerType": "w"},
        {"taskQueueId": "p/w", "provisionerId": "overwritten"},
        {"taskQueueId": "p/w", "workerType": "overwritten"},
    ],
)
def test_a_task_queue_may_be_named_in_each_way_that_the_queue_takes(names: dict[str, str]) -> None:
    assert paths_of(_named(**names)) == []


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"provisionerId": "p"},
        {"workerType": "w"},
        {"taskQueueId": "p/w", "provisionerId": "p", "workerType": "v"},
    ],
)
def test_a_task_queue_that_is_not_named_or_twice_is_refused(names: dict[str, str]) -> None:
    assert paths_of(_named(**names)) == ["$.taskQueueId"]


@pytest.mark.parametrize(
    "dates",
    [
        {"created": from_now(), "deadline": from_now()},
        {"created": from_now(minutes=-15), "deadline": from_now(days=5)},
        {"created": from_now(minutes=15), "deadline": from_now(days=5, minutes=15)},
        {
            "deadline": from_now(days=30),
            "expires": from_now(days=30),
        },  # how far away it may be is a setting of the deployment
        {"deadline": from_now(hours=1), "expires": from_now(hours=1)},
        {"deadline": "2026-11-21T12:00:00.1239999Z", "expires": "2026-11-21T12:00:00.123Z"},
        {"created": "2026-11-21T10:00:00.1234Z", "deadline": "2026-11-21T10:00:00.1230Z"},
        {"expires": from_now(days=365 * 1000)},
    ],
)
def test_dates_at_the_edge_of_what_is_allowed_are_taken(dates: dict[str, str]) -> None:
    assert paths_of({**GOOD, **dates}) == []


@pytest.mark.parametrize(
    ("path", "dates"),
    [
        ("$.created", {"created": from_now(minutes=-17)}),
        ("$.created", {"created": from_now(minutes=17)}),
        ("$.deadline", {"created": from_now(seconds=1), "deadline": from_now()}),
        ("$.deadline", {"created": from_now(minutes=-10), "deadline": from_now(minutes=-2)}),
        ("$.expires", {"deadline": from_now(hours=1), "expires": from_now(minutes=59)}),
    ],
)
def test_dates_beyond_what_is_allowed_are_refused(path: str, dates: dict[str, str]) -> None:
    assert paths_of({**GOOD, **dates}) == [path]


@pytest.mark.parametrize("seconds", [-900 - 30, 900 + 30])
def test_a_date_that_is_valid_within_a_minute_is_sent_to_the_queue(seconds: int) -> None:
    assert paths_of({**GOOD, "created": from_now(seconds=seconds)}) == []


@pytest.mark.parametrize("key", ["dependencies", "routes", "scopes"])
def test_a_text_in_the_place_of_a_list_is_refused_as_no_list(key: str) -> None:
    [problem] = problems_of({**GOOD, key: "one"})
    assert (problem.path, problem.allowed.startswith("a list of ")) == (f"$.{key}", True)


def test_a_scope_that_ends_with_two_asterisks_is_refused_on_its_own() -> None:
    assert paths_of({**GOOD, "scopes": ["a*", "*", "*b", "c**d"]}) == []
    assert paths_of({**GOOD, "scopes": ["a*", "all**"]}) == ["$.scopes[1]"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_refused_where_it_stands(number: float) -> None:
    assert paths_of({**GOOD, "payload": {"a": [1, {"b": number}], "c": None}}) == ["$.payload.a[1].b"]
    assert paths_of({**GOOD, "extra": {"x": number, "of 70 bits": 2**69}}, math.nan) == ["$.extra.x"]


@pytest.mark.parametrize(
    "number", [2**53 + 1, -(2**53) - 1, 2**60, 1732212345678901234, -1732212345678901234, 10**400]
)
def test_a_number_that_the_queue_would_round_is_warned_of(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert paths_of({**GOOD, "payload": {"ids": [1, {"build": number}], "c": 1}}) == []
    (warning,) = caplog.messages
    assert "$.payload.ids[1].build" in warning
    assert "'n'" in warning  # the task's name


def test_one_warning_is_of_all_numbers_of_a_definition(caplog: pytest.LogCaptureFixture) -> None:
    odd = {True: 1, "text": msgspec.Raw(b'"\xcf\x83"')}  # msgspec has no plain form of these
    assert paths_of({**GOOD, "payload": {"ids": [2**60] * 1000, **odd}}) == []
    (warning,) = caplog.messages
    assert warning.endswith("$.payload.ids[9] and 990 more places")


@pytest.mark.parametrize(
    "exact",
    [2**53, -(2**53), 2**53 + 2, 10**17, 2**32, -(2**32), 1e300, True, "18446744073709551615", "αϑ π"],
)
def test_a_number_that_the_queue_keeps_is_not_warned_of(
    exact: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert paths_of({**GOOD, "payload": {"a": [exact]}}) == []
    assert caplog.messages == []


def test_while_the_queues_time_is_not_known_nothing_is_compared_with_it() -> None:
    ancient = {"created": "1999-01-01T00:00:00Z", "deadline": "1999-01-02T00:00:00Z"}
    assert paths_of({**GOOD, **ancient}, math.nan) == []
    assert paths_of({**GOOD, **ancient, "expires": "1999-01-01T00:00:00Z"}, math.nan) == ["$.expires"]


@pytest.mark.parametrize("date", ["2020-01-01T00:00:00", "2026-11-21T23:59:60Z", "2026-11-21T10:00:00+99:99"])
def test_a_date_whose_moment_is_not_certain_is_not_compared(date: str) -> None:
    assert paths_of({**GOOD, "created": date}) == []


def test_dates_in_other_time_zones_are_compared_as_moments() -> None:
    assert paths_of({**GOOD, "created": "2026-11-21T12:00:00+02:00"}) == []
    assert paths_of({**GOOD, "created": "2026-11-21T10:00:00-02:30"}) == ["$.created", "$.deadline"]


@pytest.mark.parametrize("now", [NOW.timestamp(), math.nan], ids=["known", "unknown"])
def test_a_good_definition_costs_no_import_of_jsonschema(now: float) -> None:
    program = f"""
import sys
from taskqueue_client._protocol.schemas import check_definition
check_definition({GOOD!r}, float("{now}"))
assert "jsonschema" not in sys.modules
try:
    check_definition({{}}, 0.0)
except ValueError:
    assert "jsonschema" in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
