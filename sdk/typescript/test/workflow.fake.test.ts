/** Workflows against the fake server: virtual time, events, approvals, children, undo steps. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { ApiError, Fail, type StepFailed, Windlass } from "windlass";
import { type Fake, fake } from "windlass/testing";

let server: Fake;
afterEach(() => server.restore());

test("a workflow runs during its push, and sleeps take no time", async () => {
  const wl = new Windlass();
  const executed: string[] = [];
  const remind = wl.workflow("remind", {}, async (ctx, { user }: { user: string }) => {
    await ctx.step("welcome", () => executed.push("welcome"));
    await ctx.sleep("3d");
    await ctx.step("remind", () => executed.push("remind"));
    return `reminded ${user}`;
  });
  server = fake(wl, { inline: true });
  const before = server.now.getTime();
  const handle = await remind.push({ user: "Ada" });
  assert.equal(await handle.wait(), "reminded Ada");
  assert.deepEqual(executed, ["welcome", "remind"]);
  assert.equal(server.now.getTime() - before, 3 * 86_400_000);
  assert.equal(server.jobs[0]?.view.attempt, 1);
});

test("an event, an approval and their timeouts", async () => {
  const wl = new Windlass();
  const order = wl.workflow("order", {}, async (ctx) => {
    const paid = await ctx.waitForEvent<{ amount: number }>("paid", { match: { order: 7 } });
    const ship = await ctx.approval("ship", { timeout: "2d" });
    const later = await ctx.waitForEvent("later", { timeout: "1h" });
    return [paid.amount, ship, later === undefined] as const;
  });
  server = fake(wl);
  const handle = await order.push();
  await server.drain();
  assert.equal((await handle.get()).state, "waiting");
  await assert.rejects(handle.wait(), (error: ApiError) => /waits for event "paid"/.test(error.message));
  await handle.send("paid", { order: 6, amount: 1 });
  await handle.send("paid", { order: 7, amount: 90 });
  await server.drain();
  await assert.rejects(handle.approve("other"), ApiError);
  await handle.approve("ship", { note: "fine" });
  await server.drain();
  server.advance("1h");
  const [amount, ship, isTimeout] = await handle.wait();
  assert.deepEqual([amount, isTimeout], [90, true]);
  assert.deepEqual(ship, { approved: true, timedOut: false, by: "fake", note: "fine", at: ship.at });
});

test("children run, also those that wait, and undo steps run in the reverse order", async () => {
  const wl = new Windlass();
  const undone: unknown[] = [];
  const check = wl.workflow("check", {}, async (ctx, n: number) => {
    const { approved, timedOut } = await ctx.approval("fine", { timeout: "1d" });
    return timedOut ? n : approved;
  });
  const square = wl.job("square", {}, (_ctx, n: number) => n * n);
  const parent = wl.workflow("parent", {}, async (ctx) => {
    const squares = await ctx.gather([1, 2, 3].map((n) => ctx.spawn(square, n)));
    const [checked, nine] = await ctx.gather([ctx.spawn(check, 4), ctx.spawn(square, 3)]);
    await ctx.step("one", () => 1, { undo: (result, { key }) => undone.push([key, result]) });
    await ctx.step("two", () => 2, { undo: (result, { key }) => undone.push([key, result]) });
    await ctx.publish("checked", { checked });
    throw new Fail(`${squares} ${checked} ${nine}`);
  });
  server = fake(wl);
  const handle = await parent.push();
  await server.drain();
  assert.equal((await handle.get()).state, "waiting");
  server.advance("1d");
  await assert.rejects(handle.wait(), /1,4,9 4 9$/);
  assert.deepEqual(undone, [
    ["undo/two", 2],
    ["undo/one", 1],
  ]);
  assert.deepEqual(server.published, [{ topic: "checked", data: { checked: 4 } }]);
  assert.deepEqual(
    (await handle.journal()).map(({ key }) => key),
    ["square", "check", "one", "two", "checked", "undo/two", "undo/one"],
  );
});

test("a step is retried, and continueAs starts a successor", async () => {
  const wl = new Windlass();
  let executions = 0;
  const loop = wl.workflow("loop", {}, async (ctx, { round }: { round: number }) => {
    const failing = ctx.step(
      "work",
      () => {
        executions += 1;
        throw new Error("boom");
      },
      { retry: { attempts: 3, initial: "1h" } },
    );
    const code = await failing.catch((error: StepFailed) => `${error.key}: ${error.message}`);
    return round === 2 ? code : ctx.continueAs({ round: round + 1 });
  });
  server = fake(wl);
  const handle = await loop.push({ round: 1 });
  assert.equal(await handle.wait(), "work: boom");
  assert.equal(executions, 6);
  assert.deepEqual(server.pushed(loop), [{ round: 1 }, { round: 2 }]);
});

test("an undo step that fails does not keep the others from running", async () => {
  const wl = new Windlass();
  const undone: string[] = [];
  const trip = wl.workflow("trip", {}, async (ctx) => {
    await ctx.step("flight", () => "LX8", { undo: (flight) => undone.push(flight) });
    await ctx.step("hotel", () => "Adler", {
      undo: () => {
        throw new Fail("no answer");
      },
    });
    throw new Fail("no car", { code: "no_car" });
  });
  server = fake(wl);
  const handle = await trip.push();
  await assert.rejects(handle.wait(), { code: "no_car", message: /no car; undo of hotel failed: no answer$/ });
  assert.deepEqual(undone, ["LX8"]);
  assert.equal((await handle.journal()).find(({ key }) => key === "undo/hotel")?.error?.message, "no answer");
});

test("operations that nothing awaits neither suspend the workflow nor keep it from ending", async () => {
  const wl = new Windlass();
  const flow = wl.workflow("flow", {}, async (ctx) => {
    const pause = ctx.sleep("1h");
    const failing = ctx.step("failing", () => {
      throw new Fail("not awaited");
    });
    void ctx.publish("topic", 7);
    const first = await Promise.race([ctx.step("fine", () => 1), pause, failing.catch(() => 2)]);
    return first;
  });
  server = fake(wl);
  const before = server.now.getTime();
  const handle = await flow.push();
  assert.ok([1, 2].includes((await handle.wait()) as number));
  assert.equal(server.now.getTime(), before);
  assert.deepEqual(server.published, [{ topic: "topic", data: 7 }]);
});

test("a job that is started by code in a scope has no scope", async () => {
  const wl = new Windlass();
  const child = wl.workflow("child", {}, async (ctx) => ctx.step("inner", () => 1));
  const parent = wl.workflow("parent", {}, async (ctx) =>
    ctx.scope("outer", async () => {
      await ctx.step("push", async () => (await child.push()).id);
      return ctx.scope("nested", () => ctx.step("last", () => 2));
    }),
  );
  server = fake(wl, { inline: true });
  await parent.push();
  const keys = await Promise.all(server.jobs.map(({ view }) => wl.handle(view.id).journal()));
  assert.deepEqual(
    keys.map((entries) => entries.map(({ key }) => key)),
    [["outer/push", "outer/nested/last"], ["inner"]],
  );
});
