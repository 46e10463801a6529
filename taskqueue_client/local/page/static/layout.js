// The positions of tasks in a graph, and of runs in a time line: numbers only, nothing is drawn.

export const NODE = { width: 200, height: 44 };
const GAP = { layer: 70, column: 14, row: 12 };

/** Layers from left to right: a task is to the right of everything that it depends on. */
export function layered(tasks) {
  const byId = new Map(tasks.map((task) => [task.taskId, { id: task.taskId, parents: [], children: [], layer: 0, waits: 0, y: 0 }]));
  for (const task of tasks) {
    const node = byId.get(task.taskId);
    for (const id of new Set(task.dependencies)) {
      const parent = byId.get(id);
      if (!parent || parent === node) continue;
      node.parents.push(parent);
      parent.children.push(node);
      node.waits++;
    }
  }
  const layers = intoLayers([...byId.values()]);
  untangle(layers);
  return place(layers, tasks.length);
}

function intoLayers(nodes) {
  const ready = nodes.filter((node) => node.waits === 0);
  for (let index = 0; index < ready.length; index++) {
    for (const child of ready[index].children) {
      child.layer = Math.max(child.layer, ready[index].layer + 1);
      if (--child.waits === 0) ready.push(child);
    }
  }
  const layers = [];
  for (const node of nodes) (layers[node.layer] ??= []).push(node);
  return layers.filter(Boolean);
}

/** Order each layer by the mean place of its neighbors, to the right and back, so that few edges cross. */
function untangle(layers) {
  const number = (layer) => layer.forEach((node, index) => (node.rank = (index + 0.5) / layer.length));
  layers.forEach(number);
  for (let round = 0; round < 4; round++) {
    const side = round % 2 ? "children" : "parents";
    for (const layer of round % 2 ? [...layers].reverse() : layers) {
      for (const node of layer) node.wish = mean(node[side].map((each) => each.rank)) ?? node.rank;
      layer.sort((first, second) => first.wish - second.wish);
      number(layer);
    }
  }
}

function mean(numbers) {
  return numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : null;
}

/** Compute the places. A layer with too many tasks for one column becomes a block of several columns. */
function place(layers, total) {
  const highest = Math.max(12, Math.ceil(Math.sqrt(total) * 1.4));
  const pitch = NODE.height + GAP.row;
  const places = new Map();
  let x = 0;
  let height = 0;
  for (const layer of layers) {
    const columns = Math.ceil(layer.length / highest);
    const rows = Math.ceil(layer.length / columns);
    const wishes = columns === 1 ? spread(layer, pitch) : null;
    layer.forEach((node, index) => {
      node.y = wishes ? wishes[index] : ((index % rows) - rows / 2) * pitch;
      places.set(node.id, { x: x + Math.floor(index / rows) * (NODE.width + GAP.column), y: node.y, w: NODE.width, h: NODE.height });
    });
    x += columns * (NODE.width + GAP.column) - GAP.column + GAP.layer;
    height = Math.max(height, rows * pitch);
  }
  const top = Math.min(0, ...[...places.values()].map((each) => each.y));
  let bottom = 0;
  for (const each of places.values()) {
    each.y -= top;
    bottom = Math.max(bottom, each.y + each.h);
  }
  return { places, width: Math.max(0, x - GAP.layer), height: bottom };
}

/** The heights at which tasks are beside their dependencies, in order, without overlap. */
function spread(layer, pitch) {
  const wishes = layer.map((node, index) => mean(node.parents.map((each) => each.y)) ?? (index - layer.length / 2) * pitch);
  const ys = [];
  wishes.forEach((wish, index) => ys.push(index ? Math.max(wish, ys[index - 1] + pitch) : wish));
  const shift = mean(wishes.map((wish, index) => wish - ys[index]));
  return ys.map((y) => y + shift);
}

export const LANE = 26;

/** A lane for each worker, more where its runs overlap, and bars from claim to end; x in seconds. */
export function timeline(runs, end) {
  const workers = new Map();
  for (const run of [...runs].sort((first, second) => first.start - second.start)) {
    const lanes = workers.get(run.worker) ?? workers.set(run.worker, []).get(run.worker);
    const until = run.end ?? end;
    let lane = lanes.findIndex((each) => each.until <= run.start);
    if (lane < 0) lane = lanes.push({ runs: [] }) - 1;
    lanes[lane].until = Math.max(until, run.start + 1e-3);
    lanes[lane].runs.push(run);
  }
  const start = Math.min(...runs.map((run) => Math.min(run.start, run.scheduled ?? run.start)), end);
  const items = [];
  const labels = [];
  let y = 0;
  for (const [worker, lanes] of [...workers].sort(([first], [second]) => first.localeCompare(second))) {
    labels.push({ y, height: lanes.length * LANE, text: worker });
    for (const lane of lanes) {
      for (const run of lane.runs) items.push({ run, x: run.start - start, w: (run.end ?? end) - run.start, y: y + 2, h: LANE - 4 });
      y += LANE;
    }
    y += 6;
  }
  return { items, labels, start, width: Math.max(end - start, 1), height: y };
}
