//! Logs of runtimes, from whichever node the container is on.
//!
//! A node that does not have the container requests the log through the database: `read` requests it and streams the
//! chunks, `serve` reads it from Docker and writes the chunks. Both sides send heartbeats every few seconds.

mod read;
mod serve;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use domain::limits::LOG_IDLE_TIMEOUT_S;
use domain::runtimes::OperationCode;
use futures_util::stream::BoxStream;
use store::StoreError;
use store::runtimes::Runtime;
use store::runtimes::logs::LogFault;
use store::runtimes::logs::read::NewReading;

use super::driver::{DriverError, Follow};
pub(crate) use read::read;
pub(crate) use serve::ServeLogs;

/// Heartbeat interval. After three missed heartbeats the other side counts as gone.
const HEARTBEAT: Duration = Duration::from_secs(LOG_IDLE_TIMEOUT_S as u64 / 3);

pub type LogStream = BoxStream<'static, Result<Bytes, LogsError>>;

/// Why a log cannot be read or ended early.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// An error of the Docker engine that has the container, on this or another node.
    #[error(transparent)]
    Engine(#[from] DriverError),
    #[error("the node {0}, which has the container, does not respond")]
    NodeUnresponsive(String),
    /// The node already reads as many logs for other nodes as it may.
    #[error("{0}")]
    Busy(String),
    #[error("the runtime is not bound to a node yet, and this node has no Docker engine")]
    NoNode,
    #[error("failed to transfer the log")]
    Store(#[from] StoreError),
}

pub(super) fn container(runtime: &Runtime) -> Result<&str, DriverError> {
    let missing = || DriverError::NotFound("the runtime has no container".into());
    runtime.container_id.as_deref().ok_or_else(missing)
}

/// The request for a log of another node.
pub(crate) fn request_to(node: &str, runtime: &Runtime, tail: i64, follow: Follow) -> Result<NewReading, LogsError> {
    Ok(NewReading {
        tenant: runtime.tenant,
        runtime: runtime.name.clone(),
        container_id: container(runtime)?.to_owned(),
        node: node.to_owned(),
        tail,
        follow: follow == Follow::Yes,
    })
}

/// Encodes an error for the reading node, which decodes it with `refusal`. Local and remote readers see the same error.
fn fault(error: DriverError) -> LogFault {
    let (code, message) = match error {
        DriverError::NotFound(message) => (OperationCode::NotFound, message),
        DriverError::Unavailable(message) => (OperationCode::DockerUnavailable, message),
        DriverError::Conflict(message) | DriverError::Refused(message) => (OperationCode::Conflict, message),
    };
    LogFault { code, message }
}

fn refusal(fault: LogFault) -> LogsError {
    match fault.code {
        OperationCode::ServiceUnavailable => LogsError::Busy(fault.message),
        OperationCode::NotFound => DriverError::NotFound(fault.message).into(),
        OperationCode::DockerUnavailable => DriverError::Unavailable(fault.message).into(),
        _ => DriverError::Conflict(fault.message).into(),
    }
}
