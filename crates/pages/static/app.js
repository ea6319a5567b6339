// Entry point of the dashboard's scripts: live updates, actions, and local times. The pages can be read without it.
// Scripts never build markup from text: content comes from the server's templates or is set through textContent.
import { decorate } from "./decorate.js";
import { start as startLive } from "./live.js";
import { start as startActions } from "./act.js";
import { start as startKeys } from "./keys.js";
import { call } from "./call.js";

decorate(document);
startLive();
startActions();
loadFollowing();
startKeys();
// Modules that few pages need are loaded by those pages.
if (document.getElementById("views")) import("./bulk.js").then(({ start }) => start());
reportFirstSignal();

// A log may appear with a live update.
function loadFollowing() {
  document.removeEventListener("windlass:fresh", loadFollowing);
  if (document.querySelector("[data-follow], [data-tail]")) import("./follow.js").then(({ start }) => start());
  else document.addEventListener("windlass:fresh", loadFollowing);
}

const PHASES = ["resolve", "fetch", "restore", "analyze", "policy", "report", "unknown"];

// Reports the time to first signal (TTFS) of a job's page. Not for a page that is or gets hidden, for which no one waits.
function reportFirstSignal() {
  const card = document.getElementById("signal");
  if (!card?.dataset.source || document.hidden) return;
  let wasHidden = false;
  document.addEventListener("visibilitychange", () => { wasHidden = true; }, { once: true });
  requestAnimationFrame(() => requestAnimationFrame(() => {
    if (wasHidden) return;
    const event = {
      job_id: card.dataset.job,
      surface: "ui",
      event_type: "signal.rendered",
      ttfs_ms: Math.round(performance.now()),
      cache_hit: card.dataset.cached === "true",
      signal_source: card.dataset.source,
      kind: card.dataset.kind,
      // Events know the built-in phases only.
      phase: PHASES.includes(card.dataset.phase) ? card.dataset.phase : "unknown",
    };
    call("POST", "api/v1/ttfs/events", { events: [event] }).catch(() => {});
  }));
}
