/** A handle of a run: a group of jobs with dependencies. */

import { Backoff, sleep } from "./backoff.js";
import { toSeconds } from "./duration.js";
import { classify, RunFailed, WaitTimeout } from "./errors.js";
import { JobHandle, type WaitOptions } from "./handle.js";
import type { Http } from "./http.js";
import { isFinal } from "./sse.js";
import type { NodeRequest, RunSignal, RunView, WebhookSettings } from "./wire.js";

/** The nodes of a run by name: from `Job.node`, or the members of the API. */
export type Nodes = Record<string, NodeRequest | Promise<NodeRequest>>;

/** Options of `Windlass.startRun`. */
export interface RunOptions {
  /** The nodes by name. */
  nodes: Nodes;
  /** A name for people. */
  name?: string;
  /** The run's id. A second run with the same id is rejected. Default: a new id. */
  id?: string;
  /** What the first failure does to the rest of the run. Default: `cancel`. */
  onFailure?: "cancel" | "continue";
  /** Labels for listings, at most 32. */
  tags?: string[];
  /** Receives the end of the run. */
  webhook?: WebhookSettings;
}

/** A run on the server. */
export class RunHandle {
  /** The run's id. */
  readonly id: string;
  /** The jobs of the nodes that this handle has started, by name. */
  readonly nodes: Record<string, JobHandle> = {};
  readonly #http: Http;
  readonly #path: string;

  /** @internal */
  constructor(http: Http, id: string) {
    this.id = id;
    this.#http = http;
    this.#path = `/runs/${encodeURIComponent(id)}`;
  }

  /** @internal */
  static async start(http: Http, { nodes, onFailure, ...options }: RunOptions): Promise<RunHandle> {
    const id = options.id ?? crypto.randomUUID();
    const body = { ...options, id, on_failure: onFailure, nodes: await list(nodes) };
    const run = new RunHandle(http, id);
    run.#add(await http.request("POST", "/runs", { body }));
    return run;
  }

  /** Adds nodes to a run that has not ended. Their `needs` may name earlier nodes. */
  async add(nodes: Nodes): Promise<void> {
    this.#add(await this.#http.request("POST", `${this.#path}/nodes`, { body: { nodes: await list(nodes) } }));
  }

  /** Returns the run with its nodes as it is now. */
  get(): Promise<RunView> {
    return this.#http.persist("GET", this.#path);
  }

  /** Returns the current signal: a sentence for people, the progress and the critical path. */
  signal(): Promise<RunSignal> {
    return this.#http.persist("GET", `${this.#path}/signal`);
  }

  /** Waits for the end of the run and returns it. Rejects with `RunFailed` if it failed or was canceled. */
  async wait({ timeout, signal }: WaitOptions = {}): Promise<RunView> {
    const timeoutS = timeout === undefined ? Number.POSITIVE_INFINITY : toSeconds(timeout);
    const until = performance.now() + timeoutS * 1_000;
    const backoff = new Backoff();
    for (;;) {
      signal?.throwIfAborted();
      const current = await this.signal().catch((error: unknown) => {
        if (classify(error) === "refused") throw error;
        return undefined;
      });
      if (current !== undefined && isFinal(current.kind)) {
        const run = await this.get();
        if (run.state === "succeeded") return run;
        throw new RunFailed(run);
      }
      const remainingMs = until - performance.now();
      if (remainingMs <= 0) throw new WaitTimeout(this.id, timeoutS, "run");
      await sleep(Math.min(backoff.next(), remainingMs), signal);
    }
  }

  /** Cancels all jobs of the run. */
  cancel(): Promise<RunView> {
    return this.#http.persist("POST", `${this.#path}/cancel`);
  }

  /** Starts a new run with the nodes that did not succeed and everything behind them. */
  async retry(): Promise<RunHandle> {
    const { id } = await this.#http.request<{ id: string }>("POST", `${this.#path}/retry`);
    return new RunHandle(this.#http, id);
  }

  #add({ nodes }: { nodes: Record<string, string> }): void {
    for (const [name, id] of Object.entries(nodes)) this.nodes[name] = new JobHandle(this.#http, id);
  }
}

async function list(nodes: Nodes): Promise<(NodeRequest & { name: string })[]> {
  return Promise.all(Object.entries(nodes).map(async ([name, node]) => ({ ...(await node), name })));
}
