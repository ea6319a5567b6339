//! Runs of triggers whose target operates a runtime: chooses the node for the operation.

use domain::{JobError, RetryPolicy, RuntimeName};

use crate::error::StoreError;
use crate::runtimes::request::{NewOperation, OperationRequest, Requested};
use crate::store::Store;
use crate::triggers::outbox::settle::{RunFailure, RunVerdict};
use crate::triggers::outbox::{OutboxRow, failure};

/// An operation on a runtime, requested by a run.
#[derive(Clone, Debug)]
pub struct Operate {
    pub runtime: RuntimeName,
    pub new: NewOperation,
    /// Retry policy while no node is available.
    pub retry: RetryPolicy,
    pub max_attempts: i32,
}

impl Store {
    /// Chooses the node of an operation. Without one, the verdict becomes a failed attempt before anything is written.
    pub(crate) async fn choose_node(
        &self,
        row: &OutboxRow,
        verdict: RunVerdict,
    ) -> Result<(RunVerdict, Option<OperationRequest>), StoreError> {
        let RunVerdict::Operation(operate) = &verdict else { return Ok((verdict, None)) };
        match self.prepare_operation(row.tenant, &operate.runtime, &operate.new).await? {
            Ok(request) => Ok((verdict, Some(request))),
            Err(requested) => Ok((RunVerdict::Failed(operate.failed(&requested)), None)),
        }
    }
}

impl Operate {
    /// Returns the failure for an operation that was not accepted. Only a missing node is retryable.
    pub(super) fn failed(&self, requested: &Requested) -> RunFailure {
        let never = |error: JobError| JobError { retryable: false, ..error };
        let error = match requested {
            Requested::Refused { code, message, .. } => never(failure(code.as_str(), message.as_str())),
            Requested::NoNode => failure("service_unavailable", "no node drives a Docker engine"),
            Requested::NotFound | Requested::Accepted { .. } => {
                never(failure("not_found", format!("there is no runtime {}", self.runtime)))
            }
        };
        RunFailure { error, retry: self.retry, max_attempts: self.max_attempts, ran: None }
    }
}
