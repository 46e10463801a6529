// The actions of the page. The dialog of an action shows the same call in Python and in a shell.
import { copyButton, h, notice } from "./dom.js";
import { api, now } from "./queue.js";
import { PRIORITIES } from "./words.js";

/** A value as a literal of Python, and quoted for a shell. */
export const python = (value) => JSON.stringify(value);
export const shell = (value) => (/^[\w@%+=:,./-]+$/.test(value) ? value : `'${String(value).replaceAll("'", "'\\''")}'`);

/** Arguments of a command. Without `--`, an identifier that begins with a hyphen would be an option. */
const operands = (...values) => (values.some((each) => each.startsWith("-")) ? ["--", ...values] : values).map(shell).join(" ");

export const cancel = (taskId) => ({
  title: "Cancel the task",
  about: "A task that is not resolved becomes an exception with the reason canceled. If it runs, its worker stops it.",
  python: () => `queue.cancel_task(${python(taskId)})`,
  shell: () => `taskqueue cancel ${operands(taskId)}`,
  run: () => api("POST", `task/${taskId}/cancel`),
  done: "The task was canceled.",
  danger: true,
});

export const rerun = (taskId) => ({
  title: "Run the task again",
  about: "A resolved or unscheduled task gets a new run at once, without waiting for its dependencies.",
  python: () => `queue.rerun_task(${python(taskId)})`,
  shell: () => `taskqueue rerun ${operands(taskId)}`,
  run: () => api("POST", `task/${taskId}/rerun`),
  done: "The task has a new run.",
});

export const schedule = (taskId) => ({
  title: "Schedule the task",
  about: "A task that waits for its dependencies becomes pending at once.",
  python: () => `queue.schedule_task(${python(taskId)})`,
  shell: () => `taskqueue schedule ${operands(taskId)}`,
  run: () => api("POST", `task/${taskId}/schedule`),
  done: "The task is scheduled.",
});

const priorityField = (value) => ({ name: "priority", label: "New priority", options: PRIORITIES, value });

export const changePriority = (taskId, priority) => ({
  title: "Change the priority of the task",
  about: "The priority decides when a pending run is claimed. Only tasks that were never resolved can change it.",
  fields: [priorityField(priority)],
  python: (values) => `queue.change_task_priority(${python(taskId)}, ${python(values.priority)})`,
  shell: (values) => `taskqueue priority ${operands(values.priority, taskId)}`,
  run: (values) => api("POST", `task/${taskId}/priority`, { newPriority: values.priority }),
  done: "The priority was changed.",
});

export const changeGroupPriority = (taskGroupId) => ({
  title: "Change the priority of the group",
  about: "All tasks of the group that were never resolved change their priority.",
  fields: [priorityField("medium")],
  python: (values) => `queue.change_task_group_priority(${python(taskGroupId)}, ${python(values.priority)})`,
  shell: (values) => `taskqueue priority ${values.priority} --group ${shell(taskGroupId)}`,
  run: (values) => api("POST", `task-group/${taskGroupId}/priority`, { newPriority: values.priority }),
  done: "The priorities were changed.",
});

export const cancelGroup = (taskGroupId) => ({
  title: "Cancel the group",
  about: "The group is sealed first: no task can be added to it any more. Then every task that is not resolved is canceled.",
  python: () => `queue.seal_task_group(${python(taskGroupId)})\nqueue.cancel_task_group(${python(taskGroupId)})`,
  shell: () => `taskqueue cancel --group ${shell(taskGroupId)}`,
  async run() {
    await api("POST", `task-group/${taskGroupId}/seal`);
    return api("POST", `task-group/${taskGroupId}/cancel`);
  },
  done: "The group was canceled.",
  danger: true,
});

export function quarantine({ taskQueueId, workerGroup, workerId, quarantineUntil }) {
  const until = (values) => new Date((now() + 3600 * Number(values.hours)) * 1000).toISOString();
  const [provisionerId, workerType] = taskQueueId.split("/");
  const worker = `worker_group=${python(workerGroup)},\n    worker_id=${python(workerId)}`;
  return {
    title: quarantineUntil ? "Change or lift the quarantine" : "Quarantine the worker",
    about: `${workerGroup}/${workerId} gets no tasks of ${taskQueueId} for so many hours. Zero hours end a quarantine.`,
    fields: [
      { name: "hours", label: "Hours from now", type: "number", value: quarantineUntil ? "0" : "1", min: "0", step: "any" },
      { name: "reason", label: "Reason", value: "" },
    ],
    python: (values) =>
      `queue.quarantine_worker(\n    ${python(taskQueueId)},\n    ${worker},\n    quarantine_until=${python(until(values))},\n    quarantine_info=${python(values.reason)},\n)`,
    shell: (values) => `taskqueue quarantine --hours ${shell(values.hours)} --reason ${shell(values.reason)} ${operands(taskQueueId, workerGroup, workerId)}`,
    run: (values) =>
      api("PUT", `provisioners/${provisionerId}/worker-types/${workerType}/workers/${workerGroup}/${workerId}`, {
        quarantineUntil: until(values),
        quarantineInfo: values.reason,
      }),
    done: "The quarantine was changed.",
  };
}

/** An action on the clock or the faults. The Queue has no endpoints for it: other processes use the admin routes. */
export function admin(title, about, pythonText, method, path, body, more = {}) {
  const data = body === undefined ? "" : ` --data ${shell(JSON.stringify(body))}`;
  return {
    title,
    about,
    python: () => pythonText,
    shell: () => `curl --request ${method} --header "Authorization: Bearer $TASKQUEUE_LOCAL_ADMIN_SECRET"${data} \\\n  "$TASKCLUSTER_ROOT_URL/admin/${path}"`,
    note: ["The shell command needs a queue that was started with ", h("code", null, "--admin-secret"), "."],
    ...more,
  };
}

/** A button that opens the dialog of an action. */
export function button(action, text, { after, disabled } = {}) {
  return h("button", { type: "button", class: action.danger ? "danger" : null, title: disabled || action.title, "aria-disabled": disabled ? "true" : null, onclick: () => disabled || open(action, after) }, text);
}

/** The call of an action in Python and in a shell, to copy. */
export function code(action, values = {}) {
  return h("div.codes", null, ["python", "shell"].map((kind) => {
    const text = action[kind](values);
    return h("figure", null, h("figcaption", null, kind === "python" ? "Python" : "Shell", copyButton(text)), h("pre", { tabindex: "0" }, h("code", null, text)));
  }), action.note && h("p.quiet", null, action.note));
}

export function open(action, after) {
  const values = Object.fromEntries((action.fields ?? []).map((field) => [field.name, field.value]));
  const codes = h("div", null, code(action, values));
  const problem = h("p.problem", { role: "alert" });
  const input = (field) => (event) => {
    values[field.name] = event.target.value;
    codes.replaceChildren(code(action, values));
  };
  const dialog = h("dialog", { "aria-label": action.title },
    h("form", { method: "dialog", onsubmit: (event) => submit(event, dialog, action, values, problem, after) },
      h("h2", null, action.title),
      h("p", null, action.about),
      (action.fields ?? []).map((field) => control(field, input(field))),
      codes,
      problem,
      h("footer", null,
        h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
        h("button", { type: "submit", class: action.danger ? "danger primary" : "primary" }, action.title),
      ),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

export function control(field, oninput) {
  const id = `field-${field.name}`;
  const made = field.options
    ? h("select", { id, oninput }, field.options.map((each) => h("option", { value: each, selected: each === field.value }, each)))
    : h("input", { id, type: field.type ?? "text", value: field.value, min: field.min, step: field.step, list: field.list, oninput });
  return h("div.field", null, h("label", { for: id }, field.label), made);
}

async function submit(event, dialog, action, values, problem, after) {
  event.preventDefault();
  try {
    const result = await action.run(values);
    dialog.close();
    notice(action.done);
    after?.(result);
  } catch (error) {
    problem.textContent = error.message;
  }
}
