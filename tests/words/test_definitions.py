"""Task definitions: how they are completed, and compared with those that the Queue has stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import pytest
import taskcluster  # pyright: ignore[reportMissingTypeStubs] # it has none
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client import calls
from taskqueue_client._arguments import artifact_expires
from taskqueue_client.definitions import TaskDefinition, from_now, same_definition, task_definition
from taskqueue_client.errors import InvalidArgument

official: Any = taskcluster
START = datetime(2026, 11, 21, 10, 0, 0, 123_456, tzinfo=UTC)
TASK_ID = "fN1SbArXTPSVFNUvaOlinQ"

# from_now ---------------------------------------------------------------------------------------

SPELLINGS = [
    ("y", "year", "years"),
    ("mo", "month", "months"),
    ("w", "week", "weeks"),
    ("d", "day", "days"),
    ("h", "hour", "hours"),
    ("m", "min", "minute", "minutes"),
    ("s", "sec", "second", "seconds"),
]
SPACE = st.sampled_from(["", " ", "  ", "\t"])


@st.composite
def offsets(draw: st.DrawFn) -> str:
    """An offset in any of the ways in which one can be written."""
    parts = [draw(st.sampled_from(["", "-", "+", " - ", "-+", "- + "]))]
    for spellings in SPELLINGS:
        if draw(st.booleans()):
            parts += [
                str(draw(st.integers(0, 20))),
                draw(SPACE),
                draw(st.sampled_from(spellings)),
                draw(SPACE),
            ]
    return "".join(parts)


def _official(offset: str) -> str:
    moment: datetime = official.fromNow(offset, START)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("offset", [3600, None, ["1 day"], "0.3 seconds"])
def test_an_offset_that_is_not_text_of_whole_numbers_is_refused(offset: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^offset: .* is not valid; expected whole numbers with units"):
        from_now(offset)


@pytest.mark.parametrize("years", ["9000", 20 * "9", 5000 * "9"])
def test_an_offset_beyond_the_years_of_dates_is_refused(years: str) -> None:
    for offset in (f"{years} years", f"-{years} years"):
        with pytest.raises(InvalidArgument, match="expected a time between the years 1 and 9999"):
            from_now(offset, START)


@settings(deadline=None)
@given(offsets())
def test_an_offset_means_what_it_does_to_the_official_client(offset: str) -> None:
    assert from_now(offset, START) == _official(offset)


@settings(deadline=None)
@given(st.text("0123 ymowdhinsecatur+-\n", max_size=12))
def test_an_offset_that_the_official_client_cannot_read_is_refused(offset: str) -> None:
    try:
        expected = _official(offset)
    except (ValueError, OverflowError):
        with pytest.raises(InvalidArgument, match="offset"):
            from_now(offset, START)
    else:
        assert from_now(offset, START) == expected


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("2 hours 30 minutes", "2026-11-21T12:30:00.123Z"),
        ("1 year 2 months", "2028-01-20T10:00:00.123Z"),
        ("-1d", "2026-11-20T10:00:00.123Z"),
        ("", "2026-11-21T10:00:00.123Z"),
    ],
)
def test_an_offset_is_counted_from_the_reference(offset: str, expected: str) -> None:
    assert from_now(offset, START) == expected
    assert from_now(offset, START.astimezone(timezone(timedelta(hours=-5)))) == expected
    assert from_now(offset, START.isoformat()) == expected


def test_an_offset_is_counted_from_now_without_reference() -> None:
    before = datetime.now(UTC)
    moment = datetime.fromisoformat(from_now("1 hour"))
    assert before - timedelta(milliseconds=1) <= moment - timedelta(hours=1) <= datetime.now(UTC)


@pytest.mark.parametrize("offset", ["tomorrow", "1 fortnight", "1.5 hours", "1 minute 1 hour", "99999 years"])
def test_an_offset_that_cannot_be_read_or_reached_is_refused(offset: str) -> None:
    with pytest.raises(InvalidArgument, match="offset"):
        from_now(offset, START)


@pytest.mark.parametrize("reference", [datetime(2026, 1, 1), "2026-01-01", "2026-01-01T00:00:00"])  # noqa: DTZ001 - what is tested
def test_a_reference_without_time_zone_is_refused(reference: datetime | str) -> None:
    with pytest.raises(InvalidArgument, match="reference"):
        from_now("1 day", reference)


AFTER_ALL_DATES = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
BEFORE_ALL_DATES = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))


@pytest.mark.parametrize("moment", [AFTER_ALL_DATES, BEFORE_ALL_DATES])
def test_a_time_that_is_out_of_range_in_utc_is_refused(moment: datetime) -> None:
    with pytest.raises(InvalidArgument, match=r"reference: .* expected a time between the years 1 and 9999"):
        from_now("0 days", moment)
    with pytest.raises(InvalidArgument, match="deadline"):
        task_definition("p/w", {}, name="n", owner="o", source="https://example.com", deadline=moment)


# task_definition --------------------------------------------------------------------------------


def test_dates_and_metadata_are_filled_in() -> None:
    made = task_definition("p/w", {"a": 1}, name="n", owner="o", source="https://example.com", created=START)
    assert made == {
        "taskQueueId": "p/w",
        "created": "2026-11-21T10:00:00.123Z",
        "deadline": "2026-11-22T10:00:00.123Z",
        "expires": "2027-11-21T10:00:00.123Z",
        "payload": {"a": 1},
        "metadata": {"name": "n", "description": "", "owner": "o", "source": "https://example.com"},
    }


def test_a_payload_is_any_mapping() -> None:
    make = partial(task_definition, "p/w", name="n", owner="o", source="https://example.com")
    assert make(MappingProxyType({"a": 1}))["payload"] == {"a": 1}
    wrong: Any = [("a", 1)]
    with pytest.raises(InvalidArgument, match=r"^payload: .* expected a dict"):
        make(wrong)


def test_every_other_key_may_be_given() -> None:
    made = task_definition(
        "p/w",
        {},
        name="n",
        owner="o",
        source="https://example.com",
        description="what it does",
        deadline="2 hours",
        expires="3 days",
        created=START,
        retries=0,
        scopes=["a:b"],
        priority="high",
    )
    assert made["deadline"] == "2026-11-21T12:00:00.123Z"
    assert made.get("expires") == "2026-11-24T10:00:00.123Z"
    assert made["metadata"]["description"] == "what it does"
    assert (made.get("retries"), made.get("scopes"), made.get("priority")) == (0, ["a:b"], "high")


def test_a_task_is_created_now_unless_said_otherwise() -> None:
    made = task_definition("p/w", {}, name="n", owner="o", source="https://example.com")
    age = datetime.now(UTC) - datetime.fromisoformat(made["created"])
    assert timedelta() <= age < timedelta(minutes=1)


@pytest.mark.parametrize("argument", ["deadline", "expires"])
def test_a_distance_that_cannot_be_read_is_refused_by_the_name_of_its_argument(argument: str) -> None:
    faulty: dict[str, Any] = {argument: "soon"}
    with pytest.raises(InvalidArgument) as refused:
        task_definition("p/w", {}, name="n", owner="o", source="https://example.com", **faulty)
    assert (refused.value.argument, refused.value.given) == (argument, "soon")


# same_definition --------------------------------------------------------------------------------

GIVEN: TaskDefinition = {
    "taskQueueId": "p/w",
    "created": "2026-11-21T10:00:00Z",
    "deadline": "2026-11-21T12:00:00.5000Z",
    "payload": {"flag": True, "number": 1, "list": [1, {"a": None}]},
    "metadata": {"name": "n", "description": "", "owner": "o", "source": "https://example.com"},
}
STORED: dict[str, Any] = {
    "provisionerId": "p",
    "workerType": "w",
    "taskQueueId": "p/w",
    "schedulerId": "-",
    "projectId": "none",
    "taskGroupId": TASK_ID,
    "dependencies": [],
    "requires": "all-completed",
    "routes": [],
    "priority": "lowest",
    "retries": 5,
    "created": "2026-11-21T10:00:00.000Z",
    "deadline": "2026-11-21T12:00:00.500Z",
    "expires": "2027-11-21T12:00:00.500Z",
    "scopes": [],
    "payload": {"list": [1, {"a": None}], "flag": True, "number": 1},
    "metadata": {"owner": "o", "name": "n", "source": "https://example.com", "description": ""},
    "tags": {},
    "extra": {},
}


def test_a_stored_definition_is_recognised_with_all_defaults() -> None:
    assert same_definition(GIVEN, TASK_ID, STORED)


def test_sets_are_compared_in_the_order_in_which_they_were_sent() -> None:
    names = [f"test-{number:02}" for number in range(20)]
    assert same_definition(
        {**GIVEN, "extra": {"tests": {*names}}}, TASK_ID, {**STORED, "extra": {"tests": names}}
    )


@pytest.mark.parametrize("key", [*STORED])
def test_a_difference_in_any_key_is_noticed(key: str) -> None:
    other = "2026-11-21T13:00:00.000Z" if key in {"created", "deadline", "expires"} else "other"
    assert not same_definition(GIVEN, TASK_ID, {**STORED, key: other})
    assert not same_definition(GIVEN, TASK_ID, {name: value for name, value in STORED.items() if name != key})


@pytest.mark.parametrize(
    "stored", [{"flag": 1}, {"number": True}, {"list": [1]}, {"list": [1, {"a": 0}]}, {"more": None}]
)
def test_values_that_are_equal_in_python_only_are_different(stored: dict[str, Any]) -> None:
    payload = {**STORED["payload"], **stored}
    assert not same_definition(GIVEN, TASK_ID, {**STORED, "payload": payload})


@pytest.mark.parametrize(
    ("given", "stored", "is_same"),
    [
        (2**64, 18446744073709552000, True),
        (-(2**53) - 1, -9007199254740992, True),
        (2**53 + 2, 2**53, False),
        (10**308, 1e308, True),
        (10**400, 1, False),
    ],
)
def test_whole_numbers_are_compared_as_doubles_which_the_queue_stores(
    given: int, stored: int, *, is_same: bool
) -> None:
    extra = {"build": [given]}
    assert (
        same_definition({**GIVEN, "extra": extra}, TASK_ID, {**STORED, "extra": {"build": [stored]}})
        is is_same
    )


@pytest.mark.parametrize(
    "created",
    [
        "2026-11-21T10:00:00.000999Z",
        "2026-11-21 10:00:00z",
        "2026-11-21T12:00:00+0200",
        "2026-11-21T10:00:00",
    ],
)
def test_dates_are_compared_in_utc_to_the_millisecond(created: str) -> None:
    assert same_definition({**GIVEN, "created": created}, TASK_ID, STORED)


@pytest.mark.parametrize(
    "deadline", ["2026-11-21T23:59:60Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"]
)
def test_a_date_that_cannot_be_read_is_not_the_same(deadline: str) -> None:
    assert not same_definition({**GIVEN, "deadline": deadline}, TASK_ID, STORED)


def test_the_pair_is_as_good_as_the_id_and_is_overwritten_by_it() -> None:
    by_pair: Any = {**GIVEN, "provisionerId": "p", "workerType": "w"}
    del by_pair["taskQueueId"]
    assert same_definition(by_pair, TASK_ID, STORED)
    assert same_definition({**GIVEN, "workerType": "v"}, TASK_ID, STORED)


def test_a_task_expires_a_calendar_year_after_its_deadline_unless_said_otherwise() -> None:
    leap = {"deadline": "2028-02-29T00:00:00.000Z"}
    given_leap: TaskDefinition = {**GIVEN, "deadline": leap["deadline"]}
    assert same_definition(given_leap, TASK_ID, {**STORED, **leap, "expires": "2029-03-01T00:00:00.000Z"})
    assert same_definition(
        {**GIVEN, "expires": "2030-01-01T00:00:00Z"},
        TASK_ID,
        {**STORED, "expires": "2030-01-01T00:00:00.000Z"},
    )


def test_definitions_are_compared_as_the_json_that_is_sent() -> None:
    given_in_python: Any = {**GIVEN, "created": datetime(2026, 11, 21, 10, tzinfo=UTC), "scopes": ()}
    assert same_definition(given_in_python, TASK_ID, STORED)


@pytest.mark.parametrize(
    "deadline", ["2 hours", "2026-11-21T12:00:00.000Z", datetime(2026, 11, 21, 12, tzinfo=UTC)]
)
def test_a_time_may_be_a_datetime_a_text_or_a_distance(deadline: datetime | str) -> None:
    created = datetime(2026, 11, 21, 10, tzinfo=UTC)
    about: dict[str, Any] = {"name": "n", "owner": "o", "source": "git@h:r", "created": created}
    definition = task_definition("p/w", {}, deadline=deadline, **about)
    assert definition["deadline"] == "2026-11-21T12:00:00.000Z"


@pytest.mark.parametrize(
    "wrong", ["", "  ", "soon", "14 fortnights", "2026-11-21", START.replace(tzinfo=None), 14]
)
def test_a_value_that_is_not_a_time_is_refused_wherever_a_time_is_expected(wrong: Any) -> None:
    about: dict[str, Any] = {"name": "n", "owner": "o", "source": "git@h:r"}
    worker: dict[str, Any] = {"worker_group": "g", "worker_id": "w"}
    request: Any = {"storageType": "link", "artifact": "a", "expires": wrong}
    uses: list[tuple[str, Callable[[], object]]] = [
        ("deadline", lambda: task_definition("p/w", {}, deadline=wrong, **about)),
        ("expires", lambda: task_definition("p/w", {}, expires=wrong, **about)),
        ("quarantine_until", lambda: calls.quarantine_worker("p/w", quarantine_until=wrong, **worker)),
        ("expires", lambda: calls.declare_worker("p/w", expires=wrong, **worker)),
        ("expires", lambda: calls.create_artifact(TASK_ID, 0, "a", request)),
        ("expires", lambda: artifact_expires(wrong, None, lambda: START)),
    ]
    for argument, use in uses:
        with pytest.raises(InvalidArgument, match=f"^{argument}: .* is not valid; expected a datetime"):
            use()


def test_a_distance_is_a_time_for_every_call() -> None:
    call = calls.create_artifact(
        TASK_ID, 0, "a", {"storageType": "link", "artifact": "b", "expires": "14 days"}
    )
    (_, _, expires) = cast("dict[str, str]", call.body).values()
    left = datetime.fromisoformat(expires) - datetime.now(UTC)
    assert timedelta(days=13, hours=23) < left <= timedelta(days=14)
