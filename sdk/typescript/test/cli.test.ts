/** The program `windlass-worker`, and workers that are killed. */

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { startServer, type TestServer } from "windlass/testing";
import { createPostgres, history, queue, realServer, until } from "./support.js";

const real = realServer();
const PROGRAM = fileURLToPath(import.meta.resolve("windlass").replace(/index\.js$/, "cli.js"));
const JOBS = fileURLToPath(new URL("./programs/jobs.js", import.meta.url));

class WorkerProcess {
  stdout = "";
  stderr = "";
  readonly child: ChildProcess;
  readonly ended: Promise<number | null>;

  constructor(parameters: string[], environment: Record<string, string>) {
    this.child = spawn(process.execPath, [PROGRAM, ...parameters], { env: { ...process.env, ...environment } });
    this.child.stdout?.setEncoding("utf8").on("data", (text: string) => {
      this.stdout += text;
    });
    this.child.stderr?.setEncoding("utf8").on("data", (text: string) => {
      this.stderr += text;
    });
    this.ended = once(this.child, "close").then(([code]) => code as number | null);
  }

  /** The ids of the jobs that it has started. */
  get jobs(): string[] {
    return this.stdout.split("\n").slice(0, -1);
  }
}

test("the program runs the jobs of a module until SIGTERM", async () => {
  const name = queue();
  const wl = real.client();
  const job = wl.job<{ n: number }>("counted", { queue: name });
  const environment = { WINDLASS_URL: real.url, QUEUE: name };
  const worker = new WorkerProcess(["--concurrency", "2", "--lease", "5s", "--verbose", JOBS], environment);
  const handles = await job.many([{ n: 1 }, { n: 2 }, { n: 3 }]);
  assert.deepEqual(await Promise.all(handles.map((handle) => handle.wait({ timeout: "30s" }))), [1, 2, 3]);
  worker.child.kill("SIGTERM");
  assert.equal(await worker.ended, 0);
  assert.match(worker.stderr, /^\S+ INFO worker \S+ claims q-\S+ at http:/);
  assert.match(worker.stderr, /windlass-worker: stopped; 3 jobs succeeded, 0 attempts failed\n$/);
});

test("a mistake on the command line ends with code 2 and says what to write", async () => {
  const folder = await mkdtemp(join(tmpdir(), "windlass-cli-"));
  after(() => rm(folder, { recursive: true }));
  const empty = join(folder, "empty.mjs");
  await writeFile(empty, "export const nothing = 1;\n");
  const run = async (...parameters: string[]) => {
    const worker = new WorkerProcess(parameters, { WINDLASS_URL: real.url });
    return [await worker.ended, worker.stderr];
  };
  assert.deepEqual(await run(), [2, "windlass-worker: give exactly one module\n"]);
  const [code, message] = await run(empty);
  assert.equal(code, 2);
  assert.match(String(message), /exports no client; write for example `export const wl = new Windlass\(\)`\n$/);
  assert.match(String((await run("--concurrency", "many", JOBS))[1]), /--concurrency takes a number; it is "many"/);
  assert.match(String((await run("--lease", "5 minutes", JOBS))[1]), /invalid duration "5 minutes"/);
  assert.match(String((await run("--no-such-option", JOBS))[1]), /--no-such-option/);
  const help = new WorkerProcess(["--help"], {});
  assert.equal(await help.ended, 0);
  assert.match(help.stdout, /^Usage: windlass-worker /);
});

test("a CommonJS module exports its client too", async () => {
  const folder = await mkdtemp(join(tmpdir(), "windlass-cli-"));
  after(() => rm(folder, { recursive: true }));
  const cjs = fileURLToPath(new URL("../cjs/index.js", import.meta.resolve("windlass")));
  const name = queue();
  const source = `const { Windlass, Fail } = require(${JSON.stringify(cjs)});
    const wl = new Windlass();
    wl.job("kept", { queue: ${JSON.stringify(name)} }, () => { throw new Fail("no", { code: "from_cjs" }); });
    module.exports = { wl };`;
  await writeFile(join(folder, "jobs.cjs"), source);
  const worker = new WorkerProcess([join(folder, "jobs.cjs")], { WINDLASS_URL: real.url });
  const handle = await real.client().push({ queue: name, kind: "kept" });
  await assert.rejects(handle.wait({ timeout: "30s" }), (error) => (error as { code: string }).code === "from_cjs");
  worker.child.kill("SIGTERM");
  assert.equal(await worker.ended, 0);
});

test("SIGTERM lets the running job end, and a second one does not wait", async () => {
  const folder = await mkdtemp(join(tmpdir(), "windlass-cli-"));
  after(() => rm(folder, { recursive: true }));
  const name = queue();
  const source = `import { Windlass } from ${JSON.stringify(import.meta.resolve("windlass"))};
    export const wl = new Windlass();
    wl.job("held", { queue: ${JSON.stringify(name)} }, () => new Promise(() => { console.log("holds"); }));`;
  await writeFile(join(folder, "jobs.mjs"), source);
  const worker = new WorkerProcess(["--verbose", join(folder, "jobs.mjs")], { WINDLASS_URL: real.url });
  const handle = await real.client().push({ queue: name, kind: "held" });
  await until("the handler", () => worker.stdout.includes("holds"));
  worker.child.kill("SIGTERM");
  await until("the drain", () => worker.stderr.includes("stopping; running handlers: 1"));
  assert.equal((await handle.get()).state, "working");
  worker.child.kill("SIGTERM");
  await worker.ended;
  assert.equal(worker.child.signalCode, "SIGTERM");
});

const JOB_COUNT = 1_000;

/** Kills workers in the middle of 1,000 jobs, and checks the history of each job. */
async function killWorkers(server: TestServer): Promise<void> {
  const name = queue();
  const wl = server.client();
  const job = wl.job<{ n: number }, number>("counted", { queue: name, maxAttempts: 10 });
  const handles = await job.many(Array.from({ length: JOB_COUNT }, (_, n) => ({ n })));
  const start = () =>
    new WorkerProcess(["--lease", "1s", "--concurrency", "8", JOBS], { WINDLASS_URL: server.url, QUEUE: name });
  const workers = [start(), start()];
  const started = () => workers.reduce((sum, worker) => sum + worker.jobs.length, 0);
  for (const [index, share] of [0.2, 0.4, 0.6].entries()) {
    await until(`${share} of the jobs`, () => started() >= JOB_COUNT * share);
    workers[index]?.child.kill("SIGKILL");
    workers.push(start());
  }
  for (const [n, handle] of handles.entries()) {
    assert.equal(await handle.wait({ timeout: "60s" }), n);
  }
  for (const worker of workers) {
    worker.child.kill("SIGTERM");
    await worker.ended;
  }

  // Every start of a handler is in the history, a killed attempt expired, and one attempt finished.
  const starts = new Map<string, number>();
  for (const id of workers.flatMap((worker) => worker.jobs)) {
    starts.set(id, (starts.get(id) ?? 0) + 1);
  }
  let expired = 0;
  for (const { id } of handles) {
    const events = await history(wl, id);
    assert.match(events.join(" "), /^enqueued( started (expired|released))* started finished$/);
    const claims = events.filter((event) => event === "started").length;
    const ran = starts.get(id) ?? 0;
    assert.ok(ran >= 1 && ran <= claims, `job ${id}: ${ran} starts of the handler, ${events}`);
    expired += claims - 1;
  }
  assert.ok(expired > 0, "no worker was killed while it had jobs");
  const binary = process.env["WINDLASS_BIN"] || "windlass";
  execFileSync(binary, ["verify", "--database", server.database], { stdio: "pipe" });
}

test("workers killed in the middle of 1,000 jobs lose none on SQLite", () => killWorkers(real.server));

test("workers killed in the middle of 1,000 jobs lose none on PostgreSQL", async () => {
  const database = createPostgres();
  const server = await startServer({ database: database.url });
  try {
    await killWorkers(server);
  } finally {
    await server.stop();
    database.drop();
  }
});
