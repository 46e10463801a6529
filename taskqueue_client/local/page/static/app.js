// The frame: bar, addresses, and when the view is drawn again.
import { h, morph, morphChildren, notice } from "./dom.js";
import { clockKind, connect, enter, link, listen, now } from "./queue.js";
import { clockTime, failure } from "./words.js";
import { overview } from "./overview.js";

const FASTEST = 50; // ms between two drawings: 20 a second
const RELOAD = 120; // ms between two readings of a view's data, if they are quick

const VIEWS = {
  __proto__: null, // an address may have the name of an inherited property
  "": () => overview,
  group: async () => (await import("./group.js")).group,
  task: async () => (await import("./task.js")).task,
  messages: async () => (await import("./events.js")).messages,
  requests: async () => (await import("./events.js")).requests,
  faults: async () => (await import("./faults.js")).faults,
  new: async () => (await import("./editor.js")).editor,
};
const LINKS = [
  ["", "Overview"],
  ["messages", "Messages"],
  ["requests", "Requests"],
  ["faults", "Faults"],
  ["new", "New task"],
];

const main = document.getElementById("main");
const bar = document.getElementById("bar");
let view = null;
let shown = "";

/** The functions of the frame that a view may call. */
const frame = { draw: throttled(draw, () => FASTEST), reload: throttled(reload, () => Math.max(RELOAD, 4 * reading.took)) };
const reading = { busy: false, again: false, took: 0 };
const early = []; // events that came while the view was being loaded: they may be newer than its data

function throttled(act, pause) {
  let timer = null;
  let last = -Infinity;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      last = performance.now();
      act();
    }, Math.max(0, last + pause() - performance.now()));
  };
}

/** `#/task/ID/log/0?line=3` as `["task", "ID", "log", "0"]` and its query. */
export function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // not valid percent-encoding
  }
}

/** Change the query of the address without a step in the history. */
export function setQuery(changes) {
  const { query } = address();
  for (const [key, value] of Object.entries(changes)) value ? query.set(key, value) : query.delete(key);
  const text = query.toString();
  history.replaceState(null, "", `${location.hash.split("?")[0] || "#/"}${text ? `?${text}` : ""}`);
  shown = location.hash;
}

async function navigate() {
  document.querySelector("dialog")?.close(); // it belongs to the view that is being left
  if (location.hash.startsWith("#token=")) return start();
  const here = address();
  const name = here.parts[0] ?? "";
  if (view?.accepts?.(here)) {
    shown = location.hash;
    drawBar();
    return draw();
  }
  view?.close?.();
  view = null;
  early.length = 0;
  const key = location.hash;
  shown = key;
  const make = await (VIEWS[name] ?? VIEWS[""])();
  if (shown !== key) return;
  view = make(frame, here);
  main.replaceChildren(h("p.loading", null, "Loading …"));
  await reload();
  drawBar();
  if (document.activeElement === document.body) main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

async function reload() {
  if (reading.busy) {
    reading.again = true;
    return;
  }
  reading.busy = true;
  const current = view;
  const started = performance.now();
  try {
    await current?.load?.();
    if (current) current.error = null;
  } catch (error) {
    if (current && !current.isLoaded) current.error = error;
    else if (error.status) notice(error.message, "error");
  } finally {
    if (current) current.isLoaded = true;
    reading.busy = false;
    reading.took = performance.now() - started;
    if (current === view) for (const event of early.splice(0)) view?.receive?.(event);
  }
  draw();
  if (reading.again || current !== view) {
    reading.again = false;
    frame.reload();
  }
}

function draw() {
  drawBar();
  if (link.state === "locked") return drawLock();
  if (!view?.isLoaded) return;
  const fresh = h("main", { id: "main", tabindex: "-1" }, view.error ? failure(view.error) : view.draw());
  morphChildren(main, fresh);
  main.dataset.shown = shown; // the address may be that of the next view already
  document.title = `${view.title?.() ?? "Local queue"} · local queue`;
  if (!view.error) view.drawn?.(main);
}

function drawLock() {
  main.replaceChildren(
    h(
      "section.empty",
      null,
      h("h1", null, "This page is locked"),
      h("p", null, "Open it by the address that ", h("code", null, "taskqueue local"), " printed: it ends in a token. A queue whose state is in memory has another token each time it starts."),
    ),
  );
}

function drawBar() {
  const name = address().parts[0] ?? "";
  const words = { live: "live", away: "disconnected", connecting: "connecting", locked: "locked" };
  const fresh = h(
    "header",
    { id: "bar" },
    h("a.brand", { href: "#/" }, h("span.mark", { "aria-hidden": "true" }, "≡"), "Local queue"),
    h("nav", { "aria-label": "Views" }, LINKS.map(([to, text]) => h("a", { href: `#/${to}`, "aria-current": to === name || (to === "" && ["group", "task"].includes(name)) ? "page" : null }, text))),
    h("div.tools", null,
      h("span.link", { "data-link": link.state }, h("span.dot", { "aria-hidden": "true" }), words[link.state]),
      h("button.quiet.clock", { type: "button", title: "The queue's clock", onclick: openClock }, clockTime(now()), clockKind() === "held" ? " · held" : ""),
      h("button.quiet.theme", { type: "button", "aria-label": `Colors: ${theme()}`, title: `Colors: ${theme()}`, onclick: nextTheme }, { auto: "◐", light: "☀", dark: "☾" }[theme()]),
    ),
  );
  morph(bar, fresh);
}

async function openClock() {
  (await import("./faults.js")).openClock(frame);
}

const THEMES = ["auto", "light", "dark"];

function theme() {
  return THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto";
}

function nextTheme() {
  localStorage.setItem("theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  applyTheme();
  view?.themed?.();
  draw();
}

function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

function receive(event) {
  if (event.restarted) notice("The queue was started again.");
  if (event.returned) frame.reload();
  if (event.messages) view?.isLoaded ? view.receive?.(event) : early.push(event);
  frame.draw();
}

async function start() {
  const entered = enter(); // the bar is drawn while the queue responds
  drawBar();
  try {
    await entered;
    link.state = link.state === "locked" ? "connecting" : link.state;
  } catch (error) {
    if (error.status !== 401) notice(error.message, "error");
  }
  await navigate();
  if (link.state !== "locked") connect();
}

start();
applyTheme();
listen(receive);
addEventListener("hashchange", navigate);
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault(); // the link would replace the address of the view
  main.focus();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.themed?.());
setInterval(() => document.hidden || frame.draw(), 1000);
