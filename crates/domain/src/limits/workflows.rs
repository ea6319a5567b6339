//! Limits of runs and of journals.

/// Nodes of one run.
pub const RUN_NODES: usize = 10_000;
/// Needs of the nodes of one request.
pub const RUN_NEEDS: usize = 100_000;
/// Largest result that a claimed job carries in its `inputs`. A larger one is a reference.
pub const INPUT_INLINE_BYTES: i64 = 64 << 10;
/// Results in the `inputs` of one claimed job. Results beyond that are references.
pub const INPUTS_BYTES: i64 = 4 << 20;
/// Simulated ends of a run in one forecast, and simulated nodes in all of them.
pub const RUN_FORECAST_ROUNDS: usize = 200;
pub const RUN_FORECAST_NODES: usize = 100_000;
/// The forecast of a run reads the workers of at most this many queues. A run with more queues has no forecast.
pub const RUN_FORECAST_QUEUES: usize = 20;
/// Needs that `why` follows from a waiting job.
pub const WHY_NEEDS: usize = 16;
/// Writes in one journal request.
pub const JOURNAL_WRITES: usize = 1_000;
/// Operations in one journal request.
pub const JOURNAL_OPS: usize = 1_000;
/// Entries of one journal.
pub const JOURNAL_ENTRIES: i64 = 10_000;
/// Size of one journal.
pub const JOURNAL_BYTES: i64 = 64 << 20;
/// A fuller journal has a warning in the signal of its job, in percent of either limit.
pub const JOURNAL_WARNING_PERCENT: i64 = 80;
/// Failed attempts that an entry of a journal keeps.
pub const JOURNAL_ATTEMPTS: usize = 10;
/// The error message of such an attempt. Longer ones are truncated.
pub const JOURNAL_ATTEMPT_MESSAGE_BYTES: usize = 1 << 10;
/// Digest of an operation.
pub const JOURNAL_HASH_BYTES: usize = 128;
/// Jobs that one operation `child` starts.
pub const JOURNAL_CHILDREN: usize = 10_000;
/// Length of a chain of forks in which the handler of the last fork may read the artifacts of all jobs.
pub const FORK_ORIGINS: usize = 16;
/// Keys of entries that wake a suspended job.
pub const WAKE_KEYS: usize = 1_000;
/// Members of the data that an awaited event must have.
pub const EVENT_MATCHES: usize = 16;
/// Signal events of one job that no operation has got.
pub const JOB_EVENTS: usize = 1_000;
/// Data of one signal event.
pub const JOB_EVENT_BYTES: usize = 64 << 10;
/// Title of an approval. Its detail and the note of an answer may have `REASON_BYTES`.
pub const APPROVAL_TITLE_BYTES: usize = 256;
/// The result of one child in the entry that started it. A larger one is read from the child.
pub const CHILD_RESULT_BYTES: usize = 64 << 10;
/// The results of all children of one entry.
pub const CHILD_RESULTS_BYTES: usize = 1 << 20;
/// Longest duration that a worker may report for a step.
pub const MAX_STEP_DURATION_MS: i64 = 366 * 24 * 3_600 * 1_000;
/// Recorded results in one response, and results of all journals that one claim returns.
pub const JOURNAL_PAGE_BYTES: i64 = 8 << 20;
/// Entries that one claim returns for one journal.
pub const JOURNAL_CLAIM_ENTRIES: usize = 1_000;
