// Elements are made here and nowhere else. Text becomes text nodes: nothing from a task is ever parsed as HTML.

const SVG = new Set(["svg", "rect", "path", "line", "polyline", "title"]);
const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown", "onfocus", "ontoggle"];

/** An element: `h("button.primary", {onclick}, "Cancel")`. */
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Make `old` look like `fresh` in place, so that focus, selection and scrolling survive an update. */
export function morph(old, fresh) {
  if (old === fresh) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || keyOf(old) !== keyOf(fresh)) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  syncAttributes(old, fresh);
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  if (!fresh.hasAttribute("data-mount")) morphChildren(old, fresh);
}

function syncAttributes(old, fresh) {
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) {
    const isUsers = name === "open" || name === "style"; // a <details> that was opened, a size that was dragged
    if (!isUsers && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
}

export function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const known = keyed.get(keyOf(child));
    if (known) {
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      morph(known, child);
    } else if (place && !keyOf(place) && !keyOf(child)) {
      const next = place.nextSibling;
      morph(place, child);
      place = next;
    } else {
      old.insertBefore(child, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

const HIGHEST = 10_000_000; // pixels: browsers cut what is higher than 33 million

/** A list of any length of which only the rows in sight exist. */
export class VirtualList {
  constructor({ rowHeight, row, label, role = "list", overscan = 8 }) {
    Object.assign(this, { rowHeight, row, overscan, count: 0, isAtEnd: true });
    this.inner = h("div.inner", { role: role === "listbox" ? "presentation" : null });
    this.root = h("div.virtual", { role, tabindex: 0, "aria-label": label }, this.inner);
    this.root.addEventListener("scroll", () => this.draw(), { passive: true });
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.root);
  }

  /** Show `count` rows; with `follow`, a list that is scrolled to its end stays there. */
  setCount(count, { follow = false } = {}) {
    const { scrollTop, clientHeight, scrollHeight } = this.root;
    const atEnd = scrollTop + clientHeight >= scrollHeight - 4;
    this.count = count;
    this.inner.style.height = `${Math.min(count * this.rowHeight, HIGHEST)}px`;
    if (follow && atEnd) this.root.scrollTop = this.root.scrollHeight;
    this.draw();
  }

  scrollTo(index) {
    const at = index * this.rowHeight;
    const { clientHeight } = this.root;
    if (at < this.top || at > this.top + clientHeight - 2 * this.rowHeight) {
      this.root.scrollTop = Math.max(0, at - clientHeight / 2) / this.scale;
    }
    this.draw();
  }

  /** Pixels of rows for each pixel of scrolling: more than one in a list that is higher than a browser allows. */
  get scale() {
    const { clientHeight } = this.root;
    const height = this.count * this.rowHeight;
    return height > HIGHEST ? (height - clientHeight) / (HIGHEST - clientHeight) : 1;
  }

  get top() {
    return this.root.scrollTop * this.scale;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.top / this.rowHeight) - this.overscan);
    const seen = Math.ceil((this.root.clientHeight || 400) / this.rowHeight) + 2 * this.overscan;
    const fresh = h("div");
    for (let index = first; index < Math.min(this.count, first + seen); index++) {
      const row = this.row(index);
      row.classList.add("row");
      fresh.append(row);
    }
    morphChildren(this.inner, fresh);
    const above = this.top - this.root.scrollTop;
    let index = first;
    for (const child of this.inner.children) child.style.transform = `translateY(${index++ * this.rowHeight - above}px)`;
  }
}

/** Put an element that draws itself into the placeholder of a view. */
export function mount(root, name, element) {
  const place = root.querySelector(`[data-mount="${name}"]`);
  if (place && place.firstChild !== element) place.replaceChildren(element);
}

export function notice(text, kind = "info") {
  const box = h("div.notice", { "data-kind": kind }, text);
  document.getElementById("notices").append(box);
  setTimeout(() => box.remove(), kind === "error" ? 12000 : 5000);
}

/** A button that copies a text. */
export function copyButton(text, label = "Copy") {
  return h("button.quiet.copy", { type: "button", title: `Copy ${text.length > 60 ? "the text" : text}`, onclick: (event) => copy(text, event.currentTarget) }, label);
}

async function copy(text, button) {
  if (!navigator.clipboard) return notice("The browser does not let this page copy, as another machine serves it over HTTP: select the text.", "error");
  await navigator.clipboard.writeText(text);
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1200);
}
