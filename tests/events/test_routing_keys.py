"""Routing keys are written, parsed and matched as the reference of the exchanges says."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.events import EXCHANGES, GroupRoutingKey, TaskExchange, TaskRoutingKey
from taskqueue_client.events.exchanges import GROUP_FIELDS, TASK_FIELDS

words = st.text("abcXYZ0189-", min_size=1, max_size=22)
task_keys = st.builds(
    TaskRoutingKey,
    task_id=words,
    run_id=st.none() | st.integers(0, 999),
    worker_group=st.none() | words,
    worker_id=st.none() | words,
    provisioner_id=words,
    worker_type=words,
    scheduler_id=words,
    task_group_id=words,
    reserved=st.sampled_from(["_", "more", "even.more"]),
)
group_keys = st.builds(
    GroupRoutingKey, task_group_id=words, scheduler_id=words, reserved=st.sampled_from(["_", "even.more"])
)


@settings(deadline=None)
@given(task_keys)
def test_a_task_s_key_survives_writing_and_parsing(key: TaskRoutingKey) -> None:
    assert TaskRoutingKey.parse(str(key)) == key


@settings(deadline=None)
@given(group_keys)
def test_a_group_s_key_survives_writing_and_parsing(key: GroupRoutingKey) -> None:
    assert GroupRoutingKey.parse(str(key)) == key


@settings(deadline=None)
@given(st.text())
def test_any_text_is_parsed_as_a_key_or_raises_invalid_argument(text: str) -> None:
    for kind in (TaskRoutingKey, GroupRoutingKey):
        try:
            key = kind.parse(text)
        except InvalidArgument:
            continue
        assert kind.parse(str(key)) == key


class Place(str, Enum):  # noqa: UP042 - `str` of a StrEnum's member is its value, so that nothing can go wrong
    LINUX = "linux"


class Run(int, Enum):
    LAST = 3


def test_a_member_of_an_enumeration_is_its_value_in_a_key() -> None:
    key = TaskRoutingKey(
        task_id="t",
        run_id=Run.LAST,
        provisioner_id="p",
        worker_type=Place.LINUX,
        scheduler_id="-",
        task_group_id="g",
    )
    assert str(key) == "primary.t.3._._.p.linux.-.g._"


def test_recorded_routing_keys_are_parsed_into_the_right_fields() -> None:
    defined = TaskRoutingKey.parse("primary.Y9IplizWTj-eOJfHEC71Rw._._._.prov.wt.-.Y9IplizWTj-eOJfHEC71Rw._")
    assert (defined.run_id, defined.worker_group, defined.worker_id) == (None, None, None)
    assert (defined.task_queue_id, defined.scheduler_id) == ("prov/wt", "-")
    running = TaskRoutingKey.parse(
        "primary.Y9IplizWTj-eOJfHEC71Rw.0.wg.w1.prov.wt.-.Y9IplizWTj-eOJfHEC71Rw._"
    )
    assert (running.run_id, running.worker_group, running.worker_id) == (0, "wg", "w1")
    sealed = GroupRoutingKey.parse("primary.XX-A5r_jTt6yumKWD-hfDA.s1._")
    assert sealed == GroupRoutingKey(task_group_id="XX-A5r_jTt6yumKWD-hfDA", scheduler_id="s1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "primary",
        "route.a.b._",
        "primary.a.b",
        "primary..b._",
        "secondary.g.s._",
    ],
)
def test_a_text_that_is_not_a_routing_key_is_refused_with_the_expected_fields(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"primary\.<task_group_id>\.<scheduler_id>\.<reserved>"):
        GroupRoutingKey.parse(text)


def test_a_run_id_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="run_id, not 'zero'"):
        TaskRoutingKey.parse("primary.t.zero._._.p.w.s.g._")


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_every_exchange_of_the_reference_is_known_with_the_fields_of_its_key(contract: Path) -> None:
    reference: dict[str, Any] = json.loads((contract / "data" / "exchanges.json").read_text())
    expected = {
        reference["exchangePrefix"] + entry["exchange"]: [
            (_snake(field["name"]), field["multipleWords"]) for field in entry["routingKey"][1:]
        ]
        for entry in reference["entries"]
    }
    ours = {
        exchange.full_name: [
            (field.name, field.several_words)
            for field in (TASK_FIELDS if isinstance(exchange, TaskExchange) else GROUP_FIELDS)
        ]
        for exchange in EXCHANGES
    }
    assert ours == expected
    assert all(entry["routingKey"][0].get("constant") == "primary" for entry in reference["entries"])
