// The jobs of an application. The web server pushes them; `npx windlass-worker jobs.js` runs them.

import { setTimeout as pause } from "node:timers/promises";
import { Windlass } from "windlass";
import { z } from "zod";

export const wl = new Windlass();

export const resize = wl.job(
  "resize",
  { queue: "images", input: z.object({ url: z.url(), width: z.int().min(1).max(4_096) }), timeout: "2m" },
  async (ctx, { url, width }) => {
    for (let step = 1; step <= 4; step++) {
      await pause(25, undefined, { signal: ctx.signal });
      ctx.progress(step / 4, `step ${step} of 4`);
    }
    return { url, width };
  },
);
