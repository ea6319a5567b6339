//! The system page: the database, background tasks and pruning.

use askama::Template;
use wire::TasksView;

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "system.html")]
pub struct System {
    pub frame: Frame,
    pub tasks: TasksView,
    /// Figures of the database; `None` for tenants other than `system`.
    pub database: Option<DatabaseState>,
}

#[derive(Clone, Debug)]
pub struct DatabaseState {
    pub engine: &'static str,
    pub bytes: i64,
    /// Unused space: free pages of SQLite, or estimated dead rows of PostgreSQL.
    pub bloat: Bloat,
    pub wal_bytes: Option<i64>,
    pub schema: usize,
    pub clock_skew_ms: i64,
    pub oldest_transaction_s: i64,
    /// The largest tables and their size.
    pub largest: Vec<(String, i64)>,
}

#[derive(Clone, Copy, Debug)]
pub enum Bloat {
    Bytes(i64),
    Rows(i64),
}

impl DatabaseState {
    fn bloat(&self) -> (String, &'static str) {
        match self.bloat {
            Bloat::Bytes(bytes) => (html::bytes(&bytes), "free pages"),
            Bloat::Rows(rows) => (html::count(&rows), "dead rows"),
        }
    }
}

/// The title of a background task. `name` is its stable id in the API and in metrics.
fn title(name: &str) -> String {
    let title = match name {
        "beat" => "Heartbeat",
        "check_counters" => "Check counters",
        "collect_garbage" => "Delete unused blobs",
        "deliver" => "Send deliveries",
        "dispatch_outbox" => "Dispatch outbox",
        "fail_overdue_jobs" => "Fail jobs past their deadline",
        "fire_schedules" => "Fire schedules",
        "fold_counters" => "Fold counters",
        "fold_figures" => "Fold run-time statistics",
        "learn_failures" => "Group failures",
        "operate_runtimes" => "Operate runtimes",
        "promote_due" => "Promote due jobs",
        "resolve_waits" => "Resolve waits of workflows",
        "prune" => "Delete expired rows",
        "run_batches" => "Run batches",
        "run_pools" => "Run pools",
        "scan_subjects" => "Scan subjects",
        "serve_logs" => "Serve container logs",
        "sweep_calls" => "Settle abandoned calls",
        "sweep_leases" => "Expire leases",
        "unpark_forgotten" => "Repair parked jobs",
        "wake_waiting" => "Wake waiting callers",
        "watch_runtimes" => "Probe runtimes",
        "watch_ttfs" => "Check TTFS targets",
        "work_queues" => "Run queue triggers",
        other => other,
    };
    title.to_owned()
}

fn every(ms: &u64) -> String {
    html::seconds(*ms as f64 / 1_000.0)
}

fn took(ms: &Option<u64>) -> String {
    ms.map_or_else(|| "–".into(), |ms| format!("{ms} ms"))
}
