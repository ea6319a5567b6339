/**
 * One attempt of a workflow: recorded operations get their recorded results, in the order in which they were resolved
 * first, and an attempt that only waits ends with the outcome `suspend`. Called by `WorkflowContext`.
 *
 * Results are delivered one by one, and the code runs until it requests nothing more before the next one. It therefore
 * takes the same path in every attempt, also through `Promise.race`.
 */

import { ApiError } from "../errors.js";
import type { ClaimedJob, JobError, JournalEntry } from "../wire.js";
import { fail, type Outcome, plain } from "../worker/outcomes.js";
import { ClaimLost, type JournalWriter } from "./writer.js";

/** Keys that may wake a suspended job, equal to the server's limit. */
const MAX_WAKE_KEYS = 1_000;
/** How often the open operations are read again while a step runs. */
const POLL_MS = 1_000;

/** The key of the entry that a cancellation with `compensate` records. */
const CANCEL = "$cancel";

type Members = Record<string, unknown>;

/** An operation of the journal, with the members of `POST /workers/{id}/journal`. */
export type Operation = Members & Pick<JournalEntry, "op" | "key"> & { hash: string };

/** Parts of an operation that are not always needed. */
export interface Parts {
  /** Further members of the request. */
  members?: (recorded?: JournalEntry) => Promise<Members> | Members;
  /** Completes a resolved entry before it is delivered. */
  complete?: (entry: JournalEntry) => Promise<JournalEntry>;
}

/** How an attempt ends. */
type Ending = { finish: () => Promise<Outcome> | Outcome; waitsForSteps: boolean };

/** The attempt ends: the operation has no result in it. */
export class Halted extends Error {}

/** A promise that stays pending: the code does not continue in this attempt. */
export function never<T>(): Promise<T> {
  return new Promise(() => {});
}

export class Engine {
  /** The outcome of the attempt. */
  readonly outcome: Promise<Outcome>;
  #resolve!: (outcome: Outcome) => void;
  readonly #job: ClaimedJob;
  readonly #writer: JournalWriter;
  readonly #isStrict: boolean;
  readonly #onRefused: (outcome: Outcome) => void;
  readonly #entries = new Map<string, JournalEntry>();
  /** How often each name was used. */
  readonly #names = new Map<string, number>();
  /** Operations that the code waits for. */
  readonly #open = new Map<string, { json: string; resolved: (entry: JournalEntry) => void }>();
  /** Results that are not delivered yet. */
  #deliveries: { seq: number; deliver: () => Promise<void> | void }[] = [];
  /** Steps in execution, and requests without an answer. */
  #running = 0;
  #requests = 0;
  /** All places in the order of resolution up to this one are known here, and some beyond it. */
  #knownUpTo = 0;
  readonly #knownBeyond = new Set<number>();
  /** The open operations were read when this place was known. */
  #readAt = 0;
  #isScheduled = false;
  #isDelivering = false;
  #pollTimer: NodeJS.Timeout | undefined;
  /** True if the code does not continue in this attempt. */
  isEnding = false;
  /** True if the job was canceled with `compensate`: no operation begins, and the steps are undone. */
  isCanceled = false;
  #ending: Ending | undefined;
  #isDone = false;
  /** Aborted when the attempt ends before a step. */
  readonly stepsEnded = new AbortController();

  /** `onRefused` receives the failure of a job with an operation that the server refuses. */
  constructor(job: ClaimedJob, writer: JournalWriter, isStrict: boolean, onRefused: (outcome: Outcome) => void) {
    this.#job = job;
    this.#writer = writer;
    this.#isStrict = isStrict;
    this.#onRefused = onRefused;
    this.outcome = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  /** Numbers a name that is used again: `charge`, `charge#2`, `charge#3`. */
  keyOf(name: string): string {
    const count = (this.#names.get(name) ?? 0) + 1;
    this.#names.set(name, count);
    return count === 1 ? name : this.keyOf(`${name}#${count}`);
  }

  /** Performs an operation other than a step. Resolves when it is resolved. */
  async perform(operation: Operation, { members, complete }: Parts = {}): Promise<JournalEntry> {
    let entry = this.met(operation, members);
    if (entry?.seq != null) return this.inOrder(entry, complete);
    this.#schedule();
    if (this.isCanceled && !this.isEnding) throw new Halted();
    const json = JSON.stringify({ ...operation, ...(await this.run(async () => members?.())) });
    entry ??= await this.record(operation.key, json);
    if (entry.seq != null) return this.inOrder(entry, complete);
    return new Promise((resolve, reject) => {
      const resolved = (found: JournalEntry) => void this.inOrder(found, complete).then(resolve, reject);
      this.#open.set(operation.key, { json, resolved });
      this.#schedule();
    });
  }

  /** The recorded entry of an operation. A workflow that changed since then is reported, with `members`. */
  met(operation: Operation, members?: Parts["members"]): JournalEntry | undefined {
    const { op, key, hash } = operation;
    const entry = this.#entries.get(key);
    if (entry === undefined || (entry.op === op && (entry.hash == null || entry.hash === hash))) return entry;
    if (entry.op !== op || this.#isStrict) {
      const change = entry.op === op ? "with another input" : `as ${entry.op}, not as ${op}`;
      this.#refuse(new Error(`was recorded ${change}: the workflow changed`), key, "workflow_drift");
    }
    // The server compares the digests and warns in the job's signal.
    const report = async () => this.record(key, JSON.stringify({ ...operation, ...(await members?.(entry)) }));
    this.run(report).catch(() => {});
    return entry;
  }

  /** Records an operation, given as JSON. Rejects with `Halted` if the attempt ends because of that. */
  async record(key: string, json: string): Promise<JournalEntry> {
    if (this.#isDone) throw new Halted();
    this.#requests += 1;
    try {
      const entry = await this.#writer.record(this.#job, this.#isStrict, json);
      this.learn(entry);
      return entry;
    } catch (error) {
      if (error instanceof ClaimLost) {
        this.halt();
        throw new Halted();
      }
      return this.#refuse(error as Error, key, error instanceof ApiError ? error.code : "invalid_operation");
    } finally {
      this.#requests -= 1;
      this.#schedule();
    }
  }

  #refuse(error: Error, key: string, code: string): never {
    if (this.isEnding) throw error;
    const message = `the operation ${JSON.stringify(key)}: ${error.message}`;
    this.#onRefused(fail(this.#job, code, message, code === "workflow_drift"));
    throw new Halted();
  }

  /** Runs a part of a step that keeps the attempt from being suspended. */
  async run<T>(part: () => Promise<T>): Promise<T> {
    this.#running += 1;
    try {
      return await part();
    } finally {
      this.#running -= 1;
      this.#schedule();
    }
  }

  /** Resolves with the entry when it is its turn. */
  inOrder(entry: JournalEntry, complete?: Parts["complete"]): Promise<JournalEntry> {
    return new Promise((resolve, reject) => {
      const deliver = async () => (complete ? this.run(() => complete(entry)).then(resolve, reject) : resolve(entry));
      this.#deliveries.push({ seq: entry.seq ?? 0, deliver });
      this.#schedule();
    });
  }

  /** Ends the attempt when all requests, and with `waitsForSteps` all steps, have ended. The first call counts. */
  conclude(finish: Ending["finish"], { waitsForSteps = true } = {}): void {
    if (!this.isEnding) this.#endWith({ finish, waitsForSteps });
  }

  /** Gives the job back when all steps have ended, whatever else was to happen. */
  halt(): void {
    this.stepsEnded.abort();
    this.#endWith({ finish: () => plain(this.#job, "release"), waitsForSteps: true });
  }

  #endWith(ending: Ending): void {
    this.isEnding = true;
    this.#deliveries = [];
    this.#open.clear();
    this.#ending = ending;
    this.#schedule();
  }

  /** Takes note of a recorded entry. */
  learn(entry: JournalEntry): void {
    this.#entries.set(entry.key, entry);
    if (entry.key === CANCEL) this.isCanceled = true;
    if (entry.seq != null && entry.seq > this.#knownUpTo) {
      this.#knownBeyond.add(entry.seq);
      while (this.#knownBeyond.delete(this.#knownUpTo + 1)) this.#knownUpTo += 1;
    }
  }

  #schedule(): void {
    if (!this.#isScheduled && !this.#isDone) {
      this.#isScheduled = true;
      // After all that the code does with the previous result.
      setImmediate(() => {
        this.#isScheduled = false;
        this.#turn();
      });
    }
  }

  #turn(): void {
    if (this.#isDone || this.#isDelivering) return;
    if (this.#deliveries.length > 0) {
      void this.#deliver();
    } else if (this.#ending !== undefined) {
      if (this.#requests === 0 && (this.#running === 0 || !this.#ending.waitsForSteps)) void this.#finish(this.#ending);
    } else if (this.isCanceled && !this.isEnding && this.#requests + this.#running === 0) {
      this.#onRefused(plain(this.#job, "cancel"));
    } else if (this.#requests === 0 && this.#open.size > 0) {
      if (this.#running === 0) {
        this.#suspend();
      } else {
        // The attempt is not suspended, so nothing else reports what was resolved.
        this.#pollTimer ??= setTimeout(() => {
          this.#pollTimer = undefined;
          void this.#readOpen();
        }, POLL_MS);
      }
    }
  }

  async #deliver(): Promise<void> {
    this.#isDelivering = true;
    const next = this.#deliveries.reduce((first, other) => (other.seq < first.seq ? other : first));
    // An operation that waits may have been resolved before this one.
    if (this.#open.size > 0 && next.seq > this.#knownUpTo && next.seq > this.#readAt) {
      await this.#readOpen();
    } else {
      this.#deliveries.splice(this.#deliveries.indexOf(next), 1);
      await next.deliver();
    }
    this.#isDelivering = false;
    this.#schedule();
  }

  async #finish({ finish }: Ending): Promise<void> {
    this.#ending = undefined;
    try {
      this.#done(await finish());
    } catch (error) {
      if (!(error instanceof Halted)) this.#done(fail(this.#job, "error", (error as Error).message, true));
    }
  }

  #done(outcome: Outcome): void {
    this.#isDone = true;
    this.isEnding = true;
    clearTimeout(this.#pollTimer);
    this.#open.clear();
    this.stepsEnded.abort();
    this.#resolve(outcome);
  }

  #suspend(): void {
    const keys = [...this.#open.keys()];
    if (keys.length > MAX_WAKE_KEYS) {
      const message = `the workflow waits for ${keys.length} operations; the maximum is ${MAX_WAKE_KEYS}; use ctx.gather`;
      this.#onRefused(fail(this.#job, "too_many_waits", message, false));
    } else {
      this.#done(plain(this.#job, "suspend", `,"wake":{"any":${JSON.stringify(keys)}}`));
    }
  }

  /** Learns which of the open operations are resolved. A repeated operation gets what is recorded. */
  async #readOpen(): Promise<void> {
    const read = [...this.#open].map(async ([key, { json, resolved }]) => {
      const entry = await this.record(key, json);
      if (entry.seq != null && this.#open.delete(key)) resolved(entry);
    });
    await Promise.allSettled(read);
    this.#readAt = Math.max(this.#knownUpTo, ...this.#knownBeyond);
    this.#schedule();
  }
}

/** The members of a step that succeeded or failed, as the server takes them. */
export function stepMembers({ result, error }: { result?: unknown; error?: JobError | null } = {}): Members {
  return error == null ? { result: result ?? null } : { error };
}

/** The result of an entry. */
export function resultOf({ result = null }: JournalEntry): unknown {
  return result;
}
