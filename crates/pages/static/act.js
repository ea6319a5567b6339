// Buttons that do something: each form names the route it calls, and sends its fields as JSON.
import { ask, call, root } from "./call.js";
import { closed, opened, pretty } from "./json.js";
import { leave, refresh } from "./live.js";
import { dialog, make, toast } from "./make.js";
import { inTurns, words } from "./replay.js";

export function start() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.call) return;
    event.preventDefault();
    send(form, event.submitter);
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-open], [data-close], [data-copy], [data-preview]");
    if (!target) return;
    const { open, copy, preview } = target.dataset;
    if (open) raise(document.getElementById(open));
    else if (copy !== undefined) copyText(copy, target);
    else if (preview) show(preview, target.dataset.as);
    else target.closest("dialog").close();
  });
}

// As the server drew it: what was typed the last time is gone.
function raise(dialog) {
  if (!dialog) return;
  for (const form of dialog.querySelectorAll("form")) form.reset();
  for (const problem of dialog.querySelectorAll(".problem")) problem.textContent = "";
  for (const told of dialog.querySelectorAll(".told")) told.hidden = true;
  dialog.showModal();
  for (const field of dialog.querySelectorAll("[data-fill]")) fill(field);
}

// A field whose text is fetched when somebody wants to see it. Nothing is sent before it is there.
async function fill(field) {
  const button = field.form.querySelector("button:not([type])");
  field.readOnly = button.disabled = true;
  try {
    const text = opened(await ask("GET", field.dataset.fill)).get(field.name);
    if (!field.value) field.value = pretty(text);
    field.readOnly = button.disabled = false;
  } catch (error) {
    complain(field.form, error.message);
  }
}

async function send(form, button) {
  const [method, path] = form.dataset.call.split(" ");
  const problem = form.querySelector(".problem");
  if (problem) problem.textContent = "";
  let body;
  try {
    body = fields(form);
  } catch (error) {
    return void complain(form, error.message, error.field);
  }
  const yes = form.dataset.yes ?? button?.textContent.replace("…", "");
  const { no, number } = form.dataset;
  if (form.dataset.ask && !(await sure(form.dataset.ask, { yes, no, number }))) return;
  if (form.dataset.dry) {
    // First how many it would be, then the number typed, then the act.
    try {
      const told = await call(method, path, closed(opened(body).set("dry_run", "true")));
      const many = told[form.dataset.dry];
      if (!many) return void toast("Nothing matches.");
      if (!(await sure(`${many} match. Go on with all of them?`, { yes, number: many }))) return;
    } catch (error) {
      return void complain(form, error.message, error.field);
    }
  }
  if (button) button.disabled = true;
  try {
    const text = form.dataset.most ? await inTurns(path, form.dataset) : await ask(method, path, body);
    const answer = text ? JSON.parse(text) : null;
    const show = form.dataset.show && document.getElementById(form.dataset.show);
    // What is shown beside the fields is for trying others.
    const isBeside = form.contains(show);
    if (!isBeside) form.closest("dialog")?.close();
    if (show) reveal(show, text);
    if (isBeside) return;
    const see = addressOf(form.dataset.see, answer);
    toast(words(form.dataset, answer), see && { action: "See it", act: () => leave(see), lasts: 10000 });
    const go = addressOf(form.dataset.go, answer);
    if (go) leave(go); else await refresh();
  } catch (error) {
    complain(form, error.message, error.field);
  } finally {
    if (button) button.disabled = false;
  }
}

// `jobs/{id}` with the member of the answer in it; nowhere, when the answer has none.
function addressOf(pattern, answer) {
  const filled = pattern?.replace(/\{(\w+)\}/g, (_, member) => encodeURIComponent(answer?.[member] ?? ""));
  return filled && !filled.endsWith("/") ? new URL(filled, root) : undefined;
}

// The body as text, so that no number in it changes on its way through here.
function fields(form) {
  const named = [...form.elements].filter((field) => field.name && !field.disabled);
  if (!named.length) return form.dataset.base;
  const body = opened(form.dataset.base ?? "{}");
  for (const field of named) {
    const [place, member] = within(body, field.name);
    const text = read(field);
    if (text === undefined) place.delete(member); else place.set(member, text);
  }
  return closed(body);
}

// `outcome.likely_cause` is a member of a member.
function within(body, name) {
  const path = name.split(".");
  const member = path.pop();
  return [path.reduce(inside, body), member];
}

function inside(place, step) {
  const found = place.get(step) ?? "{}";
  if (!(found instanceof Map)) place.set(step, opened(found));
  return place.get(step);
}

// What a field says, as JSON.
function read(field) {
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
        throw Object.assign(new Error(`This is not JSON: ${error.message}`), { field: field.name });
      }
    default: return JSON.stringify(text);
  }
}

function complain(form, text, field) {
  const place = form.querySelector(".problem");
  if (place) place.textContent = text; else toast(text, { bad: true });
  if (field) form.elements[field]?.focus();
}

// An answer that is shown once, such as a new token or what a dry run would do.
function reveal(place, answer) {
  place.hidden = false;
  const shown = place.querySelector("[data-answer]");
  const member = shown.dataset.answer;
  shown.textContent = member ? JSON.parse(answer)[member] : pretty(answer);
  place.querySelector("[data-copy]")?.setAttribute("data-copy", shown.textContent);
  place.scrollIntoView({ block: "nearest" });
}

// Asks first. With `number`, the answer is the number itself, typed.
export function sure(question, { yes = "Yes", no = "Leave it", number }) {
  const go = make("button", { id: "sure-yes", className: "danger", value: "yes", disabled: number !== undefined }, yes);
  const typed = make("input", { id: "sure-number", inputMode: "numeric", autocomplete: "off" });
  typed.addEventListener("input", () => { go.disabled = typed.value.trim() !== String(number); });
  const form = make("form", { method: "dialog" }, make("h2", { id: "sure-title" }, question));
  if (number !== undefined) form.append(make("label", {}, `Type ${number} to go on`, typed));
  form.append(make("div", { className: "actions" }, go, make("button", { value: "no" }, no)));
  const asked = dialog({ "aria-labelledby": "sure-title" }, form);
  return new Promise((resolve) => {
    asked.addEventListener("close", () => resolve(asked.returnValue === "yes"));
  });
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a safe origin there is no clipboard: the text is marked for the reader to copy.
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const word = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = word; }, 1500);
}

// Artifacts are shown as plain text or as a picture: whatever is in them, nothing of it runs.
async function show(address, as) {
  const place = document.getElementById("preview");
  place.replaceChildren();
  place.hidden = false;
  if (as === "image") return void place.append(make("img", { alt: "The artifact as a picture", src: address }));
  const answer = await fetch(address, { credentials: "same-origin" });
  const text = answer.ok ? await answer.text() : "It cannot be read.";
  place.append(make("pre", { className: "card", tabIndex: 0 }, text));
}
