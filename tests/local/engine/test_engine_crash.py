"""Acknowledged changes survive kill -9."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.local.engine.crash_driver import seen
from tests.local.engine.engine_world import QUEUE, World

DRIVER = Path(__file__).with_name("crash_driver.py")
REPOSITORY = Path(__file__).parents[3]
ROUNDS = 6


def drive_and_kill(path: str, lines: int) -> list[dict[str, Any]]:
    """Let a process change the file, kill it after it has printed `lines` lines; return all its lines."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(DRIVER), path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as driver:
        assert driver.stdout is not None
        said = [driver.stdout.readline() for _ in range(lines)]
        driver.kill()
        said += driver.stdout.readlines()
    assert driver.returncode == -9, "the driver ended by itself"
    return [json.loads(line) for line in said if line.endswith("\n")]


def test_no_acknowledged_change_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "q.sqlite")
    acknowledged: dict[str, Any] = {}
    for round_ in range(ROUNDS):
        doing: set[str] = set()
        for line in drive_and_kill(path, 60 + 37 * round_):
            if "doing" in line:
                doing.add(line["doing"])
            else:
                doing.discard(line["done"])
                acknowledged[line["done"]] = line["seen"]
        world = World(path)
        for task_id, expected in acknowledged.items():
            if task_id in doing:  # no response has said whether the change was made
                acknowledged[task_id] = seen(world, task_id)
            else:
                assert seen(world, task_id) == expected
        check_consistency(world)
        world.close()
    assert len(acknowledged) > ROUNDS


def check_consistency(world: World) -> None:
    """Check that the records of each change are complete: all of them are there, or none."""
    waiting = {entry["taskId"] for entry in world.engine.list_pending_tasks(QUEUE, None, 1000)["tasks"]}
    claimed = {task_id for (task_id,) in world.store.rows("SELECT task_id FROM claims")}
    states = {
        task_id: world.status(task_id)["state"]
        for (task_id,) in world.store.rows("SELECT task_id FROM tasks")
    }
    assert waiting == {task_id for task_id, state in states.items() if state == "pending"}
    assert claimed >= {task_id for task_id, state in states.items() if state == "running"}
