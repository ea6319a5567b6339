/**
 * The TypeScript SDK of Windlass: define jobs, push them, and run them in workers.
 *
 * @packageDocumentation
 */

export type { Duration } from "./duration.js";
export {
  ApiError,
  Cancel,
  ConnectionError,
  Fail,
  HandlerError,
  type HandlerErrorOptions,
  JobFailed,
  type ProblemMembers,
  Retry,
  Snooze,
  WaitTimeout,
} from "./errors.js";
export { JobHandle, type WaitOptions } from "./handle.js";
export type { RequestOptions } from "./http.js";
export {
  type DefineJob,
  type Derived,
  type EnqueueOptions,
  type Handler,
  Job,
  type JobOptions,
  type PushOptions,
  type PushParameters,
  type RetryPolicy,
} from "./job.js";
export {
  InvalidPayload,
  type Jsonify,
  type JsonResult,
  type SchemaInput,
  type SchemaIssue,
  type SchemaOutput,
  type SchemaResult,
  type StandardSchema,
} from "./schema.js";
export { StreamError } from "./sse.js";
export { type Logger, type Middleware, Windlass, type WindlassOptions } from "./windlass.js";
export type {
  ArtifactView,
  CancelView,
  ClaimedJob,
  ClaimedJournal,
  JobError,
  JobRequest,
  JobState,
  JobView,
  JournalAttempt,
  JournalEntry,
  NextAction,
  Problem,
  RetrySettings,
  Signal,
  SignalUpdate,
  WebhookSettings,
} from "./wire.js";
export { Context } from "./worker/context.js";
export { type Statistics, Worker, type WorkerOptions } from "./worker/worker.js";
