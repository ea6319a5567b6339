/**
 * Records operations in the journals of claimed jobs. Operations of all jobs of a session that are recorded at the same
 * time share a request. Called by `Engine`.
 */

import { Backoff, sleep } from "../backoff.js";
import { classify, isLeaseExpired } from "../errors.js";
import { retryAfterMs } from "../http.js";
import type { ClaimedJob, JournalEntry } from "../wire.js";
import type { Uplink } from "../worker/context.js";
import { takeBatch } from "../worker/outcomes.js";

/** Operations per request, equal to the server's limit. */
const MAX_OPERATIONS = 1_000;

/** The claim is lost, or the job has ended: its workflow stops here. */
export class ClaimLost extends Error {}

/** The answer to a request, in its order. */
type JournalWritten = { results: { status: string; entries: JournalEntry[] }[] };

type Write = { json: string; resolve: (entry: JournalEntry) => void; reject: (error: Error) => void };

export class JournalWriter {
  readonly #uplink: Uplink;
  readonly #path: string;
  readonly #onGone: () => void;
  readonly #closed = new AbortController();
  readonly #writes: Write[] = [];
  /** Requests that got no answer, and parts of those that the server rejected. */
  readonly #repeated: Write[][] = [];
  #sending: Promise<void> | undefined;

  /** `path` is that of the worker's journal. `onGone` is called if the worker's lease has expired. */
  constructor(uplink: Uplink, path: string, onGone: () => void) {
    this.#uplink = uplink;
    this.#path = path;
    this.#onGone = onGone;
  }

  /** Records an operation, given as JSON. Rejects with `ClaimLost`, or with the problem if the server refuses it. */
  record({ id, epoch }: ClaimedJob, isStrict: boolean, operation: string): Promise<JournalEntry> {
    return new Promise((resolve, reject) => {
      const json = `{"job_id":"${id}","epoch":${epoch},"strict":${isStrict},"ops":[${operation}]}`;
      this.#writes.push({ json, resolve, reject });
      this.#sending ??= this.#sendAll();
    });
  }

  /** Gives up the operations that are not recorded. */
  close(): void {
    this.#closed.abort();
  }

  async #sendAll(): Promise<void> {
    // Operations of the same turn of the event loop share a request.
    await new Promise(setImmediate);
    const backoff = new Backoff();
    while (this.#repeated.length + this.#writes.length > 0) {
      const batch = this.#repeated.shift() ?? takeBatch(this.#writes, MAX_OPERATIONS);
      try {
        await this.#send(batch);
        backoff.reset();
      } catch (error) {
        await this.#onFailed(batch, error as Error, backoff);
      }
    }
    this.#sending = undefined;
  }

  async #send(batch: Write[]): Promise<void> {
    const rawBody = `{"writes":[${batch.map(({ json }) => json).join(",")}]}`;
    const options = { rawBody, signal: this.#closed.signal };
    const { results } = await this.#uplink.http.request<JournalWritten>("POST", this.#path, options);
    for (const [index, { resolve, reject }] of batch.entries()) {
      const result = results[index];
      if (result?.status === "applied") resolve(result.entries[0] as JournalEntry);
      else reject(new ClaimLost());
    }
  }

  async #onFailed(batch: Write[], error: Error, backoff: Backoff): Promise<void> {
    const kind = classify(error);
    if (isLeaseExpired(error) || this.#closed.signal.aborted) {
      for (const { reject } of batch) reject(new ClaimLost());
      this.#onGone();
    } else if (kind !== "refused") {
      this.#uplink.logger.warn(`${batch.length} operations were not recorded and are sent again: ${error.message}`);
      this.#repeated.unshift(batch);
      await sleep(Math.max(backoff.next(), retryAfterMs(error)), this.#closed.signal);
    } else if (batch.length === 1) {
      batch[0]?.reject(error);
    } else {
      // A refused operation must not cost the others.
      this.#repeated.unshift(...batch.map((write) => [write]));
    }
  }
}
