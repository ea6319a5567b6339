//! Limits of subjects, processes and the timeline.

/// Default retention of the timelines of subjects and runtimes, of operations and of health records.
pub const TIMELINE_RETENTION_S: i64 = 366 * 24 * 3_600;
/// Minimum interval between timeline entries for a numeric fact that a subject's own agent reports and no selector uses.
pub const AGENT_FACT_TIMELINE_INTERVAL_S: i64 = 60;
/// Most recent timeline entries that are searched for a duplicate before an entry is added.
pub const TIMELINE_DEDUP_ENTRIES: usize = 20;
/// For this long after an outage or a start, a fact that could not be renewed meanwhile does not count as old. If the
/// requested maximum age is shorter, that age applies instead.
pub const FACT_GRACE_S: i64 = 300;
/// How far in the future the time of a fact may lie. Another transaction's clock may be slightly ahead.
pub const FACT_AHEAD_MS: i64 = 10_000;
/// Facts of one subject.
pub const SUBJECT_FACTS: usize = 256;
/// One fact's value, as JSON.
pub const FACT_BYTES: usize = 16 << 10;
/// A fact's new value on the timeline. Longer values are omitted there.
pub const TIMELINE_FACT_BYTES: usize = 1 << 10;
/// Conditions of one selector.
pub const SELECTOR_CONDITIONS: usize = 64;
/// Levels of groups in a selector.
pub const SELECTOR_DEPTH: usize = 4;
/// Processes of one tenant. Each change of a fact is evaluated against every process's selector.
pub const PROCESSES: usize = 500;
pub const PROCESS_EXCLUDES: usize = 50;
/// Default delay before a process considers a subject again that is still eligible after its job.
pub const PROCESS_EVERY_DEFAULT_S: i64 = 60;
/// Jobs that one scan step creates, and subjects that it evaluates.
pub const PROCESS_SCAN_ROWS: usize = 500;
/// The counts of a process stop here.
pub const PROCESS_COUNT_ROWS: usize = 100_000;
/// Parked jobs of one subject that are released together when it becomes free. Jobs that exclude each other park
/// together.
pub const SUBJECT_UNPARK_JOBS: i64 = 100;
