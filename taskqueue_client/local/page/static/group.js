// A group: its graph, a time line of its runs, or a list, with totals by state and reason.
import { h, mount, VirtualList } from "./dom.js";
import { now, own } from "./queue.js";
import { chip, duration, GLYPHS, seconds, stateOf, STATES, time, taskLink } from "./words.js";
import { address, setQuery } from "./app.js";
import { button, cancelGroup, changeGroupPriority } from "./actions.js";
import { layered, timeline } from "./layout.js";
import { Scene } from "./scene.js";

const MODES = { __proto__: null, graph: "Graph", time: "Time line", list: "List" };

export function group(frame, here) {
  const taskGroupId = here.parts[1];
  let data = { tasks: [] };
  const tasks = new Map();
  let layout = null;
  let matching = [];
  const filter = { search: here.query.get("search") ?? "", states: new Set((here.query.get("state") ?? "").split(",").filter(Boolean)) };
  let mode = MODES[here.query.get("view")] ? here.query.get("view") : "graph";
  const scenes = {
    graph: new Scene({ label: "Graph of the group's tasks" }),
    time: new Scene({ label: "Runs of the group by worker", stretch: true, ticks: (from, to, most) => ticks(from, to, most) }),
  };
  const list = new VirtualList({ rowHeight: 30, label: "Tasks of the group", row: (index) => listRow(matching[index]) });
  let changed = true;
  let start = 0;

  function ticks(from, to, most) {
    const step = [0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 4 * 3600, 86400].find((each) => (to - from) / each <= most) ?? 7 * 86400;
    const found = [];
    for (let at = Math.max(0, Math.ceil(from / step) * step); at <= to; at += step) found.push({ at, text: at ? `+${duration(at)}` : "0" });
    return found;
  }

  function matches(task) {
    if (filter.states.size && !filter.states.has(stateOf(task))) return false;
    const wanted = filter.search.trim().toLowerCase();
    return !wanted || task.name.toLowerCase().includes(wanted) || task.taskId.toLowerCase().includes(wanted) || task.taskQueueId.toLowerCase().includes(wanted);
  }

  function apply() {
    changed = false;
    const all = [...tasks.values()];
    const found = new Set(matching);
    list.setCount(matching.length);
    if (mode === "graph") {
      layout ??= layered(all);
      const items = new Map(all.map((task) => [task.taskId, item(task, !found.has(task))]));
      const edges = all.flatMap((task) => task.dependencies.filter((id) => items.has(id) && id !== task.taskId).map((id) => [items.get(id), items.get(task.taskId)]));
      scenes.graph.show({ items: [...items.values()], edges, width: layout.width, height: layout.height });
    } else if (mode === "time") {
      showTimeline(found);
    }
  }

  function item(task, isDim) {
    const state = stateOf(task);
    const last = task.runs.at(-1);
    const sub = `${GLYPHS[state]} ${state}${last?.reasonResolved && last.reasonResolved !== state ? `: ${last.reasonResolved}` : ""}${task.runs.length > 1 ? `, run ${task.runs.length - 1}` : ""}`;
    return { id: task.taskId, ...layout.places.get(task.taskId), state, isDim, title: task.name, sub, hint: `${task.name}\n${sub}\n${task.taskQueueId}`, href: `#/task/${task.taskId}` };
  }

  function showTimeline(found) {
    const runs = [...tasks.values()].flatMap((task) => task.runs.filter((run) => run.started).map((run) => ({
      task, run,
      worker: `${run.workerGroup}/${run.workerId}`,
      scheduled: seconds(run.scheduled),
      start: seconds(run.started),
      end: run.resolved ? seconds(run.resolved) : null,
    })));
    const laid = timeline(runs, runs.some((run) => run.end === null) ? now() : Math.max(...runs.map((run) => run.end), 0));
    start = laid.start;
    scenes.time.show({
      ...laid,
      items: laid.items.map(({ run: { task, run, start: from, end }, ...box }) => ({
        ...box,
        id: `${task.taskId}/${run.runId}`,
        state: run.state,
        isDim: !found.has(task),
        title: `${GLYPHS[run.state]} ${task.name}${run.runId ? ` · run ${run.runId}` : ""}${run.reasonResolved && run.reasonResolved !== run.state ? ` · ${run.reasonResolved}` : ""}`,
        hint: `${task.name}, run ${run.runId}\n${run.reasonCreated} → ${run.reasonResolved ?? run.state}\nwaited ${duration(from - seconds(run.scheduled))}, ran ${duration((end ?? now()) - from)}`,
        href: `#/task/${task.taskId}`,
      })),
    });
  }

  function listRow(task) {
    const last = task.runs.at(-1);
    return h("div.entry", { "data-key": task.taskId, role: "listitem" }, chip(stateOf(task)), h("span.name", null, taskLink(task.taskId, task.name)), h("span.where", null, last?.workerId ? `${last.workerGroup}/${last.workerId}` : task.taskQueueId), h("span.ms", null, last?.started ? duration((last.resolved ? seconds(last.resolved) : now()) - seconds(last.started)) : "–"));
  }

  function toggle(state) {
    filter.states.has(state) ? filter.states.delete(state) : filter.states.add(state);
    refine();
  }

  function refine() {
    changed = true;
    setQuery({ search: filter.search, state: [...filter.states].join(","), view: mode === "graph" ? "" : mode });
    frame.draw();
  }

  function find(event) {
    if (event.key !== "Enter" || mode !== "graph" || !matching.length) return;
    scenes.graph.center(layout.places.get(matching[0].taskId));
  }

  return {
    title: () => data.tasks[0]?.name ?? taskGroupId,
    async load() {
      data = await own("GET", `group/${taskGroupId}`);
      if (data.tasks.length !== tasks.size) layout = null;
      tasks.clear();
      for (const task of data.tasks) tasks.set(task.taskId, task);
      changed = true;
    },
    receive(event) {
      for (const { exchange, body } of event.messages) {
        if (exchange === "task-group-sealed" && body.taskGroupId === taskGroupId) frame.reload();
        if (body.status?.taskGroupId !== taskGroupId) continue;
        const known = tasks.get(body.status.taskId);
        if (!known) frame.reload();
        else if (body.status.runs.length >= known.runs.length) Object.assign(known, { runs: body.status.runs, retriesLeft: body.status.retriesLeft, priority: body.status.priority ?? known.priority });
        changed = true;
      }
    },
    themed() {
      scenes.graph.draw();
      scenes.time.draw();
    },
    draw() {
      if (changed) matching = [...tasks.values()].filter(matches);
      return this.parts();
    },
    parts: () => [
      h("div.title", null, h("h1", null, data.tasks[0]?.name ?? "Group"), data.sealed && h("span.tag", null, "sealed"),
        h("div.row-of", null, button(changeGroupPriority(taskGroupId), "Priority"), button(cancelGroup(taskGroupId), "Cancel group", { after: frame.reload }))),
      h("div.crumbs", null, h("span", null, "Group ", h("code", null, taskGroupId)), h("span", null, `scheduler ${data.schedulerId}`), h("span", null, "expires ", time(data.expires)), reasons()),
      h("section.panel", { "aria-label": "Tasks of the group" },
        h("header", null,
          h("div.row-of", null,
            h("div.segments", { role: "group", "aria-label": "View" }, Object.entries(MODES).map(([name, text]) => h("button", { type: "button", "aria-pressed": String(mode === name), onclick: () => { mode = name; refine(); } }, text))),
            h("input", { type: "search", placeholder: "Search name, id or task queue", "aria-label": "Search tasks", value: filter.search, oninput: (event) => { filter.search = event.target.value; refine(); }, onkeydown: find }),
            totals(),
          ),
          h("span.quiet", { role: "status" }, matching.length === tasks.size ? `${tasks.size} tasks` : `${matching.length} of ${tasks.size}`)),
        h("div.listing", { "data-mount": mode, "data-key": mode }),
      ),
    ],
    drawn(root) {
      mount(root, mode, mode === "list" ? list.root : scenes[mode].root);
      if (changed || (mode === "time" && [...tasks.values()].some((task) => stateOf(task) === "running"))) {
        apply();
      } else if (mode === "list") list.draw();
    },
    accepts: ({ parts }) => parts[0] === "group" && parts[1] === taskGroupId && !address().query.size,
    close() {
      scenes.graph.close();
      scenes.time.close();
    },
  };

  function totals() {
    const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
    for (const task of tasks.values()) counts[stateOf(task)]++;
    return h("div.row-of", { role: "group", "aria-label": "Filter by state" }, STATES.filter((state) => counts[state] || filter.states.has(state)).map((state) => h("button", { type: "button", "aria-pressed": String(filter.states.has(state)), onclick: () => toggle(state) }, chip(state, `${counts[state]} ${state}`))));
  }

  function reasons() {
    const counts = new Map();
    for (const task of tasks.values()) for (const run of task.runs) {
      const reason = run.reasonResolved;
      if (reason && reason !== "completed" && reason !== "failed") counts.set(reason, (counts.get(reason) ?? 0) + 1);
    }
    return [...counts].map(([reason, number]) => h("span", null, `${number} × ${reason}`));
  }
}
