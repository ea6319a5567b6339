/**
 * The TypeScript SDK of Windlass: define jobs and workflows, push them, and run them in workers.
 *
 * @packageDocumentation
 */

// biome-ignore-all assist/source/organizeImports: one long list per module is less readable.
export type { Duration } from "./duration.js";
export { ApiError, Cancel, ChildFailed, ConnectionError, Fail, HandlerError, JobFailed } from "./errors.js";
export { Retry, RunFailed, Snooze, StepFailed, WaitTimeout } from "./errors.js";
export type { HandlerErrorOptions, ProblemMembers } from "./errors.js";
export { JobHandle, type WaitOptions } from "./handle.js";
export type { RequestOptions } from "./http.js";
export { type DefineJob, type Derived, type EnqueueOptions, type Handler, Job, type JobOptions } from "./job.js";
export type { NodeOptions, PushOptions, PushParameters, RetryPolicy } from "./job.js";
export type { DefineHandled, DefineWorkflow, WorkflowOptions } from "./job.js";
export { type Nodes, RunHandle, type RunOptions } from "./run.js";
export { InvalidPayload, type Jsonify, type JsonResult, type StandardSchema } from "./schema.js";
export type { SchemaInput, SchemaIssue, SchemaOutput, SchemaResult } from "./schema.js";
export { StreamError } from "./sse.js";
export { type Logger, type Middleware, Windlass, type WindlassOptions } from "./windlass.js";
export type { ArtifactView, BatchSettings, CancelView, DebounceSettings } from "./wire.js";
export type { ClaimedJob, ClaimedJournal, JobError, JobRequest, JobState } from "./wire.js";
export type { JobView, JournalAttempt, JournalEntry, NextAction, NodeRequest, Problem, RetrySettings } from "./wire.js";
export type { RunCounts, RunNodeView, RunSignal, RunView, Signal, SignalUpdate, WebhookSettings } from "./wire.js";
export { Context } from "./worker/context.js";
export { type Statistics, Worker, type WorkerOptions } from "./worker/worker.js";
export { Child, type ChildOutcome } from "./workflow/children.js";
export { type Approval, type ApprovalOptions, type EventOptions, WorkflowContext } from "./workflow/context.js";
export type { SpawnOptions, StepContext, StepOptions, StepRetry } from "./workflow/context.js";
