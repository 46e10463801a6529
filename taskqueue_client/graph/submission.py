"""Creating the tasks of a graph."""

from __future__ import annotations

from taskqueue_client._call import Steps, awaited, blocking
from taskqueue_client.calls import create_task
from taskqueue_client.errors import CallFailed, TaskQueueError
from taskqueue_client.models import TaskStatus

from .plan import Graph


class SubmissionFailed(TaskQueueError):
    """A task of a graph could not be created; the cause is the error of that call.

    Submitting the same `Graph` again goes on where it ended: creating a task twice does no harm.

    Attributes:
        graph: The graph.
        name: The task that was not created, or of which that is not known.
        created: The names of the tasks that were created before it.
    """

    def __init__(self, graph: Graph, name: str, created: tuple[str, ...]) -> None:
        super().__init__(graph, name, created)
        self.graph = graph
        self.name = name
        self.created = created

    def __str__(self) -> str:
        count = f"{len(self.created)} of {len(self.graph.tasks)} tasks were created"
        return f"task {self.name!r} was not: {count} in group {self.graph.task_group_id}: {self.__cause__}"


def _creation(graph: Graph) -> Steps[dict[str, TaskStatus]]:
    """Create all tasks of a graph, each after those that it depends on.

    Scopes: those of `create_task` for each task. Safe to repeat.

    Args:
        graph: As `plan_graph` makes it.

    Returns:
        The status of each task by its name, as it was when the task was created.

    Raises:
        SubmissionFailed: A task could not be created. Those before it stay.
    """
    statuses: dict[str, TaskStatus] = {}
    for task in graph.tasks:
        try:
            answer = yield from create_task(task.task_id, task.definition)
        except CallFailed as error:
            raise SubmissionFailed(graph, task.name, tuple(statuses)) from error
        statuses[task.name] = answer.status
    return statuses


submit_graph = blocking(_creation)
submit_graph_async = awaited(_creation)
