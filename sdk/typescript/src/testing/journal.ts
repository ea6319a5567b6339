/** The journal of a job of the fake server. Called by `Fake`. */

import { isDeepStrictEqual } from "node:util";
import type { JobError, JobView, JournalEntry } from "../wire.js";
import type { Operation } from "../workflow/engine.js";

export class FakeJournal {
  readonly entries: JournalEntry[] = [];
  readonly published: { topic: string; data: unknown }[] = [];
  /** Events that no operation has got. */
  readonly #events: { name: string; data: unknown }[] = [];
  /** The children of open operations. */
  readonly children = new Map<JournalEntry, JobView[]>();
  /** One of these operations wakes the suspended job. */
  wake: string[] = [];
  #resolved = 0;

  /** Records an operation. `start` starts children. */
  record(operation: Operation, nowMs: number, start: (jobs: unknown) => JobView[]): JournalEntry {
    const { op, key, hash, result, error, attempt } = operation as Operation & Partial<JournalEntry>;
    let entry = this.entries.find((other) => other.key === key);
    const existing = entry !== undefined;
    if (entry === undefined) {
      const position = this.entries.length + 1;
      const created_at = new Date(nowMs).toISOString();
      entry = { op, key, hash, input: operation, position, created_at, attempt: 0, bytes: 0, status: "open" };
      this.entries.push(entry);
      this.#open(entry, operation, nowMs, start);
    }
    if (entry.status === "open" && op === "step") {
      entry.attempt = attempt ?? entry.attempt + 1;
      if (!error?.retryable) this.resolve(entry, error == null ? { result } : { error });
    }
    return { ...entry, existing };
  }

  #open(entry: JournalEntry, operation: Operation, nowMs: number, start: (jobs: unknown) => JobView[]): void {
    const { op, name, until, for_s, timeout_s = for_s, topic, data, jobs } = operation;
    if (timeout_s !== undefined || until !== undefined) {
      entry.due_at = (until as string) ?? new Date(nowMs + (timeout_s as number) * 1_000).toISOString();
    }
    if (op === "publish") {
      this.published.push({ topic: topic as string, data });
      this.resolve(entry, { result: null });
    } else if (op === "child") {
      this.children.set(entry, start(jobs));
    } else if (op === "event") {
      const index = this.#events.findIndex((event) => event.name === name && isMatch(operation, event.data));
      if (index >= 0) this.resolve(entry, { result: this.#events.splice(index, 1)[0]?.data });
    }
  }

  /** Resolves the first operation that waits for the event, or keeps the event. */
  send(name: string, data: unknown): void {
    const entry = this.entries.find(({ status, op, input }) => {
      const operation = input as Operation;
      return status === "open" && op === "event" && operation["name"] === name && isMatch(operation, data);
    });
    if (entry === undefined) this.#events.push({ name, data });
    else this.resolve(entry, { result: data });
  }

  /** Resolves what is due. */
  advance(nowMs: number): void {
    const error = { code: "timeout", message: "timeout", retryable: false };
    const isDue = ({ status, due_at }: JournalEntry) => status === "open" && Date.parse(due_at ?? "") <= nowMs;
    for (const entry of this.entries.filter(isDue)) {
      this.resolve(entry, entry.op === "sleep" ? { result: null } : { error });
    }
  }

  resolve(entry: JournalEntry, outcome: { result: unknown } | { error: JobError }): void {
    this.#resolved += 1;
    Object.assign(entry, { status: "resolved", seq: this.#resolved, attempt: Math.max(entry.attempt, 1), ...outcome });
  }

  /** The open operations that the suspended job waits for. Empty if it can run. */
  get awaited(): JournalEntry[] {
    const awaited = this.entries.filter(({ key }) => this.wake.includes(key));
    return awaited.some(({ status }) => status === "resolved") ? [] : awaited;
  }
}

function isMatch({ match }: Operation, data: unknown): boolean {
  return Object.entries((match ?? {}) as object).every(([name, value]) =>
    isDeepStrictEqual((data as Record<string, unknown> | null)?.[name], value),
  );
}
