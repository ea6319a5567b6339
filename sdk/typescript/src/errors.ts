/** Errors that handlers throw to decide the outcome of an attempt, and errors that calls to the server reject with. */

import { type Duration, toSeconds } from "./duration.js";
import type { JobError, JobState, JobView, Problem, RunView } from "./wire.js";

/** What a handler's error means for its job. */
export type Verdict =
  | { outcome: "fail"; code: string; retryable: boolean }
  | { outcome: "snooze"; delay_s: number }
  | { outcome: "cancel" };

// A registered symbol instead of `instanceof`: the ESM and the CommonJS build may both be loaded in one process.
const VERDICT = Symbol.for("windlass.verdict");

/** The base class of `Retry`, `Fail`, `Snooze` and `Cancel`. */
export abstract class HandlerError extends Error {
  /** @internal */
  readonly [VERDICT]: Verdict;

  /** @internal */
  constructor(message: string, verdict: Verdict, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this[VERDICT] = verdict;
  }
}

/** Options of `Retry` and `Fail`. */
export interface HandlerErrorOptions extends ErrorOptions {
  /** A stable code. Failures are grouped by it. Default: `retry` or `failed`. */
  code?: string;
}

/** The attempt failed and the job is retried by its policy. Ordinary errors do the same, with their name as the code. */
export class Retry extends HandlerError {
  constructor(message: string, { code = "retry", ...options }: HandlerErrorOptions = {}) {
    super(message, { outcome: "fail", code, retryable: true }, options);
  }
}

/** The job can never succeed: it fails without further attempts. */
export class Fail extends HandlerError {
  constructor(message: string, { code = "failed", ...options }: HandlerErrorOptions = {}) {
    super(message, { outcome: "fail", code, retryable: false }, options);
  }
}

/** The job runs again after a delay. The attempt does not count. */
export class Snooze extends HandlerError {
  constructor(delay: Duration) {
    const delay_s = toSeconds(delay);
    super(`snoozed for ${delay_s} s`, { outcome: "snooze", delay_s });
  }
}

/** The handler cancels its own job. */
export class Cancel extends HandlerError {
  constructor(message = "canceled by its handler") {
    super(message, { outcome: "cancel" });
  }
}

/** A step of a workflow has failed for good. If the workflow does not catch it, the job fails without further attempts. */
export class StepFailed extends HandlerError {
  /** The key of the step. */
  readonly key: string;
  /** The code of the error. */
  readonly code: string;

  /** @internal */
  constructor(key: string, code: string, message: string) {
    super(message || code, { outcome: "fail", code, retryable: false });
    this.key = key;
    this.code = code;
  }
}

/** A child of a workflow failed or was canceled. If the workflow does not catch it, the job fails with the child's code. */
export class ChildFailed extends HandlerError {
  /** The child's id. */
  readonly id: string;
  /** `failed` or `canceled`. */
  readonly state: JobState;
  /** The code of the child's error, or `canceled`. */
  readonly code: string;

  /** @internal */
  constructor(id: string, state: JobState, error: JobError | undefined) {
    const code = state === "canceled" ? "canceled" : (error?.code ?? "failed");
    super(`child ${id} ${state}: ${error?.message || code}`, { outcome: "fail", code, retryable: false });
    this.id = id;
    this.state = state;
    this.code = code;
  }
}

/** Returns the verdict of an error that a handler threw. */
export function verdictOf(error: unknown): Verdict | undefined {
  return typeof error === "object" && error !== null ? (error as Partial<HandlerError>)[VERDICT] : undefined;
}

/** A problem document. One that the SDK creates for an answer without one has these members only. */
export type ProblemMembers = Pick<Problem, "status" | "code" | "detail"> & Partial<Problem>;

/** The server rejected a request. `code` is stable; `message` is for people. */
export class ApiError extends Error {
  /** The HTTP status. */
  readonly status: number;
  /** The stable code of the problem. */
  readonly code: string;
  /** The member, query parameter or header at fault. */
  readonly field: string | undefined;
  /** The problem document. */
  readonly problem: ProblemMembers;
  /** @internal False if the answer had no problem document, so that it comes from a proxy. */
  readonly isDocumented: boolean;
  /** Seconds after which the server asks for a repetition. */
  readonly retryAfterS: number | undefined;

  /** @internal */
  constructor(problem: ProblemMembers, isDocumented: boolean, retryAfterS: number | undefined) {
    super(problem.detail);
    this.name = "ApiError";
    this.status = problem.status;
    this.code = problem.code;
    this.field = problem.field ?? undefined;
    this.problem = problem;
    this.isDocumented = isDocumented;
    this.retryAfterS = retryAfterS;
  }
}

/** No answer arrived. `sent` is false if the server could not be reached, so that nothing was changed. */
export class ConnectionError extends Error {
  /** True if the request may have been applied. */
  readonly sent: boolean;

  /** @internal */
  constructor(message: string, sent: boolean, cause: unknown) {
    super(message, { cause });
    this.name = "ConnectionError";
    this.sent = sent;
  }
}

/** `JobHandle.wait` rejects with this error when the job failed or was canceled. */
export class JobFailed extends Error {
  /** The job's id. */
  readonly id: string;
  /** `failed` or `canceled`. */
  readonly state: "failed" | "canceled";
  /** The code of the error, or `canceled`. */
  readonly code: string;
  /** The job as it ended. */
  readonly job: JobView;

  /** @internal */
  constructor(job: JobView) {
    const reason = job.state === "canceled" ? "was canceled" : `failed: ${job.error?.message || job.error?.code}`;
    super(`job ${job.id} (${job.kind}) ${reason}`);
    this.name = "JobFailed";
    this.id = job.id;
    this.state = job.state === "canceled" ? "canceled" : "failed";
    this.code = job.state === "canceled" ? "canceled" : (job.error?.code ?? "failed");
    this.job = job;
  }
}

/** `RunHandle.wait` rejects with this error when the run failed or was canceled. */
export class RunFailed extends Error {
  /** The run as it ended. */
  readonly run: RunView;

  /** @internal */
  constructor(run: RunView) {
    const failed = run.nodes?.find(({ state }) => state === "failed");
    const reason = failed === undefined ? "" : `: ${failed.name}: ${failed.error?.message || failed.error?.code}`;
    super(`run ${run.id} ${run.state}${reason}`);
    this.name = "RunFailed";
    this.run = run;
  }
}

/** `wait` rejects with this error when the job or the run has not ended in time. It continues. */
export class WaitTimeout extends Error {
  /** @internal */
  constructor(id: string, timeoutS: number, what = "job") {
    super(`${what} ${id} has not ended within ${timeoutS} s`);
    this.name = "WaitTimeout";
  }
}

/** A worker that the server does not know, for example after a restore, has no lease either. */
export function isLeaseExpired(error: unknown): boolean {
  if (!(error instanceof ApiError)) return false;
  return error.code === "worker_gone" || (error.code === "not_found" && error.isDocumented);
}

/**
 * What a client can do about a failed request. `gone`: the worker's lease has expired; register again. `refused`: a
 * repetition of the request is pointless. `unavailable`: nothing was changed; repeat later. `unanswered`: the request may
 * have been applied.
 */
export type FailureKind = "gone" | "refused" | "unavailable" | "unanswered";

/** Classifies a rejected request. */
export function classify(error: unknown): FailureKind {
  if (error instanceof ConnectionError) return error.sent ? "unanswered" : "unavailable";
  if (!(error instanceof ApiError)) return "refused";
  const { status, code } = error;
  if (status === 408 || status === 425 || status === 429) return "unavailable";
  // A proxy answers 404 while the server is away. A body that is too large for it remains too large.
  if (!error.isDocumented) return status === 413 ? "refused" : "unanswered";
  if (code === "body_broken_off") return "unanswered";
  if (status === 410) return "gone";
  if (status === 503 && (code === "unavailable" || code === "shutting_down")) return "unavailable";
  return status >= 500 ? "unanswered" : "refused";
}
