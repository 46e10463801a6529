// A form for a new task. The package's own check runs in the queue; its problems are shown at the fields.
import { h, notice } from "./dom.js";
import { api, now, own } from "./queue.js";
import { PRIORITIES } from "./words.js";
import { code, python, shell } from "./actions.js";

const text = (value) => value ?? "";
const lines = (value) => (value ?? []).join("\n");
const json = (value) => JSON.stringify(value ?? {}, null, 2);
const words = (value) => value.split(/\s+/).filter(Boolean);
const rows = (value) => value.split("\n").map((each) => each.trim()).filter(Boolean);

// path in the definition, label, function to show the value, function to read it, options of the control
const FIELDS = [
  ["metadata.name", "Name", text, String],
  ["taskQueueId", "Task queue", text, String],
  ["metadata.owner", "Owner", text, String],
  ["metadata.source", "Source", text, String],
  ["priority", "Priority", text, String, { options: [...PRIORITIES].reverse() }],
  ["retries", "Retries", text, Number, { type: "number" }],
  ["created", "Created", text, String],
  ["deadline", "Deadline", text, String],
  ["expires", "Expires", text, String, { optional: true }],
  ["schedulerId", "Scheduler", text, String, { optional: true }],
  ["projectId", "Project", text, String, { optional: true }],
  ["taskGroupId", "Task group", text, String, { optional: true, hint: "empty: a new group" }],
  ["requires", "Requires", text, String, { options: ["all-completed", "all-resolved"] }],
  ["dependencies", "Dependencies", lines, words, { rows: 2, optional: true, hint: "task ids, one a line" }],
  ["routes", "Routes", lines, rows, { rows: 2, optional: true, hint: "one a line" }],
  ["scopes", "Scopes", lines, rows, { rows: 2, optional: true, hint: "one a line" }],
  ["metadata.description", "Description", text, String, { rows: 2, full: true }],
  ["payload", "Payload", json, JSON.parse, { rows: 8, full: true, hint: "JSON" }],
  ["extra", "Extra", json, JSON.parse, { rows: 3, optional: true, hint: "JSON" }],
  ["tags", "Tags", json, JSON.parse, { rows: 3, optional: true, hint: "JSON" }],
];

const iso = (moment) => new Date(moment * 1000).toISOString();

function blank() {
  return {
    taskQueueId: "proj-demo/linux",
    priority: "lowest",
    retries: 5,
    requires: "all-completed",
    created: iso(now()),
    deadline: iso(now() + 3600),
    metadata: { name: "A task", description: "", owner: "me@example.com", source: "https://example.com" },
    payload: {},
  };
}

/** A new task id: a random UUID, version 4, in base64 for URLs. */
function slugid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  bytes[0] &= 0x7f;
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

const get = (definition, path) => path.split(".").reduce((value, key) => value?.[key], definition);

function put(definition, path, value) {
  const keys = path.split(".");
  const last = keys.pop();
  let at = definition;
  for (const key of keys) at = at[key] ??= {};
  at[last] = value;
}

export function editor(frame, here) {
  const from = here.query.get("from");
  const taskId = slugid();
  const values = new Map();
  let problems = [];
  let isRaw = false;
  let raw = "";
  let rawProblem = null;
  let checking = null;

  function fill(definition) {
    for (const [path, , show] of FIELDS) values.set(path, show(get(definition, path)));
    raw = JSON.stringify(definition, null, 2);
  }

  /** The definition, and the problems of values that cannot be parsed. */
  function read() {
    if (isRaw) {
      try {
        const definition = JSON.parse(raw);
        if (typeof definition !== "object" || definition === null || Array.isArray(definition)) throw new TypeError("an object");
        return { definition, broken: [] };
      } catch (error) {
        return { definition: null, broken: [{ path: "$", allowed: error.message }] };
      }
    }
    const definition = {};
    const broken = [];
    for (const [path, , , take, { optional } = {}] of FIELDS) {
      const value = String(values.get(path));
      if (optional && (value.trim() === "" || value.trim() === "{}")) continue;
      try {
        put(definition, path, take(value));
      } catch (error) {
        broken.push({ path: `$.${path}`, allowed: error.message });
      }
    }
    return { definition, broken };
  }

  async function check() {
    const { definition, broken } = read();
    const found = definition ? (await own("POST", "check", definition)).problems : [];
    problems = [...broken, ...found.filter((each) => !broken.some(({ path }) => covers(path, each.path)))];
    rawProblem = null;
    frame.draw();
    return problems.length ? null : definition;
  }

  function changed() {
    clearTimeout(checking);
    checking = setTimeout(() => check().catch(failed), 150);
    frame.draw();
  }

  const covers = (field, path) => path === field || path.startsWith(`${field}.`) || path.startsWith(`${field}[`);
  const isPlaced = ({ path }) => FIELDS.some(([field]) => covers(`$.${field}`, path));

  function failed(error) {
    rawProblem = error.message;
    frame.draw();
  }

  async function create(event) {
    event.preventDefault();
    try {
      const definition = await check();
      if (!definition) return focusProblem();
      await api("PUT", `task/${taskId}`, definition);
    } catch (error) {
      return failed(error);
    }
    notice("The task was created.");
    location.hash = `#/task/${taskId}`;
  }

  function field([path, label, , , { options, rows: height, type, full, hint } = {}]) {
    const id = `new-${path}`;
    const wrong = problems.filter((each) => covers(`$.${path}`, each.path));
    const props = {
      id,
      oninput: (event) => { values.set(path, event.target.value); changed(); },
      "aria-invalid": wrong.length ? "true" : null,
      "aria-describedby": wrong.length ? `${id}-problem` : null,
    };
    const value = String(values.get(path));
    const made = options ? h("select", props, options.map((each) => h("option", { value: each, selected: each === value }, each))) : height ? h("textarea", { ...props, rows: height, spellcheck: "false" }, value) : h("input", { ...props, type: type ?? "text", value });
    return h("div.field", { class: `field${full ? " full" : ""}`, "data-key": path }, h("label", { for: id }, label, hint && h("span.hint", null, ` · ${hint}`)), made, wrong.length ? h("p.problem", { id: `${id}-problem` }, wrong.map((each) => `${each.path === `$.${path}` ? "" : `${each.path}: `}${each.allowed}`).join("\n")) : null);
  }

  /** Switch between form and JSON, unless something cannot be parsed: that stays as it was typed. */
  async function turn() {
    const { definition, broken } = read();
    if (!broken.length) {
      isRaw = !isRaw;
      fill(definition);
    }
    await check().catch(failed);
    if (broken.length) focusProblem();
  }

  /** Focus the first field with a problem, even if the problem is not drawn yet. */
  function focusProblem() {
    const wrong = FIELDS.find(([path]) => problems.some((each) => covers(`$.${path}`, each.path)));
    document.getElementById(isRaw || !wrong ? "new-raw" : `new-${wrong[0]}`)?.focus();
  }

  const action = {
    python: () => `queue.create_task(${python(taskId)}, ${pythonLiteral(read().definition)})`,
    shell: () => `cat > task.json <<'EOF'\n${JSON.stringify(read().definition, null, 2)}\nEOF\ntaskqueue submit ${shell("task.json")}`,
  };

  return {
    title: () => "New task",
    async load() {
      if (values.size) return;
      const definition = from ? copyOf(await api("GET", `task/${from}`)) : blank();
      fill(definition);
      await check();
    },
    draw: () => [
      h("div.title", null, h("h1", null, "New task"), h("div.row-of", null, h("button", { type: "button", "aria-pressed": String(isRaw), onclick: turn }, "JSON"))),
      h("form.panel", { onsubmit: create, novalidate: true },
        h("header", null, h("span.quiet", null, "Task id ", h("code", null, taskId)), h("span.quiet", { role: "status" }, problems.length ? `${problems.length} ${problems.length === 1 ? "problem" : "problems"}` : "No problems found")),
        isRaw ? h("div.pad", { "data-key": "raw" }, h("label", { for: "new-raw" }, "Definition"), h("textarea", { id: "new-raw", rows: 28, spellcheck: "false", "aria-invalid": problems.length ? "true" : null, oninput: (event) => { raw = event.target.value; changed(); } }, raw)) : h("div.form", { "data-key": "form" }, FIELDS.map(field)),
        others(),
        h("div.pad.row-of", { "data-key": "send" }, h("button.primary", { type: "submit" }, "Create task"))),
      h("section.panel", { "aria-label": "The same in Python and in a shell" }, h("header", null, h("h2", null, "The same in Python and in a shell")), h("div.pad", null, read().definition ? code(action) : null)),
    ],
  };

  function others() {
    const left = isRaw ? problems : problems.filter((each) => !isPlaced(each));
    const all = left.map((each) => `${each.path}: ${each.allowed}`).concat(rawProblem ?? []);
    return all.length ? h("p.problem.pad", { role: "alert", "data-key": "others" }, all.join("\n")) : null;
  }

  function copyOf(definition) {
    const { provisionerId: _, workerType: __, expires: ___, ...rest } = definition;
    const length = (Date.parse(definition.deadline) - Date.parse(definition.created)) / 1000;
    return { ...rest, created: iso(now()), deadline: iso(now() + length), taskGroupId: "" };
  }
}

/** A definition as a literal of Python. */
function pythonLiteral(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value) ? value.map((each) => inner + pythonLiteral(each, inner)) : Object.entries(value).map(([key, each]) => `${inner}${JSON.stringify(key)}: ${pythonLiteral(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join(",\n")},\n${indent}${close}` : open + close;
}
