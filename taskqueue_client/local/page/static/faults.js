// The view of the faults, and the dialog of the clock.
import { h, morphChildren } from "./dom.js";
import { clockKind, now, own, setClock } from "./queue.js";
import { chip, clockTime, duration, time } from "./words.js";
import { admin, button, code, control, python } from "./actions.js";

const READY = [
  ["A load balancer responds with 502, three times", { kind: "respond", endpoint: "queue.*", status: 502, html: true, times: 3 }],
  ["The response to a claim is lost", { kind: "drop", endpoint: "queue.claimWork", after: true }],
  ["The response to createTask is lost", { kind: "drop", endpoint: "queue.createTask", after: true }],
  ["A report gets 500 after it was done", { kind: "respond", endpoint: "queue.reportCompleted", status: 500, after: true }],
  ["Reclaims fail, five times", { kind: "respond", endpoint: "queue.reclaimTask", status: 503, times: 5 }],
  ["Too many requests: wait 2 s", { kind: "respond", endpoint: "queue.*", status: 429, headers: { "Retry-After": "2" } }],
  ["Everything waits 3 s", { kind: "delay", endpoint: "queue.*", seconds: 3, times: 5, realTime: true }],
  ["An upload is cut after 1000 bytes", { kind: "cutUpload", endpoint: "storage.put", at: 1000 }],
  ["A download is cut after 1000 bytes", { kind: "cutDownload", endpoint: "storage.get", at: 1000 }],
  ["A download of 10 kB each second", { kind: "slowDownload", endpoint: "storage.get", bytesPerSecond: 10000 }],
  ["An upload URL has expired", { kind: "expireUrl", endpoint: "storage.put" }],
];

const CLASSES = { respond: "Respond", drop: "Drop", delay: "Delay", cutUpload: "CutUpload", cutDownload: "CutDownload", slowDownload: "SlowDownload", expireUrl: "ExpireUrl" };
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const literal = (value) => (value === true ? "True" : value === false ? "False" : JSON.stringify(value));

function pythonFault({ kind, endpoint, ...rest }) {
  const words = Object.entries(rest).map(([name, value]) => `, ${snake(name)}=${literal(value)}`);
  return `local.faults.add(${CLASSES[kind]}(${python(endpoint)}${words.join("")}))`;
}

function add(fault) {
  return admin("Add the fault", "It waits for the next requests to this endpoint. Requests of this page are never struck.", pythonFault(fault), "POST", "faults", fault, { run: () => own("POST", "faults", fault), done: "The fault was added." });
}

export function faults(frame) {
  let state = { faults: [], endpoints: [] };
  let hits = [];
  const own_ = { kind: "respond", endpoint: "queue.claimWork", times: 1, value: 502 };
  const VALUES = { respond: ["status", "Status"], delay: ["seconds", "Seconds"], cutUpload: ["at", "After bytes"], cutDownload: ["at", "After bytes"], slowDownload: ["bytesPerSecond", "Bytes per second"] };

  const custom = () => ({ kind: own_.kind, endpoint: own_.endpoint, times: Number(own_.times), ...(VALUES[own_.kind] ? { [VALUES[own_.kind][0]]: Number(own_.value) } : {}) });
  const remove = (fault) => ({
    ...admin("Remove the fault", "The fault is removed before it strikes again. The code below removes all faults.", "local.faults.clear()", "DELETE", "faults"),
    run: () => own("POST", "faults/remove", { fault }),
    done: "The fault was removed.",
  });

  return {
    title: () => "Faults",
    async load() {
      const [fresh, history] = await Promise.all([own("GET", "state"), own("GET", "history")]);
      state = fresh;
      hits = history.requests.filter((each) => each.fault).reverse();
    },
    receive(event) {
      state = { ...state, faults: event.faults };
      if (event.requests.some((each) => each.fault)) frame.reload();
    },
    draw: () => [
      h("h1.hidden", null, "Faults"),
      h("div.columns", null,
        h("div.stack", { "data-key": "left" },
          h("section.panel", { "aria-label": "Waiting faults" }, h("header", null, h("h2", null, "Waiting", h("span.number", null, String(state.faults.length)))),
            state.faults.length ? h("ul.links", { tabindex: "0", "aria-label": "Waiting faults" }, state.faults.map((each) => h("li", null, chip("exception", each.kind), h("code", null, each.endpoint), h("span.quiet", null, `${each.times} more`), button(remove(each), "Remove", { after: frame.reload })))) : h("p.quiet", null, "No fault is waiting.")),
          h("section.panel", { "aria-label": "Hits" }, h("header", null, h("h2", null, "Hits", h("span.number", null, String(hits.length)))),
            hits.length ? h("ul.links", { tabindex: "0", "aria-label": "Requests that were struck" }, hits.slice(0, 100).map((each) => h("li", { "data-key": each.id }, time(each.time), chip("exception", each.fault), h("code", null, `${each.method} ${each.path}`), h("span.quiet", null, each.client ?? "anonymous")))) : h("p.quiet", null, "No request was struck yet."))),
        h("section.panel", { "aria-label": "Add a fault", "data-key": "right" }, h("header", null, h("h2", null, "Add a fault")),
          h("ul.links.tall", { tabindex: "0", "aria-label": "Ready-made faults" }, READY.map(([text, fault]) => h("li", { "data-key": text }, button(add(fault), text, { after: frame.reload }), h("code.quiet", null, fault.endpoint)))),
          h("div.form", null,
            control({ name: "kind", label: "Kind", options: Object.keys(CLASSES), value: own_.kind }, (event) => { own_.kind = event.target.value; frame.draw(); }),
            control({ name: "endpoint", label: "Endpoint, * for anything", value: own_.endpoint, list: "endpoints" }, (event) => (own_.endpoint = event.target.value)),
            h("datalist", { id: "endpoints" }, state.endpoints.map((each) => h("option", { value: each }))),
            control({ name: "times", label: "Times", type: "number", min: "1", value: String(own_.times) }, (event) => (own_.times = event.target.value)),
            VALUES[own_.kind] && control({ name: "value", label: VALUES[own_.kind][1], type: "number", value: String(own_.value) }, (event) => (own_.value = event.target.value)),
            h("div.field", null, h("button.primary", { type: "button", onclick: async () => (await import("./actions.js")).open(add(custom()), frame.reload) }, "Add this fault"))))),
    ],
  };
}

/** The dialog that moves the queue's clock. */
export async function openClock(frame) {
  let state = await own("GET", "state");
  let amount = 60;
  const isMovable = () => clockKind() !== "fixed";
  const body = h("div");
  let problem = "";
  const dialog = h("dialog", { "aria-label": "Clock" }, body);
  const timer = setInterval(draw, 1000);
  dialog.addEventListener("close", () => { clearInterval(timer); dialog.remove(); });

  async function act(path, content) {
    try {
      await own("POST", `clock/${path}`, content);
      state = await own("GET", "state");
      setClock(state);
      problem = "";
    } catch (error) {
      problem = error.message;
    }
    draw();
    frame.reload();
  }

  const by = (number, text) => h("button", { type: "button", onclick: () => { amount = number; act("advance", { seconds: number }); } }, text);

  function to(name, text) {
    const moment = state.moments[name];
    const isAhead = moment !== null && moment > now();
    return h("li", { "data-key": name }, h("button", { type: "button", "aria-disabled": isAhead ? null : "true", onclick: () => { if (!isAhead) return; amount = Math.ceil(moment - now()); act("advance", { to: moment }); } }, text), h("span.quiet", null, isAhead ? `${clockTime(moment)}, in ${duration(moment - now())}` : "none is planned"));
  }

  function draw() {
    // in place: a button that is replaced between the press and the release of the mouse gets no click
    morphChildren(body, h("div", null,
      h("h2", null, "Clock of the queue"),
      h("p", null, time(now()), clockKind() === "held" ? " · held: it stands still" : clockKind() === "fixed" ? " · it follows the machine's clock and cannot be moved" : " · running"),
      ...(isMovable() ? [
        h("div.row-of", null, by(60, "+ 1 min"), by(1200, "+ 20 min"), by(3600, "+ 1 h"), by(86400, "+ 1 d"), clockKind() === "held" ? h("button", { type: "button", onclick: () => act("release") }, "Release") : h("button", { type: "button", onclick: () => act("hold") }, "Hold")),
        h("ul.links", null, to("claimExpiry", "To the next claim expiry"), to("deadline", "To the next deadline"), to("dependencies", "To the next pending dependents")),
        h("form.row-of", { onsubmit: (event) => { event.preventDefault(); amount = Number(new FormData(event.target).get("seconds")); act("advance", { seconds: amount }); } }, h("label", { for: "seconds" }, "Seconds"), h("input", { id: "seconds", name: "seconds", type: "number", min: "0", step: "any", value: String(amount) }), h("button", { type: "submit" }, "Move")),
        code(admin("", "", `local.clock.advance(${amount})`, "POST", "clock/advance", { seconds: amount })),
      ] : []),
      h("p.problem", { role: "alert" }, problem),
      h("footer", null, h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
    ));
  }

  draw();
  document.body.append(dialog);
  dialog.showModal();
}
