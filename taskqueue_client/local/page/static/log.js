// A growing log, with the colors of terminals. Only the lines in sight are elements.
import { h, VirtualList } from "./dom.js";
import { artifact } from "./queue.js";
import { setQuery } from "./app.js";

// Escape sequences: colors, which are the first group, are shown; all others are removed.
const ESCAPES = /\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[PX^_][^\x1b]*\x1b\\|\x1b.?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;
const PLAIN = Object.freeze({});
const LONGEST = 20_000; // characters of a line that are shown

/** The pieces of a line with their styles, and the style in which the next line begins. */
export function styled(text, style) {
  const pieces = [];
  let at = 0;
  const add = (piece) => piece && pieces.push({ text: piece, style });
  for (const found of text.matchAll(ESCAPES)) {
    add(text.slice(at, found.index));
    at = found.index + found[0].length;
    if (found[1] !== undefined) style = changed(style, found[1]);
  }
  add(text.slice(at));
  return { pieces, style };
}

function changed(style, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  const next = { ...style };
  while (numbers.length) {
    const code = numbers.shift();
    if (code === 0) for (const key of Object.keys(next)) delete next[key];
    else if (code === 38 || code === 48) next[code === 38 ? "color" : "ground"] = extended(numbers);
    else if (code === 39) delete next.color;
    else if (code === 49) delete next.ground;
    else if (code === 22) next.bold = next.dimmed = false;
    else if (code >= 30 && code <= 37) next.color = code - 30;
    else if (code >= 90 && code <= 97) next.color = code - 90;
    else if (code >= 40 && code <= 47) next.ground = code - 40;
    else if (code >= 100 && code <= 107) next.ground = code - 100;
    else {
      const name = { 1: "bold", 2: "dimmed", 3: "italic", 4: "under", 9: "strike" }[code] ?? { 23: "italic", 24: "under", 29: "strike" }[code];
      if (name) next[name] = code < 10;
    }
  }
  return Object.keys(next).length ? next : PLAIN;
}

/** One of 256 colors, or an RGB color, as CSS; a number for the first 16 colors. */
function extended(numbers) {
  if (numbers.shift() === 2) return `rgb(${numbers.splice(0, 3).map((each) => each & 255).join(" ")})`;
  const index = numbers.shift() & 255;
  if (index < 16) return index % 8;
  if (index > 231) return `rgb(${Array(3).fill(8 + 10 * (index - 232)).join(" ")})`;
  const step = (value) => (value ? 55 + 40 * value : 0);
  return `rgb(${[Math.floor((index - 16) / 36), Math.floor((index - 16) / 6) % 6, (index - 16) % 6].map(step).join(" ")})`;
}

/** A line without what carriage returns have overwritten, such as the steps of a progress bar. */
function visible(raw) {
  let end = raw.length;
  while (raw[end - 1] === "\r") end--;
  const start = raw.lastIndexOf("\r", end - 1) + 1;
  return raw.slice(start, end);
}

function span({ text, style }, search) {
  const names = ["bold", "dimmed", "italic", "under", "strike"].filter((name) => style[name]);
  if (typeof style.color === "number") names.push(`f${style.color}`);
  if (typeof style.ground === "number") names.push(`b${style.ground}`);
  const node = h("span", { class: names.join(" ") || null }, marked(text, search));
  if (typeof style.color === "string") node.style.color = style.ground === undefined ? `color-mix(in srgb, ${style.color} 40%, var(--text))` : style.color;
  if (typeof style.ground === "string") node.style.background = style.ground;
  return node;
}

function marked(text, search) {
  if (!search) return text;
  const parts = [];
  const lower = text.toLowerCase();
  let at = 0;
  for (let found = lower.indexOf(search); found >= 0; found = lower.indexOf(search, at)) {
    parts.push(text.slice(at, found), h("mark", null, text.slice(found, found + search.length)));
    at = found + search.length;
  }
  return [...parts, text.slice(at)];
}

export class LogView {
  constructor({ taskId, runId, name, line, draw }) {
    Object.assign(this, { taskId, runId, name, line, redraw: draw });
    this.lines = [];
    this.rest = "";
    this.style = PLAIN;
    this.bytes = 0;
    this.hits = [];
    this.search = "";
    this.current = -1;
    this.isFollowing = line === null;
    this.list = new VirtualList({ rowHeight: 18, label: "Log", row: (index) => this.row(index), overscan: 20 });
    this.root = this.list.root;
    this.root.classList.add("log");
  }

  close() {
    this.isClosed = true;
  }

  /** Read what is new in the log; called after each event of the task. */
  async read() {
    this.isStale = true;
    if (this.isReading) return;
    this.isReading = true;
    while (this.isStale && !this.isClosed) {
      this.isStale = false;
      try {
        await this.readRest();
      } catch (error) {
        if (!this.lines.length) this.problem = error.message;
        this.redraw();
      }
    }
    this.isReading = false;
  }

  async readRest() {
    // from the last known byte on: a range that begins at the end of a file is refused
    const isRest = this.bytes > 0 && !this.isCompressed;
    const response = await artifact(this.taskId, this.runId, this.name, { headers: isRest ? { Range: `bytes=${this.bytes - 1}-` } : {} });
    if (this.isClosed) return;
    if (response.status === 416) return this.startOver();
    this.isCompressed ||= response.headers.has("Content-Encoding");
    let bytes = new Uint8Array(await response.arrayBuffer());
    if (response.status === 206) bytes = bytes.subarray(1);
    else if (bytes.length === this.bytes) return;
    else this.reset();
    if (!bytes.length && this.lines.length) return;
    this.problem = null;
    this.bytes += bytes.length;
    this.decoder ??= new TextDecoder();
    this.append(this.decoder.decode(bytes, { stream: true }));
  }

  /** Read the whole log again: it became shorter, so it is another one. */
  startOver() {
    this.reset();
    this.isStale = true;
  }

  reset() {
    Object.assign(this, { lines: [], rest: "", style: PLAIN, bytes: 0, decoder: new TextDecoder(), hits: [] });
  }

  append(text) {
    const isFirst = !this.lines.length;
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const each of lines) this.add(each);
    this.find(this.search);
    this.list.setCount(this.count, { follow: this.isFollowing });
    if (isFirst && this.line) this.list.scrollTo(this.line - 1);
    else if (isFirst && this.search) this.step(0); // typed before the log was loaded
    else if (isFirst && this.isFollowing) this.root.scrollTop = this.root.scrollHeight;
    this.redraw();
  }

  add(raw) {
    const text = visible(raw);
    this.lines.push({ text, style: this.style });
    if (text.includes("\x1b")) this.style = styled(text, this.style).style;
  }

  /** How many lines there are, the last one included, which may not have ended. */
  get count() {
    return this.lines.length + (this.rest ? 1 : 0);
  }

  at(index) {
    return this.lines[index] ?? { text: visible(this.rest), style: this.style };
  }

  row(index) {
    const { text, style } = this.at(index);
    const number = index + 1;
    const isChosen = this.line === number;
    const cut = text.length - LONGEST;
    return h("div.line", { "data-key": index, role: "listitem", class: `line${isChosen ? " chosen" : ""}${this.hits[this.current] === index ? " hit" : ""}` },
      h("a.num", { href: `#/task/${this.taskId}/log/${this.runId}?line=${number}`, tabindex: isChosen ? null : "-1", "aria-label": `Link to line ${number}`, onclick: (event) => this.choose(event, number) }, String(number)),
      h("span", null, styled(text.slice(0, LONGEST), style).pieces.map((each) => span(each, this.search)), cut > 0 && h("span.quiet", null, ` … and ${cut} more characters`)));
  }

  /** Show the line of an address. */
  go(line) {
    if (!line) return;
    this.line = line;
    this.isFollowing = false;
    this.list.scrollTo(line - 1);
  }

  choose(event, number) {
    event.preventDefault();
    this.line = number;
    this.isFollowing = false;
    history.replaceState(null, "", `#/task/${this.taskId}/log/${this.runId}`);
    setQuery({ line: String(number) });
    this.list.draw();
    this.redraw();
  }

  find(search) {
    this.search = search.toLowerCase();
    this.hits = [];
    for (let index = 0; this.search && index < this.count; index++) {
      if (this.at(index).text.replace(ESCAPES, "").toLowerCase().includes(this.search)) this.hits.push(index);
    }
    this.current = Math.min(Math.max(this.current, 0), this.hits.length - 1);
  }

  step(by) {
    if (!this.hits.length) return;
    this.current = (this.current + by + this.hits.length) % this.hits.length;
    this.isFollowing = false;
    this.list.scrollTo(this.hits[this.current]);
    this.redraw();
  }

  tools() {
    const search = (event) => {
      this.current = 0;
      this.find(event.target.value);
      this.step(0);
      this.list.draw();
      this.redraw();
    };
    const key = (event) => event.key === "Enter" && this.step(event.shiftKey ? -1 : 1);
    const follow = () => {
      this.isFollowing = !this.isFollowing;
      if (this.isFollowing) this.root.scrollTop = this.root.scrollHeight;
      this.redraw();
    };
    return [
      this.problem ? h("span.problem", null, this.problem) : h("span.quiet", null, `${this.count} lines`),
      h("input", { type: "search", placeholder: "Search the log", "aria-label": "Search the log", oninput: search, onkeydown: key }),
      this.search && h("span.quiet", { role: "status" }, this.hits.length ? `${this.current + 1} of ${this.hits.length}` : "not found"),
      h("button", { type: "button", "aria-pressed": String(this.isFollowing), onclick: follow }, "Follow"),
    ];
  }
}
