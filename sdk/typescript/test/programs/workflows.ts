/** A module for `windlass-worker`. It writes the job ids and the keys of the steps that it executes. */

import { setTimeout as pause } from "node:timers/promises";
import { type StepContext, Windlass } from "windlass";

const wl = new Windlass();
const queue = process.env["QUEUE"] ?? "default";

export const flow = wl.workflow("flow", { queue }, async (ctx, { n }: { n: number }) => {
  const step = async ({ key }: StepContext): Promise<number> => {
    process.stdout.write(`${ctx.id} ${key}\n`);
    await pause(n % 5);
    return 1;
  };
  const branch = async (): Promise<number> => (await ctx.step("left", step)) + (await ctx.step("right", step));
  const before = (await ctx.step("one", step)) + (await ctx.step("two", step));
  const [left, right] = await Promise.all([branch(), branch()]);
  await ctx.sleep("50ms");
  return before + left + right + (await ctx.step("last", step));
});
