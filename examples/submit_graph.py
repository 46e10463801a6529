"""A script that submits a graph of tasks, for `examples.command_worker`, and waits for it.

    python -m examples.submit_graph proj/linux

It counts the words of several texts in parallel, and adds the numbers in a task that depends on the others
and downloads their artifacts.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from taskqueue_client import Queue, TaskState
from taskqueue_client.graph import Graph, follow_group, plan_graph, submit_graph

TEXTS = {
    "raven": "once upon a midnight dreary while I pondered weak and weary",
    "tyger": "tyger tyger burning bright in the forests of the night",
    "jabberwocky": "twas brillig and the slithy toves did gyre and gimble in the wabe",
}

ADD = """
import os, sys, urllib.request
root_url, numbers = os.environ["TASKCLUSTER_ROOT_URL"], []
for task_id in sys.argv[1:]:
    url = f"{root_url}/api/queue/v1/task/{task_id}/artifacts/public/count.txt"
    numbers.append(int(urllib.request.urlopen(url).read()))
print(*numbers, sep=" + ", end=f" = {sum(numbers)}\\n")
"""


def count(text: str) -> dict[str, Any]:
    """Return the definition of a task that counts the words of a text."""
    script = "import sys; open('count.txt', 'w').write(str(len(sys.argv) - 1))"
    return {
        "payload": {
            "command": [sys.executable, "-c", script, *text.split()],
            "artifacts": {"public/count.txt": "count.txt"},
        }
    }


def graph(task_queue_id: str, created: Any = None) -> Graph:
    """Return one task for each text, and one that depends on all of them."""
    references = [{"task-reference": f"<count-{name}>"} for name in TEXTS]
    return plan_graph(
        {
            "defaults": {
                "taskQueueId": task_queue_id,
                "deadline": "1 hour",
                "expires": "1 day",
                "metadata": {"owner": "me@example.com", "source": "https://example.com/words"},
            },
            "tasks": {
                **{f"count-{name}": count(text) for name, text in TEXTS.items()},
                "add": {
                    "payload": {"command": [sys.executable, "-c", ADD, *references]},
                    "dependencies": [f"count-{name}" for name in TEXTS],
                },
            },
        },
        created=created,
    )


def main(task_queue_id: str) -> int:
    """Submit the graph and follow it; return the exit status."""
    with Queue.from_env() as queue:
        words = graph(task_queue_id)
        submit_graph(queue, words)
        print(f"group {words.task_group_id}")
        states: list[TaskState] = []
        for members in follow_group(queue, words.task_group_id, interval=0.5):
            states = [member.status.state for member in members]
            print(", ".join(f"{count} {state}" for state, count in Counter(states).items()))
        if set(states) != {TaskState.COMPLETED}:
            return 1
        add = queue.download_artifact(words.task_ids["add"], "public/logs/live.log")
        print(add.content.decode())
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
