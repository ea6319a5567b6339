//! Triggers: an event that matches a trigger's filter starts the trigger's target. A target is a job, an HTTP request, a
//! script or an operation on a runtime.
//!
//! An event writes one outbox row per matching trigger, in the transaction of the event (`events`). The engine's
//! dispatcher claims the rows and starts the runs (`outbox`). Runs that fail for good become dead letters
//! (`dead_letters`). HTTP requests are sent as deliveries (`deliveries`).

pub(crate) mod cache;
pub mod dead_letters;
pub mod delete;
pub mod deliveries;
pub mod events;
pub mod expression;
pub mod fault;
pub mod filter;
pub mod fire;
pub mod get;
pub(crate) mod job_events;
pub mod kv;
pub mod outbox;
pub mod put;
pub mod runs;
pub mod schedule;
pub mod target;
pub mod work;

use domain::triggers::trigger::Source;
use domain::{RetryPolicy, TenantId, Time, TriggerId};

use crate::db::codec::retry_from_json;
use crate::db::tx::Row;
use crate::error::StoreError;

/// A trigger to create or the new content of an existing one. The caller has validated it.
#[derive(Clone, Debug)]
pub struct NewTrigger {
    pub name: String,
    pub source: Source,
    /// JSON, in the format of `filter::read`.
    pub filter: String,
    /// JSON, in the format of `target::read`.
    pub target: String,
    pub mode: Mode,
    /// Copied when the trigger is created, so a later change of the defaults does not affect it.
    pub retry: RetryPolicy,
    pub max_attempts: i32,
    pub enabled: bool,
    /// A successful run resolves the dead letter that it handles.
    pub handles: bool,
    /// The first slot of a schedule.
    pub next_at: Option<Time>,
}

/// Whether the request that causes an event waits for the run that the trigger starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Async,
    Sync,
}

impl Mode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Sync => "sync",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Async, Self::Sync].into_iter().find(|mode| mode.as_str() == text)
    }
}

#[derive(Clone, Debug)]
pub struct Trigger {
    pub id: TriggerId,
    pub tenant: TenantId,
    pub name: String,
    pub source: Source,
    pub filter: String,
    pub target: String,
    pub mode: Mode,
    pub retry: RetryPolicy,
    pub max_attempts: i32,
    pub enabled: bool,
    /// A successful run resolves the dead letter that it handles.
    pub handles: bool,
    /// The principal that registered the trigger. Its runs have this principal's rights.
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
    /// Number of runs that were started.
    pub fired: i64,
    /// Number of runs that became dead letters before anything was started.
    pub failed: i64,
    /// Number of runs that were stopped because the trigger depth exceeded its limit.
    pub loops_stopped: i64,
    pub last_fired_at: Option<Time>,
    pub last_error: Option<String>,
    /// The next slot of a schedule.
    pub next_at: Option<Time>,
    /// Number of missed slots of the schedule that were skipped. `last_missed_at` is when a skip was last detected.
    pub missed: i64,
    pub last_missed_at: Option<Time>,
}

/// Decodes a trigger.
fn read(row: &Row) -> Result<Trigger, StoreError> {
    let (source, mode) = (row.text("source")?, row.text("mode")?);
    Ok(Trigger {
        id: TriggerId::new(row.uuid("id")?),
        tenant: TenantId(row.int("tenant")?),
        name: row.text("name")?,
        source: Source::parse(&source).ok_or_else(|| StoreError::unexpected(format!("source {source}")))?,
        filter: row.text("filter")?,
        target: row.text("target")?,
        mode: Mode::parse(&mode).ok_or_else(|| StoreError::unexpected(format!("mode {mode}")))?,
        retry: retry_from_json(&row.text("retry")?)?,
        max_attempts: row.int("max_attempts")? as i32,
        enabled: row.bool("enabled")?,
        handles: row.bool("handles")?,
        principal: row.text("principal")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        fired: row.int("fired")?,
        failed: row.int("failed")?,
        loops_stopped: row.int("loops_stopped")?,
        last_fired_at: row.opt_time("last_fired_at")?,
        last_error: row.opt_text("last_error")?,
        next_at: row.opt_time("next_at")?,
        missed: row.int("missed")?,
        last_missed_at: row.opt_time("last_missed_at")?,
    })
}
