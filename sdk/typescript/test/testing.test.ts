/** The helpers of `windlass/testing`. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import { afterEach, beforeEach, test } from "node:test";
import { promisify } from "node:util";
import { Cancel, Fail, JobFailed, Retry, Snooze, Windlass } from "windlass";
import { type Fake, fake, startServer } from "windlass/testing";
import { aborted, deferred, SILENT, until } from "./support.js";

let wl: Windlass;
let server: Fake;

beforeEach(() => {
  wl = new Windlass({ logger: SILENT });
  server = fake(wl);
});

afterEach(() => server.restore());

test("pushes are recorded and not run", async () => {
  let runs = 0;
  const mail = wl.job("mail", {}, (_ctx, _payload: { to: string; at?: Date }) => {
    runs += 1;
  });
  const other = wl.job<number>("other");
  await mail.push({ to: "Ada", at: new Date(0) });
  await mail.many([{ to: "Bo" }, { to: "Cy" }]);
  assert.deepEqual(server.pushed(mail), [{ to: "Ada", at: "1970-01-01T00:00:00.000Z" }, { to: "Bo" }, { to: "Cy" }]);
  server.assertPushed(mail);
  server.assertPushed(mail, { to: "Ada", at: new Date(0) });
  server.assertNotPushed(mail, { to: "Dee" });
  server.assertNotPushed(other);
  assert.throws(
    () => server.assertPushed(mail, { to: "Dee" }),
    /a job mail with the payload {"to":"Dee"} was not pushed/,
  );
  assert.throws(
    () => server.assertPushed(other, 1),
    /a job other with the payload 1 was not pushed; pushed were: \[\]/,
  );
  assert.throws(() => server.assertNotPushed(mail), /a job mail was pushed/);
  assert.equal(runs, 0);
  server.clear();
  server.assertNotPushed(mail);
});

test("a drain runs jobs and those that they push", async () => {
  const ran: string[] = [];
  const second = wl.job("second", {}, (_ctx, name: string) => void ran.push(name));
  const first = wl.job("first", {}, async (_ctx, name: string) => {
    ran.push(name);
    await second.push(`${name}'s child`);
  });
  await first.many(["a", "b"]);
  await server.drain();
  assert.deepEqual(ran, ["a", "b", "a's child", "b's child"]);
  assert.deepEqual(
    server.jobs.map(({ view }) => view.state),
    ["succeeded", "succeeded", "succeeded", "succeeded"],
  );
});

test("an inline client runs jobs during the push", async () => {
  server.restore();
  server = fake(wl, { inline: true });
  const ran: number[] = [];
  const job = wl.job("inline", {}, (_ctx, n: number) => void ran.push(n));
  await job.push(1);
  assert.deepEqual(ran, [1]);
  await job.many([2, 3]);
  assert.deepEqual(ran, [1, 2, 3]);
});

test("retries, snoozes, failures and cancellations end as on a server", async () => {
  const job = wl.job("ends", { maxAttempts: 3 }, (ctx, how: string) => {
    switch (how) {
      case "retry":
        if (ctx.attempt < 3) {
          throw new Retry("again");
        }
        return ctx.attempt;
      case "snooze":
        if (ctx.job.epoch < 3) {
          throw new Snooze("1d");
        }
        return ctx.attempt;
      case "exhausted":
        throw new Error("boom");
      case "fail":
        throw new Fail("never", { code: "no_shop" });
      default:
        throw new Cancel();
    }
  });
  const end = async (how: string) => {
    const handle = await job.push(how);
    const result = await handle.wait().catch((error) => error as JobFailed);
    const { state, attempt, error } = await handle.get();
    return [result instanceof JobFailed ? result.code : result, state, attempt, error?.code];
  };
  assert.deepEqual(await end("retry"), [3, "succeeded", 3, "retry"]);
  assert.deepEqual(await end("snooze"), [1, "succeeded", 1, undefined]);
  assert.deepEqual(await end("exhausted"), ["error", "failed", 3, "error"]);
  assert.deepEqual(await end("fail"), ["no_shop", "failed", 1, "no_shop"]);
  assert.deepEqual(await end("cancel"), ["canceled", "canceled", 1, undefined]);
});

test("what a handler reports is recorded", async () => {
  const job = wl.job("reports", { subject: "shop" }, async (ctx) => {
    ctx.progress(0.5, "half");
    ctx.log("a line");
    ctx.fact("colour", "blue");
    await ctx.artifact("a/b.txt", "text");
  });
  const handle = await job.push();
  await handle.wait();
  const [recorded] = server.jobs;
  assert.deepEqual(recorded?.signals, [{ progress: 0.5, summary: "half" }]);
  assert.deepEqual(
    [...(recorded?.artifacts ?? [])],
    [
      ["a/b.txt", "text"],
      ["log", "a line\n"],
    ],
  );
  assert.deepEqual(recorded?.facts, { colour: "blue" });
  const kinds: unknown[] = [];
  for await (const signal of handle.stream()) {
    kinds.push([signal.kind, signal.progress, signal.summary]);
  }
  assert.deepEqual(kinds, [["succeeded", 0.5, "half"]]);
});

test("a cancellation aborts a handler", async () => {
  const started = deferred();
  const job = wl.job("long", {}, async (ctx) => {
    started.resolve();
    throw await aborted(ctx.signal);
  });
  const handle = await job.push();
  const drained = server.drain();
  await started.promise;
  await handle.cancel();
  await drained;
  assert.equal((await handle.get()).state, "canceled");
});

test("unique jobs and middleware work as on a server", async () => {
  const ran: string[] = [];
  wl.use((ctx, next) => {
    ran.push(ctx.kind);
    return next();
  });
  const job = wl.job("unique", { unique: true }, (_ctx, _n: number) => {});
  const first = await job.push(1);
  assert.equal((await job.push(1)).id, first.id);
  assert.notEqual((await job.push(2)).id, first.id);
  await server.drain();
  assert.deepEqual(ran, ["unique", "unique"]);
  assert.notEqual((await job.push(1)).id, first.id);
});

test("a job that never ends is an error", async () => {
  const job = wl.job("forever", {}, () => {
    throw new Snooze(1);
  });
  await job.push();
  await assert.rejects(server.drain(), /has not ended after 1000 runs/);
});

test("a real server ends with the process that started it", async () => {
  const source = `import { startServer } from ${JSON.stringify(import.meta.resolve("windlass/testing"))};
    const { url, folder } = await startServer();
    console.log(JSON.stringify({ url, folder }));
    process.exit();`;
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", source]);
  const { url, folder } = JSON.parse(stdout) as { url: string; folder: string };
  await until("the end of the server", () =>
    fetch(`${url}/healthz`).then(
      () => false,
      () => true,
    ),
  );
  await rm(folder, { recursive: true });
});

test("a real server starts, survives a kill and leaves nothing behind", async () => {
  // Settings of another server have no effect.
  process.env["WINDLASS_TLS_CERT"] = "/nowhere/cert.pem";
  const real = await startServer();
  delete process.env["WINDLASS_TLS_CERT"];
  const client = real.client({ logger: SILENT });
  const { id } = await client.push({ queue: "q", kind: "k" });
  const { url } = real;
  await real.kill();
  await real.start();
  assert.equal(real.url, url);
  assert.equal((await client.handle(id).get()).state, "queued");
  await real.stop();
  assert.ok(!existsSync(real.folder));
  await assert.rejects(startServer({ binary: "/nowhere/windlass" }), /\/nowhere\/windlass did not start \(.*ENOENT/);
  await assert.rejects(startServer({ args: ["--no-such-flag"] }), /--no-such-flag/);
});
