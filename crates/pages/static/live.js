// Keeps the page as the server would draw it now: told by the stream that something changed, or from time to time, it
// fetches the same address again and changes what differs. What the reader holds (focus, text, open dialogs) stays.
import { decorate } from "./decorate.js";
import { root } from "./call.js";

const LEAST_MS = 1000;
const main = document.getElementById("main");
const button = document.getElementById("live");
let source, timer, waiting, asked = 0, busy = false, paused = false;

export function start() {
  if (!main || (!main.dataset.stream && !main.dataset.every)) return;
  button.hidden = false;
  button.addEventListener("click", () => toggle());
  document.addEventListener("visibilitychange", () => (document.hidden ? rest() : go()));
  addEventListener("pagehide", rest);
  if (!document.hidden) open();
}

export function toggle() {
  paused = !paused;
  button.setAttribute("aria-pressed", String(!paused));
  say(paused ? "Paused" : "Live");
  if (paused) rest(); else go();
}

function rest() {
  stop();
  tellLive(false);
}

// Others that keep something open follow suit.
function tellLive(is) {
  document.dispatchEvent(new CustomEvent("windlass:live", { detail: is }));
}

function go() {
  if (paused) return;
  open();
  tellLive(true);
  refresh(false);
}

function open() {
  stop();
  const { stream, every } = main.dataset;
  if (stream) {
    source = new EventSource(new URL(stream, root));
    source.addEventListener("signal", () => later());
    source.addEventListener("open", () => lost(false));
    source.addEventListener("error", () => { if (source?.readyState === EventSource.CONNECTING) lost(true); });
  }
  if (every) timer = setInterval(() => later(), Number(every) * 1000);
}

function stop() {
  source?.close();
  source = undefined;
  clearInterval(timer);
  clearTimeout(waiting);
  waiting = undefined;
}

function lost(is) {
  button.classList.toggle("lost", is);
  if (!paused) say(is ? "Reconnecting" : "Live");
}

function say(word) {
  document.getElementById("live-word").textContent = word;
}

function later(wanted = false) {
  waiting ??= setTimeout(() => { waiting = undefined; refresh(wanted); }, Math.max(0, asked + LEAST_MS - Date.now()));
}

// `wanted` by who looks at the page, after something they did: then it is drawn anew even while it is paused.
export async function refresh(wanted = true) {
  if (busy) return void later(wanted);
  // Words that are being copied must not slip away.
  if (!getSelection().isCollapsed && main.contains(getSelection().anchorNode)) return void setTimeout(() => later(wanted), LEAST_MS);
  busy = true;
  asked = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
    if (answer.redirected) return void location.reload();
    if (!answer.ok) return void lost(true);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (paused && !wanted) return;
    decorate(page);
    lost(false);
    document.title = page.title;
    for (const id of ["places", "main"]) {
      const fresh = page.getElementById(id);
      if (fresh) morph(document.getElementById(id), fresh);
    }
    document.dispatchEvent(new Event("windlass:fresh"));
  } catch {
    lost(true);
  } finally {
    busy = false;
  }
}

// ---- changing one tree into another ----

function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (isKept(old) || old === document.activeElement && old.matches("input, textarea, select")) return;
  if (old.matches("tr[data-state]") && old.dataset.state !== fresh.dataset.state) shine(old);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) {
    const own = name === "open" && old.matches("details") || name === "hidden" && old.id === "bulk" || name === "class";
    if (!fresh.hasAttribute(name) && !own) old.removeAttribute(name);
  }
  children(old, fresh);
}

function isKept(node) {
  return node.nodeType === Node.ELEMENT_NODE && node.matches("[data-keep], dialog[open]");
}

function children(old, fresh) {
  const wanted = new Set([...fresh.children].map((child) => child.id));
  // What is gone goes first: what stays is then never moved, and a dialog that is moved would lose its focus.
  for (const child of [...old.children]) if (child.id && !wanted.has(child.id) && !isKept(child)) child.remove();
  const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = old.firstChild;
  for (const want of [...fresh.childNodes]) {
    while (at && isKept(at) && !wanted.has(at.id)) at = at.nextSibling;
    let match = want.id ? byId.get(want.id) : undefined;
    if (!match && at && !at.id && !want.id && at.nodeName === want.nodeName) match = at;
    if (match && match.nodeName === want.nodeName) {
      if (match === at) at = at.nextSibling; else old.insertBefore(match, at);
      morph(match, want);
    } else {
      const made = document.importNode(want, true);
      old.insertBefore(made, at);
      if (made.nodeName === "TR" && made.dataset.state) shine(made);
    }
  }
  while (at) {
    const next = at.nextSibling;
    if (!isKept(at)) at.remove();
    at = next;
  }
}

function shine(row) {
  row.classList.add("fresh");
  setTimeout(() => row.classList.remove("fresh"), 1600);
}
