/** The test program of the conformance suite. Its protocol is described in sdk/conformance/README.md. */

import { createInterface } from "node:readline";
import {
  ApiError,
  Cancel,
  type Context,
  Fail,
  JobFailed,
  type JobHandle,
  type JobRequest,
  Retry,
  Snooze,
  Windlass,
  type Worker,
} from "windlass";

type Json = Record<string, unknown>;

interface Failure {
  code: string;
  message: string;
}

/** One action of a handler; one of the members is present. */
interface Action {
  return?: unknown;
  echo?: true;
  return_text?: number;
  raise?: string;
  retry?: Failure;
  fail?: Failure;
  snooze?: number;
  cancel?: true;
  pause?: number;
  block?: number;
  hold?: true;
  progress?: number;
  phase?: string;
  summary?: string;
  log?: string;
  artifact?: { name: string; text: string };
  fact?: { name: string; value: unknown };
}

interface Command {
  do: string;
  ref?: unknown;
  id: string;
  queues: string[];
  handlers: string[];
  concurrency: number;
  lease_s?: number;
  drain_s?: number;
  jobs: JobRequest[];
  idempotency_key?: string;
  job: string;
  timeout_s: number;
  call: string;
  actions: Action[];
}

const client = new Windlass();
const workers = new Map<string, Worker>();
const actions = new Map<string, (actions: Action[]) => void>();
const holds = new Map<string, () => void>();
let calls = 0;

function write(event: string, members: Json): void {
  process.stdout.write(`${JSON.stringify({ event, ...members })}\n`);
}

async function startWorker({ id, queues, handlers, concurrency, lease_s, drain_s }: Command): Promise<void> {
  const windlass = new Windlass();
  for (const kind of handlers) {
    windlass.job(kind, { queue: queues[0] as string }, handle);
  }
  const worker = windlass.worker({
    queues,
    kinds: handlers,
    concurrency,
    ...(lease_s !== undefined && { lease: lease_s }),
    ...(drain_s !== undefined && { drain: drain_s }),
  });
  workers.set(id, worker);
  await worker.start();
  write("started", { id });
}

async function handle(ctx: Context, payload: unknown): Promise<unknown> {
  const call = `${process.pid}-${++calls}`;
  const given = new Promise<Action[]>((resolve) => actions.set(call, resolve));
  write("called", { call, job: ctx.id, kind: ctx.kind, attempt: ctx.attempt, payload });
  for (const action of await given) {
    if (ctx.signal.aborted) {
      write("stopped_early", { call });
      throw new Cancel();
    }
    const done = await run(action, call, ctx, payload);
    if (done !== undefined) {
      return done.value;
    }
  }
  return null;
}

/** Runs an action. Returns a value if it ends the call. */
async function run(
  action: Action,
  call: string,
  ctx: Context,
  payload: unknown,
): Promise<{ value: unknown } | undefined> {
  if ("return" in action) {
    return { value: action.return };
  }
  if (action.echo) {
    return { value: payload };
  }
  if (action.return_text !== undefined) {
    return { value: "x".repeat(action.return_text) };
  }
  if (action.raise !== undefined) {
    throw new Error(action.raise);
  }
  if (action.retry) {
    throw new Retry(action.retry.message, { code: action.retry.code });
  }
  if (action.fail) {
    throw new Fail(action.fail.message, { code: action.fail.code });
  }
  if (action.snooze !== undefined) {
    throw new Snooze(action.snooze);
  }
  if (action.cancel) {
    throw new Cancel();
  }
  if (action.pause !== undefined) {
    const ms = action.pause * 1_000;
    await interruptible(call, ctx, (end) => setTimeout(end, ms));
  }
  if (action.block !== undefined) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, action.block * 1_000);
  }
  if (action.hold) {
    await interruptible(call, ctx, (end) => {
      holds.set(call, end);
      write("holding", { call });
    });
  }
  if (action.progress !== undefined) {
    ctx.progress(action.progress);
  }
  if (action.phase !== undefined) {
    ctx.phase(action.phase);
  }
  if (action.summary !== undefined) {
    ctx.summary(action.summary);
  }
  if (action.log !== undefined) {
    ctx.log(action.log);
  }
  if (action.artifact) {
    await ctx.artifact(action.artifact.name, action.artifact.text);
  }
  if (action.fact) {
    ctx.fact(action.fact.name, action.fact.value);
  }
  return undefined;
}

/** Waits until `begin` calls its parameter, or for a cancellation, which ends the handler. */
async function interruptible(call: string, ctx: Context, begin: (end: () => void) => void): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    ctx.signal.addEventListener("abort", () => {
      write("stopped_early", { call });
      reject(new Cancel());
    });
    begin(resolve);
  });
}

async function execute(command: Command): Promise<void> {
  const { ref } = command;
  switch (command.do) {
    case "worker":
      return startWorker(command);
    case "stop":
      await workers.get(command.id)?.stop();
      return write("stopped", { id: command.id });
    case "push": {
      const options = command.idempotency_key === undefined ? {} : { idempotencyKey: command.idempotency_key };
      const [only, ...others] = command.jobs as [JobRequest, ...JobRequest[]];
      const handles: JobHandle[] =
        others.length === 0 ? [await client.push(only, options)] : await client.many(command.jobs, options);
      return write("pushed", { ref, ids: handles.map(({ id }) => id) });
    }
    case "wait":
      return wait(command);
    case "cancel":
      await client.handle(command.job).cancel();
      return write("done", { ref });
    case "act":
      actions.get(command.call)?.(command.actions);
      actions.delete(command.call);
      return;
    case "release":
      holds.get(command.call)?.();
      holds.delete(command.call);
      return;
    default:
      throw new Error(`unknown command ${command.do}`);
  }
}

async function wait({ ref, job, timeout_s }: Command): Promise<void> {
  try {
    const result = await client.handle(job).wait({ timeout: timeout_s });
    write("ended", { ref, state: "succeeded", result, error: null });
  } catch (error) {
    if (!(error instanceof JobFailed)) {
      throw error;
    }
    write("ended", { ref, state: error.state, result: error.job.result, error: error.job.error });
  }
}

write("ready", { sdk: "typescript", features: ["jobs"] });
createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line) as Command;
    execute(command).catch((error: Error) => {
      const { code, status } = error instanceof ApiError ? error : { code: error.name, status: 0 };
      process.stderr.write(`${error.stack}\n`);
      write("error", { ref: command.ref, code, status });
    });
  })
  .on("close", () => process.exit(0));
