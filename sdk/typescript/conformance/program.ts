/** The test program of the conformance suite. Its protocol is described in sdk/conformance/README.md. */

import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";
import {
  ApiError,
  Cancel,
  type Context,
  Fail,
  JobFailed,
  type JobHandle,
  type JobRequest,
  type NodeRequest,
  Retry,
  RunFailed,
  Snooze,
  StepFailed,
  type StepOptions,
  Windlass,
  type Worker,
  WorkflowContext,
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
  return_input?: string;
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
  return_if?: { payload: unknown; value: unknown };
  step?: Step & { undo?: string | Step; catch?: boolean; attempts?: number; initial_s?: number; input?: unknown };
  steps?: { name: string; count: number };
  sleep?: { name: string; for_s: number };
  event?: { name: string; match?: Json; timeout_s?: number };
  approval?: { name: string; title: string; timeout_s?: number };
  children?: { name: string; jobs: JobRequest[]; catch?: boolean };
  publish?: { name: string; topic: string; data: unknown };
  gather?: Action[][];
  first?: Action[];
  scope?: { name: string; do: Action[] };
  continue_as?: unknown;
}

/** The function of a step. */
interface Step {
  name: string;
  returns?: unknown;
  returns_text?: number;
  fails?: Failure;
  fails_first?: number;
  hold?: true;
}

interface Command {
  do: string;
  ref?: unknown;
  id: string;
  token: string;
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
  workflows?: string[];
  strict?: boolean;
  name: string;
  data: unknown;
  key: string;
  approve: boolean;
  note?: string;
  run: Json & {
    id?: string;
    name?: string;
    on_failure?: "cancel" | "continue";
    nodes: (NodeRequest & { name: string })[];
  };
}

const client = new Windlass();
const workers = new Map<string, Worker>();
const actions = new Map<string, (actions: Action[]) => void>();
const holds = new Map<string, () => void>();
let calls = 0;

function write(event: string, members: Json): void {
  process.stdout.write(`${JSON.stringify({ event, ...members })}\n`);
}

/** How often the function of a step was executed, by job and name. */
const executions = new Map<string, number>();

async function startWorker(command: Command): Promise<void> {
  const { id, token, queues, handlers, workflows = [], concurrency, lease_s, drain_s, strict = false } = command;
  const windlass = new Windlass({ token });
  for (const kind of handlers) {
    windlass.job(kind, { queue: queues[0] as string }, handle);
  }
  for (const kind of workflows) {
    windlass.workflow(kind, { queue: queues[0] as string, strict }, handle);
  }
  const worker = windlass.worker({
    queues,
    kinds: [...handlers, ...workflows],
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
  const { id: job, kind, attempt } = ctx;
  write("called", { call, job, kind, attempt, payload, inputs: ctx.job.inputs ?? null });
  const values: unknown[] = [];
  const done = await runAll(await given, values, call, ctx, payload);
  return done?.value ?? null;
}

/** Runs actions in order and collects their values. Returns what ends the call. */
async function runAll(
  list: Action[],
  values: unknown[],
  call: string,
  ctx: Context,
  payload: unknown,
): Promise<{ value: unknown } | undefined> {
  for (const action of list) {
    if (ctx.signal.aborted) {
      write("stopped_early", { call });
      throw new Cancel();
    }
    if ((action.return as Json | null | undefined)?.["$values"]) {
      return { value: values };
    }
    const operation = ctx instanceof WorkflowContext ? perform(action, call, ctx, payload) : undefined;
    if (operation !== undefined) {
      values.push(await operation);
      continue;
    }
    const done = await run(action, call, ctx, payload);
    if (done !== undefined) {
      return done;
    }
  }
  return undefined;
}

/** Performs the operation of a workflow. Returns nothing for an action that all handlers have. */
function perform(action: Action, call: string, ctx: WorkflowContext, payload: unknown): Promise<unknown> | undefined {
  const { step, steps, sleep, event, approval, children, publish, gather, first, scope } = action;
  if (step) {
    return runStep(step, call, ctx);
  }
  if (steps) {
    const list = Array.from({ length: steps.count }, (_, index) =>
      ctx.step(steps.name, () => {
        write("step", { call, name: steps.name });
        return index;
      }),
    );
    return Promise.all(list).then((numbers) => numbers.reduce((sum, number) => sum + number, 0));
  }
  if (sleep) {
    return ctx.sleep(sleep.for_s, sleep.name).then(() => null);
  }
  if (event) {
    const { name, match, timeout_s } = event;
    const options = { ...(match && { match }), ...(timeout_s !== undefined && { timeout: timeout_s }) };
    return ctx.waitForEvent(name, options).then((data) => (data === undefined ? "timeout" : data));
  }
  if (approval) {
    const { name, title, timeout_s } = approval;
    const options = { title, ...(timeout_s !== undefined && { timeout: timeout_s }) };
    return ctx.approval(name, options).then(({ approved, timedOut }) => (timedOut ? null : approved));
  }
  if (children) {
    const { name: key, jobs } = children;
    const spawned = jobs.map((job) => ctx.spawn({ ...job, queue: job.queue ?? ctx.queue }));
    if (!children.catch) {
      return ctx.gather(spawned, { key });
    }
    const settled = ctx.gather(spawned, { key, settled: true });
    return settled.then((ends) => ends.map((end) => (end.state === "succeeded" ? end.result : end.error?.code)));
  }
  if (publish) {
    return ctx.publish(publish.topic, publish.data, publish.name).then(() => null);
  }
  if (gather) {
    return Promise.all(gather.map((branch) => runBranch(branch, call, ctx, payload)));
  }
  if (first) {
    const waits = first.map((wait, index) => perform(wait, call, ctx, payload)?.then(() => index));
    return Promise.race(waits);
  }
  if (scope) {
    return ctx.scope(scope.name, () => runBranch(scope.do, call, ctx, payload));
  }
  return "continue_as" in action ? ctx.continueAs(action.continue_as) : undefined;
}

async function runBranch(list: Action[], call: string, ctx: Context, payload: unknown): Promise<unknown[]> {
  const values: unknown[] = [];
  await runAll(list, values, call, ctx, payload);
  return values;
}

async function runStep(step: NonNullable<Action["step"]>, call: string, ctx: WorkflowContext): Promise<unknown> {
  const { undo, attempts, initial_s = 5, input } = step;
  const options: StepOptions<unknown> = {
    ...(input !== undefined && { input }),
    ...(attempts !== undefined && { retry: { attempts, initial: initial_s, jitter: 0 } }),
    ...(undo !== undefined && { undo: () => execute(typeof undo === "string" ? { name: undo } : undo, call, ctx) }),
  };
  try {
    const result = await ctx.step(step.name, () => execute(step, call, ctx), options);
    return step.returns_text === undefined ? result : (result as string).length;
  } catch (error) {
    if (step.catch && error instanceof StepFailed) {
      return error.code;
    }
    throw error;
  }
}

/** The function of a step. */
async function execute(step: Step, call: string, ctx: WorkflowContext): Promise<unknown> {
  write("step", { call, name: step.name });
  const count = (executions.get(`${ctx.id}/${step.name}`) ?? 0) + 1;
  executions.set(`${ctx.id}/${step.name}`, count);
  if (step.hold) {
    await hold(call, ctx);
  }
  if (count <= (step.fails_first ?? 0)) {
    throw new Error("boom");
  }
  if (step.fails) {
    throw new Fail(step.fails.message, { code: step.fails.code });
  }
  return step.returns_text === undefined ? (step.returns ?? null) : "x".repeat(step.returns_text);
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
  if (action.return_input !== undefined) {
    return { value: await ctx.input(action.return_input) };
  }
  if (action.return_if) {
    return isDeepStrictEqual(action.return_if.payload, payload) ? { value: action.return_if.value } : undefined;
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
    await hold(call, ctx);
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

function hold(call: string, ctx: Context): Promise<void> {
  return interruptible(call, ctx, (end) => {
    holds.set(call, end);
    write("holding", { call });
  });
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

async function obey(command: Command): Promise<void> {
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
    case "event":
      await client.handle(command.job).send(command.name, command.data, command.idempotency_key);
      return write("done", { ref });
    case "approve": {
      const { approve, note } = command;
      await client.handle(command.job).approve(command.key, { approve, ...(note !== undefined && { note }) });
      return write("done", { ref });
    }
    case "run": {
      const { nodes, on_failure, ...options } = command.run;
      const named = Object.fromEntries(nodes.map(({ name, ...node }) => [name, node]));
      const started = await client.startRun({
        ...options,
        ...(on_failure && { onFailure: on_failure }),
        nodes: named,
      });
      const ids = Object.fromEntries(Object.entries(started.nodes).map(([name, { id }]) => [name, id]));
      return write("run_started", { ref, id: started.id, nodes: ids });
    }
    case "wait_run": {
      const { state } = await client
        .run(command.run as unknown as string)
        .wait({ timeout: command.timeout_s })
        .catch((error: unknown) => {
          if (error instanceof RunFailed) {
            return error.run;
          }
          throw error;
        });
      return write("run_ended", { ref, state });
    }
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

write("ready", { sdk: "typescript", features: ["jobs", "workflows", "runs", "compensation"] });
createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line) as Command;
    obey(command).catch((error: Error) => {
      const { code, status } = error instanceof ApiError ? error : { code: error.name, status: 0 };
      process.stderr.write(`${error.stack}\n`);
      write("error", { ref: command.ref, code, status });
    });
  })
  .on("close", () => process.exit(0));
