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

  // @ts-expect-error a unit is missing
  wl.job("late", { timeout: "5" });
  // @ts-expect-error there is no such option
  wl.job("wrong", { attempts: 5 });
  assertType<Equal<JsonResult<undefined>, null>>();
  assertType<Equal<JsonResult<void>, null>>();
  assertType<Equal<JsonResult<{ at: Date[]; run: () => void }>, { at: string[] }>>();
}

test("types are checked by the compiler", () => {});
