// Keeps the page current. When the event stream reports a change, or periodically, it fetches the same address again and
// applies the differences. Focus, input and open dialogs of the reader are preserved.
import { decorate, now, updateTimes } from "./decorate.js";
import { root } from "./call.js";
import { make } from "./make.js";

const MIN_INTERVAL_MS = 1000;
const REOPEN_MS = 5000;
const FETCH_TIMEOUT_MS = 15000;
const DISCONNECTED_AFTER_MS = 5000;
// The page no longer exists, or this reader may not see it: reload to show the server's error page.
const UNAVAILABLE = [403, 404, 410];
const main = document.getElementById("main");
const button = document.getElementById("live");
let source, timer, reopening, pending, disconnected, note, lastFetch = 0, busy = false, paused = false, leaving = false;

export function start() {
  // Also when the browser restores the page from its cache.
  addEventListener("pageshow", () => { leaving = false; });
  if (!main || (!main.dataset.stream && !main.dataset.every)) return;
  button.hidden = false;
  button.addEventListener("click", () => toggle());
  document.addEventListener("visibilitychange", () => (document.hidden ? suspend() : resume()));
  addEventListener("pagehide", suspend);
  if (!document.hidden) open();
}

export function toggle() {
  paused = !paused;
  button.setAttribute("aria-pressed", String(!paused));
  setLabel(paused ? "Paused" : "Live");
  if (paused) suspend(); else resume();
}

function suspend() {
  stop();
  notifyLive(false);
}

// Tells other scripts with open streams whether live updates are active.
function notifyLive(isLive) {
  document.dispatchEvent(new CustomEvent("windlass:live", { detail: isLive }));
}

// Goes to another page. A fetch in progress for this page must not reload it.
export function navigate(address) {
  leaving = true;
  location.assign(address);
}

function resume() {
  if (paused) return;
  open();
  notifyLive(true);
  refresh(false);
}

function open() {
  stop();
  listen();
  const { every } = main.dataset;
  if (every) timer = setInterval(() => refreshLater(), Number(every) * 1000);
}

// The page of a job that has ended names no stream.
function listen() {
  const { stream } = main.dataset;
  if (!stream) return;
  const own = source = new EventSource(new URL(stream, root));
  own.addEventListener("signal", () => refreshLater());
  own.addEventListener("changed", () => refreshLater());
  own.addEventListener("open", () => setLost(false));
  own.addEventListener("error", () => {
    if (own !== source || !main.dataset.stream) return;
    // A stream may be refused while the server is up, so only a failed fetch of the page counts as a lost connection.
    refreshLater();
    // A browser reconnects by itself, except after the server refused the stream.
    if (own.readyState === EventSource.CLOSED) reopening = setTimeout(listen, REOPEN_MS);
  });
}

function stop() {
  source?.close();
  source = undefined;
  clearInterval(timer);
  clearTimeout(reopening);
  clearTimeout(pending);
  pending = undefined;
}

function setLost(isLost) {
  button.classList.toggle("lost", isLost);
  if (!paused) setLabel(isLost ? "Reconnecting" : "Live");
  if (isLost) {
    disconnected ??= setTimeout(showDisconnected, DISCONNECTED_AFTER_MS, new Date(now()));
    return;
  }
  clearTimeout(disconnected);
  note?.remove();
  disconnected = note = undefined;
}

function showDisconnected(since) {
  const time = make("time", { dateTime: since.toISOString(), "data-show": "time" });
  note = make("p", { className: "note", id: "cut-off", role: "status" }, "No connection since ", time, "; this page may be outdated.");
  updateTimes(note);
  main.prepend(note);
}

function setLabel(text) {
  document.getElementById("live-word").textContent = text;
}

function refreshLater(isRequested = false) {
  const delay_ms = busy ? MIN_INTERVAL_MS : Math.max(0, lastFetch + MIN_INTERVAL_MS - Date.now());
  pending ??= setTimeout(() => { pending = undefined; refresh(isRequested); }, delay_ms);
}

// `isRequested` after an action of the reader: the page is then updated even while live updates are paused.
export async function refresh(isRequested = true) {
  if (busy) return void refreshLater(isRequested);
  // Do not replace text that the reader has selected.
  if (!getSelection().isCollapsed && main.contains(getSelection().anchorNode)) return void setTimeout(() => refreshLater(isRequested), MIN_INTERVAL_MS);
  busy = true;
  lastFetch = Date.now();
  try {
    const signal = AbortSignal.timeout(FETCH_TIMEOUT_MS);
    const response = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin", signal });
    if (leaving) return;
    // The session has ended. A page that shows something only once stays until its reader leaves.
    if (response.redirected) return void (document.querySelector("[data-once]:not([hidden])") ? suspend() : location.reload());
    const isUnavailable = UNAVAILABLE.includes(response.status);
    if (!response.ok && !isUnavailable) return void setLost(true);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    // A proxy may return 404 while the server is down; reloading would leave the reader on the proxy's page.
    const isFromWindlass = page.documentElement.dataset.root !== undefined;
    if (isUnavailable) return void (isFromWindlass ? location.reload() : setLost(true));
    if (leaving || paused && !isRequested) return;
    decorate(page);
    setLost(false);
    document.title = page.title;
    for (const id of ["navigation", "main"]) {
      const fresh = page.getElementById(id);
      if (fresh) morph(document.getElementById(id), fresh);
    }
    document.dispatchEvent(new Event("windlass:fresh"));
  } catch {
    setLost(true);
  } finally {
    busy = false;
  }
}

// ---- applying the differences between two trees ----

function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (isPreserved(old) || old === document.activeElement && old.matches("input, textarea, select")) return;
  if (old.matches("tr[data-state]") && old.dataset.state !== fresh.dataset.state) highlight(old);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !isOwn(old, name)) old.removeAttribute(name);
  }
  children(old, fresh);
}

// Attributes that scripts or the reader set and that the server does not render.
function isOwn(node, name) {
  switch (name) {
    case "open": return node.matches("details");
    case "hidden": return node.id === "bulk";
    case "class": return node.getAttribute(name) === "fresh";
    default: return false;
  }
}

function isPreserved(node) {
  return node.nodeType === Node.ELEMENT_NODE && node.matches("[data-keep], dialog[open]");
}

function children(old, fresh) {
  const freshIds = new Set([...fresh.children].map((child) => child.id));
  // Remove deleted children first, so that remaining ones are never moved: a dialog that is moved loses its focus.
  for (const child of [...old.children]) if (child.id && !freshIds.has(child.id) && !isPreserved(child)) child.remove();
  const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = old.firstChild;
  for (const freshNode of [...fresh.childNodes]) {
    while (at && isPreserved(at) && !freshIds.has(at.id)) at = at.nextSibling;
    let match = freshNode.id ? byId.get(freshNode.id) : undefined;
    if (!match && at && !at.id && !freshNode.id && at.nodeName === freshNode.nodeName) match = at;
    if (match && match.nodeName === freshNode.nodeName) {
      if (match === at) at = at.nextSibling; else old.insertBefore(match, at);
      morph(match, freshNode);
    } else {
      const added = document.importNode(freshNode, true);
      old.insertBefore(added, at);
      if (added.nodeName === "TR" && added.dataset.state) highlight(added);
    }
  }
  while (at) {
    const next = at.nextSibling;
    if (!isPreserved(at)) at.remove();
    at = next;
  }
}

function highlight(row) {
  row.classList.add("fresh");
  setTimeout(() => row.classList.remove("fresh"), 1600);
}
