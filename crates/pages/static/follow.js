// Follows logs from their end. The stream is closed while the page is hidden or paused.
import { root } from "./call.js";

const MAX_CHARACTERS = 400000;
const RECONNECT_MS = 5000;
// Colors and cursor movements that programs write for terminals.
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]/g;

export function start() {
  followCurrent();
  scrollToEnd();
  document.addEventListener("windlass:fresh", followCurrent);
  document.addEventListener("windlass:fresh", scrollToEnd);
  document.addEventListener("visibilitychange", followCurrent);
  document.addEventListener("scroll", ({ target }) => {
    if (target instanceof Element && target.matches("[data-tail]")) (isAtEnd(target) ? scrolledUp.delete(target) : scrolledUp.add(target));
  }, true);
  document.addEventListener("windlass:live", (event) => {
    isPaused = !event.detail;
    if (isPaused) stop(); else followCurrent();
  });
}

let followed, controller, reconnectAt = Infinity, isPaused = false;

function followCurrent() {
  const container = document.querySelector("[data-follow]");
  if (!container) return void stop();
  if (isPaused || document.hidden) return;
  const log = `${container.dataset.follow} ${container.dataset.version}`;
  if (followed === log && !shouldReconnect(container)) return;
  stop();
  followed = log;
  follow(container);
}

// The log of a running container is followed again some time after its stream ended or broke.
function shouldReconnect(container) {
  return container.dataset.reconnect !== undefined && Date.now() >= reconnectAt;
}

function stop() {
  controller?.abort();
  controller = followed = undefined;
  reconnectAt = Infinity;
}

async function follow(container) {
  const text = container.querySelector("pre");
  const setStatus = (status) => { document.getElementById(container.dataset.status).textContent = status; };
  const own = controller = new AbortController();
  try {
    const response = await fetch(new URL(container.dataset.follow, root), { signal: own.signal, credentials: "same-origin" });
    text.textContent = "";
    if (!response.ok) {
      const problem = await response.json().catch(() => null);
      return void setStatus(problem?.detail ?? `cannot read the log: HTTP status ${response.status}`);
    }
    setStatus("live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      append(text, value.replace(ESCAPES, ""));
    }
    setStatus("complete");
  } catch {
    if (!own.signal.aborted) setStatus("connection lost");
  } finally {
    if (controller === own) reconnectAt = Date.now() + RECONNECT_MS;
  }
}

const isAtEnd = (text) => text.scrollHeight - text.scrollTop - text.clientHeight < 8;

// Logs that live updates of the page refresh. One that the reader has scrolled up is not scrolled to its end.
const scrolledUp = new WeakSet();

function scrollToEnd() {
  for (const text of document.querySelectorAll("[data-tail]")) if (!scrolledUp.has(text)) text.scrollTop = text.scrollHeight;
}

function append(text, more) {
  const atEnd = isAtEnd(text);
  text.append(more);
  if (text.textContent.length > MAX_CHARACTERS) text.textContent = text.textContent.slice(-MAX_CHARACTERS / 2);
  text.normalize();
  if (atEnd) text.scrollTop = text.scrollHeight;
}
