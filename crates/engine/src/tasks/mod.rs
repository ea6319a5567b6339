//! The tasks, one per file.

pub(crate) mod beat;
pub(crate) mod check_counters;
pub(crate) mod collect_garbage;
pub(crate) mod deliver;
pub(crate) mod dispatch_outbox;
pub(crate) mod fire_schedules;
pub(crate) mod fold_counters;
pub(crate) mod fold_figures;
pub(crate) mod learn_failures;
pub(crate) mod promote_due;
pub(crate) mod prune;
pub(crate) mod run_batches;
pub(crate) mod scan_subjects;
pub(crate) mod sweep_calls;
pub(crate) mod sweep_leases;
pub(crate) mod unpark_forgotten;
pub(crate) mod wake_waiting;
pub(crate) mod watch_ttfs;
pub(crate) mod work_queues;
