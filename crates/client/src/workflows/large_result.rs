//! Results of steps that are too large for the journal: they are artifacts of the job, and the journal has references.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use uuid::Uuid;
use wire::{JournalOp, RawValue};

use super::digest::digest;
use super::replay::Replay;
use crate::backend::BackendError;
use crate::queue::worker::bounds::RESULT_BYTES;
use crate::queue::worker::handler::HandlerError;
use crate::queue::worker::session::Backoff;

/// A longer result is no reference.
const REFERENCE_BYTES: usize = 512;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    #[serde(rename = "$artifact")]
    artifact: StoredResult,
}

/// The artifact of a result. The journal of a fork refers to artifacts of another job.
#[derive(Serialize, Deserialize)]
struct StoredResult {
    job_id: Uuid,
    name: String,
}

/// What the journal has of a result. A large one is stored as an artifact first.
pub(super) async fn store(
    replay: &Replay,
    key: &str,
    attempt: i64,
    result: Box<RawValue>,
) -> Result<Box<RawValue>, HandlerError> {
    if result.get().len() <= RESULT_BYTES {
        return Ok(result);
    }
    let name = format!("step-{}-{attempt}", digest(JournalOp::Step, key, &())?);
    let bytes = Bytes::from(result.get().to_owned());
    let job = replay.job.job();
    until_answered(replay, || replay.job.uplink().put_artifact(job, &name, "application/json", bytes.clone())).await?;
    Ok(to_raw_value(&Reference { artifact: StoredResult { job_id: job.id, name } })?)
}

/// The result of a recorded step. Reads the artifact of a large one.
pub(super) async fn load(
    replay: &Replay,
    recorded: Option<Box<RawValue>>,
) -> Result<Option<Box<RawValue>>, HandlerError> {
    let text = recorded.as_deref().map_or("", RawValue::get);
    if text.len() > REFERENCE_BYTES {
        return Ok(recorded);
    }
    let Ok(Reference { artifact }) = serde_json::from_str(text) else { return Ok(recorded) };
    let StoredResult { job_id, name } = &artifact;
    let read = || replay.job.uplink().read_artifact(replay.job.claim(), *job_id, name);
    let bytes = until_answered(replay, read).await?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Repeats a request while the server is away.
pub(super) async fn until_answered<T, Fut>(replay: &Replay, request: impl Fn() -> Fut) -> Result<T, HandlerError>
where
    Fut: Future<Output = Result<T, BackendError>>,
{
    let mut backoff = Backoff::new();
    loop {
        let error = match request().await {
            Err(BackendError::Refused(problem)) if matches!(problem.status, 404 | 413 | 422) => {
                return Err(HandlerError::permanent(&problem.code, &problem.detail));
            }
            Err(error @ (BackendError::Refused(_) | BackendError::LeaseExpired)) => return Err(error.into()),
            Err(error) => error,
            Ok(answer) => return Ok(answer),
        };
        tracing::warn!(job = %replay.job.id(), %error, cause = error.cause(), "a request of a workflow failed; retrying");
        let pause = tokio::time::sleep(backoff.next());
        if replay.job.cancellation().run_until_cancelled(pause).await.is_none() {
            return Err(error.into());
        }
    }
}
