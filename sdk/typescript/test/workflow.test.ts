/** Workflows against a real server: the order of results, requests, refusals, suspends, cancellations and runs. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import {
  type ChildFailed,
  Fail,
  RunFailed,
  Snooze,
  type StepContext,
  type Windlass,
  type WorkflowContext,
} from "windlass";
import { fake } from "windlass/testing";
import { aborted, deferred, history, queue, realServer, until } from "./support.js";

const real = realServer();

/** A client that counts the requests to paths that end with `suffix`. */
function counting(suffix: string): { wl: Windlass; bodies: string[] } {
  const bodies: string[] = [];
  const send: typeof fetch = (input, init) => {
    if (String(input).endsWith(suffix)) {
      bodies.push(String(init?.body));
    }
    return fetch(input, init);
  };
  return { wl: real.client({ fetch: send }), bodies };
}

/** Pushes one job of a workflow and runs it until it has ended. */
async function runOne<Result>(
  wl: Windlass,
  handler: (ctx: WorkflowContext) => Promise<Result>,
  meanwhile: (id: string) => Promise<void> = async () => {},
) {
  const workflow = wl.workflow("flow", { queue: queue(), retry: { initial: 0 }, maxAttempts: 2 }, handler);
  const worker = wl.worker();
  await worker.start();
  const handle = await workflow.push();
  await meanwhile(handle.id);
  await handle.wait().catch(() => {});
  const statistics = await worker.stop();
  return { handle, job: await handle.get(), statistics };
}

/** Fails the first attempt, so that the workflow runs again with its journal. */
function failFirst(ctx: WorkflowContext): void {
  if (ctx.attempt === 1) {
    throw new Error("first attempt");
  }
}

test("operations of the same time share a request", async () => {
  const { wl, bodies } = counting("/journal");
  const { job } = await runOne(wl, async (ctx) => {
    const steps = Array.from({ length: 500 }, (_, index) => ctx.step("item", () => index));
    return (await Promise.all(steps)).reduce((sum, index) => sum + index, 0);
  });
  assert.equal(job.result, 124_750);
  assert.ok(bodies.length <= 3, `${bodies.length} requests`);
});

test("an event that arrived before a step was recorded wins the race, in every attempt", async () => {
  const release = deferred();
  const running = deferred();
  const winners: string[] = [];
  const wl = real.client();
  const { job } = await runOne(
    wl,
    async (ctx) => {
      const step = ctx.step("slow", async () => {
        running.resolve();
        await release.promise;
        return "step";
      });
      const event = ctx.waitForEvent<string>("paid");
      winners.push(await Promise.race([step, event]));
      failFirst(ctx);
      return winners;
    },
    async (id) => {
      await running.promise;
      const isOpen = async () => (await wl.handle(id).journal()).some(({ key }) => key === "paid");
      await until("the open event", isOpen);
      await wl.handle(id).send("paid", "event");
      release.resolve();
    },
  );
  assert.deepEqual(job.result, ["event", "event"]);
});

test("a sleep is over while a step still runs", async () => {
  const { job } = await runOne(real.client(), async (ctx) => {
    let signal: AbortSignal | undefined;
    const step = ctx.step("endless", async (step: StepContext) => {
      signal = step.signal;
      await aborted(step.signal);
      throw new Error("too late");
    });
    return Promise.race([step, ctx.sleep("200ms").then(() => (signal?.aborted ? "aborted" : "asleep"))]);
  });
  assert.equal(job.result, "asleep");
});

test("branches take the same path in every attempt, whatever the timing", async () => {
  let seed = 1;
  const random = (n: number): number => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % n;
  };
  for (let round = 0; round < 30; round++) {
    const wl = real.client();
    const paths: string[][] = [];
    const flow = wl.workflow("flow", { maxAttempts: 4 }, async (ctx) => {
      const path: string[] = [];
      paths.push(path);
      const branch = async (depth: number): Promise<number> => {
        const value = await ctx.step("value", async () => {
          await pause(random(4));
          return random(10);
        });
        path.push(`${depth}:${value}`);
        if (depth === 0 || value < 3) {
          return value;
        }
        const branches = Array.from({ length: 1 + (value % 3) }, () => branch(depth - 1));
        return value % 2 === 0 ? Promise.race(branches) : (await Promise.all(branches)).length;
      };
      const result = await Promise.all([branch(2), branch(2), ctx.sleep(random(3)), branch(2)]);
      path.push(String(result));
      if (ctx.attempt < 4) {
        throw new Error("again");
      }
    });
    const local = fake(wl);
    await flow.push();
    await local.drain();
    local.restore();
    const complete = paths.filter((path) => path.some((place) => place.includes(",")));
    assert.equal(complete.length, 4);
    for (const path of paths) {
      assert.deepEqual(path, complete[0]?.slice(0, path.length), `round ${round}`);
    }
  }
});

test("a refused operation fails its job and no other", async () => {
  const { wl, bodies } = counting("/journal");
  const name = queue();
  const good = wl.workflow("good", { queue: name }, async (ctx) => ctx.step("fine", () => 1));
  const bad = wl.workflow("bad", { queue: name }, async (ctx) => ctx.step("x".repeat(1_000), () => 1));
  const handles = await wl.many([
    ...(await Promise.all(Array.from({ length: 20 }, () => good.request()))),
    await bad.request(),
    ...(await Promise.all(Array.from({ length: 19 }, () => good.request()))),
  ]);
  const worker = wl.worker({ concurrency: 40 });
  await worker.start();
  const [refused] = handles.splice(20, 1);
  await assert.rejects(refused?.wait() ?? Promise.resolve(), { code: "invalid_field" });
  assert.deepEqual(new Set(await Promise.all(handles.map((handle) => handle.wait()))), new Set([1]));
  assert.ok(bodies.some((body) => body.includes("xxx") && body.includes("fine")));
  await worker.stop();
});

test("a workflow with a refused operation undoes its steps", async () => {
  const undone: unknown[] = [];
  const { job } = await runOne(real.client(), async (ctx) => {
    await ctx.step("first", () => 7, { undo: (result) => undone.push(result) });
    await ctx.step("x".repeat(1_000), () => 1);
  });
  assert.deepEqual([job.error?.code, job.attempt, undone], ["invalid_field", 1, [7]]);
});

test("a workflow that waits is not held by the worker", async () => {
  const { job, statistics, handle } = await runOne(
    real.client(),
    async (ctx) => {
      const [, data] = await Promise.all([ctx.sleep("100ms"), ctx.waitForEvent("go")]);
      return data;
    },
    async (id) => {
      await until("the wait", async () => (await real.client().handle(id).get()).state === "waiting");
      await real.client().handle(id).send("go", [1, null]);
    },
  );
  assert.deepEqual(job.result, [1, null]);
  assert.equal(job.attempt, 1);
  assert.ok(statistics.suspended >= 1);
  assert.ok((await history(real.client(), handle.id)).includes("suspended"));
});

test("a cancellation aborts the signal of a step, and nothing is undone", async () => {
  const wl = real.client();
  const steps: string[] = [];
  const { job } = await runOne(
    wl,
    async (ctx) => {
      await ctx.step("one", () => steps.push("one"), { undo: () => steps.push("undo") });
      await ctx.step("two", async ({ signal }) => {
        steps.push("two");
        await aborted(signal);
        throw new Error("aborted");
      });
      steps.push("after");
    },
    async (id) => {
      await until("the step", () => steps.includes("two"));
      await wl.handle(id).cancel();
    },
  );
  assert.equal(job.state, "canceled");
  assert.deepEqual(steps, ["one", "two"]);
});

test("a workflow that is canceled with compensation undoes its steps and begins nothing", async () => {
  // As a server that has recorded the cancellation.
  const send: typeof fetch = async (input, init) => {
    const response = await fetch(input, init);
    if (!String(input).endsWith("/claim")) {
      return response;
    }
    const { jobs } = (await response.json()) as { jobs: { journal?: { entries: object[] } }[] };
    for (const { journal } of jobs) {
      const seq = (journal?.entries.length ?? 0) + 1;
      journal?.entries.push({
        key: "$cancel",
        op: "event",
        status: "resolved",
        seq,
        attempt: 1,
        result: { by: "Ada" },
      });
    }
    return Response.json({ jobs });
  };
  const steps: string[] = [];
  const { job, handle } = await runOne(real.client({ fetch: send }), async (ctx) => {
    const step = (name: string) => ctx.step(name, () => steps.push(name), { undo: () => steps.push(`undo ${name}`) });
    await Promise.all([step("one"), step("two")]);
    failFirst(ctx);
    await Promise.all([step("three"), ctx.sleep("1d"), ctx.spawn({ queue: "never", kind: "never" })]);
  });
  assert.equal(job.state, "canceled");
  assert.deepEqual(steps, ["one", "two", "undo two", "undo one"]);
  assert.deepEqual((await handle.journal()).map(({ key }) => key).sort(), ["one", "two", "undo/one", "undo/two"]);
});

test("a worker that stops keeps what a step has done", async () => {
  const wl = real.client();
  const steps: string[] = [];
  const running = deferred();
  const flow = wl.workflow("flow", { queue: queue() }, async (ctx) => {
    await ctx.step("one", async ({ signal }) => {
      steps.push("one");
      running.resolve();
      await aborted(signal);
      // Cleaning up takes a while.
      for (let turn = 0; turn < 50; turn++) {
        await new Promise(setImmediate);
      }
      return 1;
    });
    return ctx.step("two", () => steps.push("two"));
  });
  const first = wl.worker({ drain: 0 });
  await first.start();
  const handle = await flow.push();
  await running.promise;
  await first.stop();
  const second = wl.worker();
  await second.start();
  assert.equal(await handle.wait(), 2);
  assert.deepEqual(steps, ["one", "two"]);
  assert.equal((await handle.get()).attempt, 1);
  await second.stop();
});

test("null is a result, and a snooze in a step snoozes the job", async () => {
  let executions = 0;
  const { job } = await runOne(real.client(), async (ctx) => {
    const nothing = await ctx.step("nothing", () => {});
    await ctx.step("later", () => {
      executions += 1;
      if (executions === 1) {
        throw new Snooze("10ms");
      }
    });
    failFirst(ctx);
    return [nothing, executions];
  });
  assert.deepEqual(job.result, [null, 2]);
});

test("a child is typed, awaited alone, and fails its parent", async () => {
  const wl = real.client();
  const name = queue();
  const half = wl.job("half", { queue: name, unique: true }, (_ctx, { n }: { n: number }) => {
    if (n % 2 === 1) {
      throw new Fail("odd", { code: "odd" });
    }
    return { half: n / 2 };
  });
  const { job } = await runOne(wl, async (ctx) => {
    const { half: two } = await ctx.spawn(half, { n: 4 }, { key: "first", tags: ["child"] });
    const started = ctx.spawn(half, { n: 6 });
    const [three, outcome] = [await started, await ctx.spawn(half, { n: 3 }).outcome()];
    const caught = await ctx.gather([ctx.spawn(half, { n: 5 })]).catch((error: ChildFailed) => error.code);
    return [two, three.half, outcome.state, outcome.error?.code, caught, await ctx.gather([])] as const;
  });
  assert.deepEqual(job.result, [2, 3, "failed", "odd", "odd", []]);
});

test("a fork repeats a workflow from one of its steps", async () => {
  const wl = real.client();
  const steps: string[] = [];
  const flow = wl.workflow("flow", { queue: queue() }, async (ctx, factor: number) => {
    const value = await ctx.step("value", () => steps.push("value"));
    return ctx.step("product", () => steps.push("product") && value * factor);
  });
  const worker = wl.worker();
  await worker.start();
  const handle = await flow.push(10);
  assert.equal(await handle.wait(), 10);
  const fork = await handle.fork("product", 20);
  assert.equal(await fork.wait(), 20);
  assert.deepEqual(steps, ["value", "product", "product"]);
  await worker.stop();
});

test("the nodes of a run get the results of their needs", async () => {
  const wl = real.client();
  const name = queue();
  const text = wl.job("text", { queue: name }, (_ctx, length: number) => "x".repeat(length));
  const join = wl.job("join", { queue: name }, async (ctx) => {
    const large = await ctx.input<string>("large");
    return [ctx.inputs["small"], large.length, typeof ctx.inputs["large"], await ctx.input("other")];
  });
  const failing = wl.job("failing", { queue: name }, () => {
    throw new Fail("no");
  });
  const run = await wl.startRun({ name: "report", nodes: { small: text.node(3), large: text.node(100_000) } });
  await run.add({ join: join.node(undefined, { needs: ["small", "large"] }) });
  const worker = wl.worker();
  await worker.start();
  const { state, counts, nodes } = await run.wait();
  assert.deepEqual([state, counts.succeeded, nodes?.length], ["succeeded", 3, 3]);
  assert.deepEqual((await run.nodes["join"]?.get())?.result, ["xxx", 100_000, "object", null]);
  const failed = await wl.startRun({ nodes: { bad: failing.node(), never: join.node(undefined, { needs: ["bad"] }) } });
  await assert.rejects(wl.run(failed.id).wait(), (error: RunFailed) => /failed: bad: no$/.test(error.message));
  assert.equal((await failed.signal()).kind, "failed");
  const again = await failed.retry();
  await again.cancel();
  await assert.rejects(again.wait({ timeout: "30s" }), RunFailed);
  await worker.stop();
});
