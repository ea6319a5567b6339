/** A client without a server: pushes are recorded, and run in this process when the test asks for it. */

import { randomUUID } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { type Duration, toMilliseconds } from "../duration.js";
import { Http } from "../http.js";
import type { Job } from "../job.js";
import { isFinal } from "../sse.js";
import type { Windlass } from "../windlass.js";
import type { ClaimedJob, JobRequest, JobView, Signal } from "../wire.js";
import type { Context, Uplink } from "../worker/context.js";
import { contextOf, execute } from "../worker/execute.js";
import type { Outcome } from "../worker/outcomes.js";
import type { Operation } from "../workflow/engine.js";
import { JournalWriter } from "../workflow/writer.js";
import { FakeJournal } from "./journal.js";

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
  /** @internal */
  readonly journal: FakeJournal;
}

/** Replaces the server of a client. */
export class Fake {
  /** The jobs that were pushed, in order. */
  readonly jobs: FakeJob[] = [];
  /** The clock of workflows. It begins at the time of the clock and moves with `advance` and with sleeps. */
  now = new Date();
  readonly #windlass: Windlass;
  readonly #original: Http;
  readonly #isInline: boolean;
  readonly #uplink: Uplink;
  readonly #writer: JournalWriter;
  /** Workflows that wait for something that does not happen by itself. */
  readonly #blocked = new Set<FakeJob>();
  /** The jobs that run, each with its attempt and its end. */
  readonly #running = new Map<string, { context?: Context; ended: Promise<void> }>();

  /** @internal */
  constructor(windlass: Windlass, options: FakeOptions) {
    this.#windlass = windlass;
    this.#original = windlass.http;
    this.#isInline = options.inline ?? false;
    const respond = async (url: string, init: RequestInit) => this.#respond(new URL(url), init);
    windlass.http = new Http({
      url: "http://fake.invalid",
      headers: {},
      timeoutMs: 1e9,
      fetch: respond as typeof fetch,
    });
    this.#uplink = { http: windlass.http, logger: windlass.logger };
    this.#writer = new JournalWriter(this.#uplink, "/journal", () => {});
  }

  /** The payloads of the jobs of a kind, in order. */
  pushed<Input>(job: Job<Input, unknown>): Input[] {
    return this.jobs.filter(({ view }) => view.kind === job.kind).map(({ view }) => view.payload as Input);
  }

  /** The events that workflows published, by job. */
  get published(): { topic: string; data: unknown }[] {
    return this.jobs.flatMap(({ journal }) => journal.published);
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

  /**
   * Runs the jobs that have not ended, and those that they push. Retries, snoozes, delays and the sleeps of workflows do
   * not wait. A workflow that waits for an event or an approval remains in the state `waiting`.
   */
  async drain(): Promise<void> {
    const next = () =>
      this.jobs.find((job) => !isFinal(job.view.state) && !this.#running.has(job.view.id) && !this.#blocked.has(job));
    for (let job = next(); job !== undefined; job = next()) await this.#run(job);
  }

  /** Moves the clock of workflows, so that timeouts expire. Continue with `drain`. */
  advance(time: Duration): void {
    this.now = new Date(this.now.getTime() + toMilliseconds(time));
    this.#blocked.clear();
    for (const { journal } of this.jobs) journal.advance(this.now.getTime());
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
    if (pathname === "/api/v1/journal") return this.#record(JSON.parse(body as string));
    const path = pathname.replace("/api/v1/jobs", "");
    if (path === "" || path === "/batch") {
      const request = JSON.parse(body as string);
      const requests: JobRequest[] = path === "" ? [request] : request.jobs;
      const jobs = requests.map((job) => this.#enqueue(job));
      for (const job of this.#isInline ? jobs : []) await this.#run(job);
      const ids = jobs.map(({ view }) => view.id);
      return Response.json({ id: ids[0], ids });
    }
    const [, id, operation, name] =
      /^\/([^/]+)(?:\/(cancel|signal|stream|artifacts|events|approvals|journal))?(?:\/(.+))?$/.exec(path) ?? [];
    const job = this.jobs.find(({ view }) => view.id === id);
    if (job === undefined) return notFound(path);
    const { view, journal } = job;
    const key = decodeURIComponent(name ?? "");
    if (operation === "journal") return Response.json({ items: journal.entries });
    this.#blocked.delete(job);
    if (operation === "events") {
      journal.send(key, JSON.parse(body as string));
    } else if (operation === "approvals") {
      const { approve: approved, note = null } = JSON.parse(body as string);
      const asked = journal.entries.find((entry) => entry.key === key && entry.status === "open");
      if (asked === undefined) return notFound(`approval ${JSON.stringify(key)} that is open`);
      journal.resolve(asked, { result: { approved, note, by: "fake", at: this.now.toISOString() } });
    } else if (operation === "artifacts" && method === "GET") {
      return new Response(job.artifacts.get(key) as string);
    } else if (name !== undefined) {
      job.artifacts.set(key, body as string | Uint8Array);
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
      if (this.#blocked.has(job)) {
        const waits = journal.awaited.map(({ op, key }) => `${op} ${JSON.stringify(key)}`).join(" or ");
        const detail = `job ${view.id} waits for ${waits}; use JobHandle.send, JobHandle.approve or Fake.advance`;
        return Response.json({ code: "would_wait", detail }, { status: 409 });
      }
    }
    return Response.json(view);
  }

  #record({ writes }: { writes: { job_id: string; ops: Operation[] }[] }): Response {
    const start = (jobs: unknown) => (jobs as JobRequest[]).map((job) => this.#enqueue(job).view);
    const results = writes.map(({ job_id, ops }) => {
      const job = this.jobs.find(({ view }) => view.id === job_id) as FakeJob;
      return { status: "applied", entries: ops.map((op) => job.journal.record(op, this.now.getTime(), start)) };
    });
    return Response.json({ results });
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
    const defaults = { payload: null, priority: 0, run_at: now, max_attempts: 3, tags: [] };
    const created = { attempt: 0, epoch: 0, depth: 0, principal: "fake", created_at: now, updated_at: now };
    const view: JobView = {
      ...defaults,
      ...members,
      ...(uniqueKey !== undefined && { unique_key: uniqueKey }),
      ...(webhook && { webhook_url: webhook.url }),
      ...{ id: randomUUID(), state: "queued", ...created },
    };
    const journal = new FakeJournal();
    const job = { view, request: stored, signals: [], artifacts: new Map(), facts: {}, journal };
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
    const { view, journal } = job;
    const definition = this.#windlass.jobs.find(({ kind }) => kind === view.kind);
    // The caller stores the job as running first.
    await Promise.resolve();
    for (let runs = 0; !isFinal(view.state); runs++) {
      await this.#wake(journal);
      if (journal.awaited.length > 0) {
        this.#blocked.add(job);
        return;
      }
      if (runs === MAX_RUNS) throw new Error(`job ${view.id} (${view.kind}) has not ended after ${MAX_RUNS} runs`);
      Object.assign(view, { state: "working", attempt: view.attempt + 1, epoch: view.epoch + 1 });
      const claimed = { ...(view as ClaimedJob), journal: { entries: structuredClone(journal.entries) } };
      const context = contextOf(definition, claimed, this.#uplink, this.#writer);
      Object.assign(this.#running.get(view.id) ?? {}, { context });
      const outcome = await execute(definition, this.#windlass.middleware, context);
      this.#blocked.clear();
      if (view.state === "working") settle(job, outcome, (payload) => this.#enqueue({ ...job.request, payload }));
    }
  }

  /** Runs the children of a suspended job, or skips its first sleep. */
  async #wake(journal: FakeJournal): Promise<void> {
    for (const entry of journal.awaited) {
      const children = journal.children.get(entry) ?? [];
      for (const child of children) await this.#run(this.jobs.find(({ view }) => view === child) as FakeJob);
      if (children.length > 0 && children.every(({ state }) => isFinal(state))) {
        const ends = children.map(({ id: job_id, state, result, error }) => ({ job_id, state, result, error }));
        journal.resolve(entry, { result: ends });
      }
    }
    const sleeps = journal.awaited.filter(({ op }) => op === "sleep").map(({ due_at }) => Date.parse(due_at as string));
    if (sleeps.length > 0) this.advance(Math.max(0, Math.min(...sleeps) - this.now.getTime()) / 1_000);
  }
}

/** Replaces the server of a client by a fake. Call `restore` at the end of the test. */
export function fake(windlass: Windlass, options: FakeOptions = {}): Fake {
  return new Fake(windlass, options);
}

/** Applies an outcome as a server would. */
function settle({ view, facts, journal }: FakeJob, outcome: Outcome, continueAs: (payload: unknown) => FakeJob): void {
  const settled = JSON.parse(outcome.json) as Partial<JobView> & { facts?: object; wake?: { any: string[] } };
  switch (outcome.kind) {
    case "finish":
    case "continue_as":
      Object.assign(view, { state: "succeeded", result: settled.result ?? null });
      Object.assign(facts, settled.facts);
      if (outcome.kind === "continue_as") view.result = { continued_as: continueAs(settled.payload).view.id };
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
      journal.wake = settled.wake?.any ?? [];
      Object.assign(view, { state: settled.wake ? "waiting" : "scheduled", attempt: view.attempt - 1 });
  }
}

function notFound(what: string): Response {
  return Response.json({ code: "not_found", detail: `the fake server has no ${what}` }, { status: 404 });
}

function eventOf(job: FakeJob): string {
  return `event: signal\ndata: ${JSON.stringify(signalOf(job))}\n\n`;
}

function signalOf({ view, signals }: FakeJob): Signal {
  const { id: job_id, state, created_at, updated_at } = view;
  const kind = isFinal(state) ? state : state === "working" ? "started" : "queued";
  const unset = { phase: state, summary: state, next_actions: [], diagnostics: {} };
  return { ...unset, ...Object.assign({}, ...signals), job_id, kind, version: signals.length, created_at, updated_at };
}

function describe(job: Job<never, unknown> | Job, payload: unknown): string {
  return payload === undefined ? `a job ${job.kind}` : `a job ${job.kind} with the payload ${JSON.stringify(payload)}`;
}
