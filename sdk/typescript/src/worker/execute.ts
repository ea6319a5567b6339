/** Runs one attempt: schema, middleware and handler. Called by `Session` and by the fake client of `windlass/testing`. */

import type { Job } from "../job.js";
import { parse } from "../schema.js";
import type { Middleware } from "../windlass.js";
import type { ClaimedJob } from "../wire.js";
import { WorkflowContext } from "../workflow/context.js";
import type { JournalWriter } from "../workflow/writer.js";
import { Context, type Uplink } from "./context.js";
import { outcomeOf } from "./failures.js";
import { finish, type Outcome } from "./outcomes.js";

/** The context of an attempt. */
export function contextOf(job: Job | undefined, claimed: ClaimedJob, uplink: Uplink, journal: JournalWriter): Context {
  const strict = job?.strict;
  return strict === undefined ? new Context(claimed, uplink) : new WorkflowContext(claimed, uplink, journal, strict);
}

/** Runs a handler and returns the outcome. Never rejects. */
export async function execute(job: Job | undefined, middleware: Middleware[], context: Context): Promise<Outcome> {
  const run = async (): Promise<Outcome> =>
    finish(context.job, await invoke(job, middleware, context), context.takeFacts());
  const outcome =
    context instanceof WorkflowContext
      ? await context.run(run)
      : await run().catch((error: unknown) => outcomeOf(error, context));
  await context.end();
  return outcome;
}

async function invoke(job: Job | undefined, middleware: Middleware[], context: Context): Promise<unknown> {
  const handler = job?.handler as ((ctx: Context, payload: unknown) => unknown) | undefined;
  if (job === undefined || handler === undefined) {
    throw new Error(`this worker has no handler for the kind ${JSON.stringify(context.kind)}`);
  }
  const payload = job.input === undefined ? context.job.payload : await parse(job.kind, job.input, context.job.payload);
  if (middleware.length === 0) return handler(context, payload);
  const run = async (index: number): Promise<unknown> => {
    const layer = middleware[index];
    return layer === undefined ? handler(context, payload) : layer(context, () => run(index + 1));
  };
  return run(0);
}
