// Rows that are chosen, what is done with all of them, and views that the reader keeps.
import { call } from "./call.js";
import { sure } from "./act.js";
import { refresh } from "./live.js";
import { make, toast } from "./make.js";

const MOST = 10000;
const PAGE = 500;
const AT_ONCE = 8;
const UNDO_S = 5;
const chosen = new Set();
let all = false, running = 0;

export function start() {
  views();
  // The bar itself comes with the first row.
  if (!document.getElementById("views")) return;
  document.addEventListener("change", (event) => {
    if (event.target.name === "pick") pick(event.target);
    if (event.target.id === "pick-all") boxes().forEach((box) => { box.checked = event.target.checked; pick(box); });
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-bulk], #bulk-none, #bulk-matching");
    if (!button) return;
    if (button.id === "bulk-none") none();
    else if (button.id === "bulk-matching") matching(button);
    else run(button.dataset.bulk);
  });
  document.addEventListener("windlass:fresh", tell);
  // Whoever goes away now leaves it undone, or half done: the browser asks first.
  addEventListener("beforeunload", (event) => { if (running) event.preventDefault(); });
}

const boxes = () => [...document.querySelectorAll("input[name=pick]")];

function pick(box) {
  all = false;
  if (box.checked) chosen.add(box.value); else chosen.delete(box.value);
  tell();
}

function none() {
  chosen.clear();
  all = false;
  tell();
}

function tell() {
  boxes().forEach((box) => { box.checked = chosen.has(box.value); });
  const bar = document.getElementById("bulk");
  if (!bar) return;
  bar.hidden = chosen.size === 0;
  document.getElementById("bulk-count").textContent = `${chosen.size.toLocaleString("en")}${all ? " match and are" : ""} chosen`;
}

// A dry run: counts what matches, page by page and at most so many, and does nothing.
async function matching(button) {
  const query = new URLSearchParams(document.getElementById("bulk").dataset.query);
  query.set("limit", PAGE);
  button.disabled = true;
  const ids = new Set();
  try {
    for (let cursor; ids.size < MOST;) {
      if (cursor) query.set("cursor", cursor);
      const page = await call("GET", `api/v1/jobs?${query}`);
      page.items.forEach((job) => ids.add(job.id));
      button.textContent = `${ids.size.toLocaleString("en")}…`;
      cursor = page.next_cursor;
      if (!cursor) break;
    }
    chosen.clear();
    [...ids].slice(0, MOST).forEach((id) => chosen.add(id));
    all = ids.size < MOST;
    if (!all) toast(`More than ${MOST.toLocaleString("en")} match; the newest ${MOST.toLocaleString("en")} are chosen.`);
  } catch (error) {
    toast(error.message, { bad: true });
  } finally {
    button.disabled = false;
    button.textContent = "All that match…";
    tell();
  }
}

const WORDS = {
  cancel: ["Cancel", "Canceling", "canceled"],
  retry: ["Retry", "Retrying", "retried"],
  replay: ["Replay the dead letters of", "Replaying the dead letters of", "replayed"],
};

const ACTS = {
  cancel: (id) => call("POST", `api/v1/jobs/${id}/cancel`),
  retry: (id) => call("POST", `api/v1/jobs/${id}/retry`),
  async replay(id) {
    const { replayed } = await call("POST", "api/v1/dead-letters/replay", { filter: { job_id: id } });
    if (!replayed) throw new Error("It left no letter, or somebody saw to it.");
  },
};

async function run(action) {
  const ids = [...chosen];
  const [verb, doing, done] = WORDS[action];
  const what = `${ids.length.toLocaleString("en")} ${ids.length === 1 ? "job" : "jobs"}`;
  const number = ids.length > 1 ? ids.length : undefined;
  if (!(await sure(`${verb} ${what}?`, { yes: `${verb} ${what}`, no: "Do nothing", number }))) return;
  running += 1;
  try {
    if (!(await unlessUndone(`${doing} ${what}`))) return void toast("Nothing was done.");
    none();
    const { good, refused } = await each(ids, ACTS[action], doing);
    toast(`${good} ${done}${refused ? `, ${refused} could not be` : ""}.`, { bad: good === 0 });
  } finally {
    running -= 1;
  }
  refresh();
}

async function each(ids, act, doing) {
  const many = ids.length.toLocaleString("en");
  const told = toast(`${doing}…`, { lasts: 0 });
  let good = 0, refused = 0, next = 0;
  const worker = async () => {
    while (next < ids.length) {
      const id = ids[next++];
      try {
        await act(id);
        good += 1;
      } catch {
        refused += 1;
      }
      told.say(`${doing}… ${good + refused} of ${many}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  told.end();
  return { good, refused };
}

// Nothing is sent until the time to undo has passed.
function unlessUndone(what) {
  return new Promise((resolve) => {
    let left = UNDO_S;
    const say = () => `${what} in ${left} s`;
    const undo = () => { clearInterval(timer); resolve(false); };
    const told = toast(say(), { action: "Undo", act: undo, lasts: 0 });
    const timer = setInterval(() => {
      left -= 1;
      if (left > 0) return void told.say(say());
      clearInterval(timer);
      told.end();
      resolve(true);
    }, 1000);
  });
}

// ---- saved views: addresses with a name, kept in this browser ----

const KEPT = "windlass.views";

function kept() {
  try {
    const list = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return Array.isArray(list) ? list.filter((view) => typeof view?.name === "string" && typeof view?.query === "string") : [];
  } catch {
    return [];
  }
}

function keep(list) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(list.slice(0, 30)));
  } catch {
    toast("This browser keeps nothing.", { bad: true });
  }
}

function views() {
  const place = document.getElementById("views");
  if (!place) return;
  place.dataset.keep = "";
  place.replaceChildren(...kept().flatMap((view) => {
    const href = `jobs${view.query.startsWith("?") ? view.query : ""}`;
    const forget = () => { keep(kept().filter((other) => other.name !== view.name)); views(); };
    const label = `Forget the view ${view.name}`;
    return [
      make("a", { className: "chip", href }, `★ ${view.name}`),
      make("button", { type: "button", className: "quiet", "aria-label": label, onclick: forget }, "×"),
    ];
  }));
  document.getElementById("save-view")?.addEventListener("click", () => {
    const query = new URLSearchParams(location.search);
    query.delete("cursor");
    const shown = [...query].filter(([, value]) => value).map(([, value]) => value).join(" · ");
    const name = shown.slice(0, 60) || "view";
    keep([...kept().filter((view) => view.name !== name), { name, query: `?${query}` }]);
    views();
    toast(`Kept as “${name}” in this browser.`);
  }, { once: true });
}
