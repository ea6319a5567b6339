// Buttons that do something: each form names the route it calls, and sends its fields as JSON.
import { call, root, toast } from "./call.js";
import { refresh } from "./live.js";

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
    if (open) document.getElementById(open)?.showModal();
    else if (copy !== undefined) copyText(copy, target);
    else if (preview) show(preview, target.dataset.as);
    else target.closest("dialog").close();
  });
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
  if (form.dataset.ask && !(await sure(form.dataset.ask, button?.textContent ?? "Yes", form.dataset.number))) return;
  if (form.dataset.dry) {
    // First how many it would be, then the number typed, then the act.
    try {
      const told = await call(method, path, { ...body, dry_run: true });
      const many = told[form.dataset.dry];
      if (!many) return void toast("Nothing matches.");
      if (!(await sure(`${many} match. Go on with all of them?`, button?.textContent.replace("…", "") ?? "Yes", many))) return;
    } catch (error) {
      return void complain(form, error.message, error.field);
    }
  }
  if (button) button.disabled = true;
  try {
    const answer = await call(method, path, body);
    form.closest("dialog")?.close();
    const go = form.dataset.go?.replace(/\{(\w+)\}/g, (_, member) => encodeURIComponent(answer?.[member] ?? ""));
    const show = form.dataset.show && document.getElementById(form.dataset.show);
    if (show) reveal(show, answer);
    toast(form.dataset.done || "Done");
    if (go && !go.endsWith("/")) location.assign(new URL(go, root)); else await refresh();
  } catch (error) {
    complain(form, error.message, error.field);
  } finally {
    if (button) button.disabled = false;
  }
}

function fields(form) {
  const named = [...form.elements].filter((field) => field.name && !field.disabled);
  if (!named.length && !form.dataset.base) return undefined;
  const body = form.dataset.base ? JSON.parse(form.dataset.base) : {};
  for (const field of named) {
    const [place, member] = within(body, field.name);
    const value = read(field);
    if (value === undefined) delete place[member]; else place[member] = value;
  }
  return body;
}

// `outcome.likely_cause` is a member of a member.
function within(body, name) {
  const path = name.split(".");
  const member = path.pop();
  return [path.reduce((place, step) => (place[step] ??= {}), body), member];
}

function read(field) {
  const text = field.value.trim();
  if (field.type === "checkbox") return field.checked;
  if (text === "") return undefined;
  switch (field.dataset.type) {
    case "number": return Number(text);
    case "list": return text.split(/[\s,]+/).filter(Boolean);
    case "time": return new Date(text).toISOString();
    case "json":
      try {
        return JSON.parse(text);
      } catch (error) {
        throw Object.assign(new Error(`This is not JSON: ${error.message}`), { field: field.name });
      }
    default: return text;
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
  const text = place.querySelector("[data-answer]");
  const member = text.dataset.answer;
  text.textContent = member ? answer[member] : JSON.stringify(answer, null, 2);
  place.querySelector("[data-copy]")?.setAttribute("data-copy", text.textContent);
  place.scrollIntoView({ block: "nearest" });
}

// Asks first. With `number`, the answer is the number itself, typed.
export function sure(question, yes, number) {
  return new Promise((resolve) => {
    const dialog = document.createElement("dialog");
    const form = document.createElement("form");
    form.method = "dialog";
    const title = document.createElement("h2");
    title.textContent = question;
    title.id = "sure-title";
    dialog.setAttribute("aria-labelledby", "sure-title");
    form.append(title);
    let typed;
    if (number !== undefined) {
      const label = document.createElement("label");
      label.textContent = `Type ${number} to go on`;
      typed = document.createElement("input");
      typed.id = "sure-number";
      typed.inputMode = "numeric";
      typed.autocomplete = "off";
      label.append(typed);
      form.append(label);
    }
    const row = document.createElement("div");
    row.className = "actions";
    const go = document.createElement("button");
    go.textContent = yes;
    go.value = "yes";
    go.className = "danger";
    go.id = "sure-yes";
    const leave = document.createElement("button");
    leave.textContent = "Leave it";
    leave.value = "no";
    row.append(go, leave);
    form.append(row);
    dialog.append(form);
    if (typed) {
      go.disabled = true;
      typed.addEventListener("input", () => { go.disabled = typed.value.trim() !== String(number); });
    }
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a safe origin there is no clipboard: the text is marked for the reader to copy.
    const area = document.createElement("textarea");
    area.value = text;
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
  if (as === "image") {
    const image = document.createElement("img");
    image.alt = "The artifact as a picture";
    image.src = address;
    place.append(image);
    return;
  }
  const answer = await fetch(address, { credentials: "same-origin" });
  const pre = document.createElement("pre");
  pre.className = "card";
  pre.tabIndex = 0;
  pre.textContent = answer.ok ? await answer.text() : "It cannot be read.";
  place.append(pre);
}
