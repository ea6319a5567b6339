/** The types that users see. The compiler checks them; nothing runs. */

import { test } from "node:test";
import * as v from "valibot";
import type { Job, JobHandle, JsonResult, Windlass } from "windlass";
import { z } from "zod";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function assertType<_T extends true>(): void {}

export function types(wl: Windlass): void {
  const resize = wl.job(
    "resize",
    { input: z.object({ width: z.string().transform(Number), format: z.string().default("png") }) },
    async (_ctx, payload) => {
      assertType<Equal<typeof payload, { width: number; format: string }>>();
      return { at: new Date(), width: payload.width };
    },
  );
  // A producer passes the schema's input, and receives the result as JSON.
  assertType<
    Equal<typeof resize, Job<{ width: string; format?: string | undefined }, { at: string; width: number }>>
  >();
  assertType<Equal<Awaited<ReturnType<typeof resize.push>>, JobHandle<{ at: string; width: number }>>>();
  void resize.push({ width: "7" });
  // @ts-expect-error a number is not the schema's input
  void resize.push({ width: 7 });
  // @ts-expect-error the payload is required
  void resize.push();

  const greet = wl.job("greet", { input: v.object({ name: v.string() }), unique: ({ name }) => name }, () => {});
  assertType<Equal<typeof greet, Job<{ name: string }, null>>>();

  const typed = wl.job("typed", { tags: ({ n }) => [`n${n}`] }, (_ctx, payload: { n: number }) => payload.n);
  assertType<Equal<typeof typed, Job<{ n: number }, number>>>();

  const elsewhere = wl.job<{ n: number }, string>("elsewhere");
  assertType<Equal<typeof elsewhere, Job<{ n: number }, string>>>();

  const nothing = wl.job("nothing", {}, () => "done");
  void nothing.push();

  const order = wl.workflow(
    "order",
    { input: z.object({ id: z.coerce.number() }), strict: true },
    async (ctx, input) => {
      assertType<Equal<typeof input, { id: number }>>();
      const paid = await ctx.step("charge", () => ({ at: new Date(), amount: 90 }), {
        undo: (result) => assertType<Equal<typeof result, { at: string; amount: number }>>(),
      });
      assertType<Equal<typeof paid, { at: string; amount: number }>>();
      const event = await ctx.waitForEvent<{ n: number }>("event");
      assertType<Equal<typeof event, { n: number }>>();
      const late = await ctx.waitForEvent<{ n: number }>("event", { timeout: "1h" });
      assertType<Equal<typeof late, { n: number } | undefined>>();
      const both = await ctx.gather([ctx.spawn(typed, { n: 1 }), ctx.spawn(greet, { name: "Ada" })]);
      assertType<Equal<typeof both, [number, null]>>();
      const [settled] = await ctx.gather([ctx.spawn(typed, { n: 1 }, { tags: ["a"] })], { settled: true });
      assertType<Equal<(typeof settled)["result"], number | undefined>>();
      // @ts-expect-error the payload is required
      ctx.spawn(typed);
      // @ts-expect-error a child has no unique key
      ctx.spawn(nothing, undefined, { uniqueKey: "a" });
      return event.n === 7 ? ctx.continueAs({ id: 8 }) : { paid };
    },
  );
  assertType<Equal<typeof order, Job<{ id: unknown }, { paid: { at: string; amount: number } }>>>();
  void wl.startRun({
    nodes: { a: typed.node({ n: 7 }), b: greet.node({ name: "Ada" }, { needs: ["a"], when: "always" }) },
  });
  // @ts-expect-error the options of workflows are not those of jobs
  wl.job("strict", { strict: true }, () => {});

  // @ts-expect-error a unit is missing
  wl.job("late", { timeout: "5" });
  // @ts-expect-error there is no such option
  wl.job("wrong", { attempts: 5 });
  assertType<Equal<JsonResult<undefined>, null>>();
  assertType<Equal<JsonResult<void>, null>>();
  assertType<Equal<JsonResult<{ at: Date[]; run: () => void }>, { at: string[] }>>();
}

test("types are checked by the compiler", () => {});
