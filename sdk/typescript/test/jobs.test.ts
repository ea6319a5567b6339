/** Definitions, pushes and handles. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import * as v from "valibot";
import { ApiError, ConnectionError, InvalidPayload, JobFailed, WaitTimeout, Windlass } from "windlass";
import { startServer } from "windlass/testing";
import { z } from "zod";
import { queue, realServer, requireTokens, SILENT, until } from "./support.js";

const real = realServer();

test("a push stores the options of its kind", async () => {
  const wl = real.client();
  const name = queue();
  const charge = wl.job("charge", {
    queue: name,
    input: z.object({ order: z.string() }),
    maxAttempts: 7,
    retry: { initial: "10s", maximum: "2h", exponent: 3, jitter: 0 },
    timeout: "1m",
    priority: 5,
    unique: ({ order }) => `order:${order}`,
    affinity: ({ order }) => `model-${order}`,
    subject: ({ order }) => `shop-${order}`,
    run: "nightly",
    concurrencyKey: ({ order }) => `key-${order}`,
    tags: ({ order }) => ["tag", order],
  });
  const handle = await charge.push({ order: "7" });
  const { created_at: _, id, ...view } = await handle.get();
  assert.equal(id, handle.id);
  assert.deepEqual(
    {
      queue: view.queue,
      kind: view.kind,
      payload: view.payload,
      max_attempts: view.max_attempts,
      retry: view.retry,
      timeout_s: view.timeout_s,
      priority: view.priority,
      unique_key: view.unique_key,
      affinity: view.affinity,
      subject: view.subject,
      run: view.run,
      concurrency_key: view.concurrency_key,
      tags: view.tags,
      state: view.state,
    },
    {
      queue: name,
      kind: "charge",
      payload: { order: "7" },
      max_attempts: 7,
      retry: { initial_s: 10, maximum_s: 7_200, exponent: 3, jitter: 0 },
      timeout_s: 60,
      priority: 5,
      unique_key: "order:7",
      affinity: "model-7",
      subject: "shop-7",
      run: "nightly",
      concurrency_key: "key-7",
      tags: ["tag", "7"],
      state: "queued",
    },
  );
});

test("options of a push replace those of its kind", async () => {
  const wl = real.client();
  const [one, other] = [queue(), queue()];
  const job = wl.job<{ n: number }>("kind", { queue: one, priority: 1, tags: ["kind"], timeout: 5 });
  const runAt = new Date(Date.now() + 3_600_000);
  const view = await (
    await job.push({ n: 1 }, { queue: other, priority: 2, tags: ["push"], timeout: "7s", runAt, uniqueKey: "mine" })
  ).get();
  assert.equal(view.queue, other);
  assert.equal(view.priority, 2);
  assert.deepEqual(view.tags, ["push"]);
  assert.equal(view.timeout_s, 7);
  assert.equal(view.unique_key, "mine");
  assert.equal(view.state, "scheduled");
  assert.equal(Date.parse(view.run_at), runAt.getTime());
  const delayed = await (await job.push({ n: 2 }, { delay: "1h" })).get();
  assert.ok(Math.abs(Date.parse(delayed.run_at) - Date.now() - 3_600_000) < 60_000);
});

test("a unique job is pushed once while it has not ended", async () => {
  const wl = real.client();
  const byPayload = wl.job<{ user: number }>("by-payload", { queue: queue(), unique: true });
  const first = await byPayload.push({ user: 1 });
  assert.equal((await byPayload.push({ user: 1 })).id, first.id);
  assert.notEqual((await byPayload.push({ user: 2 })).id, first.id);
  await first.cancel();
  assert.notEqual((await byPayload.push({ user: 1 })).id, first.id);
});

test("a unique key is reserved for a time", async () => {
  const job = real.client().job<string>("reserved", { queue: queue(), unique: (name) => name, uniqueFor: "1h" });
  const first = await job.push("Ada");
  await first.cancel();
  assert.equal((await job.push("Ada")).id, first.id);
});

test("an idempotency key prevents duplicates", async () => {
  const job = real.client().job<number>("idempotent", { queue: queue() });
  const options = { idempotencyKey: queue() };
  const first = await job.push(1, options);
  assert.equal((await job.push(1, options)).id, first.id);
  await assert.rejects(job.push(2, options), (error) => {
    assert.ok(error instanceof ApiError);
    assert.equal(error.code, "idempotency_key_reused");
    assert.equal(error.status, 422);
    return true;
  });
});

test("many jobs are pushed in one transaction", async () => {
  const wl = real.client();
  const name = queue();
  const job = wl.job<{ n: number }>("many", { queue: name });
  const handles = await job.many(Array.from({ length: 1_000 }, (_, n) => ({ n })));
  assert.equal(new Set(handles.map(({ id }) => id)).size, 1_000);
  assert.deepEqual((await handles[999]?.get())?.payload, { n: 999 });
  assert.deepEqual(await job.many([]), []);

  const invalid = [await job.request({ n: 1 }), { ...(await job.request({ n: 2 })), priority: 1e9 }];
  await assert.rejects(wl.many(invalid), (error) => error instanceof ApiError && error.field === "jobs[1].priority");
  const page = await wl.request<{ items: unknown[] }>("GET", "/jobs", { query: { queue: name, limit: 1 } });
  assert.deepEqual((page.items[0] as { payload: unknown }).payload, { n: 999 });
});

test("a schema rejects a payload before it is pushed", async () => {
  const wl = real.client();
  const name = queue();
  const withZod = wl.job("zod", { queue: name, input: z.object({ user: z.object({ age: z.number() }) }) });
  await assert.rejects(withZod.push({ user: { age: "7" as unknown as number } }), (error) => {
    assert.ok(error instanceof InvalidPayload);
    assert.match(error.message, /^invalid payload for zod: user\.age: /);
    assert.deepEqual(error.issues[0]?.path, ["user", "age"]);
    return true;
  });
  const withValibot = wl.job("valibot", { queue: name, input: v.object({ age: v.number() }) });
  await assert.rejects(withValibot.push({ age: "7" as unknown as number }), /invalid payload for valibot: age: /);
  // A `Date` arrives as a string. The push finds that, and not the worker.
  const withDate = wl.job("date", { queue: name, input: z.object({ at: z.date() }) });
  await assert.rejects(withDate.push({ at: new Date() }), InvalidPayload);
  const page = await wl.request<{ items: unknown[] }>("GET", "/jobs", { query: { queue: name } });
  assert.deepEqual(page.items, []);
});

test("a schema with a default accepts a push without a payload", async () => {
  const job = real.client().job("optional", {
    queue: queue(),
    input: z.object({ n: z.number() }).optional().default({ n: 1 }),
  });
  assert.equal((await (await job.push()).get()).payload, null);
});

test("a wait ends with the result, the failure, the cancellation or the timeout", async () => {
  const wl = real.client();
  const name = queue();
  const job = wl.job("outcome", { queue: name, maxAttempts: 1 }, (_ctx, payload: string) => {
    if (payload === "fail") {
      throw new Error("boom", { cause: new TypeError("inner") });
    }
    return { said: payload };
  });
  const [ok, bad, canceled] = await job.many(["ok", "fail", "canceled"]);
  assert.ok(ok && bad && canceled);
  await assert.rejects(ok.wait({ timeout: "20ms" }), (error) => {
    assert.ok(error instanceof WaitTimeout);
    assert.equal(error.message, `job ${ok.id} has not ended within 0.02 s`);
    return true;
  });
  const stopped = AbortSignal.abort(new Error("enough"));
  await assert.rejects(ok.wait({ signal: stopped }), /enough/);
  assert.equal((await canceled.cancel()).state, "canceled");
  // A repeated cancellation changes nothing.
  assert.equal((await canceled.cancel()).state, "canceled");
  const worker = wl.worker();
  await worker.start();
  assert.deepEqual(await ok.wait(), { said: "ok" });
  await assert.rejects(bad.wait(), (error) => {
    assert.ok(error instanceof JobFailed);
    assert.equal(error.message, `job ${bad.id} (outcome) failed: boom: inner`);
    assert.equal(error.state, "failed");
    assert.equal(error.code, "error");
    assert.equal(error.job.attempt, 1);
    return true;
  });
  await assert.rejects(canceled.wait(), (error) => {
    assert.ok(error instanceof JobFailed);
    assert.equal(error.state, "canceled");
    assert.equal(error.code, "canceled");
    return true;
  });
  await worker.stop();
});

test("an unknown job is an error with a code", async () => {
  const handle = real.client().handle("01a1dda7-a89f-7c5e-a79e-3a03bdfffb4c");
  await assert.rejects(handle.get(), (error) => error instanceof ApiError && error.code === "not_found");
  await assert.rejects(handle.wait(), (error) => error instanceof ApiError && error.status === 404);
  const odd = real.client().handle("../../queues");
  await assert.rejects(odd.get(), ApiError);
});

test("a push without a server fails with the reason and a hint", async () => {
  const probe = createServer().listen(0, "127.0.0.1");
  await until("the port", () => probe.listening);
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  const wl = new Windlass({ url: `http://127.0.0.1:${port}`, logger: SILENT });
  await assert.rejects(wl.request("GET", "/jobs"), (error) => {
    assert.ok(error instanceof ConnectionError);
    assert.equal(error.sent, false);
    const hint = "ECONNREFUSED; is `windlass serve` running?";
    assert.equal(error.message, `cannot reach http://127.0.0.1:${port}: ${hint}`);
    return true;
  });
  const signal = AbortSignal.timeout(50);
  await assert.rejects(wl.push({ queue: "q", kind: "k" }, { signal }), (error) => error === signal.reason);
});

test("a push is repeated while the server is away", async () => {
  let requests = 0;
  const keys = new Set<string | null>();
  const wl = real.client({
    fetch: async (input, init) => {
      keys.add(new Headers(init?.headers).get("idempotency-key"));
      requests += 1;
      if (requests === 1) {
        // The request is applied and its answer is lost.
        await (await fetch(input, init)).text();
        throw new TypeError("fetch failed", { cause: { code: "ECONNRESET" } });
      }
      return requests === 2 ? new Response("<html>", { status: 502 }) : fetch(input, init);
    },
  });
  const name = queue();
  const { id } = await wl.push({ queue: name, kind: "once" });
  assert.equal(requests, 3);
  assert.equal(keys.size, 1);
  const page = await wl.request<{ items: { id: string }[] }>("GET", "/jobs", { query: { queue: name } });
  assert.deepEqual(
    page.items.map((job) => job.id),
    [id],
  );
});

test("a payload that is too large is rejected by the server with its code", async () => {
  const job = real.client().job<string>("large", { queue: queue() });
  await assert.rejects(job.push("x".repeat(20 << 20)), (error) => error instanceof ApiError && error.status === 413);
});

test("a token is sent and a wrong one is rejected", async () => {
  const server = await startServer();
  await requireTokens(server);
  const seen: (string | null)[] = [];
  const wl = server.client({
    token: "windlass_wrong",
    headers: { "x-proxy": "1" },
    fetch: (input, init) => {
      const headers = new Headers(init?.headers);
      seen.push(headers.get("authorization"), headers.get("x-proxy"), headers.get("user-agent"));
      return fetch(input, init);
    },
  });
  await assert.rejects(wl.request("GET", "/jobs"), (error) => error instanceof ApiError && error.status === 401);
  const { version } = JSON.parse(await readFile(new URL("../../package.json", import.meta.url), "utf8"));
  assert.deepEqual(seen, ["Bearer windlass_wrong", "1", `windlass-typescript/${version}`]);
  await server.stop();
});

test("an invalid address and an invalid duration name the value", () => {
  assert.throws(() => new Windlass({ url: "nowhere" }), /invalid server URL "nowhere"/);
  assert.throws(() => new Windlass({ url: "ftp://host" }), /must start with http/);
  assert.throws(() => new Windlass({ timeout: "5 min" as "5m" }), /invalid duration "5 min"/);
  assert.throws(() => new Windlass({ timeout: Number.NaN }), RangeError);
  assert.throws(() => new Windlass({ timeout: -1 }), RangeError);
});

test("a path in the address is kept", async () => {
  const paths: string[] = [];
  const answer = async (input: Parameters<typeof fetch>[0]) => {
    paths.push(String(input));
    return Response.json({ id: "7" });
  };
  const wl = new Windlass({ url: "https://example.com/jobs/", fetch: answer as typeof fetch });
  await wl.push({ queue: "q", kind: "k" });
  assert.deepEqual(paths, ["https://example.com/jobs/api/v1/jobs"]);
});
