"""Graphs of tasks that name each other: put in order, checked as a whole, submitted, and followed.

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
