/** What an error that a handler threw means: the outcome of its attempt, or the error of a step. */

import { verdictOf } from "../errors.js";
import { InvalidPayload } from "../schema.js";
import type { JobError } from "../wire.js";
import type { Context } from "./context.js";
import { fail, type Outcome, plain } from "./outcomes.js";

/** Longest message of an error, in characters. The server cuts at 16 KiB. */
const MAX_MESSAGE = 16 << 10;

/** The outcome of an attempt with a handler that threw. */
export function outcomeOf(error: unknown, context: Context): Outcome {
  const verdict = verdictOf(error);
  if (verdict?.outcome === "snooze") return plain(context.job, "snooze", `,"delay_s":${verdict.delay_s}`);
  if (verdict?.outcome === "cancel") return plain(context.job, "cancel");
  const { code, message, retryable } = errorOf(error);
  const isUnexpected = verdict === undefined && retryable && error instanceof Error;
  if (isUnexpected && !context.signal.aborted) context.log(textOf(error.stack));
  return fail(context.job, code, message, retryable);
}

/** The error as the API has it. */
export function errorOf(error: unknown): Required<JobError> {
  const verdict = verdictOf(error);
  const { code = codeOf(error), retryable = true } = verdict?.outcome === "fail" ? verdict : {};
  if (error instanceof InvalidPayload) return { code: "invalid_payload", message: error.message, retryable: false };
  return { code, message: messageOf(error), retryable };
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
