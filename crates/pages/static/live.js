// Keeps the page as the server would draw it now: told by the stream that something changed, or from time to time, it
// fetches the same address again and changes what differs. What the reader holds (focus, text, open dialogs) stays.
import { decorate, now, tellTimes } from "./decorate.js";
import { root } from "./call.js";
import { make } from "./make.js";

const LEAST_MS = 1000;
const REOPEN_MS = 5000;
const PATIENCE_MS = 15000;
const CUT_OFF_MS = 5000;
// The page is no longer there, or not for this reader: what the server says instead is a page of its own.
const GONE = [403, 404, 410];
const main = document.getElementById("main");
const button = document.getElementById("live");
let source, timer, reopening, waiting, cutOff, note, asked = 0, busy = false, paused = false, left = false;

export function start() {
  // Also when the reader comes back to a page that the browser has kept.
  addEventListener("pageshow", () => { left = false; });
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

// Goes to another page: what still comes in for this one changes nothing, and must not bring it back.
export function leave(address) {
  left = true;
  location.assign(address);
}

function go() {
  if (paused) return;
  open();
  tellLive(true);
  refresh(false);
}

function open() {
  stop();
  listen();
  const { every } = main.dataset;
  if (every) timer = setInterval(() => later(), Number(every) * 1000);
}

// A job that has ended has no stream any more, and its page then names none.
function listen() {
  const { stream } = main.dataset;
  if (!stream) return;
  const mine = source = new EventSource(new URL(stream, root));
  mine.addEventListener("signal", () => later());
  mine.addEventListener("open", () => lost(false));
  mine.addEventListener("error", () => {
    if (mine !== source || !main.dataset.stream) return;
    // Whether the server is away is for the page itself to tell: a stream alone may be refused.
    later();
    // A browser tries again by itself, but not after it was refused.
    if (mine.readyState === EventSource.CLOSED) reopening = setTimeout(listen, REOPEN_MS);
  });
}

function stop() {
  source?.close();
  source = undefined;
  clearInterval(timer);
  clearTimeout(reopening);
  clearTimeout(waiting);
  waiting = undefined;
}

function lost(is) {
  button.classList.toggle("lost", is);
  if (!paused) say(is ? "Reconnecting" : "Live");
  if (is) {
    cutOff ??= setTimeout(tellCutOff, CUT_OFF_MS, new Date(now()));
    return;
  }
  clearTimeout(cutOff);
  note?.remove();
  cutOff = note = undefined;
}

function tellCutOff(since) {
  const time = make("time", { dateTime: since.toISOString(), "data-show": "time" });
  note = make("p", { className: "note", id: "cut-off", role: "status" }, "No connection since ", time, "; what you see is from then.");
  tellTimes(note);
  main.prepend(note);
}

function say(word) {
  document.getElementById("live-word").textContent = word;
}

function later(wanted = false) {
  const after_ms = busy ? LEAST_MS : Math.max(0, asked + LEAST_MS - Date.now());
  waiting ??= setTimeout(() => { waiting = undefined; refresh(wanted); }, after_ms);
}

// `wanted` by who looks at the page, after something they did: then it is drawn anew even while it is paused.
export async function refresh(wanted = true) {
  if (busy) return void later(wanted);
  // Words that are being copied must not slip away.
  if (!getSelection().isCollapsed && main.contains(getSelection().anchorNode)) return void setTimeout(() => later(wanted), LEAST_MS);
  busy = true;
  asked = Date.now();
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin", signal });
    if (left) return;
    // The door is shut: a page that shows something this once stays until its reader leaves.
    if (answer.redirected) return void (document.querySelector("[data-once]:not([hidden])") ? rest() : location.reload());
    const gone = GONE.includes(answer.status);
    if (!answer.ok && !gone) return void lost(true);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    // A proxy says 404 too while the server is away: its page would never come back.
    const ours = page.documentElement.dataset.root !== undefined;
    if (gone) return void (ours ? location.reload() : lost(true));
    if (left || paused && !wanted) return;
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
    if (!fresh.hasAttribute(name) && !isOwn(old, name)) old.removeAttribute(name);
  }
  children(old, fresh);
}

// What the script or the reader has set, and the server does not know of.
function isOwn(node, name) {
  switch (name) {
    case "open": return node.matches("details");
    case "hidden": return node.id === "bulk";
    case "class": return node.getAttribute(name) === "fresh";
    default: return false;
  }
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
