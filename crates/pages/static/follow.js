// Text that grows while somebody looks: a log is followed from its end, and let go while the page is hidden or paused.
import { root } from "./call.js";

const MOST = 400000;
const AGAIN_MS = 5000;
// Colours and cursor movements that programs write for terminals.
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]/g;

export function start() {
  look();
  tails();
  document.addEventListener("windlass:fresh", look);
  document.addEventListener("windlass:fresh", tails);
  document.addEventListener("visibilitychange", look);
  document.addEventListener("scroll", ({ target }) => {
    if (target instanceof Element && target.matches("[data-tail]")) (isAtEnd(target) ? readers.delete(target) : readers.add(target));
  }, true);
  document.addEventListener("windlass:live", (event) => {
    resting = !event.detail;
    if (resting) leave(); else look();
  });
}

let followed, hand, due = Infinity, resting = false;

function look() {
  const place = document.querySelector("[data-follow]");
  if (!place) return void leave();
  if (resting || document.hidden) return;
  const wanted = `${place.dataset.follow} ${place.dataset.of}`;
  if (followed === wanted && !isDue(place)) return;
  leave();
  followed = wanted;
  follow(place);
}

// A log that is still written to is followed again some time after its stream ended or broke.
function isDue(place) {
  return place.dataset.again !== undefined && Date.now() >= due;
}

function leave() {
  hand?.abort();
  hand = followed = undefined;
  due = Infinity;
}

async function follow(place) {
  const text = place.querySelector("pre");
  const tell = (words) => { document.getElementById(place.dataset.tell).textContent = words; };
  const mine = hand = new AbortController();
  try {
    const answer = await fetch(new URL(place.dataset.follow, root), { signal: mine.signal, credentials: "same-origin" });
    text.textContent = "";
    if (!answer.ok) {
      const problem = await answer.json().catch(() => null);
      return void tell(problem?.detail ?? "It cannot be read.");
    }
    tell("as it is written");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      append(text, value.replace(ESCAPES, ""));
    }
    tell("to its end");
  } catch {
    if (!mine.signal.aborted) tell("broken off");
  } finally {
    if (hand === mine) due = Date.now() + AGAIN_MS;
  }
}

const isAtEnd = (text) => text.scrollHeight - text.scrollTop - text.clientHeight < 8;

// Text whose end the page itself keeps fresh. Whoever reads further up, here or below, is not carried off to the end.
const readers = new WeakSet();

function tails() {
  for (const text of document.querySelectorAll("[data-tail]")) if (!readers.has(text)) text.scrollTop = text.scrollHeight;
}

function append(text, more) {
  const atEnd = isAtEnd(text);
  text.append(more);
  if (text.textContent.length > MOST) text.textContent = text.textContent.slice(-MOST / 2);
  text.normalize();
  if (atEnd) text.scrollTop = text.scrollHeight;
}
