// The connection to the queue: the session, the ordinary API, the stream of events, and the queue's clock.

let tell = () => {};
const base = { now: Date.now() / 1000, clock: "fixed", at: performance.now() };
export const link = { state: "connecting", run: null, last: null };

export class QueueError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The queue's time, in seconds since the epoch. */
export function now() {
  return base.clock === "held" ? base.now : base.now + (performance.now() - base.at) / 1000;
}

export function clockKind() {
  return base.clock;
}

export function setClock(state) {
  Object.assign(base, { now: state.now, clock: state.clock, at: performance.now() });
}

/** Call `listener` with each event of the stream, and when the connection changes. */
export function listen(listener) {
  tell = listener;
}

async function send(method, path, body, headers = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw new QueueError(0, "The queue does not respond: is it still running?");
  }
  if (response.status === 401) lock();
  return response;
}

async function json(response) {
  const content = response.status === 204 ? {} : await response.json().catch(() => ({}));
  if (response.ok) return content;
  const message = String(content.message ?? response.statusText).split("\n\n---\n")[0];
  throw new QueueError(response.status, message);
}

/** Call a route that only the page has: `own("GET", "overview")`. */
export async function own(method, path, body) {
  return json(await send(method, `/page/${path}`, method === "GET" ? undefined : (body ?? {})));
}

/** Call an endpoint of the Queue: `api("POST", "task/…/cancel")`. */
export async function api(method, path, body) {
  return json(await send(method, `/page/api/queue/v1/${path}`, body ?? (method === "GET" ? undefined : {})));
}

/** The bytes of an artifact, or a part of them. */
export async function artifact(taskId, runId, name, { method = "GET", headers } = {}) {
  const response = await send(method, artifactUrl(taskId, runId, name), undefined, headers);
  if (!response.ok && response.status !== 416) {
    if (method === "HEAD") throw new QueueError(response.status, response.statusText);
    await json(response);
  }
  return response;
}

/** The URL of an artifact. Without `name=`, browsers would resolve an artifact's name `..`. */
export function artifactUrl(taskId, runId, name) {
  return `/page/artifact/${taskId}/${runId}/name=${encodeURIComponent(name)}`;
}

/** Exchange the token in the address for a cookie, and remove it from the address. */
export async function enter() {
  const found = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", "#/");
  await own("POST", "session", { token: found[1] });
}

function lock() {
  if (link.state !== "locked") {
    link.state = "locked";
    tell({});
  }
}

let source = null;
let pause = 500;

/** Follow the stream; connect again after the connection was lost. */
export function connect() {
  source?.close();
  if (document.hidden) return;
  const after = link.last === null ? "" : `?after=${link.last}`;
  source = new EventSource(`/page/stream${after}`);
  source.onmessage = (message) => receive(JSON.parse(message.data));
  source.onerror = () => {
    source.close();
    if (link.state === "locked") return;
    link.state = "away";
    tell({});
    setTimeout(again, pause);
    pause = Math.min(pause * 1.5, 3000);
  };
}

// A browser opens six connections to a server, for all windows together: a hidden window closes its stream.
document.addEventListener("visibilitychange", () => {
  if (link.state === "locked") return;
  if (link.state === "live") link.state = "connecting";
  connect();
});

/** A stream that is refused does not say why; an ordinary request does. */
async function again() {
  try {
    await own("GET", "state");
  } catch (error) {
    if (error.status === 401) return;
    setTimeout(again, pause);
    return;
  }
  connect();
}

function receive(event) {
  pause = 500;
  event.restarted = link.run !== null && link.run !== event.run;
  event.returned = link.state !== "live";
  Object.assign(link, { state: "live", run: event.run, last: event.last });
  setClock(event);
  tell(event);
}
