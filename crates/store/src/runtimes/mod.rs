//! Runtimes: declarations, the state of their containers, and the log of operations on them.
//!
//! An operation is a job on the runtime's subject. `request` creates both in one transaction, `place` finds a node,
//! `begin` and `operate` record its start and end on the node that drives the engine, `observe` records health, and
//! `reconcile` records differences found on the engine. `logs` transfers a container's log from its node to another
//! one.

pub mod begin;
pub mod codec;
pub mod delete;
pub mod get;
pub mod logs;
pub(crate) mod lost;
pub mod nodes;
pub mod observe;
pub mod openai;
pub mod operate;
pub mod operations;
mod place;
pub mod pools;
pub mod prune;
pub mod put;
pub mod reconcile;
pub mod relocate;
pub mod request;
pub mod wanted;

use domain::runtimes::{
    Health, HealthSource, HealthStatus, OperationCode, OperationKind, OperationSource, RuntimeSpec, RuntimeStatus,
};
use domain::{JobId, RuntimeName, TenantId, Time};
use uuid::Uuid;

use crate::db::tx::Row;
use crate::error::StoreError;

/// Queue of the operation jobs. Only a row in `operations` makes a job an operation: a job that a user pushes here does
/// nothing.
pub const QUEUE: &str = "windlass.runtimes";
/// The one kind of all operation jobs. A job with a subject and no process holds its kind on the subject, so a runtime
/// has one operation at a time.
pub const KIND: &str = "operation";

/// A declared runtime and the state of its container.
#[derive(Clone, Debug)]
pub struct Runtime {
    pub tenant: TenantId,
    pub name: RuntimeName,
    pub spec: RuntimeSpec,
    /// The node that drives the engine of its container.
    pub node: Option<String>,
    pub status: RuntimeStatus,
    pub container_id: Option<String>,
    pub current_image: Option<String>,
    pub endpoint: Option<String>,
    pub state_path: Option<String>,
    pub health: Option<Health>,
    /// True if the runtime is deleted once its container is removed.
    pub deleting: bool,
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub started_at: Option<Time>,
    pub stopped_at: Option<Time>,
    pub removed_at: Option<Time>,
    pub last_op_at: Option<Time>,
    /// The oldest operation that is requested or running.
    pub in_flight: Option<OperationKind>,
}

/// One row of the operation log: an attempt of an operation, or a step of it.
#[derive(Clone, Debug)]
pub struct OperationRecord {
    pub id: Uuid,
    pub tenant: TenantId,
    pub runtime: RuntimeName,
    pub kind: OperationKind,
    pub source: OperationSource,
    pub source_ref: Option<String>,
    pub actor: String,
    pub image_ref: Option<String>,
    pub container_id: Option<String>,
    pub outcome: Option<OperationOutcome>,
    pub error_code: Option<OperationCode>,
    pub error_message: Option<String>,
    pub requested_at: Time,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
    pub correlation_id: Uuid,
    pub job: Option<JobId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    Success,
    Failure,
}

impl OperationOutcome {
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
            other => Err(StoreError::unexpected(format!("unknown outcome `{other}`"))),
        }
    }
}

/// Parses a stored enum value.
fn parsed<T>(what: &str, text: String, parse: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
    parse(&text).ok_or_else(|| StoreError::unexpected(format!("unknown {what} `{text}`")))
}

/// Reads a runtime from the columns that every query of this module selects.
fn runtime(row: &Row) -> Result<Runtime, StoreError> {
    let health = match (row.opt_text("health")?, row.opt_text("health_source")?, row.opt_time("health_at")?) {
        (Some(status), Some(source), Some(observed_at)) => Some(Health {
            status: parsed("health", status, HealthStatus::parse)?,
            source: parsed("source of health", source, HealthSource::parse)?,
            details: row.opt_text("health_details")?.unwrap_or_default(),
            observed_at,
        }),
        _ => None,
    };
    Ok(Runtime {
        tenant: TenantId(row.int("tenant")?),
        name: RuntimeName::stored(&row.text("name")?),
        spec: codec::read(&row.text("spec")?, &row.text("env")?)?,
        node: row.opt_text("node")?,
        status: parsed("status", row.text("status")?, RuntimeStatus::parse)?,
        container_id: row.opt_text("container_id")?,
        current_image: row.opt_text("current_image")?,
        endpoint: row.opt_text("endpoint")?,
        state_path: row.opt_text("state_path")?,
        health,
        deleting: row.bool("deleting")?,
        principal: row.text("principal")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        started_at: row.opt_time("started_at")?,
        stopped_at: row.opt_time("stopped_at")?,
        removed_at: row.opt_time("removed_at")?,
        last_op_at: row.opt_time("last_op_at")?,
        in_flight: row
            .opt_text("in_flight")?
            .map(|kind| parsed("operation", kind, OperationKind::parse))
            .transpose()?,
    })
}

/// Reads an operation from the columns that every query of this module selects.
fn operation_record(row: &Row) -> Result<OperationRecord, StoreError> {
    Ok(OperationRecord {
        id: row.uuid("id")?,
        tenant: TenantId(row.int("tenant")?),
        runtime: RuntimeName::stored(&row.text("runtime")?),
        kind: parsed("operation", row.text("kind")?, OperationKind::parse)?,
        source: parsed("source", row.text("source")?, OperationSource::parse)?,
        source_ref: row.opt_text("source_ref")?,
        actor: row.text("actor")?,
        image_ref: row.opt_text("image_ref")?,
        container_id: row.opt_text("container_id")?,
        outcome: row.opt_text("outcome")?.as_deref().map(OperationOutcome::parse).transpose()?,
        error_code: row.opt_text("error_code")?.map(|code| parsed("code", code, OperationCode::parse)).transpose()?,
        error_message: row.opt_text("error_message")?,
        requested_at: row.time("requested_at")?,
        started_at: row.opt_time("started_at")?,
        finished_at: row.opt_time("finished_at")?,
        correlation_id: row.uuid("correlation_id")?,
        job: row.opt_uuid("job")?.map(JobId::new),
    })
}
