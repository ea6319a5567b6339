// The keyboard: `?` tells of it.
import { call, root } from "./call.js";
import { toggle } from "./live.js";

const THEMES = ["", "light", "dark"];

export function start() {
  document.getElementById("theme")?.addEventListener("click", nextTheme);
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
  document.getElementById("theme").textContent = `Theme${theme ? `: ${theme}` : ""}`;
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

function dialogOf(className, label) {
  const dialog = document.createElement("dialog");
  dialog.className = className;
  dialog.setAttribute("aria-label", label);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.body.append(dialog);
  return dialog;
}

function help() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = dialogOf("help", "Keyboard shortcuts");
  const title = document.createElement("h2");
  title.textContent = "Keyboard shortcuts";
  const list = document.createElement("dl");
  list.className = "keys";
  const places = [...document.querySelectorAll("#places a[data-key]")];
  const keys = [
    ["⌘K or Ctrl K", "find a page, a queue or a job"], ["/", "filter jobs"], ["j, k", "next and previous row"], ["Enter", "open the row"],
    ["x", "choose the row"], ["l", "pause or resume live updates"], ["?", "this list"],
    ...places.map((place) => [`g ${place.dataset.key}`, place.firstChild.textContent.trim()]),
  ];
  for (const [key, does] of keys) {
    const dt = document.createElement("dt");
    const kbd = document.createElement("kbd");
    kbd.textContent = key;
    dt.append(kbd);
    const dd = document.createElement("dd");
    dd.textContent = does;
    list.append(dt, dd);
  }
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.append(title, list, close);
  dialog.showModal();
}

// ---- the palette ----

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

function palette() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = dialogOf("palette", "Find");
  const input = document.createElement("input");
  input.placeholder = "A page, a queue, a job's id, or words to look for";
  input.setAttribute("aria-label", "Find");
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-expanded", "true");
  input.setAttribute("aria-controls", "found");
  const list = document.createElement("ul");
  list.id = "found";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Found");
  dialog.append(input, list);
  const pages = [...document.querySelectorAll("#places a[data-key]")].map((place) => ({ name: place.firstChild.textContent.trim(), kind: "page", href: place.href }));
  let queues = [];
  let items = [];
  let at = 0;
  const draw = () => {
    const text = input.value.trim();
    const wanted = text.toLowerCase();
    items = [...pages, ...queues].filter((item) => item.name.toLowerCase().includes(wanted)).slice(0, 12);
    if (UUID.test(text)) items.unshift({ name: text, kind: "job", href: new URL(`jobs/${text}`, root).href });
    else if (text) items.push({ name: text, kind: "look for it in jobs", href: new URL(`jobs?text=${encodeURIComponent(text)}`, root).href });
    at = Math.min(at, Math.max(0, items.length - 1));
    list.replaceChildren(...items.map((item, number) => {
      const row = document.createElement("li");
      row.id = `found-${number}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(number === at));
      const name = document.createElement("span");
      name.textContent = item.name;
      const kind = document.createElement("span");
      kind.className = "muted";
      kind.textContent = item.kind;
      row.append(name, kind);
      row.addEventListener("click", () => location.assign(item.href));
      return row;
    }));
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
  dialog.showModal();
  call("GET", "api/v1/queues?limit=500").then((page) => {
    queues = page.items.map((queue) => ({ name: queue.name, kind: "queue", href: new URL(`jobs?queue=${encodeURIComponent(queue.name)}`, root).href }));
    draw();
  }).catch(() => {});
}
