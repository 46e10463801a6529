// The overview: task queues, task groups and workers, with their pending and claimed runs.
import { h } from "./dom.js";
import { now, own } from "./queue.js";
import { ago, chip, groupLink, progress, taskLink, time } from "./words.js";
import { button, quarantine } from "./actions.js";

export function overview(frame) {
  let data = { queues: [], workers: [], groups: [] };
  return {
    title: () => "Overview",
    async load() {
      data = await own("GET", "overview");
    },
    receive(event) {
      if (event.messages.length || event.requests.length) frame.reload();
    },
    draw: () => [
      h("h1.hidden", null, "Overview"),
      section("Task queues", data.queues, queueTable, "No task queue is known yet: create a task, or start a worker."),
      section("Task groups", data.groups, groupTable, "There are no tasks yet.", h("a.button", { href: "#/new" }, "New task")),
      section("Workers", data.workers, workerTable, "No worker has asked for tasks yet."),
    ],
  };
}

function section(title, rows, table, whenEmpty, extra) {
  return h("section.panel", { "data-key": title, "aria-label": title }, h("header", null, h("h2", null, title, h("span.number", null, String(rows.length))), extra), rows.length ? h("div.scroll", { tabindex: "0", role: "region", "aria-label": `${title}, table` }, table(rows)) : h("p.quiet", null, whenEmpty));
}

function table(columns, rows) {
  return h("table", null, h("thead", null, h("tr", null, columns.map((each) => h("th", { scope: "col", class: each.startsWith("#") ? "right" : null }, each.replace("#", ""))))), h("tbody", null, rows));
}

function queueTable(queues) {
  return table(
    ["Task queue", "#Pending", "#Claimed", "#Oldest pending", "History"],
    queues.map((each) =>
      h("tr", { "data-key": each.taskQueueId },
        h("th", { scope: "row" }, each.taskQueueId),
        h("td.right", null, count(each.pending, "pending")),
        h("td.right", null, count(each.claimed, "running")),
        h("td.right", null, each.oldest ? ago(each.oldest) : "–"),
        h("td", null, sparkline(each)),
      ),
    ),
  );
}

function count(number, state) {
  return h("span.count", { "data-state": number ? state : null }, String(number));
}

/** The numbers of pending (area) and claimed (line) runs, when something happened. */
function sparkline({ history, pending, claimed }) {
  const samples = [...history, [0, pending, claimed]];
  const top = Math.max(1, ...samples.flatMap(([, first, second]) => [first, second]));
  const step = 120 / Math.max(1, samples.length - 1);
  const points = (index) => samples.map((each, place) => `${(place * step).toFixed(1)},${(22 - (20 * each[index]) / top).toFixed(1)}`).join(" ");
  return h("svg.spark", { viewBox: "0 0 120 24", width: 120, height: 24, role: "img", "aria-label": `up to ${top} runs at a time; now ${pending} pending, ${claimed} claimed` }, h("polyline.area", { points: `0,22 ${points(1)} 120,22` }), h("polyline.line", { points: points(2) }));
}

function groupTable(groups) {
  return table(
    ["First task", "Group", "Scheduler", "Tasks", "Progress"],
    groups.map((each) =>
      h("tr", { "data-key": each.taskGroupId },
        h("th.wide", { scope: "row" }, groupLink(each.taskGroupId, each.name || "(no name)")),
        h("td", null, h("code", null, each.taskGroupId), each.sealed && h("span.tag", null, "sealed")),
        h("td", null, each.schedulerId),
        h("td.right", null, String(Object.values(each.states).reduce((sum, number) => sum + number, 0))),
        h("td.progressing", null, progress(each.states)),
      ),
    ),
  );
}

function workerTable(workers) {
  return table(
    ["Worker", "Task queue", "Runs", "Last activity", "Quarantine"],
    // a quarantine ends without a message
    workers.map((each) => (each.quarantineUntil > now() ? each : { ...each, quarantineUntil: null })).map((each) =>
      h("tr", { "data-key": `${each.taskQueueId}/${each.workerGroup}/${each.workerId}` },
        h("th", { scope: "row" }, h("span.quiet", null, `${each.workerGroup} / `), each.workerId),
        h("td", null, each.taskQueueId),
        h("td.wide", null, running(each)),
        h("td", null, ago(Math.max(each.lastActive, 0))),
        h("td.actions", null, each.quarantineUntil ? [chip("failed", "quarantined"), " until ", time(each.quarantineUntil), " "] : null, button(quarantine(each), each.quarantineUntil ? "Change" : "Quarantine")),
      ),
    ),
  );
}

function running(worker) {
  if (worker.running.length) return worker.running.map((run) => h("span.item", null, chip("running", ""), taskLink(run.taskId, run.name), h("span.quiet", null, ` run ${run.runId}`)));
  const last = worker.recent.at(-1);
  return last ? h("span.quiet", null, "idle; last ", taskLink(last.taskId, last.taskId)) : h("span.quiet", null, "idle");
}

