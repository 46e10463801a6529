// How states, times and sizes are written, everywhere on the page.
import { h } from "./dom.js";
import { now } from "./queue.js";

export const STATES = ["unscheduled", "pending", "running", "completed", "failed", "exception"];
export const GLYPHS = { unscheduled: "○", pending: "◔", running: "▶", completed: "✓", failed: "✕", exception: "!" };
export const PRIORITIES = ["highest", "very-high", "high", "medium", "low", "very-low", "lowest"];

/** A state as a colored label; the color is never the only sign. */
export function chip(state, text = state) {
  return h("span.chip", { "data-state": state }, h("span", { "aria-hidden": "true" }, GLYPHS[state] ?? "·"), " ", text);
}

export function stateOf(task) {
  return task.runs.length ? task.runs.at(-1).state : "unscheduled";
}

export function seconds(iso) {
  return Date.parse(iso) / 1000;
}

/** `4.2 s`, `3 min 5 s`, `2 h 10 min`, `4 d 2 h`. */
export function duration(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 0) return `−${duration(-value)}`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return both(value, 60, "min", 1, "s");
  if (value < 86400) return both(value, 3600, "h", 60, "min");
  return both(value, 86400, "d", 3600, "h");
}

function both(value, large, name, small, smallName) {
  const rest = Math.floor((value % large) / small);
  return `${Math.floor(value / large)} ${name}${rest ? ` ${rest} ${smallName}` : ""}`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Not by Intl.DateTimeFormat: the first one takes 20 to 50 ms, which would delay the first view.
function dayOf(date) {
  return `${date.getDate()} ${MONTHS[date.getMonth()]} ${date.getFullYear()}`;
}

function timeOf(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** A moment on the queue's clock, in seconds; the day is added if it is another one. */
export function clockTime(moment) {
  const date = new Date(moment * 1000);
  const isToday = dayOf(date) === dayOf(new Date(now() * 1000));
  return isToday ? timeOf(date) : `${dayOf(date)} ${timeOf(date)}`;
}

export function time(moment) {
  if (!moment) return "–";
  return h("time", { datetime: new Date(moment * 1000).toISOString(), title: new Date(moment * 1000).toISOString() }, clockTime(moment));
}

/** How long ago something was, on the queue's clock. */
export function ago(moment) {
  if (!moment) return "–";
  const age = Math.max(0, now() - moment);
  const text = age < 60 ? `${Math.floor(age)} s` : duration(age);
  return h("time", { datetime: new Date(moment * 1000).toISOString(), title: clockTime(moment) }, `${text} ago`);
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

export function taskLink(taskId, text) {
  return h("a", { href: `#/task/${taskId}`, title: taskId }, text ?? taskId);
}

export function groupLink(taskGroupId, text) {
  return h("a", { href: `#/group/${taskGroupId}`, title: taskGroupId }, text ?? taskGroupId);
}

/** How many tasks are in which state, as a bar and in words. */
export function progress(states) {
  const total = Object.values(states).reduce((sum, each) => sum + each, 0);
  const shown = STATES.filter((state) => states[state]);
  const words = shown.map((state) => `${states[state]} ${state}`).join(", ");
  let x = 0;
  const bars = shown.map((state) => {
    const width = (100 * states[state]) / total;
    x += width;
    return h("rect", { "data-state": state, x: x - width, y: 0, width, height: 8 });
  });
  return h(
    "div.progress",
    null,
    h("svg.bar", { viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": words }, ...bars),
    h("span.counts", null, shown.map((state) => h("span.count", { "data-state": state, title: `${states[state]} ${state}` }, h("span", { "aria-hidden": "true" }, GLYPHS[state]), String(states[state]), h("span.hidden", null, ` ${state} `)))),
  );
}

/** The error of a view that could not be loaded. */
export function failure(error) {
  return h("section.empty", null, h("h1", null, error.status === 404 ? "Not found" : "This did not work"), h("p", null, error.message), h("p", null, h("a", { href: "#/" }, "Go to the overview")));
}
