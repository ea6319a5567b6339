/**
 * A worker: claims jobs of some queues and runs their handlers. It survives restarts of the server, registers again when
 * its lease has expired, and stops gracefully.
 */

import { hostname } from "node:os";
import { Backoff, sleep } from "../backoff.js";
import { type Duration, toMilliseconds, toWholeSeconds } from "../duration.js";
import { classify } from "../errors.js";
import type { Http } from "../http.js";
import type { Job } from "../job.js";
import type { Logger, Middleware, Windlass } from "../windlass.js";
import type { ClaimedJob, WorkerRegistered } from "../wire.js";
import type { JournalWriter } from "../workflow/writer.js";
import type { Context } from "./context.js";
import { contextOf, execute } from "./execute.js";
import { Heartbeats } from "./heartbeat.js";
import type { Outcome } from "./outcomes.js";
import { Session } from "./session.js";

/** Options of a worker. */
export interface WorkerOptions {
  /** The queues to claim from. Default: the queues of all jobs with a handler. */
  queues?: string[];
  /** The kinds to run, of the jobs with a handler. Default: all of these queues. */
  kinds?: string[];
  /** Maximum number of handlers that run at the same time. Default: 10. */
  concurrency?: number;
  /** Time without a heartbeat after which the jobs are given to other workers. Default: 30 s. */
  lease?: Duration;
  /** How long running handlers may continue when the worker stops. Default: 30 s. */
  drain?: Duration;
  /** How long handlers may continue after their signal is aborted. Default: 5 s. */
  stopGrace?: Duration;
  /** The name that is shown to people. Default: the host and the process id. */
  name?: string;
  /** Affinities that the worker can load. Default: all. */
  affinities?: string[];
}

/**
 * Counters of a worker: jobs that it claimed, attempts by outcome, and attempts that lost their claim before the outcome
 * arrived. Outcomes count once the server has applied them.
 */
export type Statistics = Record<(typeof COUNTERS)[keyof typeof COUNTERS], number>;

/** Jobs that the handlers finish in this time are claimed ahead, at most `MAX_CLAIM`. */
const PREFETCH_MS = 250;
const MAX_CLAIM = 1_000;
/** Nothing is claimed ahead when no handler has ended for this long. */
const SLOW_MS = 1_000;
/** The longest delay of a timer. */
const MAX_TIMER_MS = 2 ** 31 - 1;

const COUNTERS = {
  claimed: "claimed",
  finish: "succeeded",
  fail: "failed",
  cancel: "canceled",
  snooze: "snoozed",
  release: "released",
  suspend: "suspended",
  continue_as: "continued",
  lost: "lost",
} as const;

/** Runs the handlers of a client. Create one with `Windlass.worker`. */
export class Worker {
  /** @internal */
  readonly http: Http;
  /** @internal */
  readonly logger: Logger;
  readonly #middleware: Middleware[];
  readonly #handlers: Map<string, Job>;
  readonly #drainMs: number;
  readonly #stopGraceMs: number;
  readonly #request: Record<string, unknown>;
  readonly #concurrency: number;
  readonly #statistics = Object.fromEntries(Object.values(COUNTERS).map((name) => [name, 0])) as unknown as Statistics;
  /** Moving average of the time that a handler takes. */
  #averageMs = Number.POSITIVE_INFINITY;
  #lastEndAt = 0;
  #running = 0;
  #active: Session | undefined;
  /** Sessions that claim nothing more and still have jobs. */
  readonly #retired = new Set<Session>();
  #heartbeats: Heartbeats | undefined;
  #waiters: AbortController[] = [];
  readonly #stopping = new AbortController();
  #refusal: Error | undefined;
  #started: Promise<void> | undefined;
  #registering: Promise<void> | undefined;
  #stopped: Promise<Statistics> | undefined;

  /** @internal */
  constructor(windlass: Windlass, options: WorkerOptions) {
    const handlers = handlersOf(windlass, options);
    const queues = options.queues ?? [...new Set([...handlers.values()].map((job) => job.queue))];
    const concurrency = options.concurrency ?? 10;
    if (!Number.isInteger(concurrency) || concurrency < 1) {
      throw new RangeError(`concurrency must be an integer from 1; it is ${concurrency}`);
    }
    this.#concurrency = concurrency;
    this.http = windlass.http;
    this.logger = windlass.logger;
    this.#middleware = windlass.middleware;
    this.#handlers = handlers;
    this.#drainMs = toMilliseconds(options.drain ?? 30);
    this.#stopGraceMs = toMilliseconds(options.stopGrace ?? 5);
    this.#request = {
      name: options.name ?? `${hostname()}-${process.pid}`,
      queues,
      kinds: [...handlers.keys()].sort(),
      ...(options.affinities && { affinities: options.affinities }),
      ...(options.lease !== undefined && { lease_s: toWholeSeconds(options.lease) }),
    };
  }

  /** Takes a slot for a handler. Returns false if none is free. @internal */
  takeSlot(): boolean {
    const isFree = !this.#stopping.signal.aborted && this.#running < this.#concurrency;
    this.#running += isFree ? 1 : 0;
    return isFree;
  }

  /** Returns a slot after a handler that ran for `ms`. @internal */
  freeSlot(ms: number): void {
    this.#running -= 1;
    this.#averageMs = Number.isFinite(this.#averageMs) ? this.#averageMs * 0.9 + ms * 0.1 : ms;
    this.#lastEndAt = performance.now();
    this.#advance();
  }

  /** @internal */
  context(job: ClaimedJob, journal: JournalWriter, worker: string): Context {
    return contextOf(this.#handlers.get(job.kind), job, { http: this.http, logger: this.logger, worker }, journal);
  }

  /** @internal */
  execute(context: Context): Promise<Outcome> {
    return execute(this.#handlers.get(context.kind), this.#middleware, context);
  }

  /** @internal */
  count(counter: keyof typeof COUNTERS, by: number): void {
    this.#statistics[COUNTERS[counter]] += by;
  }

  /** Counters since the worker was created. */
  get statistics(): Statistics {
    return { ...this.#statistics };
  }

  /** Registers the worker and starts to claim jobs. Waits while the server is away. Rejects if the server rejects it. */
  start(): Promise<void> {
    this.#started ??= this.#start();
    return this.#started;
  }

  /** Stops gracefully: claims nothing more, waits for running handlers, settles and deregisters. */
  stop(): Promise<Statistics> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  /**
   * Starts the worker and waits until it has stopped: after SIGTERM or SIGINT, after `stop`, or when the server requests
   * a drain. A second SIGTERM or SIGINT ends the process.
   */
  async run(): Promise<Statistics> {
    const stop = (): void => void this.stop();
    process.once("SIGTERM", stop);
    process.once("SIGINT", stop);
    try {
      await this.start();
      await this.#until(() => this.#stopped !== undefined);
      return await this.stop();
    } finally {
      process.removeListener("SIGTERM", stop);
      process.removeListener("SIGINT", stop);
    }
  }

  async #start(): Promise<void> {
    if (this.#stopping.signal.aborted) return;
    const { url, headers } = this.http.connection;
    const api = this.http.address("");
    this.#heartbeats = new Heartbeats(
      { api, headers },
      (report) =>
        this.#sessions()
          .find(({ id }) => id === report.id)
          ?.onHeartbeat(report),
      (error) => this.drain(error),
    );
    this.#registering = this.#register();
    await this.#registering;
    if (this.#refusal !== undefined) throw this.#refusal;
    if (this.#active !== undefined) {
      this.logger.info(`worker ${this.#active.id} claims ${this.#request["queues"]} at ${url}`);
    }
  }

  /** Registers, and repeats that while the server is away. */
  async #register(): Promise<void> {
    const backoff = new Backoff();
    const options = { body: this.#request, signal: this.#stopping.signal };
    while (!this.#stopping.signal.aborted) {
      try {
        const registration = await this.http.request<WorkerRegistered>("POST", "/workers", options);
        this.#active = new Session(this, registration);
        this.#heartbeats?.start(registration.id, registration.lease_s, registration.heartbeat_s);
        this.#active.advance();
        return;
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        if (classify(error) === "refused") return this.drain(error as Error);
        this.logger.warn(`cannot register: ${(error as Error).message}`);
        await sleep(backoff.next(), this.#stopping.signal);
      }
    }
  }

  /** Replaces the active session by another registration. The old one is closed when its jobs are settled. @internal */
  replace(session: Session): void {
    session.retire();
    if (this.#active === session) {
      this.#active = undefined;
      this.#retired.add(session);
      this.#registering = this.#register();
      void this.#closeWhenSettled(session);
    }
  }

  async #closeWhenSettled(session: Session): Promise<void> {
    await this.#until(() => session.isSettled || session.isClosed);
    this.#heartbeats?.stop(session.id);
    await session.close({ deregister: true });
    this.#retired.delete(session);
    this.changed();
  }

  /** @internal */
  drain(refusal?: Error): void {
    if (refusal !== undefined && this.#refusal === undefined) {
      this.#refusal = refusal;
      this.logger.error(`the worker was rejected: ${refusal.message}`);
    }
    // `stop` and `run` report a rejection; a caller of neither must not end the process.
    this.stop().catch(() => {});
  }

  async #stop(): Promise<Statistics> {
    this.#stopping.abort();
    this.changed();
    this.logger.info(`stopping; running handlers: ${this.#running}`);
    await this.#registering;
    const leaseMs = (this.#active?.registration.lease_s ?? 1) * 1_000;
    const isIdle = (): boolean => this.#sessions().every((session) => session.runningCount === 0);
    const isSettled = (): boolean => this.#sessions().every((session) => session.isSettled || session.isClosed);
    for (const session of this.#sessions()) session.drain();
    if (!(await this.#until(isIdle, this.#drainMs))) {
      for (const session of this.#sessions()) session.stopRunning();
      if (!(await this.#until(isIdle, this.#stopGraceMs))) {
        for (const session of this.#sessions()) session.releaseRunning();
      }
    }
    // After the lease the server gives the jobs to other workers.
    if (!(await this.#until(isSettled, leaseMs))) {
      this.logger.error("some outcomes were not settled; their jobs run again");
    }
    await Promise.all(this.#sessions().map((session) => session.close({ deregister: true })));
    await this.#heartbeats?.close();
    if (this.#refusal !== undefined) throw this.#refusal;
    this.logger.info(`stopped after ${this.#statistics.succeeded} jobs`);
    return this.statistics;
  }

  #sessions(): Session[] {
    return this.#active === undefined ? [...this.#retired] : [...this.#retired, this.#active];
  }

  #advance(): void {
    for (const session of this.#sessions()) session.advance();
    this.changed();
  }

  /** @internal */
  wanted(waiting: number): number {
    const isSlow = this.#running > 0 && performance.now() - this.#lastEndAt > SLOW_MS;
    const prefetch = isSlow ? 0 : Math.min(Math.floor((this.#concurrency * PREFETCH_MS) / this.#averageMs), MAX_CLAIM);
    const wanted = Math.min(this.#concurrency + prefetch - this.#running - waiting, MAX_CLAIM);
    // While jobs wait, claim a good part of the prefetch at once instead of single jobs.
    const minimum = waiting === 0 ? 1 : Math.max(Math.floor(prefetch / 2), 1);
    return wanted >= minimum ? wanted : 0;
  }

  /** @internal */
  changed(): void {
    for (const waiter of this.#waiters.splice(0)) waiter.abort();
  }

  /** Waits for a condition. Returns false if it does not hold within `ms`. */
  async #until(condition: () => boolean, ms = MAX_TIMER_MS): Promise<boolean> {
    const until = performance.now() + ms;
    while (!condition() && performance.now() < until) {
      const waiter = new AbortController();
      this.#waiters.push(waiter);
      await sleep(until - performance.now(), waiter.signal);
    }
    return condition();
  }
}

function handlersOf(windlass: Windlass, { queues, kinds }: WorkerOptions): Map<string, Job> {
  const handlers = new Map<string, Job>();
  for (const job of windlass.jobs) {
    if (!(kinds?.includes(job.kind) ?? queues?.includes(job.queue) ?? true)) continue;
    if (handlers.has(job.kind)) throw new Error(`the kind ${JSON.stringify(job.kind)} has two handlers`);
    handlers.set(job.kind, job);
  }
  const missing = kinds?.filter((kind) => !handlers.has(kind)) ?? [];
  if (handlers.size === 0 || missing.length > 0) {
    const what = missing.length > 0 ? missing.join(", ") : queues ? `the queues ${queues.join(", ")}` : "any job";
    throw new Error(`no handler for ${what}; define one with \`wl.job(kind, options, handler)\``);
  }
  return handlers;
}
