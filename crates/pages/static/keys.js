// The keyboard: `?` tells of it.
import { call, root } from "./call.js";
import { tellTheme } from "./decorate.js";
import { toggle } from "./live.js";
import { dialog, make } from "./make.js";

const THEMES = ["", "light", "dark"];

export function start() {
  document.addEventListener("click", ({ target }) => { if (target.closest("button.theme")) nextTheme(); });
  document.getElementById("help")?.addEventListener("click", help);
  document.getElementById("find")?.addEventListener("click", palette);
  document.addEventListener("keydown", onKey);
}

function nextTheme() {
  const html = document.documentElement;
  const theme = THEMES[(THEMES.indexOf(html.dataset.theme ?? "") + 1) % THEMES.length];
  if (theme) html.dataset.theme = theme; else delete html.dataset.theme;
  try {
    localStorage.setItem("windlass.theme", theme);
  } catch {
    // Then it lasts as long as the page.
  }
  tellTheme(document);
}

let afterG = false;

function onKey(event) {
  if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    return void palette();
  }
  if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (afterG) {
    afterG = false;
    document.querySelector(`#places a[data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  switch (event.key) {
    case "g": afterG = true; setTimeout(() => { afterG = false; }, 1500); break;
    case "?": help(); break;
    case "/": if (document.getElementById("text")) { event.preventDefault(); document.getElementById("text").focus(); } break;
    case "l": if (!document.getElementById("live").hidden) toggle(); break;
    case "j": move(1); break;
    case "k": move(-1); break;
    case "x": document.activeElement.closest("tr")?.querySelector("input[name=pick]")?.click(); break;
    default:
  }
}

function move(step) {
  const links = [...document.querySelectorAll("table.rows tbody th[scope=row] a")];
  const at = links.indexOf(document.activeElement.closest("tr")?.querySelector("th[scope=row] a"));
  links[Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
}

// A click beside what is in it closes it.
const closeBeside = ({ target, currentTarget }) => { if (target === currentTarget) currentTarget.close(); };

const places = () => [...document.querySelectorAll("#places a[data-key]")];
const nameOf = (place) => place.firstChild.textContent.trim();

function help() {
  if (document.querySelector("dialog[open]")) return;
  const keys = [
    ["⌘K or Ctrl K", "find a page, a queue, a job …"], ["/", "filter jobs"], ["j, k", "next and previous row"], ["Enter", "open the row"],
    ["x", "choose the row"], ["l", "pause or resume live updates"], ["?", "this list"],
    ...places().map((place) => [`g ${place.dataset.key}`, nameOf(place)]),
  ];
  const rows = keys.flatMap(([key, does]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, does)]);
  const close = make("button", { type: "button", onclick: () => shown.close() }, "Close");
  const inside = [make("h2", {}, "Keyboard shortcuts"), make("dl", { className: "keys" }, ...rows), close];
  const shown = dialog({ className: "help", "aria-label": "Keyboard shortcuts", onclick: closeBeside }, ...inside);
}

// ---- the palette ----

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

const found = (name, kind, path) => ({ name, kind, href: new URL(path, root).href });

// What has a name, by the key of its page: only those whose page is in the menu are asked for.
const NAMED = {
  q: ["queues", ({ name }) => found(name, "queue", `jobs?queue=${encodeURIComponent(name)}`)],
  r: ["runtimes", ({ name }) => found(name, "runtime", `runtimes/${encodeURIComponent(name)}`)],
  t: ["triggers", ({ id, name }) => found(name, "trigger", `triggers/${id}`)],
  w: ["workers", ({ id, name }) => found(name, "worker", `workers#worker-${id}`)],
};

// Where words can be looked for.
const LOOKED = {
  j: (text) => found(text, "look for it in jobs", `jobs?text=${encodeURIComponent(text)}`),
  s: (text) => found(text, "subjects that begin so", `subjects?prefix=${encodeURIComponent(text)}`),
};

function palette() {
  if (document.querySelector("dialog[open]")) return;
  const open = places();
  const keys = open.map((place) => place.dataset.key);
  const named = open.map((place) => ({ name: nameOf(place), kind: "page", href: place.href }));
  const input = make("input", {
    placeholder: "A page, a queue, a trigger, a job's id, or words to look for",
    role: "combobox", "aria-label": "Find", "aria-expanded": "true", "aria-controls": "found",
  });
  const list = make("ul", { id: "found", role: "listbox", "aria-label": "Found" });
  let items = [];
  let at = 0;
  const draw = () => {
    const text = input.value.trim();
    const wanted = text.toLowerCase();
    items = named.filter((item) => item.name.toLowerCase().includes(wanted)).slice(0, 12);
    if (UUID.test(text)) items.unshift(found(text, "job", `jobs/${text}`));
    else if (text) items.push(...keys.filter((key) => LOOKED[key]).map((key) => LOOKED[key](text)));
    at = Math.min(at, Math.max(0, items.length - 1));
    list.replaceChildren(...items.map(({ name, kind, href }, number) => make(
      "li",
      { id: `found-${number}`, role: "option", "aria-selected": String(number === at), onclick: () => location.assign(href) },
      make("span", {}, name),
      make("span", { className: "muted" }, kind),
    )));
    input.setAttribute("aria-activedescendant", items.length ? `found-${at}` : "");
  };
  input.addEventListener("input", () => { at = 0; draw(); });
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      at = (at + step + items.length) % Math.max(1, items.length);
      draw();
    } else if (event.key === "Enter" && items[at]) {
      location.assign(items[at].href);
    }
  });
  draw();
  dialog({ className: "palette", "aria-label": "Find", onclick: closeBeside }, input, list);
  for (const key of keys.filter((key) => NAMED[key])) {
    const [route, of] = NAMED[key];
    call("GET", `api/v1/${route}?limit=500`).then(({ items }) => { named.push(...items.map(of)); draw(); }).catch(() => {});
  }
}
