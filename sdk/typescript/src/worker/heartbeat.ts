/**
 * Heartbeats in a thread of their own, so that a handler that blocks the event loop does not lose the worker's lease.
 * Called by `Worker`.
 */

import { Worker as Thread } from "node:worker_threads";
import type { ProblemMembers } from "../errors.js";

/** What the thread reports about a registration. */
export type HeartbeatReport =
  /** The lease was renewed. `sentAtMs` is on the clock of `monotonicMs`. */
  | { id: string; type: "renewed"; sentAtMs: number; cancel: string[]; drain: boolean }
  /** The lease has expired. */
  | { id: string; type: "gone" }
  /** The server rejected the worker. */
  | { id: string; type: "refused"; problem: ProblemMembers }
  /** A heartbeat failed and is repeated. */
  | { id: string; type: "failed"; reason: string };

type ThreadSettings = { api: string; headers: Record<string, string> };

/** A request to the thread: start or stop the heartbeats of a registration. */
type ThreadRequest = { id: string; leaseS: number; heartbeatS: number } | { id: string; stop: true };

/** A registration whose lease the thread renews. */
interface Registration {
  id: string;
  leaseS: number;
  heartbeatS: number;
  isStopped: boolean;
  /** Heartbeats without an answer. */
  requests: Set<AbortController>;
  /** The failures since the last success. */
  failures: number;
  /** The last answer, to recognize a cancellation that the server repeats. */
  previous: string;
}

/** The thread of one worker. It renews the lease of each registration that is started. */
export class Heartbeats {
  readonly #thread: Thread;

  constructor(settings: ThreadSettings, onReport: (report: HeartbeatReport) => void, onError: (error: Error) => void) {
    // The source is passed as text, so that a bundler needs no configuration for a second file. `__name` is a function
    // that some compilers call for each function they emit.
    const source = `const __name = (value) => value; (${run.toString()})(require("node:worker_threads"))`;
    this.#thread = new Thread(source, { eval: true, workerData: settings, execArgv: [], name: "windlass-heartbeat" });
    this.#thread.on("message", onReport);
    this.#thread.on("error", onError);
  }

  start(id: string, leaseS: number, heartbeatS: number): void {
    this.#thread.postMessage({ id, leaseS, heartbeatS } satisfies ThreadRequest);
  }

  stop(id: string): void {
    this.#thread.postMessage({ id, stop: true } satisfies ThreadRequest);
  }

  async close(): Promise<void> {
    await this.#thread.terminate();
  }
}

/** A clock that all threads of the process share. */
export function monotonicMs(): number {
  return Number(process.hrtime.bigint() / 1_000n) / 1_000;
}

/** The program of the thread. It must not refer to anything outside of this function. */
function run({ parentPort, workerData }: typeof import("node:worker_threads")): void {
  const { api, headers } = workerData as ThreadSettings;
  const live = new Map<string, Registration>();
  // The server repeats a cancellation until it has the outcome, and a handler may take a while to stop.
  const repeatPauseMs = 250;

  const now = (): number => Number(process.hrtime.bigint() / 1_000n) / 1_000;
  const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
  const report = (message: HeartbeatReport): void => parentPort?.postMessage(message);

  async function beat(registration: Registration): Promise<void> {
    const { leaseS, heartbeatS } = registration;
    while (!registration.isStopped) {
      // A lost heartbeat must be detected early enough to send another one. A late answer is accepted all the same: a
      // busy server would not be helped if the request were repeated from the beginning.
      const late = pause((heartbeatS + leaseS / 4) * 1_000).then(() => 0);
      const waitMs = await Promise.race([send(registration), late]);
      await pause(waitMs);
    }
  }

  /** Sends a heartbeat and reports its result. Returns how long to wait before the next one, in milliseconds. */
  async function send(registration: Registration): Promise<number> {
    const { id, leaseS, heartbeatS } = registration;
    const request = new AbortController();
    const timer = setTimeout(() => request.abort(new Error("timeout")), (heartbeatS + leaseS) * 1_000);
    registration.requests.add(request);
    const sentAtMs = now();
    let reason: string;
    try {
      const response = await fetch(`${api}/workers/${id}/heartbeat`, {
        method: "POST",
        headers: { ...headers, "content-type": "application/json" },
        body: JSON.stringify({ wait_s: heartbeatS }),
        signal: request.signal,
        redirect: "manual",
      });
      const answer = JSON.parse(await response.text()) as { cancel: string[]; drain: boolean } & ProblemMembers;
      if (response.ok) {
        const { cancel, drain } = answer;
        report({ id, type: "renewed", sentAtMs, cancel, drain });
        const { previous } = registration;
        Object.assign(registration, { failures: 0, previous: JSON.stringify([cancel, drain]) });
        const isRepeated = previous === registration.previous && now() - sentAtMs < (heartbeatS * 1_000) / 2;
        return isRepeated ? repeatPauseMs : 0;
      }
      if (answer.code === "worker_gone" || answer.code === "not_found") {
        registration.isStopped = true;
        report({ id, type: "gone" });
        return 0;
      }
      if (response.status === 401 || response.status === 403) report({ id, type: "refused", problem: answer });
      reason = answer.detail ?? `status ${response.status}`;
    } catch (error) {
      const { cause, message } = error as Error & { cause?: { code?: string } };
      reason = cause?.code ?? message;
    } finally {
      clearTimeout(timer);
      registration.requests.delete(request);
    }
    if (registration.isStopped) return 0;
    report({ id, type: "failed", reason });
    const backoffMs = Math.min(100 * 2 ** Math.min(registration.failures++, 6), 5_000, heartbeatS * 1_000);
    return backoffMs * (0.5 + 0.5 * Math.random());
  }

  parentPort?.on("message", (message: ThreadRequest) => {
    const { id } = message;
    const stopped = live.get(id);
    if (stopped !== undefined) {
      stopped.isStopped = true;
      for (const request of stopped.requests) request.abort();
      live.delete(id);
    }
    if (!("stop" in message)) {
      const requests = new Set<AbortController>();
      const registration = { ...message, isStopped: false, requests, failures: 0, previous: "" };
      live.set(id, registration);
      void beat(registration);
    }
  });
}
