//! Limits of signals, statistics, failures, signatures and the time to the first signal.

/// How long a snapshot of a queue (positions, workers) is cached for the signals of its jobs.
pub const QUEUE_SNAPSHOT_TTL_MS: u64 = 1_000;
/// Queue snapshots that are cached.
pub const QUEUE_SNAPSHOTS_CACHED: usize = 1_000;
/// Jobs of a queue that a snapshot reads. Positions beyond are estimated from the maintained counters.
pub const QUEUE_SNAPSHOT_JOBS: usize = 1_000;
pub const QUEUE_SNAPSHOT_WORKERS: usize = 10_000;
/// Earlier jobs with the same key that are read for a prediction.
pub const PREVIOUS_JOBS: usize = 5;
/// A normalized error message.
pub const FAILURE_PATTERN_BYTES: usize = 256;
pub const FAILURE_PATTERN_TOKENS: usize = 64;
/// A signature's regular expression, as text.
pub const SIGNATURE_PATTERN_BYTES: usize = 512;
/// A signature's regular expression, compiled.
pub const SIGNATURE_PROGRAM_BYTES: usize = 64 << 10;
/// Largest repetition count in a signature's regular expression. PostgreSQL has the same limit.
pub const SIGNATURE_REPEATS: u32 = 255;
/// The part of a subject or image that a signature is matched against.
pub const SIGNATURE_SUBJECT_BYTES: usize = 512;
/// Failures that one transaction groups, and unrepaired failures that one transaction checks.
pub const FAILURE_BATCH_ROWS: usize = 200;
/// Samples after which a failure group proposes a signature.
pub const SIGNATURE_AFTER_SAMPLES: u64 = 3;
/// Signatures of one tenant.
pub const SIGNATURES: usize = 1_000;
/// Repair times stored per failure group.
pub const REPAIR_SAMPLES: usize = 100;
/// A failure without a success after this long is no longer watched for its repair.
pub const REPAIR_MAX_S: i64 = 7 * 24 * 3_600;
/// Subjects of a failure group that are shown.
pub const FAILURE_SUBJECTS_SHOWN: usize = 10;
pub const FAILURE_RETENTION_S: i64 = 90 * 24 * 3_600;
/// Retention of the hourly counts of failures.
pub const FAILURE_HOURS_RETENTION_S: i64 = 7 * 24 * 3_600;
/// Jobs that one replay of a failure group creates.
pub const REPLAY_JOBS: usize = 500;
/// Retention of a job's signals after its end.
pub const SIGNAL_RETENTION_S: i64 = 24 * 3_600;
/// A signature with less confidence that has not been touched for `SIGNATURE_STALE_S` is disabled.
pub const SIGNATURE_MIN_CONFIDENCE: f64 = 0.3;
pub const SIGNATURE_STALE_S: i64 = 30 * 24 * 3_600;
/// Ended jobs that one node samples for its statistics between two folds.
pub const DURATION_SAMPLES: usize = 256;
/// ETAs of running and waiting jobs that one node tracks to measure their accuracy.
pub const TRACKED_ETAS: usize = 10_000;
/// Reports of progress per running job from which one node learns how progress maps to time.
pub const REPORTS_PER_JOB: usize = 20;
/// Lanes for which one fold updates the arrival rate: those with the most ended jobs.
pub const ARRIVAL_LANES_PER_FOLD: usize = 32;
/// Workers for which one node tracks the concurrency.
pub const TRACKED_WORKERS: usize = 10_000;
/// Lanes for which one node tracks whether jobs arrive together.
pub const TRACKED_LANES: usize = 10_000;
/// A new affinity borrows from the histories of at most this many others of its kind.
pub const KIN_AFFINITIES: usize = 16;
/// Kinds of work with cached statistics.
pub const DURATION_STATISTICS_CACHED: usize = 10_000;
pub const DURATION_STATISTICS_TTL_MS: u64 = 2_000;
/// Jobs for which one node computes an ETA at each sampling: new jobs, and jobs that it sampled before.
pub const SAMPLED_NEW_JOBS: usize = 4;
pub const SAMPLED_AGAIN_JOBS: usize = 4;
/// Unfinished jobs that one node remembers to compute their ETA again.
pub const SAMPLED_JOBS: usize = 64;
pub const SAMPLE_INTERVAL_MS: u64 = 500;
/// Time-to-first-signal events in one request.
pub const TTFS_EVENTS: usize = 1_000;
pub const TTFS_MAX_MS: i64 = 24 * 3_600 * 1_000;
pub const TTFS_METADATA_BYTES: usize = 64 << 10;
/// How far back the daily rollups reach.
pub const TTFS_DAYS: i64 = 90;
/// How far back the hourly rollups reach.
pub const TTFS_HOURS: i64 = 7 * 24;
/// Hours that the service level objective is computed over.
pub const TTFS_SLO_HOURS: i64 = 24;
