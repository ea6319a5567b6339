//! Logs of a runtime, whichever node its container is on (R9).
//!
//! A node that does not have the container asks the one that does, through the database: `read` asks and hands on what comes,
//! `serve` tells what its engine tells. Either side says every few seconds that it is there.

mod read;
mod serve;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use domain::limits::LOG_SILENCE_S;
use domain::runtime::OperationCode;
use futures_util::stream::BoxStream;
use store::StoreError;
use store::runtimes::Runtime;
use store::runtimes::logs::LogFault;
use store::runtimes::logs::read::NewReading;

use super::driver::{DriverError, Follow};
pub(crate) use read::read;
pub(crate) use serve::ServeLogs;

/// Three beats before either side is taken for gone.
const BEAT: Duration = Duration::from_secs(LOG_SILENCE_S as u64 / 3);

pub type LogFlow = BoxStream<'static, Result<Bytes, LogsError>>;

/// Why a log cannot be read, or breaks off.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The engine that has the container, here or on another node.
    #[error(transparent)]
    Engine(#[from] DriverError),
    #[error("its engine is driven by the node {0}, which does not answer")]
    Silent(String),
    /// Its node reads as many for others as it may.
    #[error("{0}")]
    Busy(String),
    #[error("its engine is driven by the node that comes next; ask that one")]
    Nowhere,
    #[error("the log could not be passed on")]
    Store(#[from] StoreError),
}

pub(super) fn container(runtime: &Runtime) -> Result<&str, DriverError> {
    let gone = || DriverError::NotFound("the runtime has no container".into());
    runtime.container_id.as_deref().ok_or_else(gone)
}

/// What another node is asked for.
pub(crate) fn asked_of(node: &str, runtime: &Runtime, tail: i64, follow: Follow) -> Result<NewReading, LogsError> {
    Ok(NewReading {
        tenant: runtime.tenant,
        runtime: runtime.name.clone(),
        container_id: container(runtime)?.to_owned(),
        node: node.to_owned(),
        tail,
        follow: follow == Follow::Yes,
    })
}

/// A refusal as it is written down for who reads, and read again: told there as it would be here.
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
