//! A trigger's target that operates a runtime: which node it is for, and why there may be none (T2).

use domain::{JobError, RetryPolicy, RuntimeName};

use crate::error::StoreError;
use crate::outbox::settle::{Failure, Verdict};
use crate::outbox::{Taken, failure};
use crate::runtimes::request::{NewOperation, Request, Requested};
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct Operate {
    pub runtime: RuntimeName,
    pub new: NewOperation,
    /// How it is asked for again when no node is there to do it.
    pub retry: RetryPolicy,
    pub max_attempts: i32,
}

impl Store {
    /// Finds the node that an operation is for. Where there is none, the try has failed before anything is written.
    pub(crate) async fn place_operation(
        &self,
        row: &Taken,
        verdict: Verdict,
    ) -> Result<(Verdict, Option<Request>), StoreError> {
        let Verdict::Operation(operate) = &verdict else { return Ok((verdict, None)) };
        match self.prepare_operation(row.tenant, &operate.runtime, &operate.new).await? {
            Ok(request) => Ok((verdict, Some(request))),
            Err(requested) => Ok((Verdict::Failed(operate.failed(&requested)), None)),
        }
    }
}

impl Operate {
    /// Why there is no operation. Only a node may come by itself.
    pub(super) fn failed(&self, requested: &Requested) -> Failure {
        let never = |error: JobError| JobError { retryable: false, ..error };
        let error = match requested {
            Requested::Refused { code, message, .. } => never(failure(code.as_str(), message.as_str())),
            Requested::NoNode => failure("service_unavailable", "no node drives a Docker engine"),
            Requested::NotFound | Requested::Accepted { .. } => {
                never(failure("not_found", format!("there is no runtime {}", self.runtime)))
            }
        };
        Failure { error, retry: self.retry, max_attempts: self.max_attempts, ran: None }
    }
}
