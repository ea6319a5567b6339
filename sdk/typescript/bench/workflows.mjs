// Measures workflows: steps per second, latencies of a short workflow and of an event, and a fan-out.
//
//   WINDLASS_BIN=… node bench/workflows.mjs        a server of its own
//   WINDLASS_URL=… node bench/workflows.mjs        a running server

import { Windlass } from "windlass";
import { startServer } from "windlass/testing";

const server = process.env.WINDLASS_URL ? undefined : await startServer();
const wl = new Windlass({ url: process.env.WINDLASS_URL ?? server.url });
const queue = `bench-${Date.now()}`;
const result = "x".repeat(200);

const steps = wl.workflow("steps", { queue }, async (ctx, { count }) => {
  for (let number = 0; number < count; number++) await ctx.step("step", () => result);
});
const child = wl.workflow("child", { queue }, async (ctx) => ctx.step("step", () => result));
const parent = wl.workflow("parent", { queue }, async (ctx, { count }) => {
  const results = await ctx.gather(Array.from({ length: count }, () => ctx.spawn(child)));
  return results.length;
});
let sentAt = 0;
const latencies = [];
const waiter = wl.workflow("waiter", { queue }, async (ctx) => {
  await ctx.waitForEvent("go");
  latencies.push(performance.now() - sentAt);
});

const seconds = async (work) => {
  const since = performance.now();
  await work();
  return (performance.now() - since) / 1_000;
};
const quantiles = (values) => {
  const sorted = values.toSorted((one, other) => one - other);
  const at = (share) => sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)].toFixed(1);
  return `p50 ${at(0.5)} ms, p99 ${at(0.99)} ms`;
};
const report = (what, figure) => console.log(`${what.padEnd(48)} ${figure}`);

const worker = wl.worker({ concurrency: 100 });
await worker.start();
await Promise.all((await steps.many(Array.from({ length: 24 }, () => ({ count: 3 })))).map((handle) => handle.wait()));

const many = await seconds(async () => {
  const handles = await steps.many(Array.from({ length: 64 }, () => ({ count: 100 })));
  await Promise.all(handles.map((handle) => handle.wait()));
});
report("64 workflows of 100 steps", `${Math.round(6_400 / many)} steps/s`);

const short = [];
for (let run = 0; run < 100; run++) {
  short.push((await seconds(async () => (await steps.push({ count: 3 })).wait())) * 1_000);
}
report("workflow of 3 steps, one at a time", quantiles(short));
report(
  "400 sequential steps",
  `${(await seconds(async () => (await steps.push({ count: 400 })).wait())).toFixed(2)} s`,
);
report(
  "fan-out to 1,000 children of one step",
  `${(await seconds(async () => (await parent.push({ count: 1_000 })).wait())).toFixed(2)} s`,
);

for (let run = 0; run < 50; run++) {
  const handle = await waiter.push();
  while ((await handle.get()).state !== "waiting") {
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  sentAt = performance.now();
  await handle.send("go");
  await handle.wait();
}
report("event to the next line of the workflow", quantiles(latencies));
await worker.stop();
await server?.stop();
