"""`taskqueue submit`: from a file to tasks, or to one line that says what is wrong with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import yaml

from taskqueue_client import Queue, slugid
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.cli.submit import how_to_cancel
from taskqueue_client.graph import Graph, GraphTask
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import Delay, Drop
from taskqueue_client.models import TaskState
from tests.cli.command import COMMAND, ENDING, run, run_json, running

pytestmark = pytest.mark.usefixtures("folder")


def write(document: dict[str, Any], name: str = "tasks.yml") -> str:
    text = json.dumps(document) if name.endswith(".json") else yaml.safe_dump(document)
    Path(name).write_text(text)
    return name


@pytest.fixture
def graph(definition: dict[str, Any]) -> dict[str, Any]:
    return {
        "defaults": definition,
        "tasks": {
            "build": {"dependencies": ["fetch"], "payload": {"sources": {"task-reference": "<fetch>"}}},
            "fetch": {"deadline": "2 hours", "expires": "3 days"},
        },
    }


def refused(*arguments: str) -> str:
    """Run a command that must be refused; return the one line that it prints."""
    result = run(*arguments)
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("name", ["task.yml", "task.json"])
@pytest.mark.usefixtures("deployment")
def test_a_file_with_one_definition_becomes_a_task(
    definition: dict[str, Any], queue: Queue, name: str
) -> None:
    definition["metadata"]["name"] = "tests"
    (printed,) = run_json("submit", write(definition, name))
    task_id = printed["taskIds"]["task"]
    assert printed["taskGroupId"] == task_id
    assert queue.status(task_id).status.state is TaskState.PENDING
    assert queue.task(task_id)["metadata"]["name"] == "tests"


@pytest.mark.usefixtures("deployment")
def test_a_graph_becomes_a_group_in_which_names_are_ids(graph: dict[str, Any], queue: Queue) -> None:
    (printed,) = run_json("submit", write(graph))
    ids = printed["taskIds"]
    build = queue.task(ids["build"])
    assert build["dependencies"] == [ids["fetch"]]
    assert build["payload"] == {"sources": ids["fetch"]}
    assert build["metadata"]["name"] == "build"
    assert {each.status.task_id for each in queue.iter_task_group(printed["taskGroupId"])} == set(
        ids.values()
    )


@pytest.mark.usefixtures("deployment")
def test_submit_prints_the_group_and_the_id_of_each_task(graph: dict[str, Any]) -> None:
    lines = run("submit", write(graph)).stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["fetch", "build"]
    assert lines[0].startswith("group ")


@pytest.mark.usefixtures("deployment")
def test_dates_in_yaml_stay_text(definition: dict[str, Any], queue: Queue) -> None:
    Path("task.yml").write_text(yaml.safe_dump({**definition, "payload": {}}) + "extra: {day: 2026-11-21}\n")
    (printed,) = run_json("submit", "task.yml")
    assert queue.task(printed["taskIds"]["task"])["extra"] == {"day": "2026-11-21"}


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yml", "tasks:\n  build: [\n", "a.yml, line 3, column 1: "),
        (
            "a.yml",
            "tasks:\n  build: {}\n  build: {}\n",
            "a.yml, line 3, column 3: duplicate key 'build'",
        ),
        ("a.yml", "- 1\n", "a.yml: the file must contain an object"),
        ("a.yml", "", "a.yml: the file must contain an object"),
        ("a.yml", "b: 1\na: \x00\n", "a.yml, line 2, column 4: special characters are not allowed: #x0000"),
        (
            "a.yml",
            "a: !!python/object:os.system {}\n",
            "a.yml, line 1, column 4: could not determine a constructor",
        ),
        ("a.yml", "b: 1\na: 0x_\n", "a.yml, line 2, column 4: cannot be read as int"),
        ("a.yml", "a: " + 5000 * "9", "a.yml, line 1, column 4: cannot be read as int"),
        ("a.yml", "a: !!bool maybe\n", "a.yml, line 1, column 4: cannot be read as bool"),
        ("a.yml", "a: !!timestamp today\n", "a.yml, line 1, column 4: cannot be read as timestamp"),
        ("a.yml", "b: 1\non: 2\n", "a.yml, line 2, column 1: key 'on' is true in YAML; put it in quotes"),
        ("a.yml", "a: {~: 2}\n", "a.yml, line 1, column 5: key '~' is null in YAML"),
        ("a.yml", "a: {010: 2}\n", "a.yml, line 1, column 5: key '010' is 8 in YAML"),
        ("a.yml", "a: {<<: {off: 2}}\n", "a.yml, line 1, column 10: key 'off' is false in YAML"),
        ("a.yml", "a: [.inf]\n", "a.yml, line 1, column 5: cannot be read as float"),
        (
            "a.yml",
            "a: 1\n---\nb: 2\n",
            "a.yml, line 2, column 1: expected a single document in the stream, but found another document",
        ),
        ("a.yml", "a: !!map [b]\n", "a.yml, line 1, column 4: expected a mapping, as the tag says"),
        ("a.yml", "a: !!set b\n", "a.yml, line 1, column 4: expected a mapping, as the tag says"),
        (
            "a.yml",
            'b: 1\na: "\\U00110000"\n',
            "a.yml, line 2, column 7: the escape sequence is not a character of Unicode",
        ),
        (
            "a.yml",
            'a: "\\UFFFFFFFF"\n',
            "a.yml, line 1, column 7: the escape sequence is not a character of Unicode",
        ),
        ("a.yml", "b: 1\na: &a [1, *a]\n", "a.yml, line 2, column 4: contains itself, by an alias"),
        ("a.yml", "&a\nb: {c: *a}\n", "a.yml, line 1, column 1: contains itself, by an alias"),
        ("a.yml", "a: &a {<<: *a}\n", "a.yml, line 1, column 4: contains itself, by an alias"),
        ("a.json", '{"a": ' + 5000 * "9" + "}", "a.json, line 1, column 7: 5,000 digits; "),
        ("a.json", '{"1e999": 1,\n "a": 1e999}', "a.json, line 2, column 7: 1e999 is not a number in JSON"),
        ("a.json", '["NaN \\" NaN",\n -1, NaN]', "a.json, line 2, column 6: NaN is not a number in JSON"),
        ("a.json", '{\n  "tasks": {,\n', "a.json, line 2, column 13: "),
        (
            "a.json",
            '{"a": 1, "a": 2}',
            "a.json, line 1, column 16: duplicate key 'a' in the object that ends ",
        ),
        (
            "a.json",
            '{"{": {"}": {}},\n "b": [{},\n {"b": 1, "\\"": {}, "b": 3}, {"c": 1, "c": 2}]}',
            "a.json, line 3, column 27: duplicate key 'b' in the object that ends here",
        ),
    ],
)
def test_a_broken_file_is_refused_with_line_and_column(name: str, text: str, message: str) -> None:
    Path(name).write_text(text)
    assert refused("submit", name).startswith(f"Error: {message}")


def _aliases_of_aliases(levels: int) -> str:
    """YAML in which each level has the one below ten times."""
    lists = (f"l{n}: &l{n} [{','.join(10 * [f'*l{n - 1}'])}]" for n in range(1, levels))
    return "\n".join(["l0: &l0 [1]", *lists, ""])


@pytest.mark.usefixtures("deployment")
def test_aliases_that_stand_for_too_much_are_refused_at_once() -> None:
    Path("a.yml").write_text(_aliases_of_aliases(8))
    assert refused("submit", "a.yml") == (
        "Error: a.yml, line 1, column 1: aliases stand for 23,456,780 values; at most 10,000,000 are allowed"
    )


@pytest.mark.usefixtures("deployment")
def test_a_duplicate_key_at_the_end_of_a_large_object_is_found_at_once() -> None:
    """A search of all keys for each key would take longer than a test may."""
    Path("a.json").write_text("{" + ",".join(f'"{number}":1' for number in [*range(200_000), 199_999]) + "}")
    assert refused("submit", "a.json").endswith("duplicate key '199999' in the object that ends here")


@pytest.mark.usefixtures("deployment")
def test_a_value_may_have_many_aliases(definition: dict[str, Any], queue: Queue) -> None:
    text = yaml.safe_dump({**definition, "payload": {}})
    Path("task.yml").write_text(f"{text}extra: {{a: &a [1], b: [{','.join(1000 * ['*a'])}]}}\n")
    (printed,) = run_json("submit", "task.yml")
    assert queue.task(printed["taskIds"]["task"])["extra"] == {"a": [1], "b": 1000 * [[1]]}


@pytest.mark.usefixtures("deployment")
def test_keys_in_yaml_that_are_numbers_are_text(definition: dict[str, Any], queue: Queue) -> None:
    text = yaml.safe_dump({**definition, "payload": {}})
    Path("task.yml").write_text(
        text + "extra: {8080: a, 1.5: b, c: &c {&n 1: x}, d: {<<: *c}, e: {f: {g: *n}}}\n"
    )
    (printed,) = run_json("submit", "task.yml")
    extra = {"8080": "a", "1.5": "b", "c": {"1": "x"}, "d": {"1": "x"}, "e": {"f": {"g": 1}}}
    assert queue.task(printed["taskIds"]["task"])["extra"] == extra


@pytest.mark.usefixtures("deployment")
def test_a_key_that_replaces_a_merged_one_is_not_a_duplicate(
    definition: dict[str, Any], queue: Queue
) -> None:
    text = yaml.safe_dump({**definition, "payload": {}})
    Path("task.yml").write_text(text + "extra: {a: &a {key: 0}, x: {b: &b {<<: *a, key: 1}}, c: {<<: *b}}\n")
    (printed,) = run_json("submit", "task.yml")
    extra = {"a": {"key": 0}, "x": {"b": {"key": 1}}, "c": {"key": 1}}
    assert queue.task(printed["taskIds"]["task"])["extra"] == extra


@pytest.mark.usefixtures("deployment")
def test_a_file_that_is_not_text_is_refused() -> None:
    Path("a.yml").write_bytes(b"b: 1\na: \xff\n")
    assert refused("submit", "a.yml") == "Error: a.yml, line 2, column 4: not UTF-8: byte 0xff"


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
@pytest.mark.parametrize("name", ["a.json", "a.yml"])
@pytest.mark.parametrize("levels", [990, 5_000, 20_000])  # steps with different limits refuse them
def test_a_file_nested_too_deeply_is_refused(name: str, options: list[str], levels: int) -> None:
    Path(name).write_text('{"tasks": {"a": {"payload": ' + levels * '{"a": ' + "1" + (levels + 3) * "}")
    result = run("submit", name, *options)
    assert result.exit_code == ExitStatus.WRONG_USE
    assert result.stdout == ""
    # Not at the beginning: a finalizer of another test may run at Python's limit of calls, and print before.
    assert f"Error: {name}: " in result.stderr
    assert "lists and objects are nested too deeply" in result.stderr


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("name", ["tasks.yml", "tasks.json"])
def test_a_number_that_json_lacks_is_refused_and_nothing_is_created(
    graph: dict[str, Any], queue: Queue, name: str
) -> None:
    graph["tasks"]["build"]["payload"]["limit"] = float("nan")
    assert "JSON" in refused("submit", write(graph, name))
    assert queue.task_queue_counts("proj/linux").pending_tasks == 0


@pytest.mark.usefixtures("deployment")
def test_an_unknown_dependency_is_named_and_nothing_is_created(graph: dict[str, Any], queue: Queue) -> None:
    graph["tasks"]["build"]["dependencies"] = ["fetsh"]
    graph["tasks"]["build"].pop("payload")
    line = refused("submit", write(graph))
    assert '$.tasks.build.dependencies[0]: "fetsh"' in line
    assert "did you mean 'fetch'?" in line
    assert queue.task_queue_counts("proj/linux").pending_tasks == 0


@pytest.mark.usefixtures("deployment")
def test_a_cycle_is_named_and_nothing_is_created(graph: dict[str, Any], queue: Queue) -> None:
    graph["tasks"]["fetch"]["dependencies"] = ["build"]
    assert "dependency cycle: build → fetch → build" in refused("submit", write(graph))
    assert queue.task_queue_counts("proj/linux").pending_tasks == 0


@pytest.mark.usefixtures("deployment")
def test_every_problem_of_every_task_is_a_line(graph: dict[str, Any], queue: Queue) -> None:
    graph["tasks"]["fetch"].update(retries=50, deadline="tomorow")
    graph["tasks"]["build"]["priority"] = "urgent"
    result = run("submit", write(graph))
    assert result.exit_code == ExitStatus.WRONG_USE
    first, *lines = result.stderr.splitlines()
    assert first == "Error: tasks.yml: 3 problems:"
    assert {line.partition(": ")[0] for line in lines} == {
        f"  $.tasks.{path}" for path in ("fetch.retries", "fetch.deadline", "build.priority")
    }
    assert queue.task_queue_counts("proj/linux").pending_tasks == 0


@pytest.mark.parametrize("form", ["json", "tabs", "yaml"])
@pytest.mark.usefixtures("deployment")
def test_a_graph_can_come_from_standard_input(graph: dict[str, Any], queue: Queue, form: str) -> None:
    texts = {"json": json.dumps(graph), "tabs": json.dumps(graph, indent="\t"), "yaml": yaml.safe_dump(graph)}
    result = run("submit", "-", "--json", stdin=texts[form])
    ids = json.loads(result.stdout)["taskIds"]
    assert queue.status(ids["fetch"]).status.state is TaskState.PENDING


@pytest.mark.parametrize("form", ["json", "tabs", "yaml"])
@pytest.mark.usefixtures("deployment")
def test_a_file_whose_name_has_no_known_suffix_is_json_or_yaml(
    definition: dict[str, Any], queue: Queue, form: str
) -> None:
    """Such as that of a process substitution, `/dev/fd/63`."""
    task = {**definition, "payload": {"size": 0}}
    texts = {"json": json.dumps(task), "tabs": json.dumps(task, indent="\t"), "yaml": yaml.safe_dump(task)}
    number = "1.0e+3" if form == "yaml" else "1e3"  # which is a string in YAML
    Path("task").write_text(re.sub(r'(size"?: )0', rf"\g<1>{number}", texts[form]))
    (printed,) = run_json("submit", "task")
    assert queue.task(printed["taskIds"]["task"])["payload"] == {"size": 1000}


@pytest.mark.parametrize(("name", "shown"), [("-", "standard input"), ("/proc/self/mem", "/proc/self/mem")])
def test_a_file_that_cannot_be_read_is_named(name: str, shown: str) -> None:
    terminal, other_end = os.openpty()
    os.close(other_end)  # reading fails then, as of /proc/self/mem, which cannot be opened after some tests
    with os.fdopen(terminal, "rb") as unreadable:
        command = [*COMMAND, "submit", name, "--dry-run"]
        ended = subprocess.run(
            command, stdin=unreadable, capture_output=True, text=True, timeout=60, check=False
        )
    assert (ended.returncode, ended.stderr) == (2, f"Error: {shown}: Input/output error\n")


def test_a_broken_standard_input_is_named() -> None:
    result = run("submit", "-", "--dry-run", stdin="tasks: [")
    assert result.stderr.startswith("Error: standard input, line 1, column 9: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n\t"a": 1,\n\tb: 2\n}', "line 3, column 2: Expecting property name"),
        ("\ufeff\n[\n\t1 2]", "line 3, column 4: Expecting ',' delimiter"),
        ('{"a":\t[' + 5000 * "9" + "]}", "line 1, column 8: 5,000 digits; at most 4,300 are allowed"),
        ("{a: 1,\n\tb: 2}", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("a:\n\tb: 1", "line 2, column 1: found character '\\t' that cannot start any token"),
    ],
)
def test_the_error_of_json_with_tabs_from_standard_input_is_that_of_json(text: str, place: str) -> None:
    result = run("submit", "-", "--dry-run", stdin=text)
    assert result.stderr.startswith(f"Error: standard input, {place}")


def test_a_dry_run_prints_what_would_be_created_without_a_deployment(graph: dict[str, Any]) -> None:
    fetch, build = run_json("submit", write(graph), "--dry-run")
    assert (fetch["name"], build["name"]) == ("fetch", "build")
    assert build["task"]["dependencies"] == [fetch["taskId"]]
    assert fetch["task"]["deadline"] > fetch["task"]["created"]
    lines = run("submit", write(graph), "--dry-run").stdout.splitlines()
    assert (lines[0], lines[-1]) == ("fetch", "dry run: 2 valid, 0 created")


@pytest.mark.parametrize(("encoding", "printed"), [("latin-1", "bück \\u2192"), ("utf-8", "bück →")])
def test_characters_that_the_encoding_of_the_output_lacks_are_escaped(
    graph: dict[str, Any], monkeypatch: pytest.MonkeyPatch, encoding: str, printed: str
) -> None:
    graph["tasks"]["build"]["payload"]["x"] = "bück →"
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    ended = subprocess.run(
        [*COMMAND, "submit", write(graph), "--dry-run"], capture_output=True, check=True, timeout=60
    )
    assert f"x: {printed}" in ended.stdout.decode(encoding)


def test_a_dry_run_of_a_file_with_a_problem_fails(graph: dict[str, Any]) -> None:
    graph["tasks"]["fetch"]["retries"] = 50
    assert "$.tasks.fetch.retries" in refused("submit", write(graph), "--dry-run")


@pytest.mark.parametrize("set_variable", ["TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN", None])
def test_missing_credentials_are_an_error_that_names_the_variables(
    graph: dict[str, Any], deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch, set_variable: str | None
) -> None:
    names = {"TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN"} - {set_variable}
    for name in names:
        monkeypatch.delenv(name)
    line = refused("submit", write(graph))
    assert all(name in line for name in names)
    assert deployment.access_token not in line


def test_an_unreachable_root_url_is_an_error_that_names_it(
    graph: dict[str, Any], deployment: LocalQueue
) -> None:
    root_url = deployment.root_url
    deployment.stop()
    result = run("submit", write(graph))
    assert result.exit_code == ExitStatus.NO_RESPONSE
    assert result.stderr.startswith(f"Error: cannot reach {root_url} (")
    assert result.stderr.count("\n") == 1


def half_way(graph: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Submit a graph whose second task is refused; return the last line, and the id of the first task."""
    scopes = ["queue:create-task:*", "queue:scheduler-id:-"]
    created: list[str] = []
    graph["tasks"]["build"]["scopes"] = ["secrets:get:key"]
    with LocalQueue(clients=[Client("half", "half-token", scopes)]) as local:
        local.subscribe(lambda message: created.append(message.body["status"]["taskId"]))
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
        monkeypatch.setenv("TASKCLUSTER_CLIENT_ID", "half")
        monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", "half-token")
        result = run("submit", write(graph))
    assert result.exit_code == ExitStatus.REFUSED
    (line,) = result.stderr.splitlines()
    return line, created[0]


def test_a_submission_that_fails_half_way_says_what_to_do(
    graph: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, _ = half_way(graph, monkeypatch)
    refusal = "client 'half' is missing scope: secrets:get:key; "
    assert line.startswith(f"Error: task 'build' was not created: {refusal}")
    assert "(1 of 2 tasks were); to cancel what was created: taskqueue cancel --group " in line


def test_the_advice_does_not_cancel_other_tasks_of_an_existing_group(
    graph: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, created = half_way({"taskGroupId": slugid(), **graph}, monkeypatch)
    assert line.endswith(f"(1 of 2 tasks were); to cancel what was created: taskqueue cancel {created}")


class CountedName(str):
    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_the_advice_looks_at_each_name_a_few_times() -> None:
    """Comparing each name with all before it would take minutes for a graph of a hundred thousand tasks."""
    names = [f"t{number}" for number in range(500)]
    definition: Any = {}
    graph = Graph(slugid(), tuple(GraphTask(CountedName(name), slugid(), definition) for name in names))
    created = tuple(map(CountedName, names))
    CountedName.compared = 0
    assert how_to_cancel(graph, created, is_new_group=False).endswith(graph.tasks[-1].task_id)
    assert CountedName.compared < 5 * len(names)


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("group", [{}, {"taskGroupId": slugid()}], ids=["a new group", "an existing group"])
def test_a_task_that_may_have_been_created_is_named(
    definition: dict[str, Any], deployment: LocalQueue, queue: Queue, group: dict[str, str]
) -> None:
    deployment.faults.add(Drop("queue.createTask", after=True, times=99))
    definition["metadata"]["name"] = "tests"
    result = run("submit", write({**group, **definition}))
    start, _, advice = result.stderr.rpartition("to cancel what was created: taskqueue cancel ")
    assert start.startswith("Error: task 'task' may have been created: cannot reach ")
    assert advice.startswith("--group ") == (not group)
    assert queue.status(advice.strip().removeprefix("--group ")).status.state is TaskState.PENDING


@pytest.mark.usefixtures("without_pauses")
def test_the_advice_names_all_tasks_of_an_existing_group_that_may_have_been_created(
    graph: dict[str, Any], deployment: LocalQueue, queue: Queue
) -> None:
    graph["tasks"] = {"a": {}, "b": {}}
    deployment.faults.add(Drop("queue.createTask", after=True, times=99))
    group_id = slugid()
    result = run("submit", write({"taskGroupId": group_id, **graph}))
    start, _, advised = result.stderr.rpartition("; to cancel what was created: taskqueue cancel ")
    created = {each.status.task_id for each in queue.iter_task_group(group_id)}
    assert start.endswith(" (0 of 2 tasks were, 1 more may have been)") is (len(created) > 1)
    assert set(advised.split()) == created


@pytest.mark.usefixtures("deployment")
def test_submit_wait_ends_with_0_when_all_tasks_are_completed(graph: dict[str, Any], worker: Any) -> None:
    with worker(fetch="completed", build="completed"):
        result = run("submit", write(graph), "--wait", "--interval", "0.05")
    assert result.exit_code == ExitStatus.DONE
    assert "build completed" in result.stdout


@pytest.mark.usefixtures("deployment")
def test_submit_wait_ends_when_all_remaining_tasks_are_blocked(graph: dict[str, Any], worker: Any) -> None:
    with worker(fetch="failed"):
        result = run("submit", write(graph), "--wait", "--interval", "0.05")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert "build unscheduled blocked" in result.stdout


@pytest.mark.usefixtures("deployment")
def test_submit_wait_ends_when_an_existing_task_of_the_group_blocks_the_new_ones(
    graph: dict[str, Any], worker: Any
) -> None:
    (printed,) = run_json("submit", write(graph))
    with worker(fetch="failed"):
        pass
    later = {
        "defaults": graph["defaults"],
        "tasks": {"test": {"dependencies": [printed["taskIds"]["build"]]}},
    }
    later["taskGroupId"] = printed["taskGroupId"]
    result = run("submit", write(later), "--wait", "--interval", "0.05")
    assert result.exit_code == ExitStatus.NOT_COMPLETED
    assert result.stdout.splitlines()[2:] == [f"{result.stdout.split()[2]} test unscheduled blocked"]


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("group", [{}, {"taskGroupId": slugid()}], ids=["a new group", "an existing group"])
def test_a_signal_while_submitting_says_how_to_cancel_what_was_created(
    graph: dict[str, Any], deployment: LocalQueue, group: dict[str, str], number: signal.Signals
) -> None:
    created: SimpleQueue[dict[str, Any]] = SimpleQueue()
    deployment.subscribe(lambda message: created.put(message.body["status"]))
    deployment.faults.add(Delay("queue.createTask", seconds=600, after=True))
    with running("submit", write({**group, **graph})) as process:
        status = created.get(timeout=60)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (128 + number, "")
    advised = status["taskId"] if group else f"--group {status['taskGroupId']}"
    assert f"to cancel what was created: taskqueue cancel {advised}" in errors.splitlines()[0]


@pytest.mark.usefixtures("deployment")
def test_a_program_may_submit_in_a_thread_that_does_not_get_signals(definition: dict[str, Any]) -> None:
    with ThreadPoolExecutor() as threads:
        result = threads.submit(run, "submit", write(definition)).result()
    assert result.exit_code == ExitStatus.DONE


def test_the_first_ctrl_c_says_what_the_command_waits_for_and_the_second_ends_the_process(
    definition: dict[str, Any], deployment: LocalQueue
) -> None:
    independent: dict[str, Any] = {"defaults": definition, "tasks": {"one": {}, "two": {}}}
    called: SimpleQueue[None] = SimpleQueue()
    deployment.subscribe(lambda _: called.put(None))
    deployment.faults.add(Delay("queue.createTask", seconds=600, after=True, times=2))
    with running("submit", write(independent)) as process:
        for _ in independent["tasks"]:
            called.get(timeout=60)
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        said = [process.stderr.readline() for _ in range(2)]  # before the calls have ended
        while process.poll() is None:  # one that comes together with the one before counts as the same
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        _, errors = process.communicate(timeout=60)
    assert "; to cancel what was created: taskqueue cancel --group " in said[0]
    assert said[1] == "Waiting for calls in progress; interrupt again (Ctrl-C) to end now\n"
    assert (process.returncode, errors) == (130, "Interrupted.\n")


@pytest.mark.usefixtures("deployment")
def test_ctrl_c_while_waiting_ends_the_process_without_a_traceback(graph: dict[str, Any]) -> None:
    with running("submit", write(graph), "--wait") as process:
        assert process.stdout is not None
        while not process.stdout.readline().endswith("fetch pending\n"):
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "Interrupted.\n"
