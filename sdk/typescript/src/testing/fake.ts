/** A client without a server: pushes are recorded, and run in this process when the test asks for it. */

import { randomUUID } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { Http } from "../http.js";
import type { Job } from "../job.js";
import { isFinal } from "../sse.js";
import type { Windlass } from "../windlass.js";
import type { ClaimedJob, JobRequest, JobView, Signal } from "../wire.js";
import { Context } from "../worker/context.js";
import { execute } from "../worker/execute.js";
import type { Outcome } from "../worker/outcomes.js";

/** How often a job may be run, so that a handler that always snoozes does not run forever. */
const MAX_RUNS = 1_000;

/** Options of `fake`. */
export interface FakeOptions {
  /** Runs each job during its push. Default: jobs run with `Fake.drain` and `JobHandle.wait`. */
  inline?: boolean;
}

/** A job that was pushed to a fake client. */
export interface FakeJob {
  /** The job as the API would return it. */
  readonly view: JobView;
  /** The members of `POST /jobs`. */
  readonly request: JobRequest;
  /** What the handler reported about its progress, in order; updates may be merged. */
  readonly signals: Record<string, unknown>[];
  /** The artifacts that the handler stored, by name. */
  readonly artifacts: Map<string, string | Uint8Array>;
  /** The facts that the handler set. */
  readonly facts: Record<string, unknown>;
}

/** Replaces the server of a client. */
export class Fake {
  /** The jobs that were pushed, in order. */
  readonly jobs: FakeJob[] = [];
  readonly #windlass: Windlass;
  readonly #original: Http;
  /** A client of this server. */
  readonly #http: Http;
  readonly #isInline: boolean;
  /** The jobs that run, each with its attempt and its end. */
  readonly #running = new Map<string, { context?: Context; ended: Promise<void> }>();

  /** @internal */
  constructor(windlass: Windlass, options: FakeOptions) {
    this.#windlass = windlass;
    this.#original = windlass.http;
    this.#isInline = options.inline ?? false;
    const respond = async (url: string, init: RequestInit) => this.#respond(new URL(url), init);
    this.#http = new Http({ url: "http://fake.invalid", headers: {}, timeoutMs: 1e9, fetch: respond as typeof fetch });
    windlass.http = this.#http;
  }

  /** The payloads of the jobs of a kind, in order. */
  pushed<Input>(job: Job<Input, unknown>): Input[] {
    return this.jobs.filter(({ view }) => view.kind === job.kind).map(({ view }) => view.payload as Input);
  }

  /** Fails unless a job of this kind was pushed, with this payload if one is given. */
  assertPushed<Input>(job: Job<Input, unknown>, payload?: Input): void {
    if (!this.#has(job, payload)) {
      throw new Error(`${describe(job, payload)} was not pushed; pushed were: ${JSON.stringify(this.pushed(job))}`);
    }
  }

  /** Fails if a job of this kind was pushed, with this payload if one is given. */
  assertNotPushed<Input>(job: Job<Input, unknown>, payload?: Input): void {
    if (this.#has(job, payload)) throw new Error(`${describe(job, payload)} was pushed`);
  }

  /** Runs the jobs that have not ended, and those that they push. Retries, snoozes and delays do not wait. */
  async drain(): Promise<void> {
    const next = () => this.jobs.find(({ view }) => !isFinal(view.state) && !this.#running.has(view.id));
    for (let job = next(); job !== undefined; job = next()) await this.#run(job);
  }

  /** Forgets the jobs. */
  clear(): void {
    this.jobs.length = 0;
  }

  /** Connects the client with its server again. */
  restore(): void {
    this.#windlass.http = this.#original;
  }

  #has<Input>(job: Job<Input, unknown>, payload: Input | undefined): boolean {
    const pushed = this.pushed(job);
    const expected = payload === undefined ? undefined : JSON.parse(JSON.stringify(payload));
    return payload === undefined ? pushed.length > 0 : pushed.some((other) => isDeepStrictEqual(other, expected));
  }

  /** Answers a request as a server would. */
  async #respond({ pathname, searchParams }: URL, { method, body }: RequestInit): Promise<Response> {
    const path = pathname.replace("/api/v1/jobs", "");
    if (path === "" || path === "/batch") {
      const request = JSON.parse(body as string);
      const jobs = (path === "" ? [request as JobRequest] : (request.jobs as JobRequest[])).map((job) =>
        this.#enqueue(job),
      );
      for (const job of this.#isInline ? jobs : []) await this.#run(job);
      const ids = jobs.map(({ view }) => view.id);
      return Response.json({ id: ids[0], ids });
    }
    const [, id, operation, name] = /^\/([^/]+)(?:\/(cancel|signal|stream|artifacts))?(?:\/(.+))?$/.exec(path) ?? [];
    const job = this.jobs.find(({ view }) => view.id === id);
    if (job === undefined) {
      const detail = `the fake server has no ${path}`;
      return Response.json({ status: 404, code: "not_found", detail }, { status: 404 });
    }
    const { view } = job;
    if (name !== undefined) {
      job.artifacts.set(decodeURIComponent(name), body as string | Uint8Array);
    } else if (operation === "cancel" && !isFinal(view.state)) {
      view.state = "canceled";
      this.#running.get(view.id)?.context?.abort(new Error("the job was canceled or timed out"));
    } else if (operation === "signal" && method === "PUT") {
      const { epoch: _, ...update } = JSON.parse(body as string) as Record<string, unknown>;
      const { progress = view.progress, phase = view.phase } = update;
      job.signals.push(update);
      Object.assign(view, { progress, phase });
    } else if (operation === "signal") {
      return Response.json(signalOf(job));
    } else if (operation === "stream") {
      const before = eventOf(job);
      await this.#run(job);
      const headers = { "content-type": "text/event-stream" };
      return new Response(before === eventOf(job) ? before : before + eventOf(job), { headers });
    } else if ((searchParams.get("wait") ?? "0ms") !== "0ms") {
      await this.#run(job);
    }
    return Response.json(view);
  }

  #enqueue(request: JobRequest): FakeJob {
    // What a server would store.
    const stored = JSON.parse(JSON.stringify(request)) as JobRequest;
    const { unique_key, unique_by, unique_for_s: _, webhook, ...members } = stored;
    const uniqueKey = unique_key ?? (unique_by && JSON.stringify([stored.kind, stored.payload]));
    const existing = this.jobs.find(
      ({ view }) => view.unique_key === uniqueKey && view.queue === stored.queue && !isFinal(view.state),
    );
    if (uniqueKey !== undefined && existing !== undefined) return existing;
    const now = new Date().toISOString();
    const view: JobView = {
      payload: null,
      priority: 0,
      run_at: now,
      max_attempts: 3,
      tags: [],
      ...members,
      ...(uniqueKey !== undefined && { unique_key: uniqueKey }),
      ...(webhook && { webhook_url: webhook.url }),
      id: randomUUID(),
      state: "queued",
      attempt: 0,
      epoch: 0,
      depth: 0,
      principal: "fake",
      created_at: now,
      updated_at: now,
    };
    const job: FakeJob = { view, request: stored, signals: [], artifacts: new Map(), facts: {} };
    this.jobs.push(job);
    return job;
  }

  /** Runs a job until it has ended, once. */
  #run(job: FakeJob): Promise<void> {
    const { id } = job.view;
    const running = this.#running.get(id) ?? { ended: this.#runToEnd(job).finally(() => this.#running.delete(id)) };
    this.#running.set(id, running);
    return running.ended;
  }

  async #runToEnd(job: FakeJob): Promise<void> {
    const { view } = job;
    const definition = this.#windlass.jobs.find(({ kind }) => kind === view.kind);
    // The caller stores the job as running first.
    await Promise.resolve();
    for (let runs = 0; !isFinal(view.state); runs++) {
      if (runs === MAX_RUNS) throw new Error(`job ${view.id} (${view.kind}) has not ended after ${MAX_RUNS} runs`);
      Object.assign(view, { state: "working", attempt: view.attempt + 1, epoch: view.epoch + 1 });
      const context = new Context(view as ClaimedJob, { http: this.#http, logger: this.#windlass.logger });
      Object.assign(this.#running.get(view.id) ?? {}, { context });
      const outcome = await execute(definition, this.#windlass.middleware, context);
      if (view.state === "working") settle(job, outcome);
    }
  }
}

/** Replaces the server of a client by a fake. Call `restore` at the end of the test. */
export function fake(windlass: Windlass, options: FakeOptions = {}): Fake {
  return new Fake(windlass, options);
}

/** Applies an outcome as a server would. */
function settle({ view, facts }: FakeJob, outcome: Outcome): void {
  const settled = JSON.parse(outcome.json) as Partial<Pick<JobView, "result" | "error">> & { facts?: object };
  switch (outcome.kind) {
    case "finish":
      Object.assign(view, { state: "succeeded", result: settled.result ?? null });
      Object.assign(facts, settled.facts);
      break;
    case "fail": {
      const isLast = outcome.retryable === false || view.attempt >= view.max_attempts;
      Object.assign(view, { state: isLast ? "failed" : "scheduled", error: settled.error });
      break;
    }
    case "cancel":
      view.state = "canceled";
      break;
    default:
      Object.assign(view, { state: "scheduled", attempt: view.attempt - 1 });
  }
}

function eventOf(job: FakeJob): string {
  return `event: signal\ndata: ${JSON.stringify(signalOf(job))}\n\n`;
}

function signalOf({ view, signals }: FakeJob): Signal {
  return {
    phase: view.state,
    summary: view.state,
    next_actions: [],
    diagnostics: {},
    ...Object.assign({}, ...signals),
    job_id: view.id,
    kind: isFinal(view.state) ? view.state : view.state === "working" ? "started" : "queued",
    version: signals.length,
    created_at: view.created_at,
    updated_at: view.updated_at,
  };
}

function describe(job: Job<never, unknown> | Job, payload: unknown): string {
  return payload === undefined ? `a job ${job.kind}` : `a job ${job.kind} with the payload ${JSON.stringify(payload)}`;
}
