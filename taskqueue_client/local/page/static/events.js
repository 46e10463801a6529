// Messages as they are published, and requests with their responses.
import { copyButton, h, mount, VirtualList } from "./dom.js";
import { own } from "./queue.js";
import { duration, taskLink, time } from "./words.js";
import { address, setQuery } from "./app.js";

const MOST = 5000;
const EXCHANGES = ["task-defined", "task-pending", "task-running", "artifact-created", "task-completed", "task-failed", "task-exception", "task-group-resolved", "task-group-sealed", "task-priority-changed", "task-group-priority-changed"];
const TONES = { "task-pending": "pending", "task-running": "running", "task-completed": "completed", "task-failed": "failed", "task-exception": "exception" };

/** A list that grows at its end, filtered, with the details of one entry beside it. */
function eventList(frame, { title, kind, matches, row, details, filters, whenEmpty }) {
  let entries = [];
  let shown = [];
  let chosen = null;
  let isPaused = false;
  let run = null;
  const { query } = address();
  const filter = Object.fromEntries(query);
  const list = new VirtualList({
    rowHeight: 30,
    label: title,
    role: "listbox",
    row: (index) => {
      const entry = shown[index];
      return h("div.entry", { "data-key": entry.id, id: `entry-${entry.id}`, role: "option", "aria-selected": String(entry === chosen), onclick: () => choose(entry) }, row(entry));
    },
  });
  list.root.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (!by || !shown.length) return;
    event.preventDefault();
    const at = chosen ? shown.indexOf(chosen) : -1;
    const next = Math.max(0, Math.min(shown.length - 1, at + by));
    choose(shown[next]);
    list.scrollTo(next);
  });

  function choose(entry) {
    chosen = entry;
    list.root.setAttribute("aria-activedescendant", `entry-${entry.id}`);
    list.draw();
    frame.draw();
  }

  function refine() {
    shown = entries.filter((entry) => matches(entry, filter));
    list.setCount(shown.length, { follow: true });
    frame.draw();
  }

  function set(name, value) {
    filter[name] = value;
    setQuery({ [name]: value });
    refine();
  }

  return {
    title: () => title,
    async load() {
      const history = await own("GET", "history");
      begin(history.run);
      const known = new Set(entries.map(({ id }) => id));
      const missed = history[kind].filter(({ id }) => !known.has(id));
      entries = entries.concat(missed).sort((first, second) => first.id - second.id).slice(-MOST);
      refine();
    },
    receive(event) {
      begin(event.run);
      if (!isPaused) add(event[kind]);
    },
    draw: () => [
      h("h1.hidden", null, title),
      h("div.columns", null,
        h("section.panel", { "aria-label": title, "data-key": "list" },
          h("header", null,
            h("div.row-of", null, filters(filter, set), h("button", { type: "button", "aria-pressed": String(isPaused), onclick: () => { isPaused = !isPaused; if (!isPaused) frame.reload(); frame.draw(); } }, "Pause")),
            h("span.quiet", { role: "status" }, shown.length === entries.length ? `${entries.length}` : `${shown.length} of ${entries.length}`)),
          entries.length ? h("div", { "data-mount": "list" }) : h("p.quiet", { "data-key": "empty" }, whenEmpty)),
        h("section.panel", { "aria-label": "Details", "data-key": "details" }, h("header", null, h("h2", null, "Details")), chosen ? details(chosen) : h("p.quiet", null, "Choose an entry of the list, by mouse or by arrow keys."))),
    ],
    drawn(root) {
      mount(root, "list", list.root);
      list.draw();
    },
  };

  /** A restarted queue numbers its entries from 1 again: forget those of the queue before. */
  function begin(current) {
    if (run === current) return;
    run = current;
    entries = [];
    chosen = null;
    list.root.removeAttribute("aria-activedescendant");
    refine();
  }

  function add(more) {
    const last = entries.length ? entries.at(-1).id : 0;
    const fresh = more.filter((entry) => entry.id > last);
    if (!fresh.length) return;
    entries.push(...fresh);
    if (entries.length > MOST) {
      entries = entries.slice(-MOST);
      return refine();
    }
    shown.push(...fresh.filter((entry) => matches(entry, filter)));
    list.setCount(shown.length, { follow: true });
  }
}

function search(filter, set, name, label) {
  return h("input", { type: "search", placeholder: label, "aria-label": label, value: filter[name] ?? "", oninput: (event) => set(name, event.target.value.trim()) });
}

function select(filter, set, name, label, options) {
  return h("select", { "aria-label": label, onchange: (event) => set(name, event.target.value) }, h("option", { value: "" }, label), options.map((each) => h("option", { value: each, selected: filter[name] === each }, each)));
}

const pairs = (entries) => h("dl", null, Object.entries(entries).filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

export const messages = (frame) =>
  eventList(frame, {
    title: "Messages",
    kind: "messages",
    whenEmpty: "No message was published yet.",
    matches: (entry, { exchange, task }) => (!exchange || entry.exchange === exchange) && (!task || entry.routingKey.includes(task) || entry.routes.some((each) => each.includes(task))),
    filters: (filter, set) => [select(filter, set, "exchange", "All exchanges", EXCHANGES), search(filter, set, "task", "Task, group, queue or route")],
    row: (entry) => [time(entry.time), h("span.exchange.chip", { "data-state": TONES[entry.exchange] }, entry.exchange), h("code.grow", null, entry.routingKey)],
    details: (entry) => [
      pairs({ exchange: h("code", null, `exchange/taskcluster-queue/v1/${entry.exchange}`), "routing key": h("code", null, entry.routingKey), routes: entry.routes.length ? h("code", null, entry.routes.join("\n")) : "–", time: time(entry.time), task: entry.body.status ? taskLink(entry.body.status.taskId) : null }),
      h("figure.pad", null, h("figcaption", null, "Payload", copyButton(JSON.stringify(entry.body, null, 2))), h("pre.text", { tabindex: "0" }, JSON.stringify(entry.body, null, 2))),
    ],
  });

const tone = (status) => (status === null || status >= 500 ? "exception" : status >= 400 ? "failed" : status >= 300 ? "unscheduled" : "completed");

export const requests = (frame) =>
  eventList(frame, {
    title: "Requests",
    kind: "requests",
    whenEmpty: "No request was made yet. What this page reads is not shown.",
    matches: (entry, { status, path }) => (!status || String(entry.status)[0] === status[0]) && (!path || entry.path.includes(path) || (entry.client ?? "").includes(path)),
    filters: (filter, set) => [select(filter, set, "status", "All statuses", ["2xx", "3xx", "4xx", "5xx"]), search(filter, set, "path", "Path or client")],
    row: (entry) => [time(entry.time), h("span.method", null, entry.method), h("span.chip", { "data-state": tone(entry.status) }, String(entry.status ?? "–")), h("code.grow", null, entry.path), entry.fault && h("span.tag", null, `fault: ${entry.fault}`), h("span.who", null, entry.client ?? "anonymous"), h("span.ms", null, duration(entry.ms / 1000))],
    details: (entry) => [
      pairs({ request: h("code", null, `${entry.method} ${entry.path}`), status: String(entry.status ?? "none: the connection was closed"), client: entry.client ?? "anonymous: the request carries no credentials", time: time(entry.time), took: duration(entry.ms / 1000), fault: entry.fault && `struck by the fault ${entry.fault}` }),
      entry.missing && h("figure.pad", null, h("figcaption", null, "Missing scopes", copyButton(entry.missing)), h("pre", { tabindex: "0" }, entry.missing)),
      entry.error && h("figure.pad", null, h("figcaption", null, "Why"), h("pre.text", { tabindex: "0" }, entry.error)),
    ],
  });
