"""Children that handlers fork: nothing that they do for a run is lost silently, and none becomes a worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.worker.queue_world import World
from tests.worker.worker_world import artifact_names, log_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

WORKER = """
import asyncio, logging, os, signal, socket, sys, threading
from taskqueue_client import Credentials, InternalError, TaskRun, WorkerLoop

def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def task_status(task):
    return await task.async_queue.status(task.task_id)

def check_calls_of_a_child(task):
    if (child := os.fork()) == 0:
        signal.alarm(20)
        task.queue.status(task.task_id)
        asyncio.run(task_status(task))
        os._exit(int(task.canceled.is_set()))
    code = exit_code(child)
    assert code == 0, code

class Worker(WorkerLoop):
{handler}

root_url, client_id, access_token = sys.argv[1:]
Worker(
    root_url=root_url, credentials=Credentials(client_id, access_token), capture_logging=True,
    task_queue_id="proj/linux", worker_group="g", worker_id="w", max_tasks=1, {settings}
).run()
"""


def ended(world: World, handler: str, settings: str = "") -> tuple[str, str, str]:
    """Run a worker with this handler; return its task, how the only run has ended, and what was printed."""
    task_id = world.create(taskQueueId="proj/linux")
    owner, script = world.local.credentials, WORKER.format(handler=handler, settings=settings)
    arguments = [world.local.root_url, owner.client_id, owner.access_token]
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (run,) = world.queue.status(task_id).status.runs
    return task_id, str(run.reason_resolved), ran.stdout + ran.stderr


REFUSED = """
    def run_task(self, task):
        attempts = [
            lambda: task.upload_artifact("public/a", b"a"),
            lambda: task.upload_artifacts("public", "."),
            lambda: task.run_command(["true"]),
            lambda: task.proxy(),
            lambda: task.work_directory,
        ]
        for number, attempt in enumerate(attempts):
            if (child := os.fork()) == 0:
                try:
                    attempt()
                except InternalError as error:
                    os._exit(7 if f"for run {task.task_id}/0; let the handler do it" in str(error) else 8)
                os._exit(9)
            assert exit_code(child) == 7, number
        task.run_command(["true"])
        task.upload_artifact("public/b", b"b")
        if (child := os.fork()) == 0:
            os.chdir(task.work_directory)
            task.queue.upload_artifact(task.task_id, 0, "public/c", b"c", expires="1 hour")
            os._exit(0)
        assert exit_code(child) == 0
"""


def test_a_child_cannot_declare_artifacts_or_run_commands_and_the_handler_can(world: World) -> None:
    task_id, outcome, printed = ended(world, REFUSED)
    assert outcome == "completed", printed
    assert {"public/b", "public/c"} < artifact_names(world, task_id)
    assert "public/a" not in artifact_names(world, task_id)


FORKED_MEANWHILE = """
    def run_task(self, task):
        starting, forked, create_server = threading.Event(), threading.Event(), socket.create_server
        def wait_and_create(*args):
            starting.set()
            forked.wait()
            return create_server(*args)
        socket.create_server = wait_and_create
        command = threading.Thread(target=lambda: task.run_command(["true"], proxy=True))
        command.start()
        starting.wait()
        try:
            check_calls_of_a_child(task)
        finally:
            forked.set()
            command.join()
"""


def test_a_child_can_make_calls_that_is_forked_while_a_proxy_starts(world: World) -> None:
    _, outcome, printed = ended(world, FORKED_MEANWHILE)
    assert outcome == "completed", printed


FORKED_AT_A_RECLAIM = """
    def run_task(self, task):
        replacing, forked = threading.Event(), threading.Event()
        def replace(credentials):
            replacing.set()
            forked.wait()
        reclaim = threading.Thread(target=task._resources.run.watch_credentials, args=[replace])
        reclaim.start()
        replacing.wait()
        try:
            check_calls_of_a_child(task)
        finally:
            forked.set()
            reclaim.join()
"""


def test_a_child_can_make_calls_that_is_forked_while_the_run_gets_other_credentials(world: World) -> None:
    _, outcome, printed = ended(world, FORKED_AT_A_RECLAIM)
    assert outcome == "completed", printed


WAYS_OUT = {"return": 1, "raise OSError('on the way out')": 1, "sys.exit(3)": 3, "sys.exit()": 0}

LEAVES = """
    {kind} run_task(self, task):
        if (child := os.fork()) == 0:
            {leave}
        assert exit_code(child) == {code}
        task.upload_artifact("public/of-the-parent", b"")
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("leave", WAYS_OUT)
def test_a_child_ends_when_it_returns_from_the_handler(world: World, kind: str, leave: str) -> None:
    task_id, outcome, printed = ended(world, LEAVES.format(kind=kind, leave=leave, code=WAYS_OUT[leave]))
    assert outcome == "completed", printed
    assert "public/of-the-parent" in artifact_names(world, task_id)
    assert ("end it with os._exit" in printed) == (leave == "return")
    assert ("OSError: on the way out" in printed) == leave.startswith("raise")


HOOK = """
    forked = threading.Event()

    def run_task(self, task):
        if "{hook}" == "termination_notice":  # another thread calls it
            assert self.forked.wait(60)

    def {hook}(self, *_):
        if (child := os.fork()) == 0:
            signal.alarm(20)
            {leave}
        print("the child has ended with", exit_code(child), flush=True)
        self.forked.set()
"""


@pytest.mark.parametrize(
    "hook", ["on_start", "on_task_end", "on_stop", "run_time_limit", "termination_notice"]
)
@pytest.mark.parametrize(("leave", "code"), [("return", 1), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_a_child_ends_when_it_leaves_the_hook_that_forked_it(
    world: World, hook: str, leave: str, code: int
) -> None:
    _, outcome, printed = ended(world, HOOK.format(hook=hook, leave=leave))
    assert outcome == "completed", printed
    assert f"the child has ended with {code}\n" in printed
    assert ("end it with os._exit" in printed) == (leave == "return")


LOGS = """
    def run_task(self, task):
        task.register_secret("hunter2")
        if (child := os.fork()) == 0:
            task.log.info("of the child, hunter2")
            logging.getLogger("library").warning("of a library in the child")
            os._exit(0)
        assert exit_code(child) == 0
        task.log.info("of the handler")
"""


def test_messages_of_a_child_go_to_standard_error(world: World) -> None:
    task_id, outcome, printed = ended(world, LOGS)
    assert outcome == "completed", printed
    assert "INFO of the child, " in printed
    assert "hunter2" not in printed
    assert "WARNING library: of a library in the child" in printed
    assert "of the handler" in log_of(world, task_id)
    assert "child" not in log_of(world, task_id)


TERMINATED = """
    def run_task(self, task):
        logging.getLogger().addHandler(logging.StreamHandler())
        logging.getLogger().setLevel("INFO")
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            signal.alarm(20)
            os.write(writing, b"started")
            while True:
                signal.pause()
        os.read(reading, 100)
        os.kill(child, signal.SIGTERM)
        task.log.info("exit code %d", exit_code(child))
"""


def test_a_signal_for_a_child_ends_the_child_and_not_the_worker(world: World) -> None:
    task_id, reason, printed = ended(world, TERMINATED)
    assert reason == "completed"
    assert "exit code -15" in log_of(world, task_id)
    assert "the worker has ended" in printed
    assert "received SIGTERM" not in printed


LISTENS = """
    def run_task(self, task):
        def listens(number):
            try:
                with socket.socket(fileno=os.dup(number)) as found:
                    return found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            except OSError:
                return 0

        with task.proxy():
            assert sum(map(listens, range(100))) == 3
            if (child := os.fork()) == 0:
                os._exit(sum(map(listens, range(100))))
            assert exit_code(child) == 0
"""


def test_a_child_does_not_keep_the_ports_of_the_worker(world: World) -> None:
    _, outcome, printed = ended(world, LISTENS, "live_log=True, metrics_port=0")
    assert outcome == "completed", printed
