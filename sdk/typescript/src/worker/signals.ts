/** Reports the progress of one attempt. Updates are merged and sent at most ten times per second. Called by `Context`. */

import { Backoff, sleep } from "../backoff.js";
import { ApiError, classify } from "../errors.js";
import type { ClaimedJob, SignalUpdate } from "../wire.js";
import type { Uplink } from "./context.js";

/** The shortest time between two signals of a job. */
const INTERVAL_MS = 100;
/** How long an outcome waits for the last signal, which names the phase in which a failure happened. */
const FLUSH_MS = 2_000;

export class SignalSender {
  readonly #uplink: Uplink;
  readonly #job: ClaimedJob;
  #pending: SignalUpdate | undefined;
  #sending: Promise<void> | undefined;
  #isEnded = false;
  readonly #ended = new AbortController();

  constructor(uplink: Uplink, job: ClaimedJob) {
    this.#uplink = uplink;
    this.#job = job;
  }

  /** Merges the update into the next signal. Returns at once. */
  update(update: SignalUpdate): void {
    if (this.#isEnded) return;
    this.#pending = { ...this.#pending, ...update };
    this.#sending ??= this.#sendAll();
  }

  /** Sends the pending signal before the outcome makes it stale. Later updates are dropped. */
  async end(): Promise<void> {
    this.#isEnded = true;
    this.#ended.abort();
    if (this.#sending !== undefined) await Promise.race([this.#sending, sleep(FLUSH_MS)]);
  }

  async #sendAll(): Promise<void> {
    const backoff = new Backoff();
    while (this.#pending !== undefined) {
      const update = this.#pending;
      this.#pending = undefined;
      const body = { ...update, epoch: this.#job.epoch };
      try {
        await this.#uplink.http.request("PUT", `/jobs/${this.#job.id}/signal`, { body });
        backoff.reset();
        await sleep(INTERVAL_MS, this.#ended.signal);
      } catch (error) {
        const kind = classify(error);
        if (kind === "refused" || kind === "gone") {
          this.#onRefused(update, error);
        } else if (this.#isEnded) {
          return;
        } else {
          // Newer values win.
          this.#pending = { ...update, ...(this.#pending as SignalUpdate | undefined) };
          await sleep(backoff.next(), this.#ended.signal);
        }
      }
    }
    this.#sending = undefined;
  }

  #onRefused(update: SignalUpdate, error: unknown): void {
    const { code = "", field = "" } = error instanceof ApiError ? error : {};
    // The abort signal reports a lost claim.
    if (["claim_lost", "already_ended", "not_found"].includes(code)) return;
    this.#uplink.logger.warn(`a signal of job ${this.#job.id} was rejected: ${(error as Error).message}`);
    // An invalid member, for example a phase that the queue does not declare, must not cost the others.
    const { [field as keyof SignalUpdate]: invalid, ...others } = update;
    if (invalid !== undefined && Object.keys(others).length > 0) this.#pending = { ...others, ...this.#pending };
  }
}
