// Forms and buttons. A form names the API route that it calls (`data-call`) and sends its fields as JSON.
import { call, request, root } from "./call.js";
import { parseMembers, pretty, serializeMembers } from "./json.js";
import { navigate, refresh } from "./live.js";
import { dialog, make, toast } from "./make.js";

export function start() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.call) return;
    event.preventDefault();
    send(form, event.submitter);
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-open], [data-close], [data-copy], [data-preview], [data-put]");
    if (!target) return;
    const { open, copy, preview } = target.dataset;
    if (open) openDialog(document.getElementById(open), target.dataset.set);
    else if (copy !== undefined) copyText(copy, target);
    else if (preview) showPreview(preview, target.dataset.as);
    else if (target.dataset.put) putRecent(target);
    else target.closest("dialog").close();
  });
}

// Opens a dialog as the server rendered it, without earlier input. `set` has a field and its value: `from=step-2`.
function openDialog(dialog, set) {
  if (!dialog) return;
  for (const form of dialog.querySelectorAll("form")) form.reset();
  if (set) {
    const at = set.indexOf("=");
    dialog.querySelector("form").elements[set.slice(0, at)].value = set.slice(at + 1);
  }
  for (const problem of dialog.querySelectorAll(".problem")) problem.textContent = "";
  for (const result of dialog.querySelectorAll(".dry-run-result")) result.hidden = true;
  dialog.showModal();
  for (const field of dialog.querySelectorAll("[data-fill]")) fill(field);
}

// Fills a recent payload and its kind into the form.
function putRecent({ form, dataset }) {
  form.elements[dataset.put].value = dataset.value;
  form.elements.kind.value = dataset.kind;
}

// Loads the text of a field when its dialog opens. The form cannot be sent before the text has arrived.
async function fill(field) {
  const button = field.form.querySelector("button:not([type])");
  field.readOnly = button.disabled = true;
  try {
    const text = parseMembers(await request("GET", field.dataset.fill)).get(field.name);
    if (!field.value) field.value = pretty(text);
    field.readOnly = button.disabled = false;
  } catch (error) {
    showProblem(field.form, error.message);
  }
}

async function send(form, button) {
  const [method, path] = form.dataset.call.split(" ");
  const problem = form.querySelector(".problem");
  if (problem) problem.textContent = "";
  let body;
  try {
    body = bodyOf(form);
  } catch (error) {
    return void showProblem(form, error.message, error.field);
  }
  const yes = form.dataset.yes ?? button?.textContent.replace("…", "");
  const { no, number } = form.dataset;
  if (form.dataset.ask && !(await confirm(form.dataset.ask, { yes, no, number }))) return;
  if (form.dataset.each) return void changeEach(form, button);
  if (form.dataset.dry) {
    // A dry run counts the matches; the user confirms by typing the number.
    try {
      const dryRun = await call(method, path, serializeMembers(parseMembers(body).set("dry_run", "true")));
      const count = dryRun[form.dataset.dry];
      if (!count) return void toast("No matches.");
      if (!(await confirm(`${count} match. Continue with all of them?`, { yes, number: count }))) return;
    } catch (error) {
      return void showProblem(form, error.message, error.field);
    }
  }
  if (button) button.disabled = true;
  try {
    const { most, sums } = form.dataset;
    const replay = most || sums ? await import("./replay.js") : undefined;
    const text = most ? await replay.replayInBatches(path, form.dataset) : await request(method, path, body);
    const response = text ? JSON.parse(text) : null;
    const target = form.dataset.show && document.getElementById(form.dataset.show);
    // A response that is shown inside the form's dialog leaves the dialog open for another try.
    const isInForm = form.contains(target);
    if (!isInForm) form.closest("dialog")?.close();
    if (target) showResponse(target, text);
    if (isInForm) return;
    const see = addressOf(form.dataset.see, response);
    toast(replay?.summary(form.dataset, response) ?? (form.dataset.done || "Done"), see && { action: "Show", act: () => navigate(see), duration_ms: 10000 });
    const go = addressOf(form.dataset.go, response);
    if (go) navigate(go); else await refresh();
  } catch (error) {
    showProblem(form, error.message, error.field);
  } finally {
    if (button) button.disabled = false;
  }
}

// Lists the objects of `data-each` and calls the route for each of them, after the user has typed their number.
async function changeEach(form, button) {
  button.disabled = true;
  try {
    const { forEach, listIds } = await import("./many.js");
    const ids = await listIds(form.dataset.each);
    if (!ids.length) return void toast("No matches.");
    const yes = button.textContent.replace("…", "");
    if (!(await confirm(`${ids.length} match. Continue with all of them?`, { yes, number: ids.length }))) return;
    const [method, path] = form.dataset.call.split(" ");
    const change = (id) => request(method, path.replace("{id}", id), bodyOf(form));
    const { succeeded, failed } = await forEach(ids, change, "Resolving");
    toast(`${succeeded} resolved${failed ? `, ${failed} failed` : ""}.`, { bad: succeeded === 0 });
    await refresh();
  } catch (error) {
    toast(error.message, { bad: true });
  } finally {
    button.disabled = false;
  }
}

// Fills members of the response into a pattern such as `jobs/{id}`; undefined if the response lacks the last member.
function addressOf(pattern, response) {
  const filled = pattern?.replace(/\{(\w+)\}/g, (_, member) => encodeURIComponent(response?.[member] ?? ""));
  return filled && !filled.endsWith("/") ? new URL(filled, root) : undefined;
}

// The request body as text, so that numbers keep every digit.
function bodyOf(form) {
  const fields = [...form.elements].filter((field) => field.name && !field.disabled);
  if (!fields.length) return form.dataset.base;
  const body = parseMembers(form.dataset.base ?? "{}");
  for (const field of fields) {
    const [parent, member] = parentOf(body, field.name);
    const text = jsonOf(field);
    if (text === undefined) parent.delete(member); else parent.set(member, text);
  }
  return serializeMembers(body);
}

// Resolves a dotted name: `outcome.likely_cause` is a member of the member `outcome`.
function parentOf(body, name) {
  const path = name.split(".");
  const member = path.pop();
  return [path.reduce(childOf, body), member];
}

function childOf(parent, step) {
  const child = parent.get(step) ?? "{}";
  if (!(child instanceof Map)) parent.set(step, parseMembers(child));
  return parent.get(step);
}

// The value of a field as JSON; undefined if it is empty.
function jsonOf(field) {
  const text = field.value.trim();
  if (field.type === "checkbox") return String(field.checked);
  if (text === "") return undefined;
  switch (field.dataset.type) {
    case "number": return /^-?[1-9]\d*$/.test(text) ? text : JSON.stringify(Number(text));
    case "list": return JSON.stringify(text.split(/[\s,]+/).filter(Boolean));
    case "time": return JSON.stringify(new Date(text).toISOString());
    case "json":
      try {
        JSON.parse(text);
        return text;
      } catch (error) {
        throw Object.assign(new Error(`Invalid JSON: ${error.message}`), { field: field.name });
      }
    default: return JSON.stringify(text);
  }
}

function showProblem(form, text, field) {
  const problem = form.querySelector(".problem");
  if (problem) problem.textContent = text; else toast(text, { bad: true });
  if (field) form.elements[field]?.focus();
}

// Shows a response on the page, such as a new token or the result of a dry run.
function showResponse(target, response) {
  target.hidden = false;
  const shown = target.querySelector("[data-answer]");
  const member = shown.dataset.answer;
  shown.textContent = member ? JSON.parse(response)[member] : pretty(response);
  target.querySelector("[data-copy]")?.setAttribute("data-copy", shown.textContent);
  target.scrollIntoView({ block: "nearest" });
}

// Asks for confirmation. With `number`, the user must type the number.
export function confirm(question, { yes = "Yes", no = "Cancel", number }) {
  const go = make("button", { id: "sure-yes", className: "danger", value: "yes", disabled: number !== undefined }, yes);
  const typed = make("input", { id: "sure-number", inputMode: "numeric", autocomplete: "off" });
  typed.addEventListener("input", () => { go.disabled = typed.value.trim() !== String(number); });
  const form = make("form", { method: "dialog" }, make("h2", { id: "sure-title" }, question));
  if (number !== undefined) form.append(make("label", {}, `Type ${number} to confirm`, typed));
  form.append(make("div", { className: "actions" }, go, make("button", { value: "no" }, no)));
  const shown = dialog({ "aria-labelledby": "sure-title" }, form);
  return new Promise((resolve) => {
    shown.addEventListener("close", () => resolve(shown.returnValue === "yes"));
  });
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard API needs a secure context; fall back to copying a selection.
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

// Previews an artifact as plain text or as an image, so that none of its content can run as a script.
async function showPreview(address, as) {
  const preview = document.getElementById("preview");
  preview.replaceChildren();
  preview.hidden = false;
  if (as === "image") return void preview.append(make("img", { alt: "Preview of the artifact", src: address }));
  const response = await fetch(address, { credentials: "same-origin" });
  const text = response.ok ? await response.text() : `Cannot read the artifact: HTTP status ${response.status}.`;
  preview.append(make("pre", { className: "card", tabIndex: 0 }, text));
}
