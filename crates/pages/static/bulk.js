// Bulk actions on selected jobs, and saved views.
import { call } from "./call.js";
import { confirm } from "./act.js";
import { refresh } from "./live.js";
import { forEach, MAX_OBJECTS } from "./many.js";
import { make, toast } from "./make.js";

const MAX_SELECTED = MAX_OBJECTS;
const PAGE_SIZE = 500;
const UNDO_S = 5;
// The selected jobs with the states in which they were read.
const selected = new Map();
let allMatching = false, running = 0;

export function start() {
  showViews();
  // The bar itself appears with the first row.
  if (!document.getElementById("views")) return;
  document.addEventListener("change", (event) => {
    if (event.target.name === "pick") select(event.target);
    if (event.target.id === "pick-all") boxes().forEach((box) => { box.checked = event.target.checked; select(box); });
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-bulk], #bulk-none, #bulk-matching");
    if (!button) return;
    if (button.id === "bulk-none") clearSelection();
    else if (button.id === "bulk-matching") selectMatching(button);
    else run(button.dataset.bulk);
  });
  document.addEventListener("windlass:fresh", showSelection);
  // Leaving the page now would stop the action half way: let the browser ask first.
  addEventListener("beforeunload", (event) => { if (running) event.preventDefault(); });
}

const boxes = () => [...document.querySelectorAll("input[name=pick]")];

function select(box) {
  allMatching = false;
  if (box.checked) selected.set(box.value, box.closest("tr").dataset.state); else selected.delete(box.value);
  showSelection();
}

function clearSelection() {
  selected.clear();
  allMatching = false;
  showSelection();
}

function showSelection() {
  boxes().forEach((box) => {
    box.checked = selected.has(box.value);
    if (box.checked) selected.set(box.value, box.closest("tr").dataset.state);
  });
  const bar = document.getElementById("bulk");
  if (!bar) return;
  bar.hidden = selected.size === 0;
  const count = selected.size.toLocaleString("en");
  for (const button of bar.querySelectorAll("[data-bulk]")) {
    const { length } = applicable(button.dataset.bulk);
    button.hidden = length === 0;
    button.textContent = `${LABELS[button.dataset.bulk][0]} ${jobs(length)}`;
  }
  document.getElementById("bulk-count").textContent = allMatching ? `All ${count} matching jobs selected` : `${count} selected`;
}

// Selects all matching jobs, up to MAX_SELECTED, by reading the listing page by page.
async function selectMatching(button) {
  const query = new URLSearchParams(document.getElementById("bulk").dataset.query);
  query.set("limit", PAGE_SIZE);
  button.disabled = true;
  const ids = new Map();
  try {
    for (let cursor; ids.size < MAX_SELECTED;) {
      if (cursor) query.set("cursor", cursor);
      const page = await call("GET", `api/v1/jobs?${query}`);
      page.items.forEach((job) => ids.set(job.id, job.state));
      button.textContent = `${ids.size.toLocaleString("en")}…`;
      cursor = page.next_cursor;
      if (!cursor) break;
    }
    selected.clear();
    [...ids].slice(0, MAX_SELECTED).forEach(([id, state]) => selected.set(id, state));
    allMatching = ids.size < MAX_SELECTED;
    const limit = MAX_SELECTED.toLocaleString("en");
    if (!allMatching) toast(`More than ${limit} jobs match; the newest ${limit} are selected.`);
  } catch (error) {
    toast(error.message, { bad: true });
  } finally {
    button.disabled = false;
    button.textContent = "Select all matching…";
    showSelection();
  }
}

const LABELS = {
  cancel: ["Cancel", "Canceling", "canceled"],
  retry: ["Retry", "Retrying", "retried"],
  replay: ["Replay dead letters of", "Replaying dead letters of", "replayed"],
};

const ENDED = ["succeeded", "failed", "canceled"];
const APPLIES = {
  cancel: (state) => !ENDED.includes(state),
  retry: (state) => ENDED.includes(state),
  replay: (state) => state === "failed",
};

// The selected jobs that an action can change.
const applicable = (action) => [...selected].filter(([, state]) => APPLIES[action](state)).map(([id]) => id);

const ACTIONS = {
  cancel: (id) => call("POST", `api/v1/jobs/${id}/cancel`),
  retry: (id) => call("POST", `api/v1/jobs/${id}/retry`),
  async replay(id) {
    const { replayed } = await call("POST", "api/v1/dead-letters/replay", { filter: { job_id: id } });
    if (!replayed) throw new Error("The job has no unresolved dead letter.");
  },
};

const jobs = (number) => `${number.toLocaleString("en")} ${number === 1 ? "job" : "jobs"}`;

async function run(action) {
  const ids = applicable(action);
  const [verb, doing, done] = LABELS[action];
  const what = jobs(ids.length);
  const number = ids.length > 1 ? ids.length : undefined;
  if (!(await confirm(`${verb} ${what}?`, { yes: `${verb} ${what}`, no: "Go back", number }))) return;
  running += 1;
  try {
    if (!(await waitForUndo(`${doing} ${what}`))) return void toast("No jobs were changed.");
    clearSelection();
    const { succeeded, failed } = await forEach(ids, ACTIONS[action], doing);
    toast(`${succeeded} ${done}${failed ? `, ${failed} failed` : ""}.`, { bad: succeeded === 0 });
  } finally {
    running -= 1;
  }
  refresh();
}

// Offers to undo for UNDO_S seconds. Resolves to false if the user did; nothing is sent before.
function waitForUndo(what) {
  return new Promise((resolve) => {
    let remaining_s = UNDO_S;
    const text = () => `${what} in ${remaining_s} s`;
    const undo = () => { clearInterval(timer); resolve(false); };
    const offer = toast(text(), { action: "Undo", act: undo, duration_ms: 0 });
    const timer = setInterval(() => {
      remaining_s -= 1;
      if (remaining_s > 0) return void offer.update(text());
      clearInterval(timer);
      offer.close();
      resolve(true);
    }, 1000);
  });
}

// ---- saved views: named filters, stored in this browser ----

const STORAGE_KEY = "windlass.views";

function storedViews() {
  try {
    const list = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "[]");
    return Array.isArray(list) ? list.filter((view) => typeof view?.name === "string" && typeof view?.query === "string") : [];
  } catch {
    return [];
  }
}

function storeViews(list) {
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify(list.slice(0, 30)));
  } catch {
    toast("Cannot save the view: this browser does not allow local storage.", { bad: true });
  }
}

function showViews() {
  const container = document.getElementById("views");
  if (!container) return;
  container.dataset.keep = "";
  container.replaceChildren(...storedViews().flatMap((view) => {
    const href = `jobs${view.query.startsWith("?") ? view.query : ""}`;
    const remove = () => { storeViews(storedViews().filter((other) => other.name !== view.name)); showViews(); };
    const label = `Delete the view ${view.name}`;
    return [
      make("a", { className: "chip", href }, `★ ${view.name}`),
      make("button", { type: "button", className: "quiet", "aria-label": label, onclick: remove }, "×"),
    ];
  }));
  document.getElementById("save-view")?.addEventListener("click", () => {
    const query = new URLSearchParams(location.search);
    query.delete("cursor");
    const values = [...query].filter(([, value]) => value).map(([, value]) => value).join(" · ");
    const name = values.slice(0, 60) || "view";
    storeViews([...storedViews().filter((view) => view.name !== name), { name, query: `?${query}` }]);
    showViews();
    toast(`View “${name}” saved in this browser.`);
  }, { once: true });
}
