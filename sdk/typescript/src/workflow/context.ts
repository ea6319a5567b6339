/** What the handler of a workflow receives: durable steps, sleeps, events, approvals, children and events to publish. */

import { AsyncLocalStorage } from "node:async_hooks";
import { createHash } from "node:crypto";
import { sleep } from "../backoff.js";
import { type Duration, toSeconds } from "../duration.js";
import { classify, Fail, StepFailed, verdictOf } from "../errors.js";
import { readJournal } from "../handle.js";
import { Job, type PushOptions, type PushParameters, type RetryPolicy } from "../job.js";
import type { JsonResult } from "../schema.js";
import type { ClaimedJob, JobError, JobRequest, JournalEntry } from "../wire.js";
import { Context, type Uplink } from "../worker/context.js";
import { errorOf, outcomeOf } from "../worker/failures.js";
import { bytesOf, fail, MAX_RESULT_BYTES, type Outcome, plain } from "../worker/outcomes.js";
import { Child, type ChildOutcome, childrenOf, readTruncated, resultOfChild } from "./children.js";
import { Engine, Halted, never, type Operation, type Parts, resultOf, stepMembers } from "./engine.js";
import type { JournalWriter } from "./writer.js";

/** A longer backoff of a step is a durable sleep. */
const MAX_HELD_S = 2;

/** Maximum number of attempts of a step, and the backoff between them. */
export type StepRetry = RetryPolicy & { attempts: number };

const UNDO_RETRY: StepRetry = { attempts: 3, initial: 1 };

/** What the function of a step receives. */
export interface StepContext {
  /** The key of the step in the journal. A good idempotency key, together with the job's id. */
  readonly key: string;
  /** The number of this attempt of the step, from 1. */
  readonly attempt: number;
  /** Aborted when the job is canceled or its claim is lost, and when the workflow ends without this step. */
  readonly signal: AbortSignal;
}

/** Options of `ctx.step`. */
export interface StepOptions<Result> {
  /** Reverts the step if the workflow fails later. Undo steps run in the reverse order, as steps `undo/KEY`. */
  undo?: (result: Result, step: StepContext) => unknown;
  /** Attempts of the step within one attempt of the job. Default: the job is retried, by its policy. */
  retry?: StepRetry;
  /** Any JSON that the step depends on. A recorded step with another input is reported as drift. */
  input?: unknown;
}

/** Options of `ctx.waitForEvent`. */
export interface EventOptions {
  /** The key in the journal. Default: the name of the event. */
  key?: string;
  /** Members of the event's data that must have these values, at most 16. */
  match?: Record<string, unknown>;
  /** How long to wait. Default: without limit. */
  timeout?: Duration;
  /** `now` ignores events that were sent before. Default: `start`. */
  since?: "start" | "now";
}

/** Options of `ctx.approval`. */
export interface ApprovalOptions {
  /** What is to be approved, for people. Default: the key. */
  title?: string;
  /** More about it. */
  detail?: string;
  /** The right that the approver needs. Default: `operate`. */
  right?: string;
  /** How long to wait. Default: without limit. */
  timeout?: Duration;
}

/** The answer to `ctx.approval`. */
export interface Approval {
  /** False after a rejection and after the timeout. */
  approved: boolean;
  /** True if there was no answer in time. */
  timedOut: boolean;
  /** Who answered. */
  by: string | null;
  /** When. */
  at: string | null;
  /** The note of the answer. */
  note: string | null;
}

/** Options of `ctx.spawn`: those of a push, without unique keys. */
export interface SpawnOptions extends Omit<PushOptions, "uniqueKey" | "uniqueFor" | "idempotencyKey" | "signal"> {
  /** The key in the journal, if the child is not passed to `ctx.gather`. Default: the kind. */
  key?: string;
}

/**
 * The scope that the code runs in. One storage for all workflows, because each costs every promise of the process. The next
 * job may be started by code in a scope, so the claim is a part of it.
 */
const SCOPE = new AsyncLocalStorage<{ claim: string; prefix: string }>();

type StepFunction = (step: StepContext) => unknown;

/** The context of one attempt of a workflow. */
export class WorkflowContext extends Context {
  readonly #engine: Engine;
  readonly #uplink: Uplink;
  readonly #undos: { seq: number; key: string; undo: StepFunction }[] = [];
  #isUndoing = false;

  /** @internal */
  constructor(job: ClaimedJob, uplink: Uplink, writer: JournalWriter, isStrict: boolean) {
    super(job, uplink);
    this.#uplink = uplink;
    this.#engine = new Engine(job, writer, isStrict, (outcome) => this.#fail(outcome));
  }

  /**
   * Runs a function once and records its result. A later attempt of the job gets the recorded result and does not run the
   * function again. Rejects with `StepFailed` when the step has failed for good.
   */
  step<Returned>(
    name: string,
    run: (step: StepContext) => Promise<Returned> | Returned,
    options: StepOptions<JsonResult<Awaited<Returned>>> = {},
  ): Promise<JsonResult<Awaited<Returned>>> {
    const key = this.#keyOf(name);
    return this.#guard(() => this.#step(key, run, options)) as Promise<never>;
  }

  /** Waits for a duration or until a time. No process is needed meanwhile. */
  sleep(time: Duration | Date, key = "sleep"): Promise<void> {
    const end = time instanceof Date ? { until: time.toISOString() } : { for_s: toSeconds(time) };
    // A time is often computed from the clock.
    const operation = this.#operation("sleep", key, time instanceof Date ? null : end);
    return this.#guard(async () => void (await this.#engine.perform({ ...operation, ...end })));
  }

  /** Waits for an event that is sent to the job with `JobHandle.send`. Resolves with its data. */
  waitForEvent<Data = unknown>(name: string, options?: EventOptions & { timeout?: undefined }): Promise<Data>;
  /** With a timeout: resolves with `undefined` if the event did not arrive in time. */
  waitForEvent<Data = unknown>(name: string, options: EventOptions): Promise<Data | undefined>;
  waitForEvent(name: string, { key = name, match, timeout, since }: EventOptions = {}): Promise<unknown> {
    const timeout_s = timeout === undefined ? undefined : toSeconds(timeout);
    const operation = { ...this.#operation("event", key, { name, match }), name, match, since, timeout_s };
    return this.#guard(async () => {
      const entry = await this.#engine.perform(operation);
      return entry.error == null ? resultOf(entry) : undefined;
    });
  }

  /** Waits for the answer of a person: on the page of the job, with `windlass job approve`, or with `JobHandle.approve`. */
  approval(key: string, { title = key, detail, right, timeout }: ApprovalOptions = {}): Promise<Approval> {
    const timeout_s = timeout === undefined ? undefined : toSeconds(timeout);
    const operation = { ...this.#operation("approval", key, { title }), title, detail, right, timeout_s };
    return this.#guard(async () => {
      const entry = await this.#engine.perform(operation);
      const { approved = false, by = null, at = null, note = null } = (resultOf(entry) ?? {}) as Partial<Approval>;
      return { approved, timedOut: entry.error != null, by, at, note };
    });
  }

  /** Publishes an event on a topic, once. */
  publish(topic: string, data: unknown = {}, key: string = topic): Promise<void> {
    const operation = { ...this.#operation("publish", key, { topic, data }), topic, data };
    return this.#guard(async () => void (await this.#engine.perform(operation)));
  }

  /** Starts a job as a child. Await the result, or pass it to `gather`. */
  spawn<Input, Result>(job: Job<Input, Result>, ...parameters: PushParameters<Input, SpawnOptions>): Child<Result>;
  /** Starts a child from the members of `POST /jobs`. */
  spawn(request: JobRequest & { windlass?: never }, options?: Pick<SpawnOptions, "key">): Child;
  spawn(job: Job<unknown, unknown> | JobRequest, ...parameters: unknown[]): Child {
    const isJob = Job.isJob(job);
    const [payload, options = {}] = (isJob ? parameters : [job.payload, ...parameters]) as [unknown, SpawnOptions?];
    const { key = job.kind, ...pushed } = options;
    const request = async (): Promise<JobRequest> => {
      const { unique_key: _, unique_by, unique_for_s, ...members } = isJob ? await job.request(payload, pushed) : job;
      return members;
    };
    return new Child(key, [job.kind, payload ?? null], request, (started) => this.#start(key, [started]));
  }

  /**
   * Starts children with one operation and waits for all of them. Resolves with their results in order; with `settled`,
   * with how each of them ended, instead of rejecting if one failed. The default of `key` is the kind of the first one.
   */
  gather<Results extends readonly unknown[], Settled extends boolean = false>(
    children: readonly [...{ [K in keyof Results]: Child<Results[K]> }],
    { key, settled }: { key?: string; settled?: Settled } = {},
  ): Promise<Settled extends true ? { [K in keyof Results]: ChildOutcome<Results[K]> } : Results> {
    const created = (children as readonly Child[]).filter((child) => child.ending === undefined);
    if (created[0] !== undefined) this.#start(key ?? created[0].key, created);
    const ends = Promise.all((children as readonly Child[]).map((child) => child.outcome()));
    const gathered = ends.then((outcomes) => (settled ? outcomes : outcomes.map(resultOfChild)));
    gathered.catch(() => {});
    return gathered as Promise<never>;
  }

  /**
   * Ends this job and starts its successor with another payload and an empty journal: `return ctx.continueAs(next)`. For
   * workflows without an end.
   */
  continueAs(payload: unknown): Promise<never> {
    const json = JSON.stringify(payload ?? {});
    this.#engine.conclude(() => plain(this.job, "continue_as", `,"payload":${json}`));
    return never();
  }

  /** Puts the keys of the operations in a function below a name: `ctx.scope("order", …)` makes `order/charge`. */
  scope<T>(name: string, run: () => Promise<T>): Promise<T> {
    return SCOPE.run({ claim: `${this.id}/${this.job.epoch}`, prefix: `${this.#keyOf(name)}/` }, run);
  }

  /** @internal */
  override abort(reason: Error): void {
    super.abort(reason);
    this.#engine.halt();
  }

  /** Runs the attempt. Never rejects. @internal */
  async run(handler: () => Promise<Outcome>): Promise<Outcome> {
    const engine = this.#engine;
    try {
      const { entries = [], next_cursor: cursor } = this.job.journal ?? {};
      const others = cursor == null ? [] : await readJournal(this.#uplink.http, this.id, cursor);
      for (const entry of [...entries, ...others]) engine.learn(entry);
    } catch (error) {
      return classify(error) === "refused" ? outcomeOf(error, this) : plain(this.job, "release");
    }
    if (!engine.isEnding) {
      handler().then(
        (outcome) => engine.conclude(() => this.#settled(outcome), { waitsForSteps: outcome.kind !== "finish" }),
        (error: unknown) => this.#fail(outcomeOf(error, this)),
      );
    }
    return engine.outcome;
  }

  #fail(outcome: Outcome): void {
    this.#engine.conclude(() => this.#settled(outcome));
  }

  /** Undoes the steps of a job that fails for good, or that was canceled with `compensate`. */
  async #settled(outcome: Outcome): Promise<Outcome> {
    const isFinal = outcome.retryable === false || this.attempt >= this.maxAttempts;
    const isFailure = outcome.kind === "fail" && isFinal && outcome.code !== "workflow_drift";
    if (!isFailure && !this.#engine.isCanceled) return outcome;
    this.#isUndoing = true;
    const problems: string[] = [];
    for (const { key, undo } of this.#undos.sort((one, other) => other.seq - one.seq)) {
      try {
        await this.#step(`undo/${key}`, undo, { retry: UNDO_RETRY });
      } catch (error) {
        if (error instanceof Halted) throw error;
        problems.push(`undo of ${key} failed: ${(error as Error).message}`);
        this.log(problems.at(-1) as string);
      }
    }
    if (this.#engine.isCanceled) return plain(this.job, "cancel");
    const { code = "failed", message = "" } = outcome;
    return problems.length === 0 ? outcome : fail(this.job, code, [message, ...problems].join("; "), false);
  }

  /** Ends the code's part in the attempt as soon as the attempt ends. */
  #guard<T>(perform: () => Promise<T>): Promise<T> {
    const halted = (error: unknown) => (error instanceof Halted ? never<T>() : Promise.reject(error));
    const performed = this.#engine.isEnding ? never<T>() : perform().catch(halted);
    // The code may not have got to awaiting it, and an unhandled rejection ends the process.
    performed.catch(() => {});
    return performed;
  }

  #keyOf(name: string): string {
    const { claim, prefix } = SCOPE.getStore() ?? {};
    return this.#engine.keyOf(claim === `${this.id}/${this.job.epoch}` ? `${prefix}${name}` : name);
  }

  #operation(op: Operation["op"], name: string, input: unknown): Operation {
    return { op, key: this.#keyOf(name), hash: digest(op, name, input) };
  }

  async #step(key: string, run: StepFunction, { undo, retry, input }: StepOptions<never>): Promise<unknown> {
    const operation: Operation = { op: "step", key, hash: digest("step", key, input) };
    const known = this.#engine.met(operation, stepMembers);
    let recorded = known?.seq == null ? undefined : known;
    for (let attempt = known?.attempt ?? 0; recorded === undefined; attempt++) {
      if (retry !== undefined && attempt > 0) await this.#backoff(key, attempt, retry);
      recorded = await this.#engine.run(() => this.#attempt(operation, attempt + 1, run, retry));
    }
    const entry = await this.#engine.inOrder(recorded, (found) => this.#withArtifact(found));
    if (entry.error != null) throw new StepFailed(key, entry.error.code, entry.error.message ?? "");
    if (undo !== undefined) {
      const result = resultOf(entry) as never;
      this.#undos.push({ seq: entry.seq ?? 0, key, undo: (step) => undo(result, step) });
    }
    return resultOf(entry);
  }

  /** Runs an attempt of a step and records it. Returns nothing if there is another attempt to come. */
  async #attempt(operation: Operation, attempt: number, run: StepFunction, retry?: StepRetry) {
    const { key } = operation;
    if (this.#engine.isEnding ? !this.#isUndoing : this.#engine.isCanceled) throw new Halted();
    const startedAt = performance.now();
    const outcome = await this.#outcomeOf(run, { key, attempt, signal: this.#engine.stepsEnded.signal });
    const { error } = outcome;
    const isFailing = error?.retryable === true && retry === undefined && this.attempt < this.maxAttempts;
    if (error?.retryable && !isFailing && attempt >= (retry?.attempts ?? 0)) error.retryable = false;
    const members = stepMembers(error ? outcome : { result: await this.#stored(key, outcome.result) });
    const duration_ms = Math.round(performance.now() - startedAt);
    const entry = await this.#engine.record(key, JSON.stringify({ ...operation, attempt, duration_ms, ...members }));
    if (entry.seq == null && isFailing) {
      this.#fail(fail(this.job, error.code, error.message, true));
      throw new Halted();
    }
    // The answer has the result only if another attempt recorded it first.
    return entry.seq == null ? undefined : entry.existing ? entry : { ...entry, ...outcome };
  }

  async #outcomeOf(run: StepFunction, step: StepContext): Promise<{ result?: unknown; error?: Required<JobError> }> {
    try {
      return { result: jsonOf(await run(step)) };
    } catch (error) {
      const verdict = verdictOf(error)?.outcome;
      if (verdict === "snooze" || verdict === "cancel") this.#fail(outcomeOf(error, this));
      // After an abort, the error is probably a consequence of it.
      if (verdict === "snooze" || verdict === "cancel" || step.signal.aborted) throw new Halted();
      return { error: errorOf(error) };
    }
  }

  /** A result that is too large for the journal is an artifact. */
  async #stored(key: string, result: unknown): Promise<unknown> {
    const json = JSON.stringify(result);
    if (bytesOf(json) <= MAX_RESULT_BYTES) return result;
    const name = `step-${digest("step", key, null)}`;
    await this.artifact(name, json, "application/json");
    return { $artifact: { job_id: this.id, name } };
  }

  async #withArtifact(entry: JournalEntry): Promise<JournalEntry> {
    const { $artifact: stored } = (entry.result ?? {}) as { $artifact?: { job_id: string; name: string } };
    if (stored === undefined) return entry;
    return { ...entry, result: await this.read(`/jobs/${stored.job_id}/artifacts/${stored.name}`) };
  }

  async #backoff(key: string, attempt: number, retry: StepRetry): Promise<void> {
    const { initial = 5, maximum = 3_600, exponent = 2, jitter = 0.1 } = retry;
    const delayS = Math.min(toSeconds(initial) * exponent ** (attempt - 1), toSeconds(maximum));
    const for_s = delayS * (1 + jitter * Math.random());
    if (delayS <= MAX_HELD_S) {
      await this.#engine.run(() => sleep(for_s * 1_000, this.#engine.stepsEnded.signal));
    } else {
      const name = `retry/${key}#${attempt}`;
      await this.#engine.perform({ op: "sleep", key: name, hash: digest("sleep", name, null), for_s });
    }
  }

  /** Starts children with one operation. */
  #start(name: string, children: readonly Child[]): void {
    const inputs = children.map(({ input }) => input);
    const operation = this.#operation("child", name, inputs);
    const parts: Parts = {
      members: async () => ({ jobs: await Promise.all(children.map(({ request }) => request())) }),
      complete: (entry) => readTruncated(entry, this),
    };
    const outcomes = this.#guard(async () => childrenOf(await this.#engine.perform(operation, parts)));
    for (const [index, child] of children.entries()) {
      child.ending = outcomes.then((all) => all[index] as ChildOutcome);
      child.ending.catch(() => {});
    }
  }
}

/** What the journal will have of a result. */
function jsonOf(result: unknown): unknown {
  try {
    return JSON.parse(JSON.stringify(result) ?? "null");
  } catch (error) {
    throw new Fail((error as Error).message, { code: "result_not_json" });
  }
}

/** The digest of operation, name and input. */
function digest(op: string, name: string, input: unknown): string {
  const hash = createHash("sha256").update(JSON.stringify([op, name, input ?? null]));
  return hash.digest("base64url").slice(0, 22);
}
