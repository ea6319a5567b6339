// The pages work without this; with it they are live, act, and know the reader's clock.
// Nothing here makes markup out of text: what is shown comes from the server's templates or through textContent.
import { decorate } from "./decorate.js";
import { start as startLive } from "./live.js";
import { start as startActions } from "./act.js";
import { start as startFollowing } from "./follow.js";
import { start as startKeys } from "./keys.js";
import { start as startBulk } from "./bulk.js";
import { call } from "./call.js";

decorate(document);
startLive();
startActions();
startFollowing();
startKeys();
startBulk();
tellFirstSignal();

// The page tells how long its reader waited for the first signal, as every surface does. Nobody waits for a page behind
// another.
function tellFirstSignal() {
  const card = document.getElementById("signal");
  if (!card?.dataset.source || document.hidden) return;
  let turned = false;
  document.addEventListener("visibilitychange", () => { turned = true; }, { once: true });
  requestAnimationFrame(() => requestAnimationFrame(() => {
    if (turned) return;
    const event = {
      job_id: card.dataset.job,
      surface: "ui",
      event_type: "signal.rendered",
      ttfs_ms: Math.round(performance.now()),
      cache_hit: card.dataset.cached === "true",
      signal_source: card.dataset.source,
      kind: card.dataset.kind,
      phase: card.dataset.phase,
    };
    call("POST", "api/v1/ttfs/events", { events: [event] }).catch(() => {});
  }));
}
