/** A handle of a pushed job. */

import { Backoff, sleep } from "./backoff.js";
import { type Duration, toSeconds } from "./duration.js";
import { classify, JobFailed, WaitTimeout } from "./errors.js";
import type { Http } from "./http.js";
import { isFinal, type StreamOptions, streamSignals } from "./sse.js";
import type { CancelView, JobView, JournalEntry, Signal } from "./wire.js";

/** Items of a page, equal to the server's limit. */
const PAGE = 500;
/** The longest time that the server holds a request, in seconds. */
const LONG_POLL_S = 55;

/** Options of `JobHandle.wait`. */
export interface WaitOptions {
  /** How long to wait. Default: without limit. */
  timeout?: Duration;
  /** Ends the wait. The job continues. */
  signal?: AbortSignal;
}

/** A job on the server. */
export class JobHandle<Result = unknown> {
  /** The job's id. */
  readonly id: string;
  readonly #http: Http;
  readonly #path: string;

  /** @internal */
  constructor(http: Http, id: string) {
    this.id = id;
    this.#http = http;
    this.#path = `/jobs/${encodeURIComponent(id)}`;
  }

  /** Returns the job as it is now. */
  get(): Promise<JobView> {
    return this.#http.persist("GET", this.#path);
  }

  /**
   * Waits for the end of the job and returns its result. Rejects with `JobFailed` if the job failed or was canceled, and
   * with `WaitTimeout` if it has not ended in time. Continues to wait while the server is away, and for the successor of a
   * job that ended with `ctx.continueAs`.
   */
  async wait(options: WaitOptions = {}): Promise<Result> {
    const { signal } = options;
    const timeoutS = options.timeout === undefined ? Number.POSITIVE_INFINITY : toSeconds(options.timeout);
    const until = performance.now() + timeoutS * 1_000;
    const backoff = new Backoff();
    let path = this.#path;
    for (;;) {
      signal?.throwIfAborted();
      const remainingMs = Math.max(0, until - performance.now());
      const heldMs = Math.ceil(Math.min(remainingMs, LONG_POLL_S * 1_000));
      try {
        const query = { wait: `${heldMs}ms` };
        const job = await this.#http.request<JobView>("GET", path, { query, heldMs, signal });
        const { continued_as: next } = (job.result ?? {}) as { continued_as?: string };
        if (job.state === "succeeded" && typeof next !== "string") return (job.result ?? null) as Result;
        if (job.state !== "succeeded" && isFinal(job.state)) throw new JobFailed(job);
        if (next !== undefined) path = `/jobs/${encodeURIComponent(next)}`;
        backoff.reset();
      } catch (error) {
        if (classify(error) === "refused") throw error;
        await sleep(Math.min(backoff.next(), remainingMs), signal);
      }
      if (remainingMs === 0) throw new WaitTimeout(this.id, timeoutS);
    }
  }

  /**
   * Cancels the job. A handler that runs is notified within a second. A job that has ended is left as it is. With
   * `compensate`, a workflow runs once more and undoes its steps.
   */
  cancel({ compensate }: { compensate?: boolean } = {}): Promise<CancelView> {
    return this.#http.persist("POST", `${this.#path}/cancel`, { body: compensate ? { compensate } : undefined });
  }

  /**
   * Sends an event to the job, which its workflow gets from `ctx.waitForEvent`. The request is repeated while the server is
   * away; the idempotency key prevents duplicates.
   */
  async send(name: string, data: unknown = {}, idempotencyKey: string = crypto.randomUUID()): Promise<void> {
    const options = { body: data, headers: { "idempotency-key": idempotencyKey } };
    await this.#http.persist("POST", `${this.#path}/events/${encodeURIComponent(name)}`, options);
  }

  /** Answers an approval of the job's workflow. */
  async approve(key: string, { approve = true, note }: { approve?: boolean; note?: string } = {}): Promise<void> {
    const path = `${this.#path}/approvals/${encodeURIComponent(key)}`;
    await this.#http.persist("POST", path, { body: { approve, note } });
  }

  /** Returns the recorded operations of the job. */
  journal(): Promise<JournalEntry[]> {
    return readJournal(this.#http, this.id);
  }

  /** Starts a copy of the job with the part of its journal before the operation `from`, which runs again. */
  async fork(from: string, payload?: unknown): Promise<JobHandle<Result>> {
    const options = { body: { from, payload }, headers: { "idempotency-key": crypto.randomUUID() } };
    const { id } = await this.#http.persist<{ id: string }>("POST", `${this.#path}/fork`, options);
    return new JobHandle(this.#http, id);
  }

  /** Returns the current signal: a sentence for people, the phase, the progress and the ETA. */
  signal(): Promise<Signal> {
    return this.#http.persist("GET", `${this.#path}/signal`);
  }

  /** Yields each signal until the job has ended: `for await (const signal of handle.stream())`. */
  stream(options: Pick<StreamOptions, "signal"> = {}): AsyncGenerator<Signal, void, undefined> {
    const { fetch, headers } = this.#http.connection;
    return streamSignals(this.#http.address(`${this.#path}/stream`), { ...options, fetch, headers });
  }

  /**
   * Returns the signals as a response with server-sent events, for a route handler that a browser reads with `useJob`:
   * `return wl.handle(id).response(request)`. The request's `Last-Event-ID` continues a broken stream.
   */
  async response(request?: Pick<Request, "headers" | "signal">): Promise<Response> {
    const { connection } = this.#http;
    const lastEventId = request?.headers.get("last-event-id") ?? undefined;
    const resumed = lastEventId === undefined ? {} : { "last-event-id": lastEventId };
    const { body, headers, status } = await connection.fetch(this.#http.address(`${this.#path}/stream`), {
      headers: { ...connection.headers, accept: "text/event-stream", ...resumed },
      ...(request && { signal: request.signal }),
    });
    const passed = ["content-type", "cache-control", "retry-after"].flatMap((name): [string, string][] => {
      const value = headers.get(name);
      return value === null ? [] : [[name, value]];
    });
    return new Response(body, { status, headers: passed });
  }
}

/** Reads the journal of a job, beginning at a cursor. */
export async function readJournal(http: Http, id: string, cursor?: string | null): Promise<JournalEntry[]> {
  const query = { limit: PAGE, cursor: cursor ?? undefined };
  const path = `/jobs/${encodeURIComponent(id)}/journal`;
  const page = await http.persist<{ items: JournalEntry[]; next_cursor?: string | null }>("GET", path, { query });
  return page.next_cursor == null ? page.items : [...page.items, ...(await readJournal(http, id, page.next_cursor))];
}
