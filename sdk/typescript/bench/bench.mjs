// Pushes jobs and drains them with a handler that does nothing. Prints jobs per second.
//
//   WINDLASS_BIN=… node bench/bench.mjs [JOBS]        a server of its own
//   WINDLASS_URL=… node bench/bench.mjs [JOBS]        a running server

import { Windlass } from "windlass";
import { startServer } from "windlass/testing";

const jobs = Number(process.argv[2] ?? 10_000);
const chunk = 1_000;
const server = process.env.WINDLASS_URL ? undefined : await startServer();
const wl = new Windlass({ url: process.env.WINDLASS_URL ?? server.url });
const queue = `bench-${Date.now()}`;

let done = 0;
const noop = wl.job("noop", { queue }, () => {
  done += 1;
});

const report = (what, count, since) => {
  const seconds = (performance.now() - since) / 1_000;
  console.log(
    `${what.padEnd(44)} ${Math.round(count / seconds)
      .toLocaleString("en")
      .padStart(10)} jobs/s`,
  );
};

let since = performance.now();
for (let pushed = 0; pushed < jobs; pushed += chunk) {
  await noop.many(Array.from({ length: Math.min(chunk, jobs - pushed) }, (_, index) => ({ number: pushed + index })));
}
report(`push, ${chunk} jobs per request`, jobs, since);

since = performance.now();
const worker = wl.worker({ concurrency: 100 });
await worker.start();
while (worker.statistics.succeeded < jobs) {
  await new Promise((resolve) => setTimeout(resolve, 2));
}
report("drain, concurrency 100, bulk push", jobs, since);
const drained = await worker.stop();

since = performance.now();
const singles = Math.min(jobs, 10_000);
let next = 0;
await Promise.all(
  Array.from({ length: 64 }, async () => {
    while (next < singles) {
      next += 1;
      await noop.push({ number: next });
    }
  }),
);
report("push, 64 at a time, one job per request", singles, since);
since = performance.now();
const second = wl.worker({ concurrency: 100 });
await second.start();
while (second.statistics.succeeded < singles) {
  await new Promise((resolve) => setTimeout(resolve, 2));
}
report("drain, concurrency 100, single pushes", singles, since);
await second.stop();
if (done !== jobs + singles || drained.succeeded !== jobs) {
  throw new Error(`${done} of ${jobs + singles} jobs ran`);
}
await server?.stop();
