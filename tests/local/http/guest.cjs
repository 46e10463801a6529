// The official JavaScript client as a guest of the local queue: prints a JSON object with what it saw.
const taskcluster = require('taskcluster-client');

const rootUrl = process.env.TASKCLUSTER_ROOT_URL;
const credentials = {
  clientId: process.env.TASKCLUSTER_CLIENT_ID,
  accessToken: process.env.TASKCLUSTER_ACCESS_TOKEN,
};
const worker = {workerGroup: 'js', workerId: 'guest'};
const taskQueueId = 'js/guest';

const definition = () => ({
  taskQueueId,
  created: taskcluster.fromNowJSON(),
  deadline: taskcluster.fromNowJSON('1 hour'),
  expires: taskcluster.fromNowJSON('1 day'),
  payload: {b: 1, a: {10: 1, 9: 2}},
  metadata: {name: 'js', description: 'guest', owner: 'a@example.com', source: 'https://example.com'},
});

const makeTask = async (queue) => {
  const taskId = taskcluster.slugid();
  await queue.createTask(taskId, definition());
  return taskId;
};

const uploadAll = async (run, taskId) => {
  const expires = taskcluster.fromNowJSON('1 hour');
  const contentType = 'text/plain';
  const s3 = await run.createArtifact(taskId, 0, 'public/s3.txt', {storageType: 's3', expires, contentType});
  await fetch(s3.putUrl, {method: 'PUT', body: 'from s3', headers: {'Content-Type': contentType}});
  await run.createArtifact(taskId, 0, 'public/reference', {
    storageType: 'reference', expires, contentType, url: `${rootUrl}/api/queue/v1/ping`,
  });
  await run.createArtifact(taskId, 0, 'public/link', {storageType: 'link', expires, artifact: 'public/s3.txt'});
  await run.createArtifact(taskId, 0, 'public/error', {
    storageType: 'error', expires, reason: 'file-missing-on-worker', message: 'not there',
  });
  await run.createArtifact(taskId, 0, 'private/s3.txt', {storageType: 's3', expires, contentType});
  await uploadObject(run, taskId, expires);
};

const uploadObject = async (run, taskId, expires) => {
  const name = 'public/object.txt';
  const made = await run.createArtifact(taskId, 0, name, {
    storageType: 'object', expires, contentType: 'text/plain',
  });
  const object = new taskcluster.Object({rootUrl, credentials: made.credentials});
  const {projectId, uploadId} = made;
  await object.createUpload(made.name, {
    projectId, uploadId, expires,
    proposedUploadMethods: {
      dataInline: {contentType: 'text/plain', objectData: Buffer.from('from object').toString('base64')},
    },
  });
  await object.finishUpload(made.name, {projectId, uploadId, hashes: {}});
  await run.finishArtifact(taskId, 0, name, {uploadId});
};

const main = async () => {
  const queue = new taskcluster.Queue({rootUrl, credentials});
  const taskId = await makeTask(queue);
  const claims = await queue.claimWork(taskQueueId, {...worker, tasks: 1});
  const [claim] = claims.tasks;
  const first = new taskcluster.Queue({rootUrl, credentials: claim.credentials});
  const reclaim = await first.reclaimTask(taskId, 0);
  const run = new taskcluster.Queue({rootUrl, credentials: reclaim.credentials});
  await uploadAll(run, taskId);
  const read = async (name) => (await fetch(queue.buildSignedUrl(queue.getLatestArtifact, taskId, name))).text();
  const contents = {};
  for (const name of ['public/s3.txt', 'public/link', 'public/object.txt']) { contents[name] = await read(name); }
  const signed = await fetch(queue.buildSignedUrl(queue.artifact, taskId, 0, 'private/s3.txt'));
  const unsigned = await fetch(`${rootUrl}/api/queue/v1/task/${taskId}/runs/0/artifact-content/private%2Fs3.txt`);
  const errorArtifact = await fetch(queue.buildUrl(queue.getLatestArtifact, taskId, 'public/error'));
  const listed = (await queue.listArtifacts(taskId, 0)).artifacts.map((each) => each.storageType).sort();
  await run.reportCompleted(taskId, 0);
  const temporary = taskcluster.createTemporaryCredentials({
    scopes: ['auth:current-scopes', 'queue:list-task-queues'],
    start: taskcluster.fromNow('-1 min'), expiry: taskcluster.fromNow('1 hour'), credentials,
  });
  const limited = new taskcluster.Queue({rootUrl, credentials: temporary});
  const refused = await limited.createTask(taskcluster.slugid(), definition()).catch((error) => error.code);
  const information = await taskcluster.credentialInformation(rootUrl, temporary);
  console.log(JSON.stringify({
    keys: Object.keys(claim.task.payload.a), contents, listed, refused, signed: signed.status,
    unsigned: unsigned.status, errorArtifact: errorArtifact.status,
    state: (await queue.status(taskId)).status.state,
    queues: (await limited.listTaskQueues()).taskQueues.length,
    information: {clientId: information.clientId, type: information.type, active: information.active,
      scopes: information.scopes.includes('queue:list-task-queues')},
  }));
};

main().catch((error) => { console.error(error); process.exit(1); });
