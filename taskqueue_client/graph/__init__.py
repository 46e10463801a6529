"""Graphs of tasks that name each other: put in order, checked as a whole, submitted, and followed.

graph = plan_graph({
    "defaults": {"taskQueueId": "proj/linux", "metadata": {"owner": …, "source": …}},
    "tasks": {
        "fetch": {"payload": {…}},
        "build": {"payload": {"sources": {"task-reference": "<fetch>"}}, "dependencies": ["fetch"]},
    },
})
submit_graph(queue, graph)
for members in follow_group(queue, graph.task_group_id):
    print(Counter(member.status.state for member in members))
"""

from __future__ import annotations

from .following import are_settled as are_settled
from .following import blocked_tasks as blocked_tasks
from .following import follow as follow
from .following import follow_group as follow_group
from .plan import Graph as Graph
from .plan import GraphTask as GraphTask
from .plan import plan_graph as plan_graph
from .plan import plan_task as plan_task
from .submission import SubmissionFailed as SubmissionFailed
from .submission import submit_graph as submit_graph
from .submission import submit_graph_async as submit_graph_async
