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
const WORKFLOWS = fileURLToPath(new URL("./programs/workflows.js", import.meta.url));

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

  /** What the handlers have written: the ids of the jobs that they have started. */
  get lines(): string[] {
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

/** Kills workers with SIGKILL while they run jobs that together write `lines` lines. Returns the lines. */
async function killWorkers(
  server: TestServer,
  module: string,
  name: string,
  lines: number,
  isDone: () => Promise<void>,
): Promise<string[]> {
  const parameters = ["--lease", "1s", "--concurrency", "8", module];
  const start = () => new WorkerProcess(parameters, { WINDLASS_URL: server.url, QUEUE: name });
  const workers = [start(), start()];
  const written = () => workers.reduce((sum, worker) => sum + worker.lines.length, 0);
  for (const [index, share] of [0.2, 0.4, 0.6].entries()) {
    await until(`${share} of the lines`, () => written() >= lines * share);
    workers[index]?.child.kill("SIGKILL");
    workers.push(start());
  }
  await isDone();
  for (const worker of workers) {
    worker.child.kill("SIGTERM");
    await worker.ended;
  }
  const binary = process.env["WINDLASS_BIN"] || "windlass";
  execFileSync(binary, ["verify", "--database", server.database], { stdio: "pipe" });
  return workers.flatMap((worker) => worker.lines);
}

async function killAmongJobs(server: TestServer): Promise<void> {
  const name = queue();
  const wl = server.client();
  const job = wl.job<{ n: number }, number>("counted", { queue: name, maxAttempts: 10 });
  const handles = await job.many(Array.from({ length: JOB_COUNT }, (_, n) => ({ n })));
  const lines = await killWorkers(server, JOBS, name, JOB_COUNT, async () => {
    for (const [n, handle] of handles.entries()) {
      assert.equal(await handle.wait({ timeout: "60s" }), n);
    }
  });

  // Every start of a handler is in the history, a killed attempt expired, and one attempt finished.
  const starts = new Map<string, number>();
  for (const id of lines) {
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
}

const WORKFLOW_COUNT = 150;
/** The steps of each of the two branches share a name. */
const KEYS = ["last", "left", "left#2", "one", "right", "right#2", "two"];

/** Each kill repeats at most one step of each running branch. */
async function killAmongWorkflows(server: TestServer): Promise<void> {
  const name = queue();
  const wl = server.client();
  const flow = wl.job<{ n: number }, number>("flow", { queue: name, maxAttempts: 10 });
  const handles = await flow.many(Array.from({ length: WORKFLOW_COUNT }, (_, n) => ({ n })));
  const lines = await killWorkers(server, WORKFLOWS, name, WORKFLOW_COUNT * KEYS.length, async () => {
    for (const handle of handles) {
      assert.equal(await handle.wait({ timeout: "60s" }), KEYS.length);
    }
  });
  let repeated = 0;
  for (const { id } of handles) {
    const executed = lines.filter((line) => line.startsWith(id)).map((line) => line.slice(id.length + 1));
    assert.deepEqual([...new Set(executed)].sort(), KEYS);
    const kills = (await history(wl, id)).filter((event) => event === "expired").length;
    const excess = executed.length - KEYS.length;
    assert.ok(excess <= 2 * kills, `job ${id}: ${executed} after ${kills} kills`);
    repeated += kills;
  }
  assert.ok(repeated > 0, "no worker was killed while it had workflows");
}

for (const [what, kill] of [
  ["1,000 jobs lose none", killAmongJobs],
  ["workflows repeat at most the steps that ran", killAmongWorkflows],
] as const) {
  test(`workers killed in the middle of ${what} on SQLite`, () => kill(real.server));

  test(`workers killed in the middle of ${what} on PostgreSQL`, async () => {
    const database = createPostgres();
    const server = await startServer({ database: database.url });
    try {
      await kill(server);
    } finally {
      await server.stop();
      database.drop();
    }
  });
}
