/** A module for `windlass-worker`. It writes the ids of the jobs that it runs. */

import { setTimeout as pause } from "node:timers/promises";
import { Windlass } from "windlass";

const wl = new Windlass();
const queue = process.env["QUEUE"] ?? "default";

// A connection that stays open must not keep the program alive.
setInterval(() => {}, 60_000);

export const job = wl.job("counted", { queue }, async (ctx, { n }: { n: number }) => {
  process.stdout.write(`${ctx.id}\n`);
  await pause(n % 5);
  return n;
});
