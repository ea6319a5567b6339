/**
 * One registration of a worker with the server: claims jobs, runs them and settles their outcomes, until the lease
 * expires or the registration is retired. Called by `Worker`. One claim and one settle are in flight at a time.
 */

import { Backoff, sleep } from "../backoff.js";
import { ApiError, classify, isLeaseExpired } from "../errors.js";
import { retryAfterMs } from "../http.js";
import type { ClaimedJob, SettleView, WorkerRegistered } from "../wire.js";
import { JournalWriter } from "../workflow/writer.js";
import type { Context } from "./context.js";
import { type HeartbeatReport, monotonicMs } from "./heartbeat.js";
import { type Outcome, Outcomes, plain } from "./outcomes.js";
import type { Worker } from "./worker.js";

/** How long the server may hold a claim open when there is no work. */
const CLAIM_WAIT_S = 20;
/** Characters of JSON that a claim should return, so that large payloads are not claimed far ahead. */
const CLAIM_CHARACTERS = 8 << 20;
/** How long a claimed job may wait for a slot. Another worker may be free. */
const MAX_WAITING_MS = 2_000;
const OVERDUE_CHECK_MS = 500;
/** Unsettled outcomes beyond which no further job is started, so that memory stays bounded during an outage. */
const MAX_UNSETTLED = 10_000;
const DEREGISTER_MS = 5_000;

/** A claimed job is given back at `startBy`. One that starts after half of its timeout might not end in time. */
type Waiting = { job: ClaimedJob; startBy: number };

/** `isCanceled`: the server canceled the job or its timeout passed. */
type Running = { context: Context; isCanceled: boolean };

export class Session {
  readonly registration: WorkerRegistered;
  readonly #host: Worker;
  #waiting: Waiting[] = [];
  readonly #running = new Map<string, Running>();
  readonly #outcomes = new Outcomes();
  readonly #journal: JournalWriter;
  #settling: Outcome[] = [];
  #settler: Promise<void> | undefined;
  #claim: AbortController | undefined;
  /**
   * Jobs that the server canceled, with the time at which our outcome was confirmed. An entry is kept until a heartbeat
   * that was sent after the confirmation, because an older one may still name the job and would cancel its next attempt.
   */
  readonly #canceled = new Map<string, number>();
  readonly #closed = new AbortController();
  /** Claims nothing more. */
  #isRetired = false;
  /** Running handlers were aborted because the worker stops. */
  #isStopping = false;
  #affinity: string | null = null;
  /** Characters of JSON of a claimed job, estimated from the last claims. */
  #jobCharacters = 1;
  #overdueTimer: NodeJS.Timeout | undefined;
  readonly #claimBackoff = new Backoff();
  readonly #settleBackoff = new Backoff();

  constructor(host: Worker, registration: WorkerRegistered) {
    this.#host = host;
    this.registration = registration;
    this.#journal = new JournalWriter(host, this.#path("journal"), () => this.#onLeaseExpired());
  }

  get id(): string {
    return this.registration.id;
  }

  get runningCount(): number {
    return this.#running.size;
  }

  /** True if every claimed job is settled. */
  get isSettled(): boolean {
    return this.#waiting.length + this.#running.size + this.#outcomes.length + this.#settling.length === 0;
  }

  get isClosed(): boolean {
    return this.#closed.signal.aborted;
  }

  /** Starts everything that can be started now. */
  advance(): void {
    if (this.isClosed) return;
    // The claim goes first, so that the server works while jobs start here.
    void this.#claimMore();
    while (this.#waiting.length > 0 && this.#outcomes.length < MAX_UNSETTLED && this.#host.takeSlot()) {
      void this.#run((this.#waiting.shift() as Waiting).job);
    }
  }

  /** Claims nothing more. What was claimed is finished. */
  retire(): void {
    this.#isRetired = true;
  }

  /** Claims nothing more and gives back the jobs that have not started. Running handlers continue. */
  drain(): void {
    this.#isRetired = true;
    // The server returns jobs that it has just assigned: because the answer has no receiver, or with the deregistration.
    this.#claim?.abort();
    this.#release(() => true);
  }

  /** Aborts the signals of running handlers. If one then rejects, its job is released. */
  stopRunning(): void {
    this.#isStopping = true;
    for (const { context } of this.#running.values()) context.abort(new Error("the worker stops"));
  }

  /** Gives up running handlers that do not stop. Their jobs are released. */
  releaseRunning(): void {
    for (const { context, isCanceled } of this.#running.values()) {
      this.#host.logger.warn(`the handler of job ${context.id} did not stop in time`);
      this.#push(plain(context.job, isCanceled ? "cancel" : "release"));
    }
    this.#running.clear();
  }

  /** Ends the session. Jobs that are not settled return to their queues. */
  async close({ deregister }: { deregister: boolean }): Promise<void> {
    if (this.isClosed) return;
    this.#closed.abort();
    clearTimeout(this.#overdueTimer);
    this.#host.count("lost", this.#running.size + this.#outcomes.length + this.#settling.length);
    for (const { context } of this.#running.values()) context.abort(new Error("the worker has lost the job"));
    this.#waiting = [];
    this.#running.clear();
    this.#journal.close();
    this.#claim?.abort();
    if (deregister) await this.#deregister();
  }

  onHeartbeat(report: HeartbeatReport): void {
    if (this.isClosed) return;
    if (report.type === "gone") this.#onLeaseExpired();
    if (report.type === "refused") this.#host.drain(new ApiError(report.problem, true, undefined));
    if (report.type === "failed") this.#host.logger.warn(`a heartbeat failed: ${report.reason}`);
    if (report.type !== "renewed") return;
    for (const job of report.cancel) this.#cancel(job);
    for (const [job, confirmedAt] of this.#canceled) {
      if (report.sentAtMs > confirmedAt) this.#canceled.delete(job);
    }
    if (report.drain) this.#host.drain();
  }

  // ---- claims ----

  async #claimMore(): Promise<void> {
    const wanted = this.#host.wanted(this.#waiting.length);
    if (this.#claim !== undefined || this.#isRetired || wanted === 0 || this.#outcomes.length >= MAX_UNSETTLED) return;
    const max = Math.min(wanted, Math.ceil(CLAIM_CHARACTERS / this.#jobCharacters));
    const claim = new AbortController();
    this.#claim = claim;
    // The affinity that will be held after the waiting jobs.
    const affinity = this.#waiting.findLast(({ job }) => job.affinity != null)?.job.affinity ?? this.#affinity;
    const body = { max, wait_s: CLAIM_WAIT_S, ...(affinity !== null && { affinity }) };
    let waitMs = 0;
    let length = 0;
    const onLength = (characters: number): void => {
      length = characters;
    };
    try {
      const options = { body, heldMs: CLAIM_WAIT_S * 1_000, signal: claim.signal, onLength };
      const { jobs } = await this.#host.http.request<{ jobs: ClaimedJob[] }>("POST", this.#path("claim"), options);
      if (this.isClosed) return;
      this.#claimBackoff.reset();
      this.#host.count("claimed", jobs.length);
      if (jobs.length > 0) this.#jobCharacters = Math.max(length / jobs.length, this.#jobCharacters / 2);
      this.#enqueue(jobs);
      if (claim.signal.aborted) {
        // The worker drains: the answer arrived together with the abort.
        this.#release(() => true);
      }
    } catch (error) {
      if (!this.isClosed && !claim.signal.aborted) waitMs = this.#onClaimFailed(error);
    } finally {
      if (waitMs > 0) await sleep(waitMs, this.#closed.signal);
      this.#claim = undefined;
      this.advance();
    }
  }

  /** Returns how long to wait before the next claim, in milliseconds. */
  #onClaimFailed(error: unknown): number {
    if (isLeaseExpired(error)) {
      this.#onLeaseExpired();
      return 0;
    }
    const kind = classify(error);
    if (kind === "unavailable") return Math.max(this.#claimBackoff.next(), retryAfterMs(error));
    if (kind === "refused") {
      this.#host.drain(error as Error);
    } else {
      // The server may have assigned jobs that are not known here. The deregistration returns them.
      this.#host.logger.warn(`no answer to a claim (${(error as Error).message}); registering again`);
      this.#host.replace(this);
    }
    return 0;
  }

  #enqueue(jobs: ClaimedJob[]): void {
    const now = performance.now();
    for (const job of jobs) {
      const timeoutMs = (job.timeout_s ?? Number.POSITIVE_INFINITY) * 1_000;
      this.#waiting.push({ job, startBy: now + Math.min(MAX_WAITING_MS, timeoutMs / 2) });
    }
    this.#overdueTimer ??= setTimeout(() => this.#releaseOverdue(), OVERDUE_CHECK_MS).unref();
  }

  // ---- jobs ----

  async #run(job: ClaimedJob): Promise<void> {
    const context = this.#host.context(job, this.#journal, this.id);
    const key = `${job.id}/${job.epoch}`;
    const running: Running = { context, isCanceled: false };
    this.#running.set(key, running);
    this.#affinity = job.affinity ?? this.#affinity;
    const startedAt = performance.now();
    const outcome = await this.#host.execute(context);
    // A handler that was given up has no outcome. It has occupied its slot until now.
    if (this.#running.delete(key)) {
      if (running.isCanceled) this.#push(plain(job, "cancel"));
      else if (this.#isStopping && outcome.kind !== "finish") this.#push(plain(job, "release"));
      else this.#push(outcome);
    }
    this.#host.freeSlot(performance.now() - startedAt);
  }

  #cancel(jobId: string): void {
    const isBeingSettled = this.#settling.some((outcome) => outcome.jobId === jobId);
    // After a timeout, the next attempt of the job may be here already. The cancellation concerns the older one.
    if (this.#canceled.has(jobId) || isBeingSettled || this.#outcomes.has(jobId)) return;
    const attempts = [...this.#running.values()].filter(({ context }) => context.id === jobId);
    const [oldest] = attempts.sort((one, other) => one.context.job.epoch - other.context.job.epoch);
    if (oldest !== undefined) {
      this.#canceled.set(jobId, Number.POSITIVE_INFINITY);
      oldest.isCanceled = true;
      oldest.context.abort(new Error("the job was canceled or timed out"));
      return;
    }
    const waiting = this.#waiting.findIndex(({ job }) => job.id === jobId);
    if (waiting >= 0) {
      this.#canceled.set(jobId, Number.POSITIVE_INFINITY);
      const [removed] = this.#waiting.splice(waiting, 1);
      this.#push(plain((removed as Waiting).job, "cancel"));
    }
  }

  #releaseOverdue(): void {
    const now = performance.now();
    this.#release(({ startBy }) => startBy <= now);
    const next = (): void => this.#releaseOverdue();
    this.#overdueTimer = this.#waiting.length > 0 ? setTimeout(next, OVERDUE_CHECK_MS).unref() : undefined;
  }

  #release(matches: (waiting: Waiting) => boolean): void {
    const released = this.#waiting.filter(matches);
    if (released.length > 0) {
      this.#waiting = this.#waiting.filter((waiting) => !matches(waiting));
      for (const { job } of released) this.#push(plain(job, "release"));
    }
  }

  // ---- outcomes ----

  #push(outcome: Outcome): void {
    if (!this.isClosed) {
      this.#outcomes.push(outcome);
      this.#settler ??= this.#settleAll();
    }
  }

  async #settleAll(): Promise<void> {
    // Outcomes of the same turn of the event loop share a request.
    await new Promise(setImmediate);
    while (!this.isClosed && this.#outcomes.length > 0) {
      const batch = this.#outcomes.nextBatch();
      this.#settling = batch;
      try {
        const rawBody = `{"outcomes":[${batch.map((outcome) => outcome.json).join(",")}]}`;
        const view = await this.#host.http.request<SettleView>("POST", this.#path("settle"), { rawBody });
        this.#settleBackoff.reset();
        // Results are in the order of the request, which may contain two attempts of one job.
        batch.forEach((outcome, index) => {
          this.#onSettled(outcome, view.results[index]?.status);
        });
      } catch (error) {
        await this.#onSettleFailed(batch, error);
      }
      this.#settling = [];
      this.advance();
      this.#host.changed();
    }
    this.#settler = undefined;
  }

  async #onSettleFailed(batch: Outcome[], error: unknown): Promise<void> {
    const reason = (error as Error).message;
    if (isLeaseExpired(error)) {
      this.#onLeaseExpired();
    } else if (isAboutContent(error)) {
      const lost = this.#outcomes.onRefused(batch, reason);
      if (lost !== undefined) {
        this.#host.logger.error(`the outcome of job ${lost.jobId} was rejected and is lost: ${reason}`);
      }
    } else {
      if (classify(error) === "refused") this.#host.drain(error as Error);
      this.#host.logger.warn(`a settle of ${batch.length} outcomes failed and is repeated: ${reason}`);
      await sleep(Math.max(this.#settleBackoff.next(), retryAfterMs(error)), this.#closed.signal);
      this.#outcomes.returnBatch(batch);
    }
  }

  #onSettled(outcome: Outcome, status: string | undefined): void {
    if (status === "applied") this.#host.count(outcome.kind, 1);
    else if (outcome.kind !== "cancel") this.#host.count("lost", 1);
    if (outcome.kind === "cancel") {
      this.#canceled.set(outcome.jobId, monotonicMs());
    } else if (status === "already_ended" || status === "claim_lost") {
      // The job was canceled or timed out in the meantime. Confirm that the handler has stopped, which frees what the
      // job occupies.
      this.#push(plain({ id: outcome.jobId, epoch: outcome.epoch }, "cancel"));
    }
  }

  #onLeaseExpired(): void {
    if (this.isClosed) return;
    this.#host.logger.warn(`the lease of worker ${this.id} has expired; registering again`);
    this.#host.replace(this);
    void this.close({ deregister: false });
    this.#host.changed();
  }

  async #deregister(): Promise<void> {
    try {
      await this.#host.http.persist("DELETE", `/workers/${this.id}`, { signal: AbortSignal.timeout(DEREGISTER_MS) });
    } catch {
      this.#host.logger.warn(`cannot deregister worker ${this.id}; its lease will expire`);
    }
  }

  #path(operation: string): string {
    return `/workers/${this.id}/${operation}`;
  }
}

/** True if the problem concerns the content of outcomes, so that other outcomes would be accepted. */
function isAboutContent(error: unknown): boolean {
  const { status = 0, code = "" } = error instanceof ApiError ? error : {};
  return status === 413 || code === "invalid_json" || (status === 422 && code === "invalid_field");
}
