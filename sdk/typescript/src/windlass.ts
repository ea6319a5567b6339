/** The client: definitions of jobs, pushes, handles and workers. */

import { type Duration, toMilliseconds } from "./duration.js";
import { JobHandle } from "./handle.js";
import { Http, type RequestOptions } from "./http.js";
import {
  type AnyHandler,
  type AnyOptions,
  type DefineJob,
  type DefineWorkflow,
  type EnqueueOptions,
  Job,
} from "./job.js";
import { RunHandle, type RunOptions } from "./run.js";
import type { JobRequest } from "./wire.js";
import type { Context } from "./worker/context.js";
import { Worker, type WorkerOptions } from "./worker/worker.js";

/** Receives log lines for operators. `console` is one. */
export type Logger = Pick<Console, "info" | "warn" | "error">;

/** Options of a client. */
export interface WindlassOptions {
  /** The address of the server. Default: `WINDLASS_URL`, else `http://127.0.0.1:7717`. */
  url?: string;
  /** The bearer token. Default: `WINDLASS_TOKEN`, else none. */
  token?: string;
  /** How long a request may take, in addition to the time for which the server may hold it. Default: 30 s. */
  timeout?: Duration;
  /** Additional headers of each request, for example for a proxy. */
  headers?: Record<string, string>;
  /** Replaces the global `fetch`, except for the heartbeats of workers. */
  fetch?: typeof fetch;
  /** Receives log lines. Default: warnings and errors go to the console. */
  logger?: Logger;
}

/** Runs around each handler. Call `next` once to run the rest; its result is that of the handler. */
export type Middleware = (ctx: Context, next: () => Promise<unknown>) => Promise<unknown>;

const QUIET: Logger = {
  info() {},
  warn: (message) => console.warn(`windlass: ${message}`),
  error: (message) => console.error(`windlass: ${message}`),
};

const BRAND = Symbol.for("windlass.client");

/** A client of one server. */
export class Windlass {
  /** Defines a kind of job. */
  readonly job: DefineJob;
  /** Defines a workflow: a kind of job with durable steps. */
  readonly workflow: DefineWorkflow;
  /** @internal Replaced by the fake server of `windlass/testing`. */
  http: Http;
  /** @internal */
  readonly logger: Logger;
  /** @internal The jobs with a handler. */
  readonly jobs: Job[] = [];
  /** @internal */
  readonly middleware: Middleware[] = [];
  /** @internal */
  readonly [BRAND] = true;

  constructor(options: WindlassOptions = {}) {
    const token = options.token ?? process.env["WINDLASS_TOKEN"];
    const headers: Record<string, string> = { "user-agent": "windlass-typescript/0.2.0", ...options.headers };
    if (token) headers["authorization"] = `Bearer ${token}`;
    this.http = new Http({
      url: options.url ?? (process.env["WINDLASS_URL"] || "http://127.0.0.1:7717"),
      headers,
      // Looked up at each request, so that a later replacement of the global takes effect.
      fetch: options.fetch ?? ((...parameters) => fetch(...parameters)),
      timeoutMs: toMilliseconds(options.timeout ?? 30),
    });
    this.logger = options.logger ?? QUIET;
    const define = (kind: string, jobOptions: AnyOptions = {}, handler?: AnyHandler): Job => {
      const job = new Job(this, kind, jobOptions, handler);
      if (handler !== undefined) this.jobs.push(job);
      return job;
    };
    this.job = define as unknown as DefineJob;
    this.workflow = ((kind: string, { strict = false, ...others }: AnyOptions, handler: AnyHandler) =>
      define(kind, { ...others, strict }, handler)) as DefineWorkflow;
  }

  /**
   * Enqueues a job from the members of `POST /jobs`. It is durable when the promise resolves. The request is repeated
   * while the server is away; an idempotency key prevents duplicates.
   */
  async push(job: JobRequest, options: EnqueueOptions = {}): Promise<JobHandle> {
    const { id } = await this.#enqueue<{ id: string }>("/jobs", job, options);
    return this.handle(id);
  }

  /** Enqueues jobs of any kinds in one transaction, all or none; at most 10,000. */
  async many(jobs: readonly JobRequest[], options: EnqueueOptions = {}): Promise<JobHandle[]> {
    if (jobs.length === 0) return [];
    const { ids } = await this.#enqueue<{ ids: string[] }>("/jobs/batch", { jobs }, options);
    return ids.map((id) => this.handle(id));
  }

  /** Returns a handle of a job that was pushed before. */
  handle<Result = unknown>(id: string): JobHandle<Result> {
    return new JobHandle<Result>(this.http, id);
  }

  /** Starts a run: jobs with dependencies. All of them are created or none. */
  async startRun(options: RunOptions): Promise<RunHandle> {
    return RunHandle.start(this.http, options);
  }

  /** Returns a handle of a run that was started before. */
  run(id: string): RunHandle {
    return new RunHandle(this.http, id);
  }

  /** Adds a middleware around all handlers. The first one added is the outermost. */
  use(middleware: Middleware): this {
    this.middleware.push(middleware);
    return this;
  }

  /** Creates a worker that runs the handlers of this client. */
  worker(options: WorkerOptions = {}): Worker {
    return new Worker(this, options);
  }

  /** Sends a request to a path below `/api/v1` and returns its JSON, for routes that have no method of their own. */
  request<T = unknown>(method: string, path: string, options?: RequestOptions): Promise<T> {
    return this.http.request<T>(method, path, options);
  }

  #enqueue<T>(path: string, body: unknown, options: EnqueueOptions): Promise<T> {
    const { idempotencyKey = crypto.randomUUID(), signal } = options;
    return this.http.persist("POST", path, { body, headers: { "idempotency-key": idempotencyKey }, signal });
  }

  /** @internal Accepts a client of the other build (ESM or CommonJS), too. */
  static isClient(value: unknown): value is Windlass {
    return typeof value === "object" && value !== null && BRAND in value;
  }
}
