"""Graphs of tasks: planned as a whole, submitted in order, and followed to their end."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from taskqueue_client import AsyncQueue, Queue, _following, slugid
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.clock import MovableClock
from taskqueue_client.definitions import from_now
from taskqueue_client.errors import (
    InputError,
    InvalidArgument,
    InvalidDefinition,
    Problem,
    RequestConflict,
    ServerError,
)
from taskqueue_client.graph import (
    Graph,
    GraphTask,
    SubmissionFailed,
    are_settled,
    blocked_tasks,
    follow,
    follow_group,
    follow_group_async,
    plan_graph,
    plan_task,
    submit_graph,
    submit_graph_async,
)
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.faults import Delay, Drop, Respond
from taskqueue_client.models import TaskAndStatus, TaskState, TaskStatus
from taskqueue_client.slugid import is_slugid
from tests.cli.command import Worker
from tests.worker.queue_world import until

DEFAULTS: dict[str, Any] = {
    "taskQueueId": "proj/linux",
    "tags": {"kind": "test", "os": "linux"},
    "metadata": {"owner": "me@example.com", "source": "https://example.com/source"},
}
NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


def document(**tasks: Any) -> dict[str, Any]:
    return {"defaults": DEFAULTS, "tasks": tasks}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"value": value}
    return value


def with_defaults(given: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    return {**given, "defaults": {**DEFAULTS, **defaults}}


def sent(task: GraphTask) -> dict[str, Any]:
    """A definition, of which any key may be asked for."""
    return dict(task.definition)


def problems(given: dict[str, Any]) -> dict[str, str]:
    """Return the problems of a document, by path."""
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph(given)
    return {problem.path: problem.allowed for problem in caught.value.problems}


@pytest.mark.parametrize("plan", [plan_graph, plan_task])
@pytest.mark.parametrize("given", [[1], [], None, "tasks.yml"])
def test_a_document_that_is_not_an_object_is_refused(plan: Callable[[Any], Graph], given: object) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        plan(given)
    assert caught.value.problems == (Problem("$", given, "an object"),)


@given(st.integers(1, 12), st.data())
def test_tasks_are_ordered_after_their_dependencies(count: int, data: st.DataObject) -> None:
    """Whatever the order in which the document has them."""
    names = [f"t{number}" for number in range(count)]
    needs = {
        name: data.draw(st.sets(st.sampled_from(names[:at] or [""]))) - {""} for at, name in enumerate(names)
    }
    shuffled = data.draw(st.permutations(names))
    graph = plan_graph(document(**{name: {"dependencies": sorted(needs[name])} for name in shuffled}))
    position = {task.name: at for at, task in enumerate(graph.tasks)}
    assert position.keys() == set(names)
    assert all(position[each] < position[name] for name in names for each in needs[name])
    assert all(
        sent(task)["dependencies"] == [graph.task_ids[each] for each in sorted(needs[task.name])]
        for task in graph.tasks
    )


def test_defaults_complete_definitions_also_within_objects() -> None:
    given = {"tags": {"os": "mac"}, "metadata": {"name": "A", "description": "first"}, "priority": "low"}
    (task,) = plan_graph(document(a=given)).tasks
    assert sent(task)["tags"] == {"kind": "test", "os": "mac"}
    assert sent(task)["metadata"] == {**DEFAULTS["metadata"], "name": "A", "description": "first"}
    assert sent(task)["priority"] == "low"
    assert sent(task)["taskQueueId"] == "proj/linux"


def test_dates_may_be_durations_from_now() -> None:
    dates = {"created": "-5 minutes", "deadline": "2 hours", "expires": "2026-12-01T00:00:00Z"}
    (task,) = plan_graph(document(a=dates), created=NOW).tasks
    assert sent(task)["created"] == "2026-11-21T09:55:00.000Z"
    assert sent(task)["deadline"] == "2026-11-21T12:00:00.000Z"
    assert sent(task)["expires"] == "2026-12-01T00:00:00Z"


def test_dates_may_be_datetimes(queue: Queue) -> None:
    now = queue.now()
    local = timezone(timedelta(hours=5, minutes=45, seconds=30))
    given = document(build={"created": now, "deadline": (now + timedelta(hours=1)).astimezone(local)})
    (task,) = plan_graph(given).tasks
    submit_graph(queue, plan_graph(given))
    assert sent(task)["created"] == from_now("0 s", now)
    assert sent(task)["deadline"] == from_now("1 hour", now)
    early = document(early={"expires": now + timedelta(days=2)}, late={"dependencies": ["early"]})
    early["tasks"]["late"]["deadline"] = now + timedelta(days=3)
    with pytest.raises(InvalidDefinition, match=r"\$\.tasks\.late\.deadline"):
        plan_graph(early)


def test_a_date_without_a_time_zone_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match=r"deadline: .*expected a datetime with a time zone"):
        plan_graph(document(build={"deadline": NOW.replace(tzinfo=None)}))


def test_dependencies_may_be_a_tuple() -> None:
    graph = plan_graph(document(fetch={}, build={"dependencies": ("fetch",)}))
    assert [task.name for task in graph.tasks] == ["fetch", "build"]
    assert sent(graph.tasks[1])["dependencies"] == [graph.task_ids["fetch"]]


@pytest.mark.parametrize("created", [NOW, "2026-11-21T10:00:00.000Z", "2026-11-21T11:00:00+01:00"])
def test_created_may_be_text(created: datetime | str) -> None:
    for graph in (plan_graph(document(a={}), created=created), plan_task(DEFAULTS, created=created)):
        assert sent(graph.tasks[0])["created"] == "2026-11-21T10:00:00.000Z"


@pytest.mark.parametrize("created", ["now", 5, NOW.replace(tzinfo=None)])
def test_a_created_that_is_not_a_time_is_refused(created: Any) -> None:
    for plan, wrong in ((plan_graph, document(a={})), (plan_task, DEFAULTS)):
        with pytest.raises(InvalidArgument, match=r"^created: "):
            plan(wrong, created=created)


def test_a_dependency_may_be_the_id_of_an_existing_task() -> None:
    existing = slugid()
    (task,) = plan_graph(document(a={"dependencies": [existing]})).tasks
    assert sent(task)["dependencies"] == [existing]


def test_references_in_the_payload_become_task_ids_wherever_they_are() -> None:
    payload = {"deep": [{"url": {"task-reference": "task/<a>/and/<a>"}}], "task-reference": 1, "other": "<a>"}
    graph = plan_graph(document(a={}, b={"dependencies": ["a"], "payload": payload}))
    id_of_a = graph.task_ids["a"]
    assert sent(graph.tasks[-1])["payload"] == {
        "deep": [{"url": f"task/{id_of_a}/and/{id_of_a}"}],
        "task-reference": 1,
        "other": "<a>",
    }


def test_references_in_a_tuple_become_task_ids() -> None:
    graph = plan_graph(
        document(a={}, b={"dependencies": ["a"], "payload": {"x": ({"task-reference": "<a>"},)}})
    )
    assert sent(graph.tasks[-1])["payload"] == {"x": [graph.task_ids["a"]]}


def test_a_reference_to_a_task_that_is_not_a_dependency_is_refused() -> None:
    wrong = document(a={}, b={"payload": {"x": {"task-reference": "<a>"}}})
    assert problems(wrong) == {"$.tasks.b.payload.x": "a name of the task's dependencies (the task has none)"}


def test_the_problem_of_a_reference_names_a_few_of_many_dependencies() -> None:
    """A task may have ten thousand dependencies and wrong references: naming all would fill a gigabyte."""
    names = [f"t{number}" for number in range(30)]
    needs: dict[str, Any] = {"dependencies": names, "payload": {"x": {"task-reference": "<t30>"}}}
    wrong = document(**{name: {} for name in names}, last=needs)
    shown = ", ".join(names[:20])
    assert problems(wrong) == {
        "$.tasks.last.payload.x": f"a name of the task's dependencies ({shown} and 10 more)"
    }


@pytest.mark.parametrize("key", ["artifact-reference", "task_reference", "taskReference"])
def test_a_reference_of_a_kind_that_is_not_known_is_refused(key: str) -> None:
    wrong = document(a={}, b={"dependencies": ["a"], "payload": {"x": [{key: "<a/public/x>"}]}})
    assert problems(wrong) == {"$.tasks.b.payload.x[0]": "task-reference, the only kind of reference"}


def test_a_key_that_looks_like_a_reference_may_have_another_meaning_for_the_worker() -> None:
    payload = {
        "x": {"task_reference": "BUG-5"},
        "y": {"task_reference": "<a>", "more": 1},
        "z": {"taskReference": "a < b"},
    }
    (task,) = plan_graph(document(a={"payload": payload})).tasks
    assert sent(task)["payload"] == payload


@pytest.mark.parametrize("given", [None, 5, True, ["<a>"], {"<a>": 1}])
def test_a_reference_that_is_not_text_is_refused(given: object) -> None:
    wrong = document(a={}, b={"dependencies": ["a"], "payload": {"x": {"task-reference": given}}})
    assert problems(wrong) == {
        "$.tasks.b.payload.x.task-reference": "a string, with names of dependencies in <>"
    }


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({}, ["$.tasks"]),
        ({"tasks": {}}, ["$.tasks"]),
        ({"tasks": [], "graph": 1}, ["$.graph", "$.tasks"]),
        ({"tasks": {"a": 1}}, ["$.tasks.a"]),
        ({"tasks": {"a b": {}}}, ["$.tasks"]),
        ({"tasks": {"a": {}}, "defaults": []}, ["$.defaults"]),
        ({**document(a={}), "taskGroupId": "mine"}, ["$.taskGroupId"]),
        (document(a={"dependencies": "b"}), ["$.tasks.a.dependencies"]),
        (document(a={"dependencies": [1]}), ["$.tasks.a.dependencies[0]"]),
        (
            document(a={"dependencies": ["b", "c"]}),
            ["$.tasks.a.dependencies[0]", "$.tasks.a.dependencies[1]"],
        ),
        (document(a={"dependencies": ["b"]}, b={"dependencies": ["a"]}), ["$.tasks.a.dependencies"]),
        (document(a={"taskGroupId": slugid()}), ["$.tasks.a.taskGroupId"]),
        (with_defaults(document(a={}, b={}), taskGroupId=slugid()), ["$.defaults.taskGroupId"]),
        (document(a={"metadata": 1}, b={"retries": -1}), ["$.tasks.a.metadata", "$.tasks.b.retries"]),
        (document(a={"deadline": 7}), ["$.tasks.a.deadline"]),
        (document(a={"deadline": ""}), ["$.tasks.a.deadline"]),
        (document(a={"expires": " "}), ["$.tasks.a.expires"]),
        (document(a={"deadline": "99999999999999 years"}), ["$.tasks.a.deadline"]),
        (document(a={"payload": nested(5_000)}), ["$.tasks.a.payload"]),
        (document(a={"payload": nested(99_000)}), ["$.tasks.a.payload"]),
        (with_defaults(document(a={}), payload=nested(99_000)), ["$.tasks.a.payload"]),
    ],
)
def test_problems_of_a_graph_are_named_by_their_paths(given: dict[str, Any], paths: list[str]) -> None:
    assert list(problems(given)) == paths


@pytest.mark.parametrize("place", ["defaults", "a task"])
def test_the_error_of_a_misplaced_task_group_says_where_it_belongs(place: str) -> None:
    group = slugid()
    given = document(a={"taskGroupId": group} if place == "a task" else {})
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph(given if place == "a task" else with_defaults(given, taskGroupId=group))
    assert "$.taskGroupId" in str(caught.value)
    graph = plan_graph({**given, "taskGroupId": group})
    assert graph.task_group_id == group


def test_the_errors_of_many_tasks_with_a_wrong_dependency_stay_short() -> None:
    names = {f"task-{number:04}": {"dependencies": [f"tusk-{number:04}"]} for number in range(1000)}
    found = problems(document(**names))
    assert len(found) == len(names)
    hinted = [path for path, allowed in found.items() if "did you mean" in allowed]
    assert hinted == [f"$.tasks.{name}.dependencies[0]" for name in list(names)[:20]]
    assert all(f"{list(names)[19]} and 980 more)" in allowed for allowed in found.values())


def test_problems_of_every_kind_are_reported_together() -> None:
    given = document(
        a={"dependencies": ["b", "zzz"], "retries": 50},
        b={"dependencies": ["a"], "payload": {"x": {"task-reference": "<c> <d>"}, "y": 1}},
    )
    assert list(problems({**given, "graph": 1})) == [
        "$.graph",
        "$.tasks.a.dependencies[1]",
        "$.tasks.a.dependencies",
        "$.tasks.a.retries",
        "$.tasks.b.payload.x",
    ]


def test_a_definition_that_is_larger_than_a_request_may_be_is_a_problem_of_the_graph() -> None:
    huge = {"payload": {"text": "x" * 10 * 1024 * 1024}}
    with pytest.raises(InvalidDefinition) as raised:
        plan_graph(document(small={}, huge=huge))
    (problem,) = raised.value.problems
    assert problem.path == "$.tasks.huge"
    assert "bytes as JSON; expected at most 10,485,760" in str(problem)


def test_the_error_of_a_graph_without_tasks_says_what_is_missing() -> None:
    with pytest.raises(InvalidDefinition, match=r"\$\.tasks: \{\} .* expected an object of one or more task"):
        plan_graph({"tasks": {}})


def test_a_dependency_cycle_is_shown_as_a_path() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph(document(a={"dependencies": ["b"]}, b={"dependencies": ["c"]}, c={"dependencies": ["a"]}))
    (problem,) = caught.value.problems
    way = problem.finding.removeprefix("dependency cycle: ").split(" → ")
    assert way[0] == way[-1]
    assert " ".join(way) in "a b c a b c a"


def test_each_dependency_cycle_is_a_problem() -> None:
    tasks = {"a": "b", "b": "a", "c": "d", "d": "c", "e": "a"}
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph(document(**{name: {"dependencies": [each]} for name, each in tasks.items()}))
    cycles = [set(re.findall(r"\b\w\b", problem.finding)) for problem in caught.value.problems]
    assert sorted(map(sorted, cycles)) == [["a", "b"], ["c", "d"]]


def test_of_many_dependency_cycles_the_first_twenty_are_problems() -> None:
    pairs = [(f"a{number}", f"b{number}") for number in range(30)]
    tasks = {name: {"dependencies": [other]} for pair in pairs for name, other in (pair, pair[::-1])}
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph(document(**tasks))
    assert len(caught.value.problems) == 20
    assert all("dependency cycle: " in each.finding for each in caught.value.problems)


def test_of_a_long_dependency_cycle_only_the_ends_are_shown() -> None:
    tasks = {f"t{number}": {"dependencies": [f"t{(number + 1) % 10_000}"]} for number in range(10_000)}
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph(document(**tasks))
    finding = caught.value.problems[0].finding
    assert re.fullmatch(r"dependency cycle: (t\d+ → ){10}\(9,981 more\)( → t\d+){10}", finding)


def test_a_task_that_depends_on_itself_waits_until_it_is_scheduled(queue: Queue) -> None:
    graph = plan_graph(document(a={"dependencies": ["a"]}, b={"dependencies": ["a"]}))
    held = graph.task_ids["a"]
    assert sent(graph.tasks[0])["dependencies"] == [held]
    assert {status.state for status in submit_graph(queue, graph).values()} == {"unscheduled"}
    assert queue.schedule_task(held).status.state == "pending"
    Worker(queue, {"a": "completed"}).work()
    assert queue.status(graph.task_ids["b"]).status.state == "pending"


def test_a_task_that_would_wait_for_itself_by_the_defaults_is_refused() -> None:
    given = with_defaults(document(a={}, b={}), dependencies=["a"])
    with pytest.raises(
        InvalidDefinition, match=r"\$\.defaults\.dependencies: .*task 'a' would wait for itself"
    ):
        plan_graph(given)
    graph = plan_graph({**given, "tasks": {"a": {"dependencies": []}, "b": {}}})
    assert sent(graph.tasks[1])["dependencies"] == [graph.task_ids["a"]]


def test_a_single_task_is_planned_as_a_graph() -> None:
    graph = plan_task({**DEFAULTS, "metadata": {**DEFAULTS["metadata"], "name": "one"}})
    (task,) = graph.tasks
    assert graph.task_group_id == task.task_id == sent(task)["taskGroupId"]
    assert sent(task)["metadata"]["name"] == "one"


def test_problems_of_a_single_task_are_named_by_their_paths() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        plan_task({**DEFAULTS, "retries": 50, "deadline": "soon"})
    assert {problem.path for problem in caught.value.problems} == {"$.retries", "$.deadline"}


@pytest.mark.parametrize("key", ["deadline", "expires"])
def test_the_error_of_a_date_says_that_durations_are_allowed(key: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        plan_task({**DEFAULTS, "metadata": {**DEFAULTS["metadata"], "name": "one"}, key: "2 hors"})
    assert str(caught.value.problems[0]) == (
        f'$.{key}: "2 hors" is not valid; expected whole numbers with units like 2 hours, '
        "or a date-time like 2026-11-21T09:20:53.649Z"
    )


def test_the_error_of_a_date_in_the_wrong_order_shows_the_other_date() -> None:
    created = "2026-11-21T09:20:53.649Z"
    task = {**DEFAULTS, "metadata": {**DEFAULTS["metadata"], "name": "one"}}
    with pytest.raises(InvalidDefinition, match=rf"^.*\n  \$\.deadline: .* at or after created, {created}$"):
        plan_task({**task, "deadline": "-2 hours"}, created=created)
    with pytest.raises(
        InvalidDefinition, match=r"^.*\n  \$\.expires: .* deadline, 2026-11-22T09:20:53.649Z$"
    ):
        plan_task({**task, "expires": "1 minute"}, created=created)


def test_the_error_of_a_graph_does_not_speak_of_a_task() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph({"default": {}, "tasks": {}})
    assert str(caught.value).splitlines()[0].startswith("the definition has ")
    assert "  $.default: unknown key" in str(caught.value)


def test_a_dependency_that_expires_before_the_deadline_is_found_before_anything_is_created() -> None:
    created = "2026-11-21T09:20:53.649Z"
    late = {"dependencies": ["a", "b", "c"], "deadline": "3 hours", "expires": "1 day"}
    graph = document(a={"expires": "2 hours"}, b={"expires": "1 hour"}, c={"expires": "3 hours"}, late=late)
    with pytest.raises(InvalidDefinition) as caught:
        plan_graph(with_defaults(graph, deadline="1 hour"), created=created)
    assert str(caught.value) == (
        "the definition has 1 problem:\n"
        '  $.tasks.late.deadline: "2026-11-21T12:20:53.649Z" is not valid; expected at or before '
        "2026-11-21T10:20:53.649Z, when the dependency 'b' expires"
    )


def test_a_dependency_may_expire_at_the_deadline_of_its_dependent(queue: Queue) -> None:
    late = {"dependencies": ["a"], "deadline": "3 hours", "expires": "1 day"}
    graph = plan_graph(with_defaults(document(a={"expires": "3 hours"}, late=late), deadline="1 hour"))
    assert submit_graph(queue, graph).keys() == {"a", "late"}


def test_all_tasks_are_created_in_one_group(queue: Queue) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a"]}))
    statuses = submit_graph(queue, graph)
    assert {name: status.state for name, status in statuses.items()} == {"a": "pending", "b": "unscheduled"}
    members = {member.status.task_id: member.task for member in queue.iter_task_group(graph.task_group_id)}
    assert members.keys() == set(graph.task_ids.values())
    assert {task["created"] for task in members.values()} == {sent(task)["created"] for task in graph.tasks}


async def test_the_asynchronous_client_submits_graphs_too(async_queue: AsyncQueue) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a"]}))
    assert (await submit_graph_async(queue=async_queue, graph=graph)).keys() == {"a", "b"}


def test_help_shows_how_a_graph_is_submitted() -> None:
    for submit in (submit_graph, submit_graph_async):
        assert submit.__name__.startswith("submit_graph")
        assert [*inspect.signature(submit).parameters] == ["queue", "graph"]


def test_a_document_has_to_be_planned_before_it_is_submitted(queue: Queue) -> None:
    unplanned: Any = document(a={})
    with pytest.raises(InvalidArgument, match=r"graph: .* expected a graph from plan_graph"):
        submit_graph(queue, unplanned)


def test_a_lost_response_does_not_create_a_task_twice(queue: Queue, local_queue: LocalQueue) -> None:
    local_queue.faults.add(Drop("queue.createTask", after=True))
    graph = plan_graph(document(a={}, b={}))
    submit_graph(queue, graph)
    assert len(list(queue.iter_task_group(graph.task_group_id))) == 2


def test_a_failed_submission_can_be_continued(queue: Queue, local_queue: LocalQueue) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a"]}, c={"dependencies": ["b"]}))
    local_queue.faults.add(Respond("queue.createTask", status=500, times=1))
    with pytest.raises(SubmissionFailed) as caught:
        submit_graph(queue.with_options(attempts=1), graph)
    assert (caught.value.name, caught.value.created) == ("a", ())
    assert isinstance(caught.value.__cause__, ServerError)
    submit_graph(queue, graph)
    assert submit_graph(queue, graph).keys() == {"a", "b", "c"}


def test_the_error_of_a_refused_submission_says_how_many_tasks_were_created(queue: Queue) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a"]}))
    other = plan_graph({**document(b={"schedulerId": "another"}), "taskGroupId": graph.task_group_id})
    submit_graph(queue, graph)
    with pytest.raises(SubmissionFailed) as caught:
        submit_graph(queue, other)
    assert isinstance(caught.value.__cause__, RequestConflict)
    assert f"(0 of 1 tasks were created in task group {graph.task_group_id})" in str(caught.value)
    pickled = pickle.loads(pickle.dumps(caught.value))
    assert str(pickled) == str(caught.value)
    assert isinstance(pickled.error, RequestConflict)


def part_of(graph: Graph, count: int) -> Graph:
    """The first tasks of a graph: those that a program has created before it is killed."""
    return Graph(graph.task_group_id, graph.tasks[:count])


CREATED_SINCE: dict[str, Callable[[Queue, LocalQueue, Graph], object]] = {
    "planned 20 minutes ago": lambda _, local, __: local.clock.advance(20 * 60),
    "other priority": lambda queue, _, graph: queue.change_task_priority(graph.tasks[0].task_id, "high"),
}


@pytest.mark.parametrize("change", CREATED_SINCE.values(), ids=CREATED_SINCE)
def test_an_interrupted_submission_is_continued_later(
    queue: Queue, local_queue: LocalQueue, change: Callable[[Queue, LocalQueue, Graph], object]
) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a"]}, c={"dependencies": ["a"]}))
    submit_graph(queue, part_of(graph, 2))
    change(queue, local_queue, graph)
    with Queue(local_queue.root_url, local_queue.credentials) as restarted:
        restarted.ping()  # the response has the service's time
        assert submit_graph(restarted, pickle.loads(pickle.dumps(graph))).keys() == {"a", "b", "c"}
        assert submit_graph(restarted, graph).keys() == {"a", "b", "c"}
    assert len(list(queue.iter_task_group(graph.task_group_id))) == 3


def test_a_graph_that_is_planned_again_with_its_seed_is_continued(
    queue: Queue, local_queue: LocalQueue
) -> None:
    """A decision task whose run was interrupted runs again on another machine, which has no stored graph."""

    for count in (1, 2):
        with Queue(local_queue.root_url, local_queue.credentials) as client:
            client.ping()  # the response has the service's time
            given = document(a={}, b={"dependencies": ["a"]})
            graph = plan_graph(given, created=client.now(), seed="a decision")
            submit_graph(client, part_of(graph, count))
        local_queue.clock.advance(20 * 60)
    members = list(queue.iter_task_group(graph.task_group_id))
    assert {member.status.task_id for member in members} == set(graph.task_ids.values())


def test_ids_differ_by_seed_and_name() -> None:
    graphs = [plan_graph(document(a={}, b={}), seed=seed) for seed in ("a", "b", "ab", None, None)]
    ids = [each for graph in graphs for each in (graph.task_group_id, *graph.task_ids.values())]
    assert len(set(ids)) == 15
    assert all(is_slugid(each) and each[0] != "-" for each in ids)


def test_a_planned_graph_that_differs_from_the_submitted_one_is_an_error(queue: Queue) -> None:
    submit_graph(queue, plan_graph(document(a={}), seed="a"))
    with pytest.raises(SubmissionFailed, match="'a' was not created"):
        submit_graph(queue, plan_graph(document(a={"payload": {"changed": True}}), seed="a"))


@pytest.mark.parametrize("seed", ["", 1])
def test_a_seed_that_is_not_a_str_is_refused(seed: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"seed: .* expected a string"):
        plan_graph(document(a={}), seed=seed)


async def test_tasks_that_do_not_depend_on_each_other_are_created_at_the_same_time(
    async_queue: AsyncQueue, queue: Queue, local_queue: LocalQueue
) -> None:
    def are_left(count: int) -> bool:
        return [each["times"] for each in local_queue.faults.waiting()] == [count] * (count > 0)

    local_queue.clock.hold()  # until it moves, no task that is being created is done
    tests = {f"test-{number}": {"dependencies": ["build"]} for number in range(32)}
    for is_async in (True, False):
        graph = plan_graph(document(build={}, **tests))
        local_queue.faults.add(Delay("queue.createTask", seconds=1, times=33))
        submitting = asyncio.ensure_future(
            submit_graph_async(async_queue, graph)
            if is_async
            else asyncio.to_thread(submit_graph, queue, graph)
        )
        for left in (32, 16, 0):
            await asyncio.to_thread(until, partial(are_left, left))
            await async_queue.ping()  # when it has a response, all delays have begun
            local_queue.clock.advance(seconds=1)
        assert list(await submitting) == [task.name for task in graph.tasks]


async def test_a_refused_task_ends_the_submission(async_queue: AsyncQueue, queue: Queue) -> None:
    """The tasks of later waves are not created."""
    for is_async in (True, False):
        graph = plan_graph(document(a={}, b={"dependencies": [slugid()]}, c={"dependencies": ["a"]}))
        with pytest.raises(SubmissionFailed) as caught:
            await submit_graph_async(async_queue, graph) if is_async else submit_graph(queue, graph)
        assert caught.value.name == "b"
        assert set(caught.value.created) <= {"a"}
        assert isinstance(caught.value.__cause__, InputError)


class _AtTheSameTime:
    """A client that sends nothing before three calls are to be sent."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._barrier = threading.Barrier(3)
        self.now = queue.now
        self.with_credentials = queue.with_credentials

    def send(self, call: Call[Any]) -> Any:
        self._barrier.wait(30)
        return self._queue.send(call)


class _AtTheSameTimeAsync:
    """An asynchronous client that sends nothing before three calls are to be sent."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue
        self._barrier = asyncio.Barrier(3)
        self.now = queue.now
        self.with_credentials = queue.with_credentials

    async def send(self, call: Call[Any]) -> Any:
        await self._barrier.wait()
        return await self._queue.send(call)


async def test_a_failed_submission_names_all_tasks_that_may_have_been_created(
    async_queue: AsyncQueue, queue: Queue, local_queue: LocalQueue
) -> None:
    """Tasks are created at the same time: a broken connection loses the responses about several of them."""
    client = _AtTheSameTime(queue.with_options(attempts=1))
    async_client = _AtTheSameTimeAsync(async_queue.with_options(attempts=1))
    for is_async in (True, False):
        graph = plan_graph(document(a={}, b={}, c={}, d={"dependencies": ["a"]}))
        # More than three: canceled requests of the asynchronous submission may come during the other one.
        local_queue.faults.add(Drop("queue.createTask", after=True, times=9))
        with pytest.raises(SubmissionFailed, match="may have been created") as caught:
            await submit_graph_async(async_client, graph) if is_async else submit_graph(client, graph)
        local_queue.faults.clear()
        assert (caught.value.created, sorted(caught.value.unknown)) == ((), ["a", "b", "c"])
        assert "(0 of 4 tasks were created, and 3 may have been, in task group " in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_a_graph_whose_group_is_sealed_is_submitted_again(
    async_queue: AsyncQueue, queue: Queue
) -> None:
    graph = plan_graph(document(a={}, b={}))
    submit_graph(queue, graph)
    queue.seal_task_group(graph.task_group_id)
    assert (await submit_graph_async(async_queue, graph)).keys() == {"a", "b"}
    assert submit_graph(queue, graph).keys() == {"a", "b"}


def test_a_task_that_is_missing_in_a_sealed_group_is_an_error(queue: Queue) -> None:
    graph = plan_graph(document(a={}, b={}))
    submit_graph(queue, part_of(graph, 1))
    queue.seal_task_group(graph.task_group_id)
    with pytest.raises(SubmissionFailed, match="is sealed") as caught:
        submit_graph(queue, graph)
    assert caught.value.created == (graph.tasks[0].name,)


def test_a_graph_whose_deadline_has_passed_is_an_error(queue: Queue, local_queue: LocalQueue) -> None:
    graph = plan_graph(document(a={"deadline": "1 hour"}))
    local_queue.clock.advance(2 * 60 * 60)
    queue.ping()
    with pytest.raises(SubmissionFailed) as caught:
        submit_graph(queue, graph)
    assert isinstance(caught.value.__cause__, InvalidDefinition)


@pytest.fixture
def states(queue: Queue) -> Callable[..., list[TaskAndStatus]]:
    """Submits a graph, reports its tasks, and returns the members of the group."""

    def reported(given: dict[str, Any], **reports: Any) -> list[TaskAndStatus]:
        graph = plan_graph(given)
        submit_graph(queue, graph)
        Worker(queue, reports).work()
        return list(queue.iter_task_group(graph.task_group_id))

    return reported


def names_of(members: list[TaskAndStatus], ids: frozenset[str]) -> set[str]:
    return {member.task["metadata"]["name"] for member in members if member.status.task_id in ids}


def test_all_direct_and_indirect_dependents_of_a_failed_task_are_blocked(
    states: Callable[..., list[TaskAndStatus]],
) -> None:
    given = document(a={}, b={"dependencies": ["a"]}, c={"dependencies": ["b"]}, d={})
    members = states(given, a="failed", d="completed")
    assert names_of(members, blocked_tasks(members)) == {"b", "c"}
    assert are_settled(members)


def test_a_task_that_only_requires_that_others_are_resolved_is_not_blocked(
    states: Callable[..., list[TaskAndStatus]],
) -> None:
    dependent = {"dependencies": ["a", "b"], "requires": "all-resolved"}
    given = document(a={"priority": "high"}, b={}, c=dependent)
    members = states(given, a="failed")
    assert next(each for each in members if len(each.task["dependencies"]) == 2).status.state == "unscheduled"
    assert blocked_tasks(members) == set()
    assert not are_settled(members)


class CountedTask(dict[str, Any]):
    reads = 0

    def __getitem__(self, key: str) -> Any:
        CountedTask.reads += 1
        return super().__getitem__(key)


def test_each_task_of_a_long_chain_is_looked_at_a_few_times(
    states: Callable[..., list[TaskAndStatus]],
) -> None:
    """Looking at all earlier tasks for each one would take minutes per poll of a chain of ten thousand."""
    members = states(document(a={}, b={"dependencies": ["a"]}), a="failed")
    failed, waiting = sorted(members, key=lambda member: str(member.status.state))
    ids = [slugid() for _ in range(500)]
    chain = [
        structs.replace(
            waiting if before else failed,
            task=CountedTask(requires="all-completed", dependencies=[before] if before else []),
            status=structs.replace((waiting if before else failed).status, task_id=task_id),
        )
        for before, task_id in pairwise(["", *ids])
    ]
    assert blocked_tasks(chain) == set(ids[1:])
    assert CountedTask.reads < 5 * len(ids)


def test_the_first_failed_dependency_of_a_task_is_enough_to_block_it(
    states: Callable[..., list[TaskAndStatus]], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []

    def was_completed(dependency: TaskStatus, _: object) -> bool:
        judged.append(dependency.task_id)
        return False

    monkeypatch.setattr(_following, "_was_completed", was_completed)
    members = states(
        document(a={}, b={}, c={"dependencies": ["a", "b"]}), a="malformed-payload", b="malformed-payload"
    )
    assert names_of(members, blocked_tasks(members)) == {"c"}
    assert len(judged) == 1


def test_a_task_that_requires_only_resolved_dependencies_is_not_blocked(
    states: Callable[..., list[TaskAndStatus]],
) -> None:
    given = document(a={}, b={"dependencies": ["a"], "requires": "all-resolved"})
    members = states(given, a="malformed-payload")
    assert blocked_tasks(members) == frozenset()
    assert not are_settled(members)


def test_a_dependency_that_was_completed_satisfies_the_tasks_of_that_time_though_its_rerun_fails(
    queue: Queue, local_queue: LocalQueue
) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a", "c"]}, c={"taskQueueId": "proj/other"}))
    submit_graph(queue, graph)
    Worker(queue, {"a": "completed"}).work()
    local_queue.clock.advance(1)
    queue.rerun_task(graph.task_ids["a"])
    Worker(queue, {"a": "failed"}).work()
    local_queue.clock.advance(1)
    late: Any = {**queue.task(graph.task_ids["b"]), "created": timestamp(local_queue)}
    late["metadata"]["name"] = "late"
    queue.create_task(slugid(), late)
    members = list(queue.iter_task_group(graph.task_group_id))
    assert names_of(members, blocked_tasks(members)) == {"late"}


def timestamp(local_queue: LocalQueue) -> str:
    return datetime.fromtimestamp(local_queue.clock.now(), UTC).isoformat()


def test_following_a_group_yields_each_change_and_ends_when_all_tasks_are_settled(queue: Queue) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a"]}))
    submit_graph(queue, graph)
    seen: list[set[TaskState]] = []
    for members in follow_group(queue, graph.task_group_id, interval=0.001):
        seen.append({member.status.state for member in members})
        if len(seen) == 1:
            Worker(queue, {"a": "completed", "b": "failed"}).work()
    assert seen == [{"pending", "unscheduled"}, {"completed", "failed"}]


@pytest.mark.parametrize("interval", ["2 seconds", None, True, -1, float("nan"), float("inf")])
def test_an_interval_that_is_not_a_number_of_seconds_is_refused_at_once(
    queue: Queue, async_queue: AsyncQueue, interval: Any
) -> None:
    both: list[tuple[Any, Any]] = [(follow_group, queue), (follow_group_async, async_queue)]
    for function, client in both:
        with pytest.raises(InvalidArgument, match=r"^interval: .* expected a number of seconds, 0 or more$"):
            function(client, slugid(), interval=interval)


async def test_the_asynchronous_client_follows_groups_too(async_queue: AsyncQueue) -> None:
    graph = plan_graph(document(a={}, b={"dependencies": ["a"]}))
    await submit_graph_async(async_queue, graph)
    seen: list[set[TaskState]] = []
    async for members in follow_group_async(async_queue, graph.task_group_id, interval=0.001):
        seen.append({member.status.state for member in members})
        for task_id in graph.task_ids.values():
            await async_queue.cancel_task(task_id)
    assert seen == [{"pending", "unscheduled"}, {"exception"}]


def test_a_slow_queue_is_polled_less_often(queue: Queue) -> None:
    """The pause is ten times the time of the response, but at least the interval, and at most a minute."""
    graph = plan_graph(document(a={}))
    submit_graph(queue, graph)
    clock, pauses = MovableClock(held=True), list[float]()

    def look() -> list[TaskAndStatus]:
        clock.advance([0.0, 3.0, 300.0, 0.0][len(pauses)])
        if len(pauses) == 3:
            queue.cancel_task(graph.tasks[0].task_id)
        return list(queue.iter_task_group(graph.task_group_id))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)

    clock.sleep = sleep  # type: ignore[method-assign] # the pauses are what is tested
    for _ in follow(look, interval=2, clock=clock):
        pass
    assert pauses == [2, 30, 60]
