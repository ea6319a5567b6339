/**
 * The data of the HTTP API. Members have the names of the API (`snake_case`), so that its reference applies unchanged.
 * Generated from the server's OpenAPI document by scripts/generate-wire.mjs.
 */

/** The state of a job. `succeeded`, `failed` and `canceled` are final. */
export type JobState = "waiting" | "scheduled" | "queued" | "loading" | "working" | "succeeded" | "failed" | "canceled";

/** The body of `POST /jobs`. */
export interface JobRequest {
  /** What a worker must have loaded to run the job, for example the name of a model. */
  affinity?: string;
  /** Requests with the same unique key become one job with the array of their payloads. Requires a unique key. */
  batch?: BatchSettings;
  /** At most `per_key` jobs (a setting of the queue) with the same key run at a time. */
  concurrency_key?: string;
  /** Seconds from its creation after which the job fails with the code `deadline`, in any state. Default: none. */
  deadline_s?: number;
  /** Requests with the same unique key become one job that runs with the last payload. Requires a unique key. */
  debounce?: DebounceSettings;
  /** The kind of work, for example `welcome`. */
  kind: string;
  /** Maximum number of attempts, from 1 to 1000. Default: 3. */
  max_attempts?: number;
  /** Any JSON; passed to the worker unchanged. */
  payload?: unknown;
  /** Jobs with a higher priority run first, from -32768 to 32767. Default: 0. */
  priority?: number;
  /** The process that the job counts for. Requires `subject`. */
  process?: string;
  /** The queue's name. The first job creates the queue. */
  queue: string;
  /** The backoff between attempts. Default: the queue's policy. */
  retry?: RetrySettings;
  /** The group of jobs that this job belongs to. */
  run?: string;
  /** The earliest time at which the job may start. Default: now. */
  run_at?: string;
  /** The subject that the job works on. At most one job per subject and process runs at a time. */
  subject?: string;
  /** Labels for listings, at most 32. */
  tags?: string[];
  /** Seconds after which a running attempt is stopped and counts as failed. Default: the queue's setting. */
  timeout_s?: number;
  /**
   * The trace that the job belongs to, as in the header `traceparent` of W3C Trace Context. Workers, children and
   * webhooks get it. Default: the header of the request.
   */
  traceparent?: string;
  /** Derives the unique key from these fields instead: any of `kind`, `payload`. */
  unique_by?: ("kind" | "payload")[];
  /** The unique key is reserved for this many seconds, instead of until the job ends. */
  unique_for_s?: number;
  /** While an unfinished job with this key exists in the queue, an enqueue with the same key returns that job. */
  unique_key?: string;
  /** Receives every state change of the job. */
  webhook?: WebhookSettings;
}

/** A node of a run. The members other than `needs` and `when` are those of a job. */
export interface NodeRequest {
  /** What a worker must have loaded to run the job, for example the name of a model. */
  affinity?: string;
  /** At most `per_key` jobs (a setting of the queue) with the same key run at a time. */
  concurrency_key?: string;
  /** Seconds from its creation after which the job fails with the code `deadline`, in any state. Default: none. */
  deadline_s?: number;
  /** The kind of work, for example `welcome`. */
  kind: string;
  /** Maximum number of attempts, from 1 to 1000. Default: 3. */
  max_attempts?: number;
  /** The names of the nodes that must end first. Their results are the `inputs` of the claimed job. */
  needs?: string[];
  /** Any JSON; passed to the worker unchanged. */
  payload?: unknown;
  /** Jobs with a higher priority run first, from -32768 to 32767. Default: 0. */
  priority?: number;
  /** The process that the job counts for. Requires `subject`. */
  process?: string;
  /** The queue's name. */
  queue: string;
  /** The backoff between attempts. Default: the queue's policy. */
  retry?: RetrySettings;
  /** The earliest time at which the job may start. Default: when its needs are met. */
  run_at?: string;
  /** The subject that the job works on. */
  subject?: string;
  /** Labels for listings, at most 32. */
  tags?: string[];
  /** Seconds after which a running attempt is stopped and counts as failed. Default: the queue's setting. */
  timeout_s?: number;
  /**
   * The trace that the job belongs to, as in the header `traceparent` of W3C Trace Context. Workers, children and
   * webhooks get it. Default: the header of the request.
   */
  traceparent?: string;
  /** Receives every state change of the job. */
  webhook?: WebhookSettings;
  /**
   * When the node starts: `success` after every need succeeded, `failure` after every need ended and at least one
   * failed or was canceled, `always` after every need ended. Default: `success`.
   */
  when?: "success" | "failure" | "always";
}

/** The job runs with `max` payloads, or `within_s` after the first request with its unique key. */
export interface BatchSettings {
  /** The largest number of payloads, from 1 to 10,000. A batch also ends before its payload exceeds 1 MiB. */
  max: number;
  /** Seconds after the first request, from 1 to 604,800. */
  within_s: number;
}

/** The job runs `delay_s` after the last request with its unique key, at most `max_s` after the first. */
export interface DebounceSettings {
  /** Seconds without another request, from 1 to 604,800. */
  delay_s: number;
  /** The longest delay in seconds after the first request. Default: none. */
  max_s?: number;
}

/** Backoff between attempts. */
export interface RetrySettings {
  /** The factor by which each backoff grows. */
  exponent?: number;
  /** Seconds before the second attempt. */
  initial_s?: number;
  /** The random share that is added, from 0 to 1. */
  jitter?: number;
  /** The longest backoff in seconds. */
  maximum_s?: number;
}

/** The receiver of a job's state changes. */
export interface WebhookSettings {
  /** `whsec_` followed by base64. Requests are signed with it according to Standard Webhooks. Never shown again. */
  secret?: string;
  /**
   * Additional secrets; each adds a signature. To rotate a secret, send the new and the old one until receivers
   * have changed.
   */
  secrets?: string[];
  /** The address of the receiver, `https://…` or `http://…`. */
  url: string;
}

/** A worker's update to the signal of a job that it has claimed. */
export interface SignalUpdate {
  /** Details for people, any JSON object. */
  diagnostics?: Record<string, unknown>;
  /** The worker's own estimate of the remaining seconds. */
  eta_s?: number;
  /**
   * `blocked` or `unavailable`: the job cannot go on at present. The next update without a kind, or with `started`
   * or `phase`, withdraws it.
   */
  kind?: string;
  /** The outcome of comparable work, any JSON. */
  last_known_outcome?: unknown;
  /** Links for people. They replace the earlier ones. */
  next_actions?: NextAction[];
  /** Additional data for user interfaces, any JSON. */
  payload?: unknown;
  /** The phase that the attempt has reached: a built-in one, or one that the queue declares. */
  phase?: string;
  /** From 0 to 1. */
  progress?: number;
  /** `loading` or `working`. */
  state?: "loading" | "working";
  /** One sentence for people. */
  summary?: string;
}

/** A stored artifact, without its content. */
export interface ArtifactView {
  /** The media type as uploaded. */
  content_type: string;
  /** When the upload was complete. */
  created_at: string;
  /** The artifact's name, unique within the attempt. */
  name: string;
  /** SHA-256 digest in hexadecimal. */
  sha256: string;
  /** The size in bytes. */
  size: number;
}

/** The answer to a cancellation. */
export interface CancelView {
  /** The job's id. */
  id: string;
  /** The job's state: `canceled`; with `compensate` the state in which the job waits for its undo steps. */
  state: JobState;
}

/** A job that a worker has claimed. */
export interface ClaimedJob {
  /** What a worker must have loaded to run the job, or `null`. */
  affinity?: string | null;
  /** The number of the attempt, from 1. */
  attempt: number;
  /** When the job was enqueued. */
  created_at: string;
  /** Fencing token. Send it with every signal, artifact and outcome of this attempt; a stale epoch is rejected. */
  epoch: number;
  /** The job's id. */
  id: string;
  /**
   * The results of the nodes that the job needs, by name. A result above 64 KiB, or beyond 4 MiB in total, is
   * `{"$result": {"job_id", "size"}}`: read it with `GET /jobs/{id}`.
   */
  inputs?: Record<string, unknown> | null;
  /** The recorded operations of the job, if it has any. */
  journal?: ClaimedJournal | null;
  /** The kind of work, for example `welcome`. */
  kind: string;
  /** Maximum number of attempts. */
  max_attempts: number;
  /** The payload, unchanged. */
  payload: unknown;
  /** The job's priority. */
  priority: number;
  /** The process that created the job, or `null`. */
  process?: string | null;
  /** The queue's name. */
  queue: string;
  /** The run that the job belongs to, or `null`. */
  run?: string | null;
  /**
   * `loading` if the worker does not hold the job's affinity: it loads it and then reports `working` with a
   * signal. Otherwise `working`.
   */
  state?: string;
  /** The subject that the job works on. */
  subject?: string | null;
  /** The job's tenant, if it differs from the worker's. */
  tenant?: string | null;
  /** Seconds after which the server stops the attempt. */
  timeout_s?: number | null;
  /** The trace that the job belongs to, as in the header `traceparent` of W3C Trace Context. */
  traceparent?: string | null;
}

/** The journal that comes with a claimed job. */
export interface ClaimedJournal {
  /** The first entries. */
  entries: JournalEntry[];
  /** The cursor of the remaining entries for `GET /jobs/{id}/journal`, if there are any. */
  next_cursor?: string | null;
}

/** The error of a failed attempt. */
export interface JobError {
  /** A stable code, for example `smtp_unavailable`. Failures are grouped by it. */
  code: string;
  /** The error for people. */
  message?: string;
  /** False: the job fails without further attempts. Default: true. */
  retryable?: boolean;
}

/** A job as returned by the API. */
export interface JobView {
  /** What a worker must have loaded to run the job, or `null`. */
  affinity?: string | null;
  /** The artifacts by name, without their content. Only `GET /jobs/{id}` has them. */
  artifacts?: ArtifactView[] | null;
  /** The number of attempts that were started. */
  attempt: number;
  /** The key whose running jobs are limited. */
  concurrency_key?: string | null;
  /** When the job was enqueued. */
  created_at: string;
  /** Seconds from its creation after which the live job fails. Only `GET /jobs/{id}` has it. */
  deadline_s?: number | null;
  /** How many triggers led to the job. */
  depth: number;
  /** The fencing token of the newest claim. */
  epoch: number;
  /** The error of the last failed attempt. */
  error?: JobError | null;
  /** When the job ended. */
  finished_at?: string | null;
  /** The job's id. */
  id: string;
  /** The kind of work, for example `welcome`. */
  kind: string;
  /** Maximum number of attempts. */
  max_attempts: number;
  /** The job that this job is a retry of. */
  parent?: string | null;
  /** The payload, unchanged. */
  payload: unknown;
  /** The phase of the running attempt. */
  phase?: string | null;
  /** The principal that enqueued the job. */
  principal: string;
  /** Jobs with a higher priority run first. */
  priority: number;
  /** The process that created the job, or `null`. */
  process?: string | null;
  /** From 0 to 1, as last reported by the worker. */
  progress?: number | null;
  /** The queue's name. */
  queue: string;
  /** Fields that the job has and the caller may not read; they are `null` or empty in this response. */
  redacted?: string[];
  /** The result of a succeeded job. */
  result?: unknown;
  /** The job that is a retry of this job. */
  retried_as?: string | null;
  /** The job's own retry policy; `null` if the queue's policy applies. */
  retry?: RetrySettings | null;
  /** The run that the job belongs to, or `null`. */
  run?: string | null;
  /** The earliest time at which the next attempt may start. */
  run_at: string;
  /** When the current or last attempt started. */
  started_at?: string | null;
  /** `scheduled`, `queued`, `loading`, `working`, `succeeded`, `failed` or `canceled`. */
  state: JobState;
  /** The subject that the job works on. */
  subject?: string | null;
  /** Labels. */
  tags: string[];
  /** Seconds after which a running attempt is stopped. */
  timeout_s?: number | null;
  /** The trace that the job belongs to. Only `GET /jobs/{id}` has it. */
  traceparent?: string | null;
  /** `api`, or the trigger that enqueued the job. */
  triggered_by?: string | null;
  /** The key that keeps other jobs with it out of the queue. */
  unique_key?: string | null;
  /** When it last changed. */
  updated_at: string;
  /** The URL that receives every state change. The secret is never shown. */
  webhook_url?: string | null;
  /** The worker that has claimed the job. */
  worker?: string | null;
}

/** A failed attempt of an operation. */
export interface JournalAttempt {
  /** When it was recorded. */
  at: string;
  /** The number of the attempt. */
  attempt: number;
  /** The error's code. */
  code: string;
  /** The error's message, at most 1 KiB. */
  message: string;
}

/** A recorded operation of a job. */
export interface JournalEntry {
  /** Number of attempts. */
  attempt: number;
  /** The last failed attempts, oldest first. */
  attempts?: JournalAttempt[];
  /** Size of the entry. */
  bytes: number;
  /** When the operation was recorded first. */
  created_at: string;
  /** When the open operation resolves by itself: the end of a sleep, or a timeout. */
  due_at?: string | null;
  /** How long the operation ran, as the worker measured it. */
  duration_ms?: number | null;
  /** The error of a resolved operation that failed. */
  error?: JobError | null;
  /** The operation was resolved before this write. Only in the response to a write. */
  existing?: boolean | null;
  /** The digest of operation, name and input. */
  hash?: string | null;
  /** What the operation waits for: the event or the approval. */
  input?: unknown;
  /** The name of the operation in the journal. */
  key: string;
  /** `step`, `sleep`, `event`, `approval`, `child` or `publish`. */
  op: "step" | "sleep" | "event" | "approval" | "child" | "publish";
  /** Number of the entry, from 1, in the order in which the operations were recorded first. */
  position: number;
  /** When the operation was resolved. */
  resolved_at?: string | null;
  /** The result of a resolved operation. */
  result?: unknown;
  /** Place in the order of resolution, from 1. */
  seq?: number | null;
  /** `open` or `resolved`. */
  status: "open" | "resolved";
}

/** A link for people in a signal. */
export interface NextAction {
  /** `https://…`, `http://…`, or a path of this server. */
  href: string;
  /** The text of the link or the button. */
  label: string;
  /** The HTTP method. Default: GET. */
  method?: string | null;
}

/** An error of the API (RFC 9457). */
export interface Problem {
  /** The stable error code. */
  code: string;
  /** What went wrong and what to change. */
  detail: string;
  /** The error with which that job failed. */
  error?: JobError | null;
  /** The request field that caused the error. */
  field?: string | null;
  /** The job that a synchronous call created. */
  job_id?: string | null;
  /** The HTTP status. */
  status: number;
  /** The error in a few words. */
  title: string;
  /** The address of the error's documentation, relative to the server. */
  type: string;
}

/** The counts of the jobs of a run. */
export interface RunCounts {
  /** Jobs that were canceled or skipped. */
  canceled: number;
  /** Jobs that failed. */
  failed: number;
  /** Jobs that have not ended. */
  live: number;
  /** Jobs that succeeded. */
  succeeded: number;
}

/** A node of a run. */
export interface RunNodeView {
  /** The number of attempts that were started. */
  attempt: number;
  /**
   * The error of the last failed attempt, or the need that prevented the node. `null` without the right to read
   * logs.
   */
  error?: JobError | null;
  /** When the job ended. */
  finished_at?: string | null;
  /** The job's id. */
  job_id: string;
  /** The kind of work. */
  kind: string;
  /** The node's name. A job that was pushed with the run's id has its job id as the name. */
  name: string;
  /** The names of the nodes that it needs. */
  needs: string[];
  /** The phase of the running attempt. */
  phase?: string | null;
  /** From 0 to 1, as last reported by the worker. */
  progress?: number | null;
  /** The queue's name. */
  queue: string;
  /** When the current or last attempt started. */
  started_at?: string | null;
  /** The job's state. */
  state: JobState;
  /** `success`, `failure` or `always`. */
  when: "success" | "failure" | "always";
}

/** The current status of a run, for people and user interfaces. */
export interface RunSignal {
  /**
   * The chain of nodes that have not ended with the longest expected duration, first node first, at most 100
   * names.
   */
  critical_path: string[];
  /**
   * When the run is expected to end, from the durations of earlier jobs of the same kinds, its graph and its
   * workers. `null` if a kind has too little history, no worker serves a node, or the run has ended.
   */
  eta_seconds?: { p50: number; p90: number } | null;
  /** `queued`, `blocked`, `started`, `succeeded`, `failed` or `canceled`. */
  kind: string;
  /** The names of running nodes, at most three. */
  phase?: string | null;
  /** The share of jobs that ended, from 0 to 1. */
  progress: number;
  /** The state of the run in a sentence. */
  summary: string;
  /** Incremented by every end of a job. */
  version: number;
}

/** A run as returned by the API. */
export interface RunView {
  /** The principal that canceled the run. */
  canceled_by?: string | null;
  /** The counts of its jobs. */
  counts: RunCounts;
  /** When the run was started. */
  created_at: string;
  /** When the run ended. */
  finished_at?: string | null;
  /** The run's id. */
  id: string;
  /** The run's name, or `null`. */
  name?: string | null;
  /** The nodes in the order of their creation. Only `GET /runs/{id}` has them. */
  nodes?: RunNodeView[] | null;
  /** `cancel` or `continue`. */
  on_failure: "cancel" | "continue";
  /** The run that this run retries. */
  parent?: string | null;
  /** The principal that started the run. */
  principal: string;
  /** The run that retries this run. */
  retried_as?: string | null;
  /** When its first job started. Only `GET /runs/{id}` has it. */
  started_at?: string | null;
  /** `running`, `succeeded`, `failed` or `canceled`. */
  state: "running" | "succeeded" | "failed" | "canceled";
  /** Labels. */
  tags: string[];
}

/** The answer to a settle, in the order of the request. */
export interface SettleView {
  /** One result per outcome, in the order of the request. */
  results: ({ job_id: string; status: "applied" | "claim_lost" | "already_ended" | "not_found" })[];
}

/** The current status of a job, for people and user interfaces. */
export interface Signal {
  /** When the job was enqueued. */
  created_at: string;
  /** Details for people. */
  diagnostics: Record<string, unknown>;
  /** What the estimate is based on; `null` without an estimate. */
  eta_basis?: { answers: number; finishes_by: string; p50_held: number | null; p90_held: number | null; samples: number; swaps_ahead: number; text: string } | null;
  /** The estimated seconds until the job ends; `null` without an estimate. */
  eta_seconds?: { p50: number; p90: number } | null;
  /** The job's id. */
  job_id: string;
  /** `queued`, `started`, `phase`, `blocked`, `failed`, `succeeded`, `canceled` or `unavailable`. */
  kind: "queued" | "started" | "phase" | "blocked" | "failed" | "succeeded" | "canceled" | "unavailable";
  /** The outcome of comparable work. */
  last_known_outcome?: unknown;
  /** Links for people. */
  next_actions: NextAction[];
  /** Additional data from the worker. */
  payload?: unknown;
  /** The phase of the attempt, or a word for the state. */
  phase: string;
  /** The signature that predicts a failure, with its confidence. */
  predicted?: unknown;
  /** From 0 to 1, as last reported by the worker. */
  progress?: number | null;
  /** The run that the job belongs to, or `null`. */
  run?: string | null;
  /** The signature that matches the failure of the job: its likely cause, suggested action and link. */
  signature?: unknown;
  /** One sentence for people. */
  summary: string;
  /** When the signal last changed. */
  updated_at: string;
  /** Incremented by every change. */
  version: number;
}

/** The answer to the registration of a worker. */
export interface WorkerRegistered {
  /** Recommended interval between heartbeats. */
  heartbeat_s: number;
  /** The worker's id. */
  id: string;
  /** The lease in seconds. */
  lease_s: number;
}
