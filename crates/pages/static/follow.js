// Text that grows while somebody looks: a log is followed from its end, and let go while the page is hidden or paused.
import { root } from "./call.js";

const MOST = 400000;
// Colours and cursor movements that programs write for terminals.
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]/g;

export function start() {
  look();
  document.addEventListener("windlass:fresh", look);
  document.addEventListener("windlass:live", (event) => {
    resting = !event.detail;
    if (resting) leave(); else look();
  });
}

let followed, hand, resting = false;

function look() {
  const place = document.querySelector("[data-follow]");
  if (!place) return void leave();
  if (resting || document.hidden) return;
  const wanted = `${place.dataset.follow} ${place.dataset.of}`;
  if (followed === wanted) return;
  leave();
  followed = wanted;
  follow(place);
}

function leave() {
  hand?.abort();
  hand = followed = undefined;
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
    tell("followed");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      append(text, value.replace(ESCAPES, ""));
    }
    tell("ended");
  } catch {
    if (!mine.signal.aborted) tell("broken off");
  }
}

// Whoever reads further up is not carried off to the end.
function append(text, more) {
  const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
  text.append(more);
  if (text.textContent.length > MOST) text.textContent = text.textContent.slice(-MOST / 2);
  text.normalize();
  if (atEnd) text.scrollTop = text.scrollHeight;
}
