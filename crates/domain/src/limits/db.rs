//! Limits of commits, of maintenance, and of the heartbeat that detects an outage.

/// Rows that one maintenance step changes in one transaction.
pub const MAINTENANCE_ROWS: usize = 1_000;
/// Batches of `MAINTENANCE_ROWS` rows that one prune step scans. Rows past their retention may be retained for another
/// reason, so a batch can contain nothing to delete.
pub const MAINTENANCE_BATCHES: usize = 20;
/// Requests that share one group commit.
pub const SHARED_COMMIT_REQUESTS: usize = 4_096;
/// Jobs that share one group commit.
pub const SHARED_COMMIT_JOBS: usize = 10_000;
/// Bytes of payloads or results that share one group commit. A larger request commits alone.
pub const SHARED_COMMIT_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of payloads or results that wait for a group commit. Beyond that, requests get 503.
pub const PENDING_COMMIT_BYTES: usize = 256 * 1024 * 1024;
/// How long the SQLite writer keeps a transaction open to add more operations to it. Operations that arrive later are
/// already queued for the next transaction while the clients of this one process their responses.
pub const SQLITE_COALESCE_MS: u64 = 6;
/// If no node has sent a heartbeat for this long, the service was down. Leases then get one more full term, so that
/// downtime of the service does not consume attempts.
pub const OUTAGE_MS: i64 = 3_000;
/// Interval of the heartbeat that each node writes.
pub const SERVICE_HEARTBEAT_MS: i64 = 1_000;
/// Age of the last successful heartbeat from which a node is not ready: its writes do not complete.
pub const READY_WRITE_AGE_MS: i64 = 3_000;
/// Time limit of the query of a readiness probe. Together with `READY_WRITE_AGE_MS`, a probe fails within 5 s.
pub const READY_QUERY_MS: i64 = 2_000;
/// The outage threshold of a node that starts: one overdue heartbeat, because a lease may be shorter than `OUTAGE_MS`.
pub const OUTAGE_AT_START_MS: i64 = SERVICE_HEARTBEAT_MS + 500;
/// How long all nodes must have been without a heartbeat before a down migration may run.
pub const STOPPED_AFTER_MS: i64 = 15_000;
/// A last heartbeat further in the future than this was written by a clock that has since been set back.
pub const CLOCK_STEP_MS: i64 = 60_000;
/// How long nothing is deleted by age after the clock was set forward by more than `CLOCK_STEP_MS`.
pub const RETENTION_HOLD_S: i64 = 3_600;
/// A node that starts after a longer time without any heartbeat cannot distinguish an outage from a clock that was set forward.
pub const UNSERVED_IN_DOUBT_MS: i64 = 24 * 3_600 * 1_000;
