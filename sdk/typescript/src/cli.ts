#!/usr/bin/env node
/** The program `windlass-worker`: runs the handlers of a module. */

import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { Job } from "./job.js";
import { type Logger, Windlass } from "./windlass.js";
import type { WorkerOptions } from "./worker/worker.js";

const USAGE = `Usage: windlass-worker [OPTIONS] MODULE

Runs the handlers of the client that MODULE exports. WINDLASS_URL and WINDLASS_TOKEN name the server.

Options:
  --queue QUEUE        Claim from this queue; repeatable [default: the queues of all handlers]
  --concurrency N      Handlers that run at the same time [default: 10]
  --lease DURATION     Time without a heartbeat after which other workers get the jobs [default: 30s]
  --drain DURATION     How long running handlers may continue after SIGTERM [default: 30s]
  --name NAME          Name for people [default: the host and the process id]
  --verbose            Log starts and stops
  --help               Show this text
`;

const OPTIONS = {
  queue: { type: "string", multiple: true },
  concurrency: { type: "string" },
  lease: { type: "string" },
  drain: { type: "string" },
  name: { type: "string" },
  verbose: { type: "boolean" },
  help: { type: "boolean" },
} as const;

class UsageError extends Error {}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({ options: OPTIONS, allowPositionals: true });
  if (values.help) return void process.stdout.write(USAGE);
  const [path, ...others] = positionals;
  if (path === undefined || others.length > 0) throw new UsageError("give exactly one module");
  const options: WorkerOptions = {
    ...(values.queue && { queues: values.queue }),
    ...(values.concurrency !== undefined && { concurrency: integer("concurrency", values.concurrency) }),
    ...(values.lease !== undefined && { lease: duration(values.lease) }),
    ...(values.drain !== undefined && { drain: duration(values.drain) }),
    ...(values.name !== undefined && { name: values.name }),
  };
  const client = clientOf(path, (await import(pathToFileURL(resolve(path)).href)) as Record<string, unknown>);
  Object.assign(client, { logger: logger(values.verbose ?? false) });
  const worker = client.worker(options);
  const { succeeded, failed } = await worker.run();
  process.stderr.write(`windlass-worker: stopped; ${succeeded} jobs succeeded, ${failed} attempts failed\n`);
  // The module may keep timers or connections open.
  process.exit();
}

/** Finds the client: an export that is one, or that of an exported job. */
function clientOf(path: string, module: Record<string, unknown>): Windlass {
  // The exports of a CommonJS module are the members of `default`.
  const values = [module, module["default"]].flatMap((part) => Object.values(part ?? {}));
  const clients = values.flatMap((value) => {
    const client = value instanceof Job ? value.windlass : value;
    return Windlass.isClient(client) ? [client] : [];
  });
  const [client, ...others] = new Set(clients);
  if (client === undefined || others.length > 0) {
    const count = client === undefined ? "no client" : `${others.length + 1} clients`;
    throw new UsageError(`${path} exports ${count}; write for example \`export const wl = new Windlass()\``);
  }
  return client;
}

function integer(name: string, text: string): number {
  if (!/^\d+$/.test(text)) throw new UsageError(`--${name} takes a number; it is ${JSON.stringify(text)}`);
  return Number(text);
}

function duration(text: string): NonNullable<WorkerOptions["lease"]> {
  return (/^\d+$/.test(text) ? Number(text) : text) as NonNullable<WorkerOptions["lease"]>;
}

function logger(isVerbose: boolean): Logger {
  const write = (level: string) => (message: string) => {
    process.stderr.write(`${new Date().toISOString()} ${level} ${message}\n`);
  };
  return { info: isVerbose ? write("INFO") : () => {}, warn: write("WARN"), error: write("ERROR") };
}

main().catch((error: Error & { code?: string }) => {
  const isUsage =
    error instanceof UsageError || error instanceof RangeError || error.code?.startsWith("ERR_PARSE_ARGS");
  process.stderr.write(`windlass-worker: ${isUsage ? error.message : (error.stack ?? error.message)}\n`);
  process.exit(isUsage ? 2 : 1);
});
