/** Runs one attempt: schema, middleware and handler. Called by `Session` and by the fake client of `windlass/testing`. */

import { verdictOf } from "../errors.js";
import type { Job } from "../job.js";
import { InvalidPayload, parse } from "../schema.js";
import type { Middleware } from "../windlass.js";
import type { Context } from "./context.js";
import { fail, finish, type Outcome, plain } from "./outcomes.js";

/** Longest message of an error, in characters. The server cuts at 16 KiB. */
const MAX_MESSAGE = 16 << 10;

/** Runs a handler and returns the outcome. Never rejects. */
export async function execute(job: Job | undefined, middleware: Middleware[], context: Context): Promise<Outcome> {
  let outcome: Outcome;
  try {
    const result = await invoke(job, middleware, context);
    outcome = finish(context.job, result, context.takeFacts());
  } catch (error) {
    outcome = outcomeOf(error, context);
  }
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

function outcomeOf(error: unknown, context: Context): Outcome {
  const verdict = verdictOf(error);
  switch (verdict?.outcome) {
    case "snooze":
      return plain(context.job, "snooze", `,"delay_s":${verdict.delay_s}`);
    case "cancel":
      return plain(context.job, "cancel");
    case "fail":
      return fail(context.job, verdict.code, messageOf(error), verdict.retryable);
    default:
      break;
  }
  if (error instanceof InvalidPayload) return fail(context.job, "invalid_payload", error.message, false);
  if (error instanceof Error && !context.signal.aborted) context.log(textOf(error.stack));
  return fail(context.job, codeOf(error), messageOf(error), true);
}

/** `ECONNREFUSED` of a system error, else the name of the class. */
function codeOf(error: unknown): string {
  if (!(error instanceof Error)) return "error";
  const { code } = error as { code?: unknown };
  const name = textOf(error.name);
  return typeof code === "string" && code !== "" ? code : name === "Error" ? "error" : name;
}

/** The messages of an error and of its causes. */
function messageOf(error: unknown): string {
  const messages: string[] = [];
  for (let current = error; current !== undefined && current !== null && messages.length < 10; ) {
    messages.push(textOf(current instanceof Error ? current.message : current));
    current = current instanceof Error ? current.cause : undefined;
  }
  return messages.join(": ").slice(0, MAX_MESSAGE);
}

/** Anything can be thrown, also an object that has no text. */
function textOf(value: unknown): string {
  try {
    return String(value);
  } catch {
    return typeof value;
  }
}
