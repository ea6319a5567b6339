// Keyboard shortcuts and the command palette. `?` lists the shortcuts.
import { call, root } from "./call.js";
import { labelThemeButtons } from "./decorate.js";
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
    // Without local storage the theme lasts as long as the page.
  }
  labelThemeButtons(document);
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
    document.querySelector(`#navigation a[data-key="${CSS.escape(event.key)}"]`)?.click();
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

// A click outside of the dialog's content closes it.
const closeOutside = ({ target, currentTarget }) => { if (target === currentTarget) currentTarget.close(); };

const menu = () => [...document.querySelectorAll("#navigation a[data-key]")];
const nameOf = (link) => link.querySelector(".name").textContent;

function help() {
  if (document.querySelector("dialog[open]")) return;
  const keys = [
    ["⌘K or Ctrl K", "find pages, queues, jobs …"], ["/", "filter jobs"], ["j, k", "next or previous row"], ["Enter", "open the row"],
    ["x", "select the row"], ["l", "pause or resume live updates"], ["?", "show this list"],
    ...menu().map((link) => [`g ${link.dataset.key}`, nameOf(link)]),
  ];
  const rows = keys.flatMap(([key, effect]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, effect)]);
  const close = make("button", { type: "button", onclick: () => shown.close() }, "Close");
  const children = [make("h2", {}, "Keyboard shortcuts"), make("dl", { className: "keys" }, ...rows), close];
  const shown = dialog({ className: "help", "aria-label": "Keyboard shortcuts", onclick: closeOutside }, ...children);
}

// ---- the palette ----

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

const entry = (name, kind, path) => ({ name, kind, href: new URL(path, root).href });

// Objects with names, by the key of their page. Requested only if their page is in the menu.
const NAMED = {
  q: ["queues", ({ name }) => entry(name, "queue", `queues/${encodeURIComponent(name)}`)],
  r: ["runtimes", ({ name }) => entry(name, "runtime", `runtimes/${encodeURIComponent(name)}`)],
  t: ["triggers", ({ id, name }) => entry(name, "trigger", `triggers/${id}`)],
  u: ["runs", ({ id, name }) => entry(name ?? id, "run", `runs/${encodeURIComponent(id)}`)],
  w: ["workers", ({ id, name }) => entry(name, "worker", `workers/${id}`)],
};

// Pages that can search for the entered text, by key.
const SEARCHABLE = {
  j: (text) => entry(text, "search jobs", `jobs?text=${encodeURIComponent(text)}`),
  s: (text) => entry(text, "subjects with this prefix", `subjects?prefix=${encodeURIComponent(text)}`),
};

function palette() {
  if (document.querySelector("dialog[open]")) return;
  const pages = menu();
  const keys = pages.map((link) => link.dataset.key);
  const named = pages.map((link) => ({ name: nameOf(link), kind: "page", href: link.href }));
  const input = make("input", {
    placeholder: "Page, queue, trigger, job id, or text to search for",
    role: "combobox", "aria-label": "Find", "aria-expanded": "true", "aria-controls": "found",
  });
  const list = make("ul", { id: "found", role: "listbox", "aria-label": "Results" });
  let items = [];
  let at = 0;
  const draw = () => {
    const text = input.value.trim();
    const query = text.toLowerCase();
    items = named.filter((item) => item.name.toLowerCase().includes(query)).slice(0, 12);
    if (UUID.test(text)) items.unshift(entry(text, "job", `jobs/${text}`));
    else if (text) items.push(...keys.filter((key) => SEARCHABLE[key]).map((key) => SEARCHABLE[key](text)));
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
  dialog({ className: "palette", "aria-label": "Find", onclick: closeOutside }, input, list);
  for (const key of keys.filter((key) => NAMED[key])) {
    const [route, entryOf] = NAMED[key];
    call("GET", `api/v1/${route}?limit=500`).then(({ items }) => { named.push(...items.map(entryOf)); draw(); }).catch(() => {});
  }
}
