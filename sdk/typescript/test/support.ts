/** What tests share: one real server per test file, queues of their own, and conditions instead of pauses. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { readdirSync } from "node:fs";
import { after, before } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { type Logger, Windlass, type WindlassOptions } from "windlass";
import { startServer, type TestServer } from "windlass/testing";

export const SILENT: Logger = { info() {}, warn() {}, error() {} };

/** How long a condition may take. */
const LIMIT_MS = 60_000;

export interface RealServer {
  readonly url: string;
  readonly server: TestServer;
  client(options?: WindlassOptions): Windlass;
}

/** Starts a server before the tests of the file and stops it after them. */
export function realServer(): RealServer {
  let server: TestServer;
  before(async () => {
    server = await startServer();
  });
  after(() => server.stop());
  return {
    get url() {
      return server.url;
    },
    get server() {
      return server;
    },
    client: (options = {}) => new Windlass({ url: server.url, logger: SILENT, ...options }),
  };
}

/** Makes a server require tokens. */
export async function requireTokens(server: TestServer): Promise<void> {
  await server.client().request("POST", "/tokens", { body: { name: "root", role: "admin" } });
}

export function queue(): string {
  return `q-${randomUUID()}`;
}

export interface Deferred<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: Error) => void;
}

/** A promise with its functions. */
export function deferred<T = void>(): Deferred<T> {
  let resolve!: (value: T) => void;
  let reject!: (error: Error) => void;
  const promise = new Promise<T>((res, rej) => {
    resolve = res;
    reject = rej;
  });
  return { promise, resolve, reject };
}

/** Waits for a condition that has no event. */
export async function until(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  const limit = performance.now() + LIMIT_MS;
  while (!(await condition())) {
    assert.ok(performance.now() < limit, `${what} did not happen in time`);
    await pause(10);
  }
}

/** Waits until a signal is aborted, and returns its reason. */
export function aborted(signal: AbortSignal): Promise<Error> {
  return new Promise((resolve) => {
    const end = () => resolve(signal.reason as Error);
    if (signal.aborted) {
      end();
    } else {
      signal.addEventListener("abort", end);
    }
  });
}

/** The events of a job's history, oldest first. */
export async function history(wl: Windlass, id: string): Promise<string[]> {
  const page = await wl.request<{ items: { event: string }[] }>("GET", `/jobs/${id}/history`, {
    query: { limit: 500 },
  });
  return page.items.map(({ event }) => event);
}

/** Creates a database on the PostgreSQL server of `WINDLASS_TEST_POSTGRES`. */
export function createPostgres(): { url: string; drop(): void } {
  const server = process.env["WINDLASS_TEST_POSTGRES"];
  assert.ok(server, "WINDLASS_TEST_POSTGRES is not set; `scripts/postgres start DIR` prints an address");
  const name = `typescript_${process.pid}_${randomUUID().slice(0, 8)}`;
  const run = (statement: string) => execFileSync(psql(), [server, "--quiet", "--command", statement]);
  run(`create database ${name}`);
  const url = new URL(server);
  url.pathname = `/${name}`;
  return { url: url.href, drop: () => run(`drop database ${name} with (force)`) };
}

function psql(): string {
  const root = "/usr/lib/postgresql";
  try {
    return `${root}/${readdirSync(root).sort().at(-1)}/bin/psql`;
  } catch {
    return "psql";
  }
}
