//! Background tasks of signals: duration statistics, failure groups and time-to-first-signal alerts.

pub(crate) mod fold_figures;
pub(crate) mod group_failures;
pub(crate) mod watch_ttfs;
