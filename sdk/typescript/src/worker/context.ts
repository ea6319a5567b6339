/** What a handler receives besides its payload: the job, progress reports, artifacts, facts and a cancellation. */

import { Fail } from "../errors.js";
import type { Windlass } from "../windlass.js";
import type { ArtifactView, ClaimedJob, JobView, SignalUpdate } from "../wire.js";
import { SignalSender } from "./signals.js";

/** Longest log of an attempt, in characters. Older text is dropped. */
const MAX_LOG = 1 << 20;
/** The slowest upload that is waited for. */
const MIN_BYTES_PER_MS = 100;

/** Where a context sends what a handler reports. @internal */
export type Uplink = Pick<Windlass, "http" | "logger"> & { worker?: string };

/** The context of one attempt of a job. */
export class Context {
  /** The claimed job, with the members of the API. */
  readonly job: ClaimedJob;
  /** The job's id. */
  readonly id: string;
  /** The kind of work. */
  readonly kind: string;
  /** The queue's name. */
  readonly queue: string;
  /** The number of this attempt, from 1. */
  readonly attempt: number;
  /** Maximum number of attempts. */
  readonly maxAttempts: number;
  /** The subject that the job works on. */
  readonly subject: string | null;
  readonly #uplink: Uplink;
  // Created on first use: most handlers need none.
  #controller: AbortController | undefined;
  #abortReason: Error | undefined;
  #signals: SignalSender | undefined;
  #facts: Record<string, unknown> | undefined;
  #log: string[] = [];
  #logLength = 0;

  /** @internal */
  constructor(job: ClaimedJob, uplink: Uplink) {
    this.job = job;
    ({ id: this.id, kind: this.kind, queue: this.queue, attempt: this.attempt, max_attempts: this.maxAttempts } = job);
    this.subject = job.subject ?? null;
    this.#uplink = uplink;
  }

  /**
   * Aborted when the job is canceled or times out, when its claim is lost, and when the worker must stop. Pass it to
   * `fetch` and other calls that take an `AbortSignal`.
   */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#abortReason !== undefined) this.#controller.abort(this.#abortReason);
    }
    return this.#controller.signal;
  }

  /**
   * The results of the nodes of the run that the job needs, by name. A large result is a reference, which `input` reads.
   */
  get inputs(): Record<string, unknown> {
    return this.job.inputs ?? {};
  }

  /** The result of a node of the run that the job needs, also a large one. */
  async input<Result = unknown>(name: string): Promise<Result> {
    const value = this.inputs[name];
    const reference = (value as { $result?: { job_id?: string } } | null | undefined)?.$result?.job_id;
    if (reference === undefined) return value as Result;
    return (await this.read<JobView>(`/jobs/${reference}`)).result as Result;
  }

  /** Reads a job or an artifact that the claim of this job opens. @internal */
  read<T>(path: string): Promise<T> {
    const headers = { "x-windlass-claim": `${this.#uplink.worker}/${this.id}` };
    return this.#uplink.http.persist("GET", path, { headers });
  }

  /** Reports the progress, from 0 to 1, and optionally a sentence for people. Returns at once. */
  progress(progress: number, summary?: string): void {
    const clamped = Math.min(Math.max(progress, 0), 1);
    this.update(summary === undefined ? { progress: clamped } : { progress: clamped, summary });
  }

  /** Reports the phase: a built-in one, or one that the queue declares. Returns at once. */
  phase(phase: string): void {
    this.update({ phase });
  }

  /** Reports a sentence for people. Returns at once. */
  summary(summary: string): void {
    this.update({ summary });
  }

  /** Changes several members of the signal. Returns at once: updates that arrive faster than they are sent are merged. */
  update(update: SignalUpdate): void {
    this.#signals ??= new SignalSender(this.#uplink, this.job);
    this.#signals.update(update);
  }

  /**
   * Adds a line to the log of the attempt. The log is stored with the outcome as the artifact `log`, or `log-EPOCH` for
   * later claims. Its last 1,048,576 characters are kept.
   */
  log(line: string): void {
    this.#log.push(line.slice(-MAX_LOG));
    this.#logLength += line.length + 1;
    while (this.#logLength > MAX_LOG && this.#log.length > 1) {
      this.#logLength -= (this.#log.shift() as string).length + 1;
    }
  }

  /** Stores a named blob with the job, at most 10 GiB. Identical content may be stored again. */
  artifact(name: string, content: string | Uint8Array, contentType?: string): Promise<ArtifactView> {
    const type =
      contentType ?? (typeof content === "string" ? "text/plain; charset=utf-8" : "application/octet-stream");
    return this.#uplink.http.persist("PUT", `/jobs/${this.job.id}/artifacts/${encodeURIComponent(name)}`, {
      rawBody: content as string | Uint8Array<ArrayBuffer>,
      // A large upload takes its time.
      heldMs: content.length / MIN_BYTES_PER_MS,
      headers: { "content-type": type, "x-windlass-epoch": String(this.job.epoch) },
      signal: this.signal,
    });
  }

  /** Sets a fact of the job's subject, any JSON, if the job succeeds. The server rejects an invalid one, which fails the job. */
  fact(name: string, value: unknown): void {
    if (this.subject === null) {
      throw new Fail(`cannot set the fact ${JSON.stringify(name)}: the job has no subject`, { code: "no_subject" });
    }
    this.#facts = { ...this.#facts, [name]: value ?? null };
  }

  /** @internal */
  takeFacts(): Record<string, unknown> | undefined {
    return this.#facts;
  }

  /** @internal */
  abort(reason: Error): void {
    this.#abortReason ??= reason;
    this.#controller?.abort(reason);
  }

  /** Sends what the handler reported last, before the outcome. @internal */
  async end(): Promise<void> {
    await this.#signals?.end();
    // The server does not accept the log of a claim that was canceled or lost.
    if (this.#log.length === 0 || this.#abortReason !== undefined) return;
    const { epoch, id } = this.job;
    try {
      await this.artifact(epoch === 1 ? "log" : `log-${epoch}`, `${this.#log.join("\n")}\n`);
    } catch (error) {
      this.#uplink.logger.warn(`the log of job ${id} was not stored: ${(error as Error).message}`);
    }
  }
}
