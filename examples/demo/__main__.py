"""A local queue, a graph of tasks in it, and a worker in a separate process.

    python -m examples.demo [DIRECTORY]

The artifacts and logs go to the directory. The exit status is 0 if all tasks ended as the graph says.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import yaml
from rich.console import Console

from examples.demo import report
from taskqueue_client import Queue, slugid
from taskqueue_client.graph import Graph, follow, plan_graph, submit_graph
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.models import TaskAndStatus

HERE = Path(__file__).parent
GRAPH = HERE / "graph.yml"
TASK_QUEUE = "demo/pipeline"
CONCURRENCY = 2
PATIENCE = 5.0
"""Seconds that the worker gets to shut down."""

FILES = """
The files of each task are in {folder}/TASK, such as the log of lint:

  cat {lint}

The worker's own log is {log}."""

DEPLOYMENT = f"""
With the URL and credentials of a deployment in the environment, the same worker runs tasks there:

  export TASKCLUSTER_ROOT_URL=https://tc.example.com
  export TASKCLUSTER_CLIENT_ID=… TASKCLUSTER_ACCESS_TOKEN=…
  taskqueue doctor PROVISIONER/WORKER-TYPE
  taskqueue work examples.demo.worker:PipelineWorker --concurrency {CONCURRENCY} \\
      --task-queue-id PROVISIONER/WORKER-TYPE --worker-group GROUP --worker-id ID

Change `taskQueueId` in the file to a task queue of the deployment, and submit the same graph:

  taskqueue submit examples/demo/graph.yml --wait

(`taskqueue` is in {Path(sys.executable).parent}.)"""


def main(folder: Path) -> int:
    """Run the demo; return the exit status."""
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
    folder.mkdir(parents=True, exist_ok=True)
    worker = Client("demo-worker", slugid(), [f"queue:claim-work:{TASK_QUEUE}", "queue:worker-id:demo/*"])
    with LocalQueue(clients=[worker]) as local, Queue(local.root_url, local.credentials) as queue:
        console.print(f"A local queue listens at {local.root_url}.")
        graph = submitted(queue)
        console.print(f"Its task group {graph.task_group_id} has {len(graph.tasks)} tasks.")
        log = folder / "worker.log"
        with worker_process(local.root_url, worker, len(graph.tasks), log) as process:
            console.print(f"A worker, process {process.pid}, runs up to {CONCURRENCY} tasks at a time.\n")
            report.show_progress(console, follow(lambda: look(queue, graph, process, log), interval=0.1))
        every = report.collect(queue, graph, folder)
    console.print()
    report.show(console, every)
    files = FILES.format(folder=folder, lint=shlex.quote(str(folder / "lint" / "live_backing.log")), log=log)
    console.print(files, soft_wrap=True)  # so that paths and commands can be copied
    console.print(DEPLOYMENT, soft_wrap=True)
    return 0 if all(ended.is_as_expected for ended in every) else 1


def submitted(queue: Queue) -> Graph:
    """Create the tasks of `graph.yml`; return the graph."""
    graph = plan_graph(yaml.safe_load(GRAPH.read_text()), created=datetime.now(UTC))
    submit_graph(queue, graph)
    return graph


@contextmanager
def worker_process(root_url: str, client: Client, runs: int, log: Path) -> Generator[subprocess.Popen[bytes]]:
    """Run `taskqueue work` with the worker's own credentials, for `runs` runs or until the block ends."""
    bin_folder = Path(sys.executable).parent
    inherited = {name: each for name, each in os.environ.items() if not name.startswith("TASKCLUSTER_")}
    environment = {
        **inherited,  # without the certificate of other credentials, for example
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TASKCLUSTER_ROOT_URL": root_url,
        "TASKCLUSTER_CLIENT_ID": client.client_id,
        "TASKCLUSTER_ACCESS_TOKEN": client.access_token,
    }
    worker = [str(bin_folder / "taskqueue"), "work", "examples.demo.worker:PipelineWorker"]
    identity = ["--task-queue-id", TASK_QUEUE, "--worker-group", "demo", "--worker-id", "one"]
    limits = ["--concurrency", str(CONCURRENCY), "--max-tasks", str(runs)]
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 - all of it is ours
            [*worker, *identity, *limits],
            cwd=HERE.parents[1],
            env=environment,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the demo, which ends the worker itself
        ) as process,
    ):
        try:
            yield process
            with suppress(subprocess.TimeoutExpired):  # the report shows the tasks that were not run
                process.wait(PATIENCE)
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Shut the worker down, or kill it if that takes too long."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()  # after Ctrl-C, `with` does not wait


def look(queue: Queue, graph: Graph, process: subprocess.Popen[bytes], log: Path) -> list[TaskAndStatus]:
    """Return the tasks as they are now, in the order of the graph; raise if the worker has failed."""
    if process.poll():
        message = f"the worker ended with status {process.returncode}: see {log}"
        raise RuntimeError(message)
    found = {member.status.task_id: member for member in queue.iter_task_group(graph.task_group_id)}
    return [found[task.task_id] for task in graph.tasks]


if __name__ == "__main__":
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"  # the local queue's address
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the worker then, too
    try:
        sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[1] / "build" / "demo"))
    except KeyboardInterrupt:
        sys.exit("interrupted")
