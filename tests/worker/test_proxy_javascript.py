"""The official JavaScript client works through the proxy as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import World
from tests.worker.worker_world import artifact, log_of, work

SCRIPT = """
const taskcluster = require('taskcluster-client');
const {TASKCLUSTER_PROXY_URL: rootUrl, TASK_ID: taskId, RUN_ID: runId, TASK_GROUP_ID: groupId} = process.env;

const main = async () => {
  const queue = new taskcluster.Queue({rootUrl});
  const {status} = await queue.status(taskId);
  const group = await queue.listTaskGroup(groupId);
  const expires = taskcluster.fromNowJSON('1 hour');
  const contentType = 'text/plain';
  const create = (name, content) => queue.createArtifact(taskId, runId, name, {expires, ...content});
  const made = await create('public/js.txt', {storageType: 's3', contentType});
  await fetch(made.putUrl, {method: 'PUT', body: 'from js', headers: {'Content-Type': contentType}});
  await create('public/link', {storageType: 'link', artifact: 'public/js.txt'});
  const url = queue.buildUrl(queue.getArtifact, taskId, runId, 'public/link');
  const refused = {};
  for (const [name, call] of Object.entries({
    reclaimTask: () => queue.reclaimTask(taskId, runId),
    reportCompleted: () => queue.reportCompleted(taskId, runId),
    claimWork: () => queue.claimWork(status.taskQueueId, {workerGroup: 'a', workerId: 'b', tasks: 1}),
  })) {
    refused[name] = await call().then(() => 'done', (error) => error.code);
  }
  const secret = Object.keys(process.env).filter((name) => /ACCESS_TOKEN|CERTIFICATE/.test(name));
  console.log('SEEN ' + JSON.stringify({
    state: status.state, group: group.tasks.length, refused, secret,
    cwd: process.cwd() === process.env.TASK_WORKDIR, read: await (await fetch(url)).text(),
  }));
};

main().catch((error) => { console.error(error); process.exit(1); });
"""


def test_it_calls_the_deployment_with_nothing_but_the_variables_of_a_command(
    world: World, node_modules: Path
) -> None:
    task_id = world.create(scopes=["queue:list-task-group:*"])
    printed: list[str] = []

    def handler(task: TaskRun) -> None:
        (task.work_directory / "script.cjs").write_text(SCRIPT)
        variables = {"NODE_PATH": str(node_modules)}
        command = ["node", "script.cjs"]
        result = task.run_command(command, proxy=True, env=variables, capture="stdout")
        printed.append(result.stdout or "")

    work(world, handler)
    assert world.run(task_id).reason_resolved == "completed", log_of(world, task_id)
    seen: dict[str, Any] = json.loads(printed[0].partition("SEEN ")[2])
    assert seen == {
        "state": "running",
        "group": 1,
        "refused": dict.fromkeys(("reclaimTask", "reportCompleted", "claimWork"), "InsufficientScopes"),
        "secret": [],
        "cwd": True,
        "read": "from js",
    }
    assert artifact(world, task_id, "public/js.txt") == "from js"
