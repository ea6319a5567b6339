//! Runtimes: what is declared, what is known of their containers, and the log of operations on them (R1 to R5).
//!
//! An operation is a job on the runtime's subject: `request` makes both in one transaction, `place` finds its node, `begin`
//! and `operate` follow it from the node that drives the engine, `observe` keeps the health, `reconcile` writes what was found on
//! the engine. `logs` is how a container's log gets from its node to another.

pub mod begin;
pub mod codec;
pub mod delete;
pub mod get;
pub mod logs;
pub(crate) mod lost;
pub mod nodes;
pub mod observe;
pub mod operate;
pub mod operations;
mod place;
pub mod prune;
pub mod put;
pub mod reconcile;
pub mod relocate;
pub mod request;
pub mod wanted;

use domain::runtime::{
    Health, HealthSource, HealthStatus, OperationCode, OperationKind, OperationSource, RuntimeSpec, RuntimeStatus,
};
use domain::{JobId, RuntimeName, TenantId, Time};
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::Row;

/// Where the jobs of operations wait. The operation's row is what counts: a job that somebody puts there does nothing.
pub const QUEUE: &str = "windlass.runtimes";
/// One kind for all of them: a job with a subject and no process holds its kind, so a runtime has one operation at a time.
pub const KIND: &str = "operation";

#[derive(Clone, Debug)]
pub struct Runtime {
    pub tenant: TenantId,
    pub name: RuntimeName,
    pub spec: RuntimeSpec,
    /// Who drives the engine that it is on.
    pub node: Option<String>,
    pub status: RuntimeStatus,
    pub container_id: Option<String>,
    pub current_image: Option<String>,
    pub endpoint: Option<String>,
    pub state_path: Option<String>,
    pub health: Option<Health>,
    /// It goes when its container has gone.
    pub deleting: bool,
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub started_at: Option<Time>,
    pub stopped_at: Option<Time>,
    pub removed_at: Option<Time>,
    pub last_op_at: Option<Time>,
    /// The operation that is asked for or under way.
    pub in_flight: Option<OperationKind>,
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct Logged {
    pub id: Uuid,
    pub tenant: TenantId,
    pub runtime: RuntimeName,
    pub kind: OperationKind,
    pub source: OperationSource,
    pub source_ref: Option<String>,
    pub actor: String,
    pub image_ref: Option<String>,
    pub container_id: Option<String>,
    pub outcome: Option<Outcome>,
    pub error_code: Option<OperationCode>,
    pub error_message: Option<String>,
    pub requested_at: Time,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
    pub correlation_id: Uuid,
    pub job: Option<JobId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "success" => Ok(Self::Success),
            "failure" => Ok(Self::Failure),
            other => Err(StoreError::unexpected(format!("the outcome {other}"))),
        }
    }
}

fn known<T>(what: &str, text: String, parse: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
    parse(&text).ok_or_else(|| StoreError::unexpected(format!("{what} {text}")))
}

/// Reads the columns in the order in which every select here names them.
fn runtime(row: &Row) -> Result<Runtime, StoreError> {
    let health = match (row.opt_text(10)?, row.opt_text(11)?, row.opt_time(13)?) {
        (Some(status), Some(source), Some(observed_at)) => Some(Health {
            status: known("health", status, HealthStatus::parse)?,
            source: known("source of health", source, HealthSource::parse)?,
            details: row.opt_text(12)?.unwrap_or_default(),
            observed_at,
        }),
        _ => None,
    };
    Ok(Runtime {
        tenant: TenantId(row.int(0)?),
        name: RuntimeName::stored(&row.text(1)?),
        spec: codec::read(&row.text(2)?, &row.text(3)?)?,
        node: row.opt_text(4)?,
        status: known("status", row.text(5)?, RuntimeStatus::parse)?,
        container_id: row.opt_text(6)?,
        current_image: row.opt_text(7)?,
        endpoint: row.opt_text(8)?,
        state_path: row.opt_text(9)?,
        health,
        deleting: row.bool(14)?,
        principal: row.text(15)?,
        created_at: row.time(16)?,
        updated_at: row.time(17)?,
        started_at: row.opt_time(18)?,
        stopped_at: row.opt_time(19)?,
        removed_at: row.opt_time(20)?,
        last_op_at: row.opt_time(21)?,
        in_flight: row.opt_text(22)?.map(|kind| known("operation", kind, OperationKind::parse)).transpose()?,
    })
}

/// The same for operations.
fn logged(row: &Row) -> Result<Logged, StoreError> {
    Ok(Logged {
        id: row.uuid(0)?,
        tenant: TenantId(row.int(1)?),
        runtime: RuntimeName::stored(&row.text(2)?),
        kind: known("operation", row.text(3)?, OperationKind::parse)?,
        source: known("source", row.text(4)?, OperationSource::parse)?,
        source_ref: row.opt_text(5)?,
        actor: row.text(6)?,
        image_ref: row.opt_text(7)?,
        container_id: row.opt_text(8)?,
        outcome: row.opt_text(9)?.as_deref().map(Outcome::parse).transpose()?,
        error_code: row.opt_text(10)?.map(|code| known("code", code, OperationCode::parse)).transpose()?,
        error_message: row.opt_text(11)?,
        requested_at: row.time(12)?,
        started_at: row.opt_time(13)?,
        finished_at: row.opt_time(14)?,
        correlation_id: row.uuid(15)?,
        job: row.opt_uuid(16)?.map(JobId::new),
    })
}
