// A task: its state, definition, runs, dependencies, artifacts and log.
import { copyButton, h, mount } from "./dom.js";
import { api, artifact, artifactUrl, now } from "./queue.js";
import { chip, duration, groupLink, seconds, size, stateOf, taskLink, time } from "./words.js";
import { button, cancel, changePriority, rerun, schedule } from "./actions.js";
import { LogView } from "./log.js";

const TABS = { __proto__: null, runs: "Runs", definition: "Definition", artifacts: "Artifacts", log: "Log" };
const MOST_RELATED = 100;
const MOST_PREVIEWED = 400_000; // bytes
const DEEPEST = 100; // levels that are indented
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"]);
const ELSEWHERE = new Set(["reference", "error"]); // their content is not in the queue
const LOGS = ["public/logs/live.log", "public/logs/live_backing.log", "live.log"];

/** JSON on several lines. Values stay as they are written: JavaScript would round numbers and sort keys. */
function indented(json) {
  JSON.parse(json); // raises an error if it is not valid
  let depth = 0;
  const newline = (by) => {
    depth += by;
    if (depth > DEEPEST) throw new RangeError("too deep to indent");
    return `\n${"  ".repeat(depth)}`;
  };
  return json.replace(/"(?:[^"\\]+|\\.)*"|[[{]\s*[\]}]|[[\]{},:]|\s+/g, (token) => {
    if (token[0] === '"') return token;
    if (token === ":") return ": ";
    if (token === ",") return token + newline(0);
    if (token === "[" || token === "{") return token + newline(1);
    if (token === "]" || token === "}") return newline(-1) + token;
    return token.replace(/\s+/g, "");
  });
}

export function task(frame, here) {
  const taskId = here.parts[1];
  let place = here;
  let status = null;
  let definition = null;
  let artifacts = [];
  let dependencies = [];
  let dependents = [];
  let hasMoreDependents = false;
  let isOutdated = true; // whether to load the definition again: its priority may have changed
  let isRaw = false;
  let preview = null;
  let log = null;
  const sizes = new Map();

  const tab = () => (TABS[place.parts[2]] ? place.parts[2] : "runs");
  const runId = () => (place.parts[3] === undefined ? Math.max(0, status.runs.length - 1) : Number(place.parts[3]));

  async function load() {
    const path = `task/${taskId}`;
    const [found, known] = await Promise.all([api("GET", `${path}/status`), isOutdated ? api("GET", path) : definition]);
    status = found.status;
    definition = known;
    isOutdated = false;
    const [after, before, made] = await Promise.all([api("GET", `${path}/dependents?limit=${MOST_RELATED}`), related(definition.dependencies), artifactsOf(runId())]);
    hasMoreDependents = Boolean(after.continuationToken);
    dependents = after.tasks.map(({ status: each, task: { metadata } }) => ({ ...each, name: metadata.name }));
    dependencies = before;
    artifacts = made;
    if (tab() === "artifacts") measure();
    openLog();
    openPreview();
  }

  async function related(ids) {
    const taskIds = ids.slice(0, MOST_RELATED);
    if (!taskIds.length) return [];
    const [states, tasks] = await Promise.all([api("POST", "tasks/status", { taskIds }), api("POST", "tasks", { taskIds })]);
    const names = new Map(tasks.tasks.map((each) => [each.taskId, each.task.metadata.name]));
    return states.statuses.map((each) => ({ ...each.status, name: names.get(each.taskId) ?? each.taskId }));
  }

  async function artifactsOf(id) {
    if (!status.runs[id]) return [];
    const path = `task/${taskId}/runs/${id}/artifacts?limit=1000`;
    const found = [];
    for (let token = ""; token !== undefined; ) {
      const page = await api("GET", token ? `${path}&continuationToken=${encodeURIComponent(token)}` : path);
      found.push(...page.artifacts);
      token = page.continuationToken;
    }
    return found;
  }

  /** Ask the storage for the sizes of the artifacts. */
  async function measure() {
    const id = runId();
    for (const each of artifacts.slice(0, 100)) {
      const key = `${id}/${each.name}`;
      if (sizes.has(key) || ELSEWHERE.has(each.storageType)) continue;
      try {
        const response = await artifact(taskId, id, each.name, { method: "HEAD" });
        sizes.set(key, Number(response.headers.get("Content-Length")));
      } catch {
        continue; // its upload has not ended
      }
      frame.draw();
    }
  }

  function openLog() {
    if (tab() !== "log" || !status.runs.length) {
      log?.close();
      log = null;
      return;
    }
    const id = runId();
    const stored = artifacts.filter((each) => !ELSEWHERE.has(each.storageType));
    const name = LOGS.find((each) => stored.some((found) => found.name === each)) ?? stored.find((each) => each.name.endsWith(".log"))?.name;
    if (log?.runId !== id || log?.name !== name) {
      log?.close();
      log = name ? new LogView({ taskId, runId: id, name, line: Number(place.query.get("line")) || null, draw: frame.draw }) : null;
    }
    log?.read();
  }

  async function openPreview() {
    const name = tab() === "artifacts" ? place.parts.slice(4).join("/") : "";
    if (name && preview?.name === name && preview.runId === runId()) return;
    if (preview?.image) URL.revokeObjectURL(preview.image);
    const opened = (preview = name ? { name, runId: runId(), text: "Loading …" } : null);
    if (!name) return;
    const content = await contentOf(name, opened.runId).catch((error) => ({ text: error.message }));
    if (preview === opened) Object.assign(opened, content);
    else if (content.image) URL.revokeObjectURL(content.image);
    frame.draw();
  }

  async function contentOf(name, id) {
    const known = artifacts.find((each) => each.name === name);
    if (!known) return { text: `Run ${id} has no artifact ${name}.` };
    if (ELSEWHERE.has(known.storageType)) {
      const found = await api("GET", `task/${taskId}/runs/${id}/artifact-content/${encodeURIComponent(name)}`);
      return known.storageType === "error" ? { text: `${found.reason}: ${found.message}` } : { url: found.url, text: "" };
    }
    const type = known.contentType.split(";")[0].trim().toLowerCase();
    const response = await artifact(taskId, id, name);
    if (IMAGES.has(type)) return { image: URL.createObjectURL(new Blob([await response.arrayBuffer()], { type })), text: null };
    return { text: await textOf(response, type) };
  }

  /** The beginning of a text. SVG and HTML are texts here: they are never run. */
  async function textOf(response, type) {
    const reader = response.body.getReader();
    const parts = [];
    let length = 0;
    while (length < MOST_PREVIEWED) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      length += value.length;
    }
    const isWhole = length < MOST_PREVIEWED;
    if (!isWhole) reader.cancel();
    const bytes = new Uint8Array(await new Blob(parts).slice(0, MOST_PREVIEWED).arrayBuffer());
    if (bytes.subarray(0, 4096).includes(0)) return "This is not a text. Download it to look into it.";
    const text = new TextDecoder().decode(bytes);
    if (type.endsWith("json") && isWhole) {
      try {
        return indented(text);
      } catch {
        return text;
      }
    }
    return isWhole ? text : `${text}\n… this is the beginning; download the rest.`;
  }

  return {
    title: () => definition?.metadata.name ?? taskId,
    load,
    receive(event) {
      const isOurs = (each) => each.body?.status?.taskId === taskId || dependencies.concat(dependents).some(({ taskId: id }) => id === each.body?.status?.taskId);
      isOutdated ||= event.messages.some(({ exchange }) => exchange.endsWith("priority-changed"));
      if (isOutdated || event.messages.some(isOurs) || event.requests.some(({ path, method }) => method !== "GET" && path.includes(taskId))) frame.reload();
    },
    accepts(next) {
      if (next.parts[0] !== "task" || next.parts[1] !== taskId || !status) return false;
      place = next;
      if (log?.runId === runId()) log.go(Number(place.query.get("line")));
      frame.reload();
      return true;
    },
    draw: () => [
      head(),
      h("div.segments", { role: "group", "aria-label": "Parts of the task" }, Object.entries(TABS).map(([name, text]) => h("button", { type: "button", "aria-pressed": String(tab() === name), onclick: () => (location.hash = `#/task/${taskId}/${name}`) }, text, name === "artifacts" ? h("span.number", null, String(artifacts.length)) : null))),
      { runs: runsPart, definition: definitionPart, artifacts: artifactsPart, log: logPart }[tab()](),
    ],
    drawn(root) {
      if (log && tab() === "log") mount(root, "log", log.root);
    },
    close() {
      log?.close();
      if (preview?.image) URL.revokeObjectURL(preview.image);
    },
  };

  function head() {
    const state = stateOf(status);
    const isOpen = ["unscheduled", "pending", "running"].includes(state);
    const last = status.runs.at(-1);
    return [
      h("div.title", null, h("h1", null, definition.metadata.name || "(no name)"), chip(state, last?.reasonResolved && last.reasonResolved !== state ? `${state}: ${last.reasonResolved}` : state),
        h("div.row-of", null,
          button(schedule(taskId), "Schedule", { disabled: state !== "unscheduled" && "Only an unscheduled task can be scheduled" }),
          button(rerun(taskId), "Rerun", { disabled: ["pending", "running"].includes(state) && "A run of the task is pending or running" }),
          button(changePriority(taskId, status.priority), "Priority"),
          h("a.button", { href: `#/new?from=${taskId}` }, "Edit a copy"),
          button(cancel(taskId), "Cancel", { disabled: !isOpen && "The task is resolved" }))),
      h("div.crumbs", null, h("span", null, "Group ", groupLink(status.taskGroupId)), h("span", null, status.taskQueueId), h("span", null, h("code", null, taskId), copyButton(taskId)), h("span", null, `priority ${status.priority}`), h("span", null, `${status.retriesLeft} ${status.retriesLeft === 1 ? "retry" : "retries"} left`), h("span", null, isOpen ? `deadline in ${duration(seconds(status.deadline) - now())}` : ["deadline ", time(seconds(status.deadline))])),
    ];
  }

  function runsPart() {
    return h("div.columns", { "data-key": "runs" },
      h("section.panel", { "aria-label": "Runs" }, h("header", null, h("h2", null, "Runs")), status.runs.length ? h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Runs, table" }, runTable()) : h("p.quiet", null, "The task has no run: it waits for its dependencies, or to be scheduled.")),
      h("div.stack", null, relatives("Dependencies", dependencies, definition.dependencies.length), relatives("Dependents", dependents, hasMoreDependents ? `more than ${dependents.length}` : dependents.length)));
  }

  function runTable() {
    return h("table", null,
      h("thead", null, h("tr", null, ["Run", "State", "Created by", "Worker", "Waited", "Ran", "Claim"].map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", null, [...status.runs].reverse().map((run) => h("tr", { "data-key": run.runId },
        h("th", { scope: "row" }, h("a", { href: `#/task/${taskId}/log/${run.runId}`, title: "Log of this run" }, `Run ${run.runId}`)),
        h("td", null, chip(run.state, run.reasonResolved && run.reasonResolved !== run.state ? `${run.state}: ${run.reasonResolved}` : run.state)),
        h("td", null, run.reasonCreated),
        h("td", null, run.workerId ? `${run.workerGroup}/${run.workerId}` : "–"),
        h("td.right", { title: `scheduled ${run.scheduled}` }, duration(((run.started ?? run.resolved) ? seconds(run.started ?? run.resolved) : now()) - seconds(run.scheduled))),
        h("td.right", { title: run.started ? `${run.started} to ${run.resolved ?? "now"}` : null }, run.started ? duration((run.resolved ? seconds(run.resolved) : now()) - seconds(run.started)) : "–"),
        h("td", null, claim(run))))));
  }

  function claim(run) {
    if (!run.takenUntil) return "–";
    const left = seconds(run.takenUntil) - now();
    if (run.state !== "running") return h("span.quiet", { title: run.takenUntil }, "until ", time(seconds(run.takenUntil)));
    return h("span", { title: run.takenUntil }, left > 0 ? `expires in ${duration(Math.ceil(left))}` : "expired");
  }

  function relatives(title, tasks, total) {
    return h("section.panel", { "aria-label": title, "data-key": title }, h("header", null, h("h2", null, title, h("span.number", null, String(total)))),
      tasks.length ? h("ul.links", { tabindex: "0", "aria-label": title }, tasks.map((each) => h("li", { "data-key": each.taskId }, chip(stateOf(each)), taskLink(each.taskId, each.name)))) : h("p.quiet", null, `No ${title.toLowerCase()}.`));
  }

  function definitionPart() {
    const raw = JSON.stringify(definition, null, 2);
    return h("section.panel", { "aria-label": "Definition", "data-key": "definition" },
      h("header", null, h("h2", null, "Definition"), h("div.row-of", null, h("button", { type: "button", "aria-pressed": String(isRaw), onclick: () => { isRaw = !isRaw; frame.draw(); } }, "JSON"), copyButton(raw, "Copy JSON"))),
      isRaw ? h("pre.text", { "data-key": "raw", tabindex: "0" }, raw) : readable());
  }

  function readable() {
    const { metadata, payload, extra, tags, dependencies: _, ...rest } = definition;
    const pairs = { description: metadata.description, owner: metadata.owner, source: metadata.source, ...rest };
    const text = (value) => (Array.isArray(value) ? value.join("\n") || "–" : String(value));
    const objects = { payload, extra, tags };
    return [
      h("dl", { "data-key": "pairs" }, Object.entries(pairs).map(([name, value]) => [h("dt", null, name), h("dd", null, /^https?:\/\//.test(value) ? h("a", { href: value, rel: "noopener noreferrer", target: "_blank" }, value) : text(value))])),
      Object.entries(objects).filter(([, value]) => Object.keys(value).length).map(([name, value]) => h("figure.pad", { "data-key": name }, h("figcaption", null, name), h("pre", { tabindex: "0" }, JSON.stringify(value, null, 2)))),
    ];
  }

  function runChoice(part) {
    if (status.runs.length < 2) return null;
    return h("select", { "aria-label": "Run", onchange: (event) => (location.hash = `#/task/${taskId}/${part}/${event.target.value}`) }, status.runs.map((run) => h("option", { value: run.runId, selected: run.runId === runId() }, `Run ${run.runId}: ${run.state}`)));
  }

  function artifactsPart() {
    return h("div.columns", { "data-key": "artifacts" },
      h("section.panel", { "aria-label": "Artifacts" }, h("header", null, h("h2", null, "Artifacts"), runChoice("artifacts")), artifacts.length ? h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Artifacts, table" }, artifactTable()) : h("p.quiet", null, "This run has no artifacts.")),
      preview && h("section.panel.preview", { "aria-label": "Preview", "data-key": preview.name }, h("header", null, h("h2", null, preview.name)),
        preview.image ? h("img", { src: preview.image, alt: `The image ${preview.name}` }) : preview.url !== undefined ? h("p", null, "The content is elsewhere: ", /^https?:\/\//.test(preview.url) ? h("a", { href: preview.url, rel: "noopener noreferrer", target: "_blank" }, preview.url) : h("code", null, String(preview.url))) : h("pre.text", { tabindex: "0" }, preview.text)));
  }

  function artifactLink(name) {
    return h("a", { href: `#/task/${taskId}/artifacts/${runId()}/${encodeURIComponent(name)}` }, name);
  }

  function artifactTable() {
    const id = runId();
    return h("table", null,
      h("thead", null, h("tr", null, ["Name", "Type", "Size", ""].map((each) => (each ? h("th", { scope: "col" }, each) : h("td"))))),
      h("tbody", null, artifacts.map((each) => h("tr", { "data-key": each.name },
        h("th.wide", { scope: "row" }, artifactLink(each.name)),
        h("td", { title: each.storageType }, each.storageType === "error" ? chip("failed", "error") : each.contentType),
        h("td.right", null, size(sizes.get(`${id}/${each.name}`) ?? each.contentLength)),
        h("td", null, ["s3", "object", "link"].includes(each.storageType) && h("a", { href: artifactUrl(taskId, id, each.name), download: each.name.split("/").at(-1), "aria-label": `Download ${each.name}` }, "Download"))))));
  }

  function logPart() {
    const stream = artifacts.find((each) => each.storageType === "reference" && LOGS.includes(each.name));
    if (!log) return h("section.panel", { "data-key": "nolog", "aria-label": "Log" }, h("header", null, h("h2", null, "Log"), runChoice("log")), h("p.quiet", null, stream ? ["The log is not in the queue yet. The worker streams it: ", artifactLink(stream.name)] : status.runs.length ? `Run ${runId()} has no log yet: none of its artifacts ends in .log.` : "The task has no run."));
    return h("section.panel", { "aria-label": "Log", "data-key": "log" }, h("header", null, h("h2", null, log.name), h("div.row-of", null, log.tools(), runChoice("log"))), h("div", { "data-mount": "log" }));
  }
}
