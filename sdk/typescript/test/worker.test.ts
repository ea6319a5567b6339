/** Workers: outcomes, contexts, middleware, cancellations, stops and outages. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { ApiError, Cancel, type Context, Fail, Retry, Snooze, type Windlass } from "windlass";
import { startServer } from "windlass/testing";
import { z } from "zod";
import { aborted, deferred, history, queue, realServer, requireTokens, SILENT, until } from "./support.js";

const real = realServer();

/** Pushes one job and runs it until it has ended. */
async function runOne(handler: (ctx: Context) => unknown, wl: Windlass = real.client()) {
  const job = wl.job("one", { queue: queue(), retry: { initial: 0 }, maxAttempts: 2 }, handler);
  const worker = wl.worker();
  await worker.start();
  const handle = await job.push();
  await handle.wait().catch(() => {});
  const statistics = await worker.stop();
  return { handle, job: await handle.get(), events: await history(wl, handle.id), statistics };
}

test("a result is what JSON makes of it", async () => {
  const { job, statistics } = await runOne(() => ({ at: new Date(0), nothing: undefined, text: "größe 🦀" }));
  assert.deepEqual(job.result, { at: "1970-01-01T00:00:00.000Z", text: "größe 🦀" });
  assert.equal(statistics.succeeded, 1);
  assert.equal((await runOne(() => undefined)).job.result, null);
});

test("an error is retried", async () => {
  const { job, events, statistics } = await runOne((ctx) => {
    if (ctx.attempt === 1) {
      throw new Error("first");
    }
    return ctx.attempt;
  });
  assert.equal(job.state, "succeeded");
  assert.equal(job.result, 2);
  assert.deepEqual(events, ["enqueued", "started", "failed", "started", "finished"]);
  assert.equal(statistics.failed, 1);
});

test("the message of an error has its causes and is bounded", async () => {
  const message = async (error: unknown) => {
    const { job } = await runOne(() => {
      throw error;
    });
    assert.equal(job.attempt, 2);
    return job.error?.message;
  };
  const cause = Object.assign(new Error("inner"), { cause: "a text" });
  assert.equal(await message(new Error("outer", { cause })), "outer: inner: a text");
  assert.equal((await message(new Error("x".repeat(20_000_000))))?.length, 16 << 10);
  // Anything can be thrown, also an object without a text.
  assert.equal(await message(Object.create(null)), "object");
  assert.equal(await message(Object.assign(new Error(), { message: {}, name: 7, stack: [] })), "[object Object]");
});

test("errors have codes", async () => {
  const code = async (error: unknown) => {
    const { job } = await runOne(() => {
      throw error;
    });
    assert.equal(job.state, "failed");
    return [job.error?.code, job.error?.retryable, job.attempt];
  };
  assert.deepEqual(await code(new TypeError("type")), ["TypeError", true, 2]);
  assert.deepEqual(await code(new Error("plain")), ["error", true, 2]);
  assert.deepEqual(await code("a text"), ["error", true, 2]);
  assert.deepEqual(await code(undefined), ["error", true, 2]);
  assert.deepEqual(await code(Object.assign(new Error("system"), { code: "ECONNREFUSED" })), ["ECONNREFUSED", true, 2]);
  assert.deepEqual(await code(new Retry("again", { code: "disk_full" })), ["disk_full", true, 2]);
  assert.deepEqual(await code(new Fail("never", { code: "no_shop" })), ["no_shop", false, 1]);
  assert.deepEqual(await code(Object.assign(new Error("odd"), { code: `a\u0000${"ö".repeat(200)}` })), [
    `a ${"ö".repeat(63)}`,
    true,
    2,
  ]);
});

test("the stack of an unexpected error is in the log of the attempt", async () => {
  const { handle } = await runOne((ctx) => {
    ctx.log("before");
    if (ctx.attempt === 1) {
      throw new RangeError("out of range");
    }
  });
  const log = async (name: string) => (await fetch(`${real.url}/api/v1/jobs/${handle.id}/artifacts/${name}`)).text();
  assert.match(await log("log"), /^before\nRangeError: out of range\n {4}at /);
  assert.equal(await log("log-2"), "before\n");
});

test("a snooze and a cancellation by the handler", async () => {
  let runs = 0;
  const snoozed = await runOne(() => {
    runs += 1;
    if (runs === 1) {
      throw new Snooze("1ms");
    }
    return runs;
  });
  assert.equal(snoozed.job.result, 2);
  assert.equal(snoozed.job.attempt, 1);
  assert.equal(snoozed.statistics.snoozed, 1);
  const canceled = await runOne(() => {
    throw new Cancel();
  });
  assert.equal(canceled.job.state, "canceled");
  assert.equal(canceled.statistics.canceled, 1);
});

test("a result that is not JSON or too large fails the job without a retry", async () => {
  const circular: { self?: unknown } = {};
  circular.self = circular;
  const notJson = await runOne(() => circular);
  assert.equal(notJson.job.error?.code, "result_not_json");
  assert.equal(notJson.job.attempt, 1);
  const large = await runOne(() => "ö".repeat(1 << 19));
  assert.equal(large.job.error?.code, "result_too_large");
  // The limit is in bytes, and this is exactly the limit.
  assert.equal((await runOne(() => "x".repeat((1 << 20) - 2))).job.state, "succeeded");
});

test("a fact that the server rejects fails its job and no other", async () => {
  const wl = real.client();
  const name = queue();
  const job = wl.job<string, string>("facts", { queue: name, subject: (n) => `${name}-${n}` }, (ctx, n) => {
    ctx.fact(n === "bad" ? "x".repeat(100_000) : "colour", "blue");
    return n;
  });
  const handles = await job.many(["one", "bad", "two", "three"]);
  const worker = wl.worker();
  await worker.start();
  const ends = await Promise.allSettled(handles.map((handle) => handle.wait()));
  assert.deepEqual(
    ends.map((end) => (end.status === "fulfilled" ? end.value : (end.reason as { code: string }).code)),
    ["one", "outcome_refused", "two", "three"],
  );
  const subject = await wl.request<{ facts: Record<string, { value: unknown }> }>("GET", `/subjects/${name}-two`);
  assert.equal(subject.facts["colour"]?.value, "blue");
  await worker.stop();
});

test("a fact without a subject fails the job", async () => {
  const { job } = await runOne((ctx) => ctx.fact("colour", "blue"));
  assert.equal(job.error?.code, "no_subject");
  assert.equal(job.attempt, 1);
});

test("a handler receives what its schema returns, and an invalid payload fails the job", async () => {
  const wl = real.client();
  const name = queue();
  const input = z.object({ n: z.string().transform(Number), format: z.string().default("png") });
  const job = wl.job("parsed", { queue: name, input }, (_ctx, payload) => payload);
  const worker = wl.worker();
  await worker.start();
  assert.deepEqual(await (await job.push({ n: "7" })).wait(), { n: 7, format: "png" });
  const { id } = await wl.push({ queue: name, kind: "parsed", payload: { n: 7 } });
  const end = await wl
    .handle(id)
    .wait()
    .catch((error: { job: unknown }) => error.job);
  assert.equal((end as { error: { code: string } }).error.code, "invalid_payload");
  assert.equal((end as { attempt: number }).attempt, 1);
  await worker.stop();
});

test("middleware wraps handlers in the order in which it was added", async () => {
  const wl = real.client();
  const seen: string[] = [];
  for (const name of ["outer", "inner"]) {
    wl.use(async (ctx, next) => {
      seen.push(`${name} ${ctx.kind}`);
      const result = await next();
      seen.push(`${name} end`);
      return `${name}(${result})`;
    });
  }
  const { job } = await runOne(() => "result", wl);
  assert.equal(job.result, "outer(inner(result))");
  assert.deepEqual(seen, ["outer one", "inner one", "inner end", "outer end"]);
});

test("middleware can end an attempt", async () => {
  const wl = real.client();
  wl.use(async () => {
    throw new Fail("locked", { code: "locked" });
  });
  const { job } = await runOne(() => assert.fail("the handler ran"), wl);
  assert.equal(job.error?.code, "locked");
});

test("progress is merged and the last report arrives before the outcome", async () => {
  const signals: unknown[] = [];
  const wl = real.client({
    fetch: (input, init) => {
      if (init?.method === "PUT") {
        signals.push(JSON.parse(init.body as string));
      }
      return fetch(input, init);
    },
  });
  const { job } = await runOne((ctx) => {
    for (let step = 0; step <= 1_000; step++) {
      ctx.progress(step / 500, `step ${step}`);
    }
    ctx.phase("report");
  }, wl);
  assert.equal(job.progress, 1);
  assert.equal(job.phase, "report");
  assert.ok(signals.length <= 2, `${signals.length} signals`);
  assert.deepEqual(signals.at(-1), { progress: 1, summary: "step 1000", phase: "report", epoch: 1 });
});

test("a phase that the queue does not declare costs neither the progress nor the job", async () => {
  const warnings: string[] = [];
  const logger = { ...SILENT, warn: (message: string) => void warnings.push(message) };
  const { job } = await runOne((ctx) => {
    ctx.phase("undeclared");
    ctx.update({ progress: 0.5, phase: "undeclared" });
  }, real.client({ logger }));
  assert.equal(job.state, "succeeded");
  assert.equal(job.progress, 0.5);
  assert.match(warnings[0] ?? "", /was rejected: phase must be one of/);
});

test("artifacts keep their bytes and their type", async () => {
  const bytes = Uint8Array.from({ length: 200_000 }, (_, index) => index % 251);
  const { handle, job } = await runOne(async (ctx) => {
    const view = await ctx.artifact("die größe %.bin", bytes, "image/png");
    assert.equal(view.size, bytes.length);
    await ctx.artifact("die größe %.bin", bytes, "image/png");
  });
  assert.equal(job.error, null);
  const path = encodeURIComponent("die größe %.bin");
  const response = await fetch(`${real.url}/api/v1/jobs/${handle.id}/artifacts/${path}`);
  assert.equal(response.headers.get("content-type"), "image/png");
  assert.deepEqual(new Uint8Array(await response.arrayBuffer()), bytes);
});

test("a cancellation aborts the handler's signal", async () => {
  const wl = real.client();
  const started = deferred();
  const stopped = deferred<Error>();
  const job = wl.job("long", { queue: queue() }, async (ctx) => {
    started.resolve();
    stopped.resolve(await aborted(ctx.signal));
  });
  const worker = wl.worker();
  await worker.start();
  const handle = await job.push();
  await started.promise;
  await handle.cancel();
  assert.match((await stopped.promise).message, /canceled/);
  const statistics = await worker.stop();
  assert.equal(statistics.canceled + statistics.lost, 1);
  assert.equal((await handle.get()).state, "canceled");
});

test("a canceled handler that continues frees its subject only when it ends", async () => {
  const wl = real.client();
  const started = deferred();
  const end = deferred();
  const ran: string[] = [];
  const job = wl.job("stubborn", { queue: queue(), subject: "machine" }, async (_ctx, name: string) => {
    ran.push(`${name} starts`);
    if (name === "first") {
      started.resolve();
      await end.promise;
    }
    ran.push(`${name} ends`);
  });
  const worker = wl.worker({ concurrency: 2 });
  await worker.start();
  const first = await job.push("first");
  await started.promise;
  const second = await job.push("second");
  await first.cancel();
  assert.equal((await second.get()).state, "queued");
  end.resolve();
  await second.wait();
  assert.deepEqual(ran, ["first starts", "first ends", "second starts", "second ends"]);
  await worker.stop();
});

test("a timeout aborts the attempt and the next one runs", async () => {
  const wl = real.client();
  const stopped = deferred<Error>();
  const job = wl.job("slow", { queue: queue(), timeout: 1, retry: { initial: 0 } }, async (ctx) => {
    if (ctx.attempt === 1) {
      stopped.resolve(await aborted(ctx.signal));
    }
    return ctx.attempt;
  });
  const worker = wl.worker();
  await worker.start();
  assert.equal(await (await job.push()).wait(), 2);
  // The next attempt may end before the cancellation of the first one arrives.
  assert.equal((await stopped.promise).message, "the job was canceled or timed out");
  await worker.stop();
});

test("no more handlers run than the concurrency allows, and what they finish fast is claimed ahead", async () => {
  const wl = real.client();
  let running = 0;
  let most = 0;
  let claims = 0;
  const counted = real.client({
    fetch: (input, init) => {
      claims += String(input).endsWith("/claim") ? 1 : 0;
      return fetch(input, init);
    },
  });
  const job = counted.job("counted", { queue: queue() }, async () => {
    running += 1;
    most = Math.max(most, running);
    await new Promise(setImmediate);
    running -= 1;
  });
  await wl.many(await Promise.all(Array.from({ length: 2_000 }, () => job.request(null))));
  const worker = counted.worker({ concurrency: 5 });
  await worker.start();
  await until("2,000 jobs", () => worker.statistics.succeeded === 2_000);
  await worker.stop();
  assert.equal(most, 5);
  assert.ok(claims < 400, `${claims} claims`);
});

test("jobs with large payloads are claimed ahead in small numbers", async () => {
  const sizes: number[] = [];
  const wl = real.client({
    fetch: async (input, init) => {
      const response = await fetch(input, init);
      if (String(input).endsWith("/claim")) {
        sizes.push((await response.clone().text()).length);
      }
      return response;
    },
  });
  const job = wl.job("large", { queue: queue() }, (_ctx, text: string) => text.length);
  const text = "x".repeat(1_000_000);
  for (let pushed = 0; pushed < 2; pushed++) {
    await job.many(Array(15).fill(text));
  }
  const worker = wl.worker({ concurrency: 2 });
  await worker.start();
  await until("30 jobs", () => worker.statistics.succeeded === 30);
  await worker.stop();
  assert.ok(Math.max(...sizes) < 10_000_000, `the claims returned ${sizes} characters`);
});

test("a graceful stop finishes what runs and gives back what waits", async () => {
  const wl = real.client();
  const started = deferred();
  const end = deferred();
  // The jobs before the one that is held are fast, so that those after it are claimed ahead.
  const held = 20;
  const job = wl.job<number, void>("held", { queue: queue() }, async (_ctx, n) => {
    if (n === held) {
      started.resolve();
      await end.promise;
    }
  });
  const handles = await job.many(Array.from({ length: 30 }, (_, n) => n));
  const worker = wl.worker({ concurrency: 1 });
  await worker.start();
  await started.promise;
  const stopped = worker.stop();
  end.resolve();
  const statistics = await stopped;
  assert.equal(statistics.succeeded, held + 1);
  assert.equal(statistics.released, handles.length - held - 1);
  for (const [n, handle] of handles.entries()) {
    const { state, attempt } = await handle.get();
    assert.deepEqual([state, attempt], n <= held ? ["succeeded", 1] : ["queued", 0]);
  }
  const { items } = await wl.request<{ items: { queues: string[] }[] }>("GET", "/workers", { query: { limit: 500 } });
  assert.ok(!items.some(({ queues }) => queues.includes(job.queue)), "the worker is still registered");
});

test("a stop aborts handlers after the drain and releases those that go on", async () => {
  const wl = real.client();
  const started: string[] = [];
  const reasons: string[] = [];
  const job = wl.job("endless", { queue: queue() }, async (ctx, name: string) => {
    started.push(name);
    if (name === "stubborn") {
      await new Promise(() => {});
    }
    const reason = await aborted(ctx.signal);
    reasons.push(reason.message);
    throw reason;
  });
  const handles = await job.many(["polite", "stubborn"]);
  const worker = wl.worker({ drain: "10ms", stopGrace: "50ms" });
  await worker.start();
  await until("both handlers", () => started.length === 2);
  const statistics = await worker.stop();
  assert.equal(statistics.released, 2);
  assert.deepEqual(reasons, ["the worker stops"]);
  for (const handle of handles) {
    const view = await handle.get();
    assert.deepEqual([view.state, view.attempt], ["queued", 0]);
  }
});

test("the server drains a worker", async () => {
  const wl = real.client();
  const job = wl.job("drained", { queue: queue() }, () => 1);
  const worker = wl.worker();
  const ended = worker.run();
  await (await job.push()).wait();
  const { items } = await wl.request<{ items: { id: string; queues: string[] }[] }>("GET", "/workers", {
    query: { limit: 500 },
  });
  const registered = items.find(({ queues }) => queues.includes(job.queue));
  await wl.request("POST", `/workers/${registered?.id}/drain`);
  assert.equal((await ended).succeeded, 1);
});

test("a worker that the server rejects ends with the reason", async () => {
  const server = await startServer();
  await requireTokens(server);
  const wl = server.client({ token: "windlass_wrong", logger: SILENT });
  wl.job("refused", { queue: queue() }, () => {});
  await assert.rejects(wl.worker().start(), (error) => error instanceof ApiError && error.status === 401);
  await assert.rejects(wl.worker().run(), (error) => error instanceof ApiError && error.status === 401);
  const invalid = real.client();
  invalid.job("refused", { queue: "" }, () => {});
  await assert.rejects(invalid.worker().start(), (error) => error instanceof ApiError && error.status === 422);
  await server.stop();
});

test("mistakes in definitions are found before the start", () => {
  const wl = real.client();
  assert.throws(() => wl.worker(), /any job/);
  wl.job("one", { queue: "q" }, () => {});
  assert.throws(() => wl.worker({ queues: ["other"] }), /the queues other/);
  assert.throws(() => wl.worker({ kinds: ["one", "two"] }), /two/);
  assert.throws(() => wl.worker({ concurrency: 0 }), /concurrency must be an integer from 1; it is 0/);
  wl.job("one", { queue: "q" }, () => {});
  assert.throws(() => wl.worker(), /the kind "one" has two handlers/);
});

test("a worker waits for a server that starts later, and keeps outcomes while it is away", async () => {
  const server = await startServer();
  const wl = server.client({ logger: SILENT });
  const started = deferred();
  const end = deferred();
  const job = wl.job("kept", { queue: "q" }, async (ctx) => {
    started.resolve();
    await end.promise;
    return ctx.attempt;
  });
  const handle = await job.push();
  await server.kill();
  const worker = wl.worker();
  const running = worker.start();
  await server.start();
  await running;
  await started.promise;
  await server.kill();
  const waiting = handle.wait();
  end.resolve();
  await server.start();
  assert.equal(await waiting, 1);
  assert.deepEqual(await history(wl, handle.id), ["enqueued", "started", "finished"]);
  await worker.stop();
  await server.stop();
});

/** A proxy before the server that can break single answers. */
async function breakingProxy(breaks: (path: string) => boolean) {
  const proxy = createServer((from: IncomingMessage, to: ServerResponse) => {
    const { hostname, port } = new URL(real.url);
    const { method, headers, url: path } = from;
    const isBroken = breaks(path ?? "");
    const passed = request({ hostname, port, method, path, headers }, (answer) => {
      if (isBroken) {
        answer.resume().on("end", () => to.destroy());
      } else {
        to.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(to);
      }
    });
    passed.on("error", () => to.destroy());
    to.on("close", () => passed.destroy());
    from.pipe(passed);
  });
  proxy.listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const { port } = proxy.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    close: () => {
      proxy.closeAllConnections();
      proxy.close();
    },
  };
}

test("a claim with a lost answer costs no attempt", async () => {
  let broken = 0;
  // The first claims of a worker without work are long polls: the jobs are there before it starts.
  const proxy = await breakingProxy((path) => path.endsWith("/claim") && broken++ === 0);
  const wl = real.client({ url: proxy.url });
  const job = wl.job<number, number>("lost", { queue: queue() }, (ctx) => ctx.attempt);
  const handles = await job.many([1, 2, 3]);
  const worker = wl.worker();
  await worker.start();
  assert.deepEqual(await Promise.all(handles.map((handle) => handle.wait())), [1, 1, 1]);
  assert.ok(broken > 1);
  await worker.stop();
  proxy.close();
});

test("an outcome with a lost answer is settled once", async () => {
  let broken = 0;
  const proxy = await breakingProxy((path) => path.endsWith("/settle") && broken++ === 0);
  const wl = real.client({ url: proxy.url });
  const job = wl.job("settled", { queue: queue() }, (ctx) => ctx.attempt);
  const worker = wl.worker();
  await worker.start();
  const handle = await job.push();
  assert.equal(await handle.wait(), 1);
  await worker.stop();
  assert.deepEqual(await history(wl, handle.id), ["enqueued", "started", "finished"]);
  assert.ok(broken > 1);
  proxy.close();
});

test("a worker that the server has removed registers again", async () => {
  const wl = real.client();
  const started = deferred();
  const lost = deferred<Error>();
  const job = wl.job("removed", { queue: queue() }, async (ctx) => {
    if (!(await firstRun())) {
      return ctx.attempt;
    }
    started.resolve();
    lost.resolve(await aborted(ctx.signal));
    return "late";
  });
  let runs = 0;
  const firstRun = async () => ++runs === 1;
  const worker = wl.worker();
  await worker.start();
  const handle = await job.push();
  await started.promise;
  const { worker: id } = await handle.get();
  await wl.request("DELETE", `/workers/${id}`);
  assert.match((await lost.promise).message, /lost/);
  assert.equal(await handle.wait(), 1);
  await worker.stop();
});
