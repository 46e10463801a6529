"""Task graphs: tasks that depend on each other, checked as a whole, submitted in order, and followed.

>>> from taskqueue_client import Queue
>>> from taskqueue_client.graph import follow_group, plan_graph, submit_graph
>>> about = {"owner": "me@example.com", "source": "https://example.com"}
>>> graph = plan_graph({
...     "defaults": {"taskQueueId": "proj/linux", "metadata": about},
...     "tasks": {
...         "fetch": {},
...         "build": {"payload": {"sources": {"task-reference": "<fetch>"}}, "dependencies": ["fetch"]},
...     },
... })
>>> with Queue.from_env() as queue:
...     created = submit_graph(queue, graph)
...     for members in follow_group(queue, graph.task_group_id):
...         print(sorted(f"{member.task['metadata']['name']} {member.status.state}" for member in members))
...         break
['build unscheduled', 'fetch pending']
"""

from __future__ import annotations

from .following import are_settled, blocked_tasks, follow, follow_group, follow_group_async
from .plan import Graph, GraphTask, SubmissionFailed, plan_graph, plan_task, submit_graph, submit_graph_async

__all__ = [
    "Graph", "GraphTask", "SubmissionFailed", "are_settled", "blocked_tasks", "follow", "follow_group",
    "follow_group_async", "plan_graph", "plan_task", "submit_graph", "submit_graph_async",
]  # fmt: skip
