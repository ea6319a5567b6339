/** Waiting: exponential backoff with jitter, and a sleep that can be aborted. */

const MIN_MS = 100;
const MAX_MS = 5_000;

/** Exponential backoff with a random share, so that many clients do not reconnect at the same time. */
export class Backoff {
  #ms = MIN_MS;

  /** Returns the next wait in milliseconds. */
  next(): number {
    const wait = this.#ms * (0.5 + 0.5 * Math.random());
    this.#ms = Math.min(this.#ms * 2, MAX_MS);
    return wait;
  }

  reset(): void {
    this.#ms = MIN_MS;
  }
}

/** Resolves after `ms`, or at once when `signal` is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) {
      resolve();
      return;
    }
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
  });
}
