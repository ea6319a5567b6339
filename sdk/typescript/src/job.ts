/** Definitions of jobs: a kind with its options, its schema and its handler. */

import { type Duration, toSeconds, toWholeSeconds } from "./duration.js";
import type { JobHandle } from "./handle.js";
import { type JsonResult, parse, type SchemaInput, type SchemaOutput, type StandardSchema } from "./schema.js";
import type { Windlass } from "./windlass.js";
import type { JobRequest, NodeRequest, RetrySettings, WebhookSettings } from "./wire.js";
import type { Context } from "./worker/context.js";
import type { WorkflowContext } from "./workflow/context.js";

/** Backoff between attempts: `initial`, multiplied by `exponent` after each failure, at most `maximum`. */
export interface RetryPolicy {
  /** The wait before the second attempt. Default: 5 s. */
  initial?: Duration;
  /** The longest wait. Default: 1 h. */
  maximum?: Duration;
  /** The factor by which each wait grows. Default: 2. */
  exponent?: number;
  /** The random share that is added, from 0 to 1. Default: 0.1. */
  jitter?: number;
}

/** A value, or a function that derives it from the payload. */
export type Derived<Payload, Value> = Value | ((payload: Payload) => Value);

/** Options of all jobs of a kind. */
export interface JobOptions<Payload = unknown> {
  /** The queue's name. Default: `default`. */
  queue?: string;
  /** Backoff between attempts. Default: the queue's policy. */
  retry?: RetryPolicy;
  /** Maximum number of attempts. Default: 3. */
  maxAttempts?: number;
  /** How long an attempt may take. Default: the queue's setting. */
  timeout?: Duration;
  /** Jobs with a higher priority run first, from -32768 to 32767. Default: 0. */
  priority?: number;
  /**
   * Derives the unique key: while a job with this key has not ended, a push with the same key returns that job. `true`
   * uses the kind and the payload.
   */
  unique?: true | ((payload: Payload) => string);
  /** Reserves the unique key for this long, instead of until the job ends. */
  uniqueFor?: Duration;
  /** What a worker must have loaded to run the job, for example the name of a model. */
  affinity?: Derived<Payload, string>;
  /** The subject that the job works on. At most one job per subject and process runs at a time. */
  subject?: Derived<Payload, string>;
  /** The process that the job counts for. Requires `subject`. */
  process?: string;
  /** The group of jobs that the job belongs to. */
  run?: Derived<Payload, string>;
  /** At most `per_key` jobs (a setting of the queue) with the same key run at a time. */
  concurrencyKey?: Derived<Payload, string>;
  /** Labels for listings, at most 32. */
  tags?: Derived<Payload, string[]>;
  /** Receives every state change. */
  webhook?: WebhookSettings;
}

/** Options of `Windlass.push` and `Windlass.many`. */
export interface EnqueueOptions {
  /** A repeated push with the same key and jobs returns the same jobs for 24 hours. Default: a random key. */
  idempotencyKey?: string;
  /** Aborts the request. */
  signal?: AbortSignal;
}

/** Options of one push. They replace those of the kind. */
export interface PushOptions extends Omit<JobOptions<never>, "unique">, EnqueueOptions {
  /** The unique key. */
  uniqueKey?: string;
  /** The job starts after this delay. */
  delay?: Duration;
  /** The earliest time at which the job may start. */
  runAt?: Date;
}

/** Runs a job of a kind. The resolved value is the result. */
export type Handler<Payload, Returned, Ctx = Context> = (ctx: Ctx, payload: Payload) => Promise<Returned> | Returned;

/** The parameters of `Job.push`: the payload is optional if it may be undefined. */
export type PushParameters<Input, Options = PushOptions> = undefined extends Input
  ? [payload?: Input, options?: Options]
  : [payload: Input, options?: Options];

/** Options of a node of a run. */
export interface NodeOptions
  extends Omit<PushOptions, "uniqueKey" | "uniqueFor" | "run" | "idempotencyKey" | "signal"> {
  /** The names of the nodes that must end first. */
  needs?: string[];
  /** The outcomes of the needs after which the node starts. Default: `success`. */
  when?: "success" | "failure" | "always";
}

/** The options of any kind. @internal */
export type AnyOptions = JobOptions<never> & { input?: StandardSchema; strict?: boolean | undefined };
/** The handler of any kind. @internal */
export type AnyHandler = Handler<never, unknown, never>;

const BRAND = Symbol.for("windlass.job");

/** A kind of job: push it, wait for it, and run it in a worker if it has a handler. */
export class Job<Input = unknown, Result = unknown> {
  /** The kind of work. Names the handler. */
  readonly kind: string;
  /** The queue that the job is pushed to by default. */
  readonly queue: string;
  /** The client that the job belongs to. */
  readonly windlass: Windlass;
  /** @internal */
  readonly input: StandardSchema | undefined;
  /** @internal */
  readonly handler: AnyHandler | undefined;
  /** @internal `true` or `false` for a workflow: whether it is strict. */
  readonly strict: boolean | undefined;
  readonly #options: JobOptions<never>;
  /** @internal */
  readonly [BRAND] = true;

  /** @internal */
  constructor(windlass: Windlass, kind: string, options: AnyOptions, handler?: AnyHandler) {
    const { strict, ...others } = options;
    this.windlass = windlass;
    this.strict = strict;
    this.kind = kind;
    this.queue = options.queue ?? "default";
    this.input = options.input;
    this.handler = handler;
    this.#options = others;
  }

  /** Enqueues a job. It is durable when the promise resolves. The payload is validated first. */
  async push(...parameters: PushParameters<Input>): Promise<JobHandle<Result>> {
    return this.windlass.push(await this.request(...parameters), parameters[1]) as Promise<JobHandle<Result>>;
  }

  /** Enqueues a job per payload in one transaction, all or none; at most 10,000. */
  async many(payloads: readonly Input[], options?: PushOptions): Promise<JobHandle<Result>[]> {
    const request = (payload: Input) => this.request(...([payload, options] as PushParameters<Input>));
    const requests = await Promise.all(payloads.map(request));
    return this.windlass.many(requests, options) as Promise<JobHandle<Result>[]>;
  }

  /** Validates the payload and returns the request, to be pushed with others by `Windlass.many`. */
  async request(...[payload, options = {}]: PushParameters<Input>): Promise<JobRequest> {
    // Validate what the worker will receive, so that a `Date` is found here and not there.
    const json = payload === undefined ? null : (JSON.parse(JSON.stringify(payload)) as unknown);
    await parse(this.kind, this.input, json);
    return requestOf(this, this.#options, json, options);
  }

  /**
   * Returns the job as a node of a run, for `Windlass.startRun`. `needs` names the nodes that must end first; their results
   * are the `inputs` of the context.
   */
  async node(...[payload, { needs, when, ...options } = {}]: PushParameters<Input, NodeOptions>): Promise<NodeRequest> {
    const request = await this.request(...([payload, options] as unknown as PushParameters<Input>));
    const { unique_key: _, unique_by, unique_for_s, run, ...members } = request;
    return defined({ ...members, needs, when }) as NodeRequest;
  }

  /** Returns a handle of a job that was pushed before. */
  handle(id: string): JobHandle<Result> {
    return this.windlass.handle<Result>(id);
  }

  /** @internal Accepts a job of the other build (ESM or CommonJS), too. */
  static isJob(value: object): value is Job {
    return BRAND in value;
  }
}

function requestOf(job: Job, kind: JobOptions<never>, payload: unknown, pushed: PushOptions): JobRequest {
  const derive = <Value>(value: Derived<never, Value> | undefined): Value | undefined =>
    typeof value === "function" ? (value as (payload: unknown) => Value)(payload) : value;
  const { unique, ...defaults } = kind;
  const options = { ...defaults, ...defined(pushed) };
  const uniqueKey = pushed.uniqueKey ?? (typeof unique === "function" ? derive<string>(unique) : undefined);
  const runAt = options.delay === undefined ? options.runAt : new Date(Date.now() + toSeconds(options.delay) * 1_000);
  return defined({
    queue: options.queue ?? job.queue,
    kind: job.kind,
    payload,
    affinity: derive(options.affinity),
    priority: options.priority,
    run_at: runAt?.toISOString(),
    subject: derive(options.subject),
    process: options.process,
    run: derive(options.run),
    unique_key: uniqueKey,
    unique_by: unique === true && uniqueKey === undefined ? ["kind", "payload"] : undefined,
    unique_for_s: options.uniqueFor === undefined ? undefined : toWholeSeconds(options.uniqueFor),
    concurrency_key: derive(options.concurrencyKey),
    max_attempts: options.maxAttempts,
    retry: options.retry && retrySettings(options.retry),
    timeout_s: options.timeout === undefined ? undefined : toWholeSeconds(options.timeout),
    tags: derive(options.tags),
    webhook: options.webhook,
  }) as JobRequest;
}

// The server's defaults within a policy repeat without growth. These are its defaults without a policy.
function retrySettings({ initial = 5, maximum = 3_600, exponent = 2, jitter = 0.1 }: RetryPolicy): RetrySettings {
  const initial_s = toWholeSeconds(initial);
  return { initial_s, maximum_s: Math.max(initial_s, toWholeSeconds(maximum)), exponent, jitter };
}

/** Drops the members that are undefined. */
function defined<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, member]) => member !== undefined)) as T;
}

/** Creates kinds with a handler. */
export interface DefineHandled<Ctx, Options = unknown> {
  /** A kind with a schema and a handler. The handler receives the output of the schema. */
  <S extends StandardSchema, Returned>(
    kind: string,
    options: JobOptions<SchemaInput<S>> & Options & { input: S },
    handler: Handler<SchemaOutput<S>, Returned, Ctx>,
  ): Job<SchemaInput<S>, JsonResult<Awaited<Returned>>>;
  /** A kind with a handler. The type of the payload is that of the handler's parameter; it is not checked. */
  <Payload, Returned>(
    kind: string,
    options: JobOptions<Payload> & Options,
    handler: Handler<Payload, Returned, Ctx>,
  ): Job<Payload, JsonResult<Awaited<Returned>>>;
}

/** Creates kinds of jobs. The type of `Windlass.job`. */
export interface DefineJob extends DefineHandled<Context> {
  /** A kind with a schema that another process handles. */
  <S extends StandardSchema, Result = unknown>(
    kind: string,
    options: JobOptions<SchemaInput<S>> & { input: S },
  ): Job<SchemaInput<S>, Result>;
  /** A kind that another process handles: `wl.job<Payload, Result>("kind", {…})`. */
  <Payload = unknown, Result = unknown>(kind: string, options?: JobOptions<Payload>): Job<Payload, Result>;
}

/** Options that only workflows have. */
export interface WorkflowOptions {
  /** Fail a job with `workflow_drift` if its recorded operations do not fit the code. Default: its signal has a warning. */
  strict?: boolean;
}

/** Creates workflows. The type of `Windlass.workflow`. */
export type DefineWorkflow = DefineHandled<WorkflowContext, WorkflowOptions>;
