/** Children of a workflow: jobs that it starts and waits for. */

import { ChildFailed } from "../errors.js";
import type { JobError, JobRequest, JobState, JobView, JournalEntry } from "../wire.js";
import type { Context } from "../worker/context.js";

/** Results of children that are read at the same time because the journal has left them out. */
const MAX_READS = 16;

/** How a child ended. */
export interface ChildOutcome<Result = unknown> {
  /** The child's id. */
  id: string;
  /** `succeeded`, `failed` or `canceled`. */
  state: JobState;
  /** The result, if it succeeded. */
  result?: Result;
  /** The error, if it failed. */
  error?: JobError;
}

/** A child as the journal has it. */
type RecordedChild = Omit<ChildOutcome, "id"> & { job_id: string; truncated?: boolean };

/**
 * A child that `ctx.spawn` starts. Await it, or pass it to `ctx.gather`, which starts and awaits many with one operation.
 */
export class Child<Result = unknown> implements PromiseLike<Result> {
  /** @internal */
  readonly key: string;
  /** @internal What identifies the child in the digest of the operation. */
  readonly input: unknown;
  /** @internal */
  readonly request: () => Promise<JobRequest>;
  /** @internal Set when the child is started. */
  ending: Promise<ChildOutcome> | undefined;
  readonly #start: () => void;

  /** @internal */
  constructor(key: string, input: unknown, request: () => Promise<JobRequest>, start: (child: Child) => void) {
    this.key = key;
    this.input = input;
    this.request = request;
    this.#start = () => this.ending ?? start(this as Child);
    // After `ctx.gather`, if the child is a parameter of it.
    queueMicrotask(this.#start);
  }

  /** How the child ended. Does not reject if it failed. */
  outcome(): Promise<ChildOutcome<Result>> {
    this.#start();
    return this.ending as Promise<ChildOutcome<Result>>;
  }

  /** Resolves with the result of the child. Rejects with `ChildFailed` if it failed or was canceled. */
  // biome-ignore lint/suspicious/noThenProperty: a child is awaited.
  then<A = Result, B = never>(
    onFulfilled?: ((result: Result) => A | PromiseLike<A>) | null,
    onRejected?: ((error: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.outcome().then(resultOfChild).then(onFulfilled, onRejected);
  }
}

export function resultOfChild<Result>({ id, state, result, error }: ChildOutcome<Result>): Result {
  if (state !== "succeeded") throw new ChildFailed(id, state, error);
  return result as Result;
}

/** The outcomes of the children of an entry. */
export function childrenOf(entry: JournalEntry): ChildOutcome[] {
  return (entry.result as RecordedChild[]).map(({ job_id: id, truncated: _, ...child }) =>
    child.state === "succeeded" ? { id, ...child, result: child.result ?? null } : { id, ...child },
  );
}

/** Reads the results that the journal has left out because of their size. */
export async function readTruncated(entry: JournalEntry, context: Context): Promise<JournalEntry> {
  const truncated = ((entry.result ?? []) as RecordedChild[]).filter((child) => child.truncated);
  const read = async (): Promise<void> => {
    for (let child = truncated.pop(); child !== undefined; child = truncated.pop()) {
      const { result } = await context.read<JobView>(`/jobs/${child.job_id}`);
      Object.assign(child, { result, truncated: false });
    }
  };
  await Promise.all(Array.from({ length: MAX_READS }, read));
  return entry;
}
