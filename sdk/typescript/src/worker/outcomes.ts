/** Unsettled outcomes: kept until the server has confirmed them, and sent in batches. Called by `Session`. */

import type { ClaimedJob } from "../wire.js";

/** Outcomes per settle request, equal to the server's limit. */
const MAX_BATCH_OUTCOMES = 4_000;
/** Characters of JSON per request. In UTF-8 they stay below the server's limit for a body, 16 MiB. */
const MAX_BATCH_CHARACTERS = 5 << 20;
/** Longest error code, equal to the server's limit. */
const MAX_CODE_BYTES = 128;
/** Longest result, equal to the server's limit. */
export const MAX_RESULT_BYTES = 1 << 20;
const REFUSED = "outcome_refused";

/** How an attempt ends. */
export type OutcomeKind = "finish" | "fail" | "cancel" | "snooze" | "release" | "suspend" | "continue_as";

/** The outcome of one attempt. */
export interface Outcome {
  jobId: string;
  epoch: number;
  kind: OutcomeKind;
  /** The error of a failure. */
  code?: string;
  message?: string;
  retryable?: boolean;
  /** The element of the settle request. */
  json: string;
}

type Attempt = Pick<ClaimedJob, "id" | "epoch">;

/** An outcome without a result or an error. `members` starts with a comma. */
export function plain(attempt: Attempt, kind: Exclude<OutcomeKind, "finish" | "fail">, members = ""): Outcome {
  return { jobId: attempt.id, epoch: attempt.epoch, kind, json: `${head(attempt, kind)}${members}}` };
}

/** A success. Fails the job instead if the result is not JSON or too large. */
export function finish(attempt: Attempt, result: unknown, facts: Record<string, unknown> | undefined): Outcome {
  let json: string | undefined;
  try {
    json = JSON.stringify(result);
  } catch (error) {
    return fail(attempt, "result_not_json", (error as Error).message, false);
  }
  const bytes = json === undefined ? 0 : bytesOf(json);
  if (bytes > MAX_RESULT_BYTES) {
    const message = `The result has ${bytes} bytes; the limit is ${MAX_RESULT_BYTES}. Store it as an artifact.`;
    return fail(attempt, "result_too_large", message, false);
  }
  const members = json === undefined || json === "null" ? "" : `,"result":${json}`;
  const withFacts = facts === undefined ? "" : `,"facts":${JSON.stringify(facts)}`;
  const { id: jobId, epoch } = attempt;
  return { jobId, epoch, kind: "finish", json: `${head(attempt, "finish")}${members}${withFacts}}` };
}

/** The size of a result in UTF-8, or its length if that is small. */
export function bytesOf(json: string): number {
  return json.length * 3 > MAX_RESULT_BYTES ? Buffer.byteLength(json) : json.length;
}

/** A failure. */
export function fail(attempt: Attempt, code: string, message: string, retryable: boolean): Outcome {
  const error = { code: validCode(code), message, retryable };
  const json = `${head(attempt, "fail")},"error":${JSON.stringify(error)}}`;
  return { jobId: attempt.id, epoch: attempt.epoch, kind: "fail", code, message, retryable, json };
}

function head({ id, epoch }: Attempt, kind: OutcomeKind): string {
  return `{"job_id":"${id}","epoch":${epoch},"outcome":"${kind}"`;
}

/** Makes a code acceptable to the server: an invalid one must not cost the job its next attempt. */
function validCode(code: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is replaced.
  let valid = code.replace(/[\u0000-\u001f\u007f-\u009f]/g, " ").slice(0, MAX_CODE_BYTES);
  while (Buffer.byteLength(valid) > MAX_CODE_BYTES) valid = valid.slice(0, -1);
  return valid.toWellFormed() || "error";
}

/** Takes what fits into a request out of a queue. */
export function takeBatch<Item extends { json: string }>(queue: Item[], max: number): Item[] {
  let characters = 0;
  const isTooMuch = ({ json }: Item, index: number): boolean => {
    characters += json.length;
    return index === max || (index > 0 && characters > MAX_BATCH_CHARACTERS);
  };
  const end = queue.findIndex(isTooMuch);
  return queue.splice(0, end < 0 ? queue.length : end);
}

/** The queue of unsettled outcomes. */
export class Outcomes {
  #unsent: Outcome[] = [];
  /** Halves of batches that the server rejected, to be sent separately. */
  #split: Outcome[][] = [];

  push(outcome: Outcome): void {
    this.#unsent.push(outcome);
  }

  get length(): number {
    return this.#split.reduce((sum, batch) => sum + batch.length, this.#unsent.length);
  }

  has(jobId: string): boolean {
    return [...this.#split, this.#unsent].some((batch) => batch.some((outcome) => outcome.jobId === jobId));
  }

  /** Takes the outcomes of the next request. */
  nextBatch(): Outcome[] {
    return this.#split.shift() ?? takeBatch(this.#unsent, MAX_BATCH_OUTCOMES);
  }

  /** Takes back a batch that got no answer. */
  returnBatch(batch: Outcome[]): void {
    this.#split.unshift(batch);
  }

  /**
   * Handles a batch that the server rejected. It is halved until the invalid outcome is alone, so that it does not block
   * the others. Its attempt then fails, which the server accepts. Returns an outcome that is lost for good.
   */
  onRefused(batch: Outcome[], reason: string): Outcome | undefined {
    const middle = Math.ceil(batch.length / 2);
    if (batch.length > 1) {
      this.#split.unshift(batch.slice(0, middle), batch.slice(middle));
      return undefined;
    }
    const outcome = batch[0];
    if (outcome === undefined || outcome.code === REFUSED) return outcome;
    const message = `The worker's outcome was rejected: ${reason}`;
    const attempt = { id: outcome.jobId, epoch: outcome.epoch };
    this.#split.unshift([fail(attempt, REFUSED, message, outcome.retryable ?? false)]);
    return undefined;
  }
}
