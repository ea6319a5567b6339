//! Limits of what a page of the dashboard reads and shows.

/// Unresolved dead letters, the newest ones, that the dashboard groups.
pub const GROUPED_DEAD_LETTERS: usize = 5_000;
/// Groups of dead letters on the page, the largest ones.
pub const DEAD_LETTER_GROUPS: usize = 50;
/// Retention of the throughput counts per minute.
pub const THROUGHPUT_RETENTION_S: i64 = 24 * 3_600;
/// Minutes of throughput that pages show.
pub const THROUGHPUT_MINUTES: i64 = 60;
/// Queues that the overview page reads.
pub const OVERVIEW_QUEUES: usize = 200;
pub const OVERVIEW_WORKERS: usize = 500;
pub const OVERVIEW_RUNTIMES: usize = 100;
/// Deliveries per state that the overview page reads.
pub const OVERVIEW_DELIVERIES: usize = 100;
/// Failure groups that the overview page shows.
pub const OVERVIEW_FAILURES: usize = 5;
/// The overview page reports a queue when its oldest job has waited longer than this.
pub const OVERVIEW_LONG_WAIT_S: i64 = 300;
/// The overview page reports failed deliveries up to this age.
pub const OVERVIEW_FAILED_DELIVERY_S: i64 = 3_600;
/// Workers that the page of a job names.
pub const JOB_PAGE_WORKERS: usize = 8;
/// Intervals of the charts of a queue or a kind.
pub const ACTIVITY_INTERVALS: i64 = 60;
/// Ended jobs that the latencies of a queue or a kind are computed from, the newest ones.
pub const RECENT_ENDS: usize = 5_000;
/// Failed jobs that the page of a queue lists.
pub const ACTIVITY_FAILED_JOBS: usize = 10;
/// The form to push a job offers the payloads of this many newest jobs of the queue.
pub const PUSH_PAYLOAD_JOBS: usize = 20;
/// Newest jobs that the page of a kind lists.
pub const KIND_PAGE_JOBS: usize = 20;
/// Failure groups that the page of a kind reads.
pub const KIND_PAGE_FAILURES: usize = 100;
/// Claims of a worker that its page reads, and jobs that it lists.
pub const WORKER_PAGE_CLAIMS: usize = 50;
pub const WORKER_PAGE_JOBS: usize = 100;
/// Entries of a journal on one page of the dashboard.
pub const JOURNAL_ROWS: usize = 100;
/// Lanes with an affinity that the affinity page reads.
pub const AFFINITY_LANES: usize = 512;
/// Jobs that the affinity page counts in each lane.
pub const AFFINITY_COUNTED_JOBS: usize = 200;
/// Changes of a runtime's health that its health strip is drawn from.
pub const HEALTH_STRIP_CHANGES: usize = 100;
/// Subjects on a page of the fleet. Each is read whole, with its state in every process.
pub const FLEET_ITEMS: usize = 30;
/// Results of one search of the documentation.
pub const DOCS_RESULTS: usize = 20;
/// Maximum size of a search of the documentation.
pub const DOCS_QUERY_BYTES: usize = 200;
