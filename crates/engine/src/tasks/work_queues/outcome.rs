//! What became of a trigger's run, as the outcome of the job that it was for.

use domain::{JobError, JobState};
use serde_json::json;
use store::deliveries::DeliveryState;
use store::jobs::settle::End;
use store::triggers::runs::RunOutcome;

use crate::waiting::SyncRun;

/// Nothing while the run has not ended.
pub(super) fn end(sync: SyncRun) -> Option<End> {
    let SyncRun { run, job, delivery, .. } = sync;
    let run = run?;
    let gone = || End::Fail(error("run_lost", "what its trigger started is gone".into()));
    let never = |error| End::Fail(JobError { retryable: false, ..error });
    Some(match run.outcome {
        RunOutcome::Done => End::Finish(run.ran.and_then(|ran| ran.result).map(Into::into)),
        RunOutcome::Failed => run.error.map_or_else(gone, End::Fail),
        RunOutcome::Skipped => never(error("skipped", "its trigger is gone, or has led to itself too often".into())),
        RunOutcome::Job(_) => match job {
            None => gone(),
            Some(job) if !job.state.is_terminal() => return None,
            Some(job) if job.state == JobState::Succeeded => End::Finish(job.result.map(Into::into)),
            Some(job) => {
                let canceled = || never(error("canceled", format!("the job {} was canceled", job.id)));
                job.error.map_or_else(canceled, End::Fail)
            }
        },
        RunOutcome::Delivery(_) => match delivery {
            None => gone(),
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

/// After which another attempt may do better.
fn error(code: &str, message: String) -> JobError {
    JobError { code: code.into(), message, retryable: true }
}
