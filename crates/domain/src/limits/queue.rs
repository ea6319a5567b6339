//! Limits of jobs, claims, workers, artifacts and calls.

/// Default maximum size of a job's payload, as JSON.
pub const PAYLOAD_BYTES: usize = 1 << 20;
/// Maximum size of a job's result, as JSON.
pub const RESULT_BYTES: usize = 1 << 20;
/// Jobs in one bulk enqueue.
pub const BATCH_JOBS: usize = 10_000;
/// Spans of attempts in progress that a node holds for a collector of traces.
pub const ATTEMPT_SPANS: usize = 10_000;
/// Payloads of one batched job.
pub const BATCH_PAYLOADS: i64 = 10_000;
/// Longest delay of a debounced or batched job.
pub const GATHER_MAX_S: i64 = 7 * 24 * 3_600;
/// Jobs that one `claim` may return.
pub const CLAIM_JOBS: usize = 2_000;
/// Payloads of the jobs that one `claim` returns. A claim stops with the job that reaches it.
pub const CLAIM_BYTES: usize = 16 << 20;
/// Results in the `inputs` of all jobs that one `claim` returns. Results beyond that are references.
pub const CLAIM_INPUTS_BYTES: i64 = 16 << 20;
/// Claim attempts that run concurrently on one node for workers that wait for the same lanes (thundering-herd control).
pub const CLAIM_GATE_PERMITS: usize = 8;
/// Additional concurrent claim attempts while attempts find jobs.
pub const CLAIM_GATE_EXTRA_PERMITS: usize = 56;
/// Outcomes in one `settle`.
pub const SETTLE_OUTCOMES: usize = 4_000;
/// Tags of one job.
pub const TAGS: usize = 32;
pub const WORKER_QUEUES: usize = 100;
pub const WORKER_KINDS: usize = 100;
pub const WORKER_AFFINITIES: usize = 100;
pub const PRIORITY_MIN: i64 = -32_768;
pub const PRIORITY_MAX: i64 = 32_767;
pub const MAX_ATTEMPTS: i64 = 1_000;
pub const DEFAULT_MAX_ATTEMPTS: i32 = 3;
pub const LEASE_MIN_S: i64 = 1;
pub const LEASE_MAX_S: i64 = 3_600;
pub const LEASE_DEFAULT_S: i64 = 30;
/// Default maximum delay between two attempts, for a retry policy that sets none.
pub const RETRY_MAX_S: i64 = 24 * 3_600;
/// Longest delay that any retry policy, snooze or schedule may request.
pub const WAIT_MAX_S: i64 = 10 * 366 * 24 * 3_600;
/// Longest execution timeout of a job.
pub const TIMEOUT_MAX_S: i64 = 30 * 24 * 3_600;
/// Lanes that a listing queries one by one. With more lanes it scans the newest rows of all lanes instead.
pub const LISTED_LANES: usize = 512;
/// Tags, error codes or kinds with a common prefix that a listing queries one by one.
pub const LISTED_PREFIXES: usize = 100;
/// Lanes (queue, kind, priority, affinity) that one claim or listing considers.
pub const LANES: usize = 10_000;
/// Retention of idempotency keys.
pub const IDEMPOTENCY_RETENTION_S: i64 = 24 * 3_600;
/// Default starvation bound of a queue: how long jobs of other affinities may be passed over before the oldest of them
/// wins.
pub const STARVATION_DEFAULT_S: i64 = 300;
pub const CONCURRENCY_MAX: i64 = 100_000;
/// Default retention of ended jobs.
pub const RETENTION_DEFAULT_S: i64 = 7 * 24 * 3_600;
/// Default retention of the history of jobs.
pub const HISTORY_RETENTION_DEFAULT_S: i64 = 90 * 24 * 3_600;
/// Rounds of one request that prunes a queue. Each scans and deletes a bounded number of jobs.
pub const QUEUE_PRUNE_ROUNDS: usize = 50;
/// Artifacts up to this size are stored in the database; larger ones in the blob store.
pub const ARTIFACT_INLINE_BYTES: usize = 64 << 10;
pub const ARTIFACT_BYTES: u64 = 10 << 30;
pub const ARTIFACTS_PER_JOB: usize = 1_000;
/// Blobs that one node deletes concurrently.
pub const CONCURRENT_BLOB_DELETES: usize = 16;
/// No attempt times out for this long after an outage or a start, so that workers can report the attempts that ended
/// meanwhile.
pub const TIMEOUT_GRACE_MS: i64 = 15_000;
/// Default timeout of a synchronous call.
pub const CALL_TIMEOUT_DEFAULT_S: i64 = 30;
pub const CALL_TIMEOUT_MAX_S: i64 = 300;
/// How much longer than its caller waits a call's handler may run. A result that arrives in this time is stored.
pub const CALL_LATE_RESULT_S: i64 = 60;
/// How long after its timeout a call counts as abandoned. Until then its own node may still record the end.
pub const CALL_GRACE_MS: i64 = 5_000;
/// Default retention of abandoned calls.
pub const ABANDONED_RETENTION_DEFAULT_S: i64 = 7 * 24 * 3_600;
