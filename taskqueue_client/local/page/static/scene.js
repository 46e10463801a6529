// A drawing that can be moved and zoomed. Few items in sight are elements that can be focused; many are painted.
import { h, morphChildren } from "./dom.js";

const MOST_NODES = 250;
const GUTTER = 170;

export class Scene {
  /** `stretch`: zoom only the horizontal axis, which is time; `ticks(from, to)` gives its labels. */
  constructor({ label, stretch = false, ticks = null }) {
    Object.assign(this, { stretch, ticks, items: [], edges: [], labels: [], size: { width: 1, height: 1 }, k: 1, x: 0, y: 0, isFitted: true });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.nodes = h("div.nodes");
    this.lanes = stretch ? h("div.lanes", { "aria-hidden": "true" }) : null;
    const zoom = (factor, text, name) => h("button", { type: "button", "aria-label": name, title: name, onclick: () => this.zoom(factor) }, text);
    const tools = h("div.zoom", null, zoom(1.4, "+", "Zoom in"), zoom(1 / 1.4, "−", "Zoom out"), h("button", { type: "button", title: "Show everything", onclick: () => this.fit() }, "Fit"));
    this.root = h("div.scene", { tabindex: 0, role: "region", "aria-label": `${label}; arrow keys move, + and - zoom, 0 shows everything`, onkeydown: (event) => this.key(event) }, this.canvas, this.nodes, this.lanes, tools);
    this.root.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.root.addEventListener("pointerdown", (event) => this.drag(event));
    this.observer = new ResizeObserver(() => (this.isFitted ? this.fit() : this.draw()));
    this.observer.observe(this.root);
  }

  close() {
    this.observer.disconnect();
  }

  show({ items, edges = [], labels = [], width, height }) {
    const isFirst = !this.items.length;
    Object.assign(this, { items, edges, labels, size: { width: Math.max(width, 1e-3), height: Math.max(height, 1) } });
    if (isFirst || this.isFitted) this.fit();
    else this.draw();
  }

  get left() {
    return this.stretch ? this.lanes.offsetWidth || GUTTER : 0;
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.root;
    if (!width) return;
    const wide = (width - this.left - 48) / this.size.width;
    this.k = this.stretch ? wide : Math.max(0.02, Math.min(1, wide, (height - 48) / this.size.height));
    if (!this.stretch && width < 600) this.k = Math.max(this.k, 0.45); // a phone shows a readable part instead
    this.x = this.left + (this.stretch ? 16 : Math.max(24, (width - this.size.width * this.k) / 2));
    this.y = this.stretch ? 32 : Math.max(24, (height - this.size.height * this.k) / 2);
    this.isFitted = true;
    this.draw();
  }

  zoom(factor, at = { x: this.root.clientWidth / 2, y: this.root.clientHeight / 2 }) {
    const k = Math.min(this.stretch ? 2000 : 2.5, Math.max(this.stretch ? 1e-4 : 0.02, this.k * factor));
    this.x = at.x - ((at.x - this.x) * k) / this.k;
    if (!this.stretch) this.y = at.y - ((at.y - this.y) * k) / this.k;
    this.k = k;
    this.moved();
  }

  moved() {
    this.isFitted = false;
    this.draw();
  }

  center(item) {
    if (!this.stretch && this.k < 0.6) this.k = 0.8;
    this.x = this.root.clientWidth / 2 - (item.x + item.w / 2) * this.k;
    this.y = this.root.clientHeight / 2 - (item.y + item.h / 2) * (this.stretch ? 1 : this.k);
    this.moved();
  }

  wheel(event) {
    event.preventDefault();
    const box = this.root.getBoundingClientRect();
    if (event.shiftKey || (this.stretch && !event.ctrlKey && Math.abs(event.deltaY) < 30)) {
      this.x -= event.deltaX;
      this.y -= event.deltaY;
      return this.moved();
    }
    this.zoom(Math.exp(-event.deltaY / 400), { x: event.clientX - box.left, y: event.clientY - box.top });
  }

  drag(event) {
    if (event.button !== 0 || event.target.closest("button")) return;
    let last = event;
    let isMoved = false;
    const move = (next) => {
      isMoved ||= Math.hypot(next.clientX - event.clientX, next.clientY - event.clientY) > 4;
      this.x += next.clientX - last.clientX;
      this.y += next.clientY - last.clientY;
      last = next;
      this.moved();
    };
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      if (isMoved) addEventListener("click", (click) => click.preventDefault(), { capture: true, once: true });
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    event.target.closest("a")?.addEventListener("dragstart", (start) => start.preventDefault(), { once: true });
  }

  key(event) {
    if (event.target !== this.root) return;
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (step) {
      this.x += step[0];
      this.y += step[1];
      this.moved();
    } else if (event.key === "+" || event.key === "=") this.zoom(1.3);
    else if (event.key === "-") this.zoom(1 / 1.3);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.paint();
    });
  }

  paint() {
    const { clientWidth: width, clientHeight: height } = this.root;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const color = colorsFor(this.canvas);
    const seen = this.items.filter((item) => this.isSeen(this.box(item), width, height));
    if (this.ticks) this.paintTicks(pen, width, height, color);
    this.paintEdges(pen, width, height, color);
    const isClose = this.stretch || this.k >= 0.42;
    const asNodes = isClose && seen.length <= MOST_NODES;
    if (!asNodes) this.paintItems(pen, seen, color);
    this.placeNodes(asNodes ? seen : []);
    if (this.lanes) this.placeLanes();
  }

  box(item) {
    const ky = this.stretch ? 1 : this.k;
    return { x: this.x + item.x * this.k, y: this.y + item.y * ky, w: Math.max(item.w * this.k, 3), h: item.h * ky };
  }

  isSeen(box, width, height) {
    return box.x < width && box.x + box.w > this.left && box.y < height && box.y + box.h > 0;
  }

  paintEdges(pen, width, height, color) {
    pen.lineWidth = Math.max(0.6, Math.min(1.5, this.k * 1.6));
    pen.strokeStyle = color("quiet");
    pen.globalAlpha = this.edges.length > 3000 ? 0.18 : 0.5;
    pen.beginPath();
    for (const [from, to] of this.edges) {
      const a = this.box(from);
      const b = this.box(to);
      const [x1, y1, x2, y2] = [a.x + a.w, a.y + a.h / 2, b.x, b.y + b.h / 2];
      if (x2 < 0 || x1 > width || Math.max(y1, y2) < 0 || Math.min(y1, y2) > height) continue;
      const bend = Math.max(12, (x2 - x1) / 2);
      pen.moveTo(x1, y1);
      pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  paintItems(pen, seen, color) {
    const tones = new Map();
    const tone = (state) => tones.get(state) ?? tones.set(state, [color(`${state}-ground`), color(state)]).get(state);
    const isReadable = this.k >= 0.3 && !this.stretch;
    pen.font = `${12 * this.k}px system-ui, sans-serif`;
    pen.lineWidth = 1;
    for (const item of seen) {
      const { x, y, w, h: tall } = this.box(item);
      const [ground, front] = tone(item.state);
      pen.globalAlpha = item.isDim ? 0.2 : 1;
      pen.fillStyle = this.k < 0.25 || this.stretch ? front : ground;
      pen.strokeStyle = front;
      pen.fillRect(x, y, w, tall);
      if (w > 8) pen.strokeRect(x, y, w, tall);
      if (isReadable) {
        pen.fillStyle = color("text");
        pen.fillText(item.title.slice(0, 28), x + 8 * this.k, y + 18 * this.k, w - 12 * this.k);
      }
    }
    pen.globalAlpha = 1;
  }

  paintTicks(pen, width, height, color) {
    pen.fillStyle = color("quiet");
    pen.strokeStyle = color("line");
    pen.font = "12px system-ui, sans-serif";
    pen.beginPath();
    const from = (this.left - this.x) / this.k;
    const to = (width - this.x) / this.k;
    for (const { at, text } of this.ticks(from, to, Math.max(2, width / 130))) {
      const x = this.x + at * this.k;
      if (x < this.left) continue;
      pen.moveTo(x + 0.5, 22);
      pen.lineTo(x + 0.5, height);
      pen.fillText(text, x + 4, 16);
    }
    pen.stroke();
  }

  placeNodes(seen) {
    const fresh = h("div", null, seen.map((item) =>
      h("a.node", { "data-key": item.id, "data-state": item.state, class: `node${item.isDim ? " dim" : ""}${this.stretch ? " slim" : ""}`, href: item.href, title: item.hint },
        this.stretch ? item.title : [h("b", null, item.title), h("span.sub", null, item.sub)],
      )));
    morphChildren(this.nodes, fresh);
    seen.forEach((item, index) => {
      const style = this.nodes.children[index].style;
      const { x, y, w, h: tall } = this.box(item);
      style.width = `${this.stretch ? w : item.w}px`;
      style.height = `${this.stretch ? tall : item.h}px`;
      style.transform = this.stretch ? `translate(${x}px, ${y}px)` : `translate(${x}px, ${y}px) scale(${this.k})`;
    });
  }

  placeLanes() {
    const fresh = h("div", null, this.labels.map((lane) => h("div.lane", { title: lane.text }, lane.text)));
    morphChildren(this.lanes, fresh);
    this.labels.forEach((lane, index) => {
      const style = this.lanes.children[index].style;
      style.top = `${this.y + lane.y - 28}px`;
      style.height = `${lane.height}px`;
    });
  }
}

/** The page's colors for a canvas, which cannot resolve `light-dark()`: its style `color` can. */
function colorsFor(canvas) {
  const known = new Map();
  const resolve = (name) => {
    canvas.style.color = `var(--${name})`;
    return getComputedStyle(canvas).color;
  };
  return (name) => known.get(name) ?? known.set(name, resolve(name)).get(name);
}
