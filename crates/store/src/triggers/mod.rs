//! Triggers: when this happens, start that (T1, T2).

pub(crate) mod cache;
pub mod delete;
pub mod fault;
pub mod filter;
pub mod fire;
pub mod get;
pub mod put;
pub mod runs;
pub mod target;
pub mod work;

use domain::trigger::Source;
use domain::{RetryPolicy, TenantId, Time, TriggerId};

use crate::codec::retry_from_json;
use crate::error::StoreError;
use crate::tx::Row;

/// What someone asks for. Everything in it has been checked.
#[derive(Clone, Debug)]
pub struct NewTrigger {
    pub name: String,
    pub source: Source,
    /// JSON, as `filter::read` takes it.
    pub filter: String,
    /// JSON, as `target::read` takes it.
    pub target: String,
    pub mode: Mode,
    /// Copied when the trigger is made: a later change of the defaults changes no trigger.
    pub retry: RetryPolicy,
    pub max_attempts: i32,
    pub enabled: bool,
    /// When a schedule fires first.
    pub next_at: Option<Time>,
}

/// Whether whoever causes an event waits for what the trigger starts.
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
    /// Who registered it: what it starts has that principal's rights, no more.
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
    /// Runs that were started.
    pub fired: i64,
    /// Runs that ended as dead letters before anything was started.
    pub failed: i64,
    pub loops_stopped: i64,
    pub last_fired_at: Option<Time>,
    pub last_error: Option<String>,
    /// When a schedule fires next.
    pub next_at: Option<Time>,
    /// Slots of its schedule that passed unfired and were left out, and when that was last noticed.
    pub missed: i64,
    pub last_missed_at: Option<Time>,
}

/// Reads the columns in the order in which every select here names them.
fn read(row: &Row) -> Result<Trigger, StoreError> {
    let (source, mode) = (row.text(3)?, row.text(6)?);
    Ok(Trigger {
        id: TriggerId::new(row.uuid(0)?),
        tenant: TenantId(row.int(1)?),
        name: row.text(2)?,
        source: Source::parse(&source).ok_or_else(|| StoreError::unexpected(format!("source {source}")))?,
        filter: row.text(4)?,
        target: row.text(5)?,
        mode: Mode::parse(&mode).ok_or_else(|| StoreError::unexpected(format!("mode {mode}")))?,
        retry: retry_from_json(&row.text(7)?)?,
        max_attempts: row.int(8)? as i32,
        enabled: row.bool(9)?,
        principal: row.text(10)?,
        created_at: row.time(11)?,
        updated_at: row.time(12)?,
        fired: row.int(13)?,
        failed: row.int(14)?,
        loops_stopped: row.int(15)?,
        last_fired_at: row.opt_time(16)?,
        last_error: row.opt_text(17)?,
        next_at: row.opt_time(18)?,
        missed: row.int(19)?,
        last_missed_at: row.opt_time(20)?,
    })
}
