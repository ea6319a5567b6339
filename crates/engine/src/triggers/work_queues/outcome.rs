//! Converts the outcome of a trigger run into the outcome of its job.

use domain::{JobError, JobState};
use serde_json::json;
use store::queue::settle::End;
use store::triggers::deliveries::DeliveryState;
use store::triggers::runs::RunOutcome;

use crate::queue::long_poll::SyncRun;

/// `None` while the run has not ended.
pub(super) fn end(sync: SyncRun) -> Option<End> {
    let SyncRun { run, job, delivery, .. } = sync;
    let run = run?;
    let lost = || End::Fail(error("run_lost", "what the trigger started no longer exists".into()));
    let never = |error| End::Fail(JobError { retryable: false, ..error });
    Some(match run.outcome {
        RunOutcome::Done => End::Finish(run.ran.and_then(|ran| ran.result).map(Into::into)),
        RunOutcome::Failed => run.error.map_or_else(lost, End::Fail),
        RunOutcome::Skipped => never(error("skipped", "the trigger was deleted, or a loop was stopped".into())),
        RunOutcome::Job(_) => match job {
            None => lost(),
            Some(job) if !job.state.is_terminal() => return None,
            Some(job) if job.state == JobState::Succeeded => End::Finish(job.result.map(Into::into)),
            Some(job) => {
                let canceled = || never(error("canceled", format!("the job {} was canceled", job.id)));
                job.error.map_or_else(canceled, End::Fail)
            }
        },
        RunOutcome::Delivery(_) => match delivery {
            None => lost(),
            Some(whole) => match whole.delivery.state {
                DeliveryState::Delivered => {
                    let response = whole.attempts.into_iter().next_back().and_then(|attempt| attempt.response);
                    let result = json!({"status": whole.delivery.status, "response": response});
                    End::Finish(Some(result.to_string().into()))
                }
                DeliveryState::Failed => End::Fail(error("delivery_failed", whole.delivery.error.unwrap_or_default())),
                _ => return None,
            },
        },
    })
}

/// A retryable error.
fn error(code: &str, message: String) -> JobError {
    JobError { code: code.into(), message, retryable: true }
}
