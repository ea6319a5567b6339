//! Explains why a job is not running: the first reason, in the order in which the job meets them.

use crate::fleet::backoff::Backoff;
use crate::queue::job::{JobError, JobState};
use crate::time::Time;

/// The state of a job and its queue at the time of the request.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    pub state: Option<JobState>,
    pub run_at: Option<Time>,
    /// What a waiting job waits for, as text.
    pub waits_for: Option<String>,
    /// When that wait ends by itself.
    pub waits_until: Option<Time>,
    /// Set if the job has failed before and waits for its next attempt.
    pub last_error: Option<JobError>,
    pub queue_paused: Option<String>,
    /// The limit that blocks the job, as text.
    pub limit: Option<String>,
    /// When that limit lifts, if known.
    pub limit_until: Option<Time>,
    pub subject_busy: Option<String>,
    /// The backoff that keeps this process, or every process, off the job's subject, or the pool off the model that it
    /// needs.
    pub backoff: Option<Backoff>,
    /// The affinity that the job needs, if any.
    pub affinity: Option<String>,
    /// Live workers that serve its queue, kind and affinity.
    pub workers: u64,
    /// Set if the only node that could serve the job is lost.
    pub lost: Option<String>,
    /// Jobs ahead of it. May be a lower bound.
    pub ahead: u64,
    pub eta_s: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NotDue,
    Behind,
    QueuePaused,
    LimitReached,
    SubjectBusy,
    Backoff,
    NoWorker,
    Loading,
    Waiting,
    Running,
    Ended,
}

impl Reason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotDue => "not_due",
            Self::Behind => "behind",
            Self::QueuePaused => "queue_paused",
            Self::LimitReached => "limit_reached",
            Self::SubjectBusy => "subject_busy",
            Self::Backoff => "backoff",
            Self::NoWorker => "no_worker",
            Self::Loading => "loading",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Ended => "ended",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    pub reason: Reason,
    pub detail: String,
    /// The detail for callers that may not read error messages, if it is another one.
    pub public_detail: Option<String>,
    pub until: Option<Time>,
    pub position: Option<u64>,
    pub eta_s: Option<u64>,
}

impl Circumstances {
    /// Returns the first obstacle, in the order in which the job meets them.
    pub fn why(&self) -> Why {
        let explain = |reason, detail: String| Why {
            reason,
            detail,
            public_detail: None,
            until: None,
            position: None,
            eta_s: None,
        };
        match self.state {
            Some(JobState::Canceled) => return explain(Reason::Ended, "the job was canceled".into()),
            Some(state) if state.is_terminal() => return explain(Reason::Ended, format!("the job has {state}")),
            Some(JobState::Loading) => {
                return explain(Reason::Loading, "a worker is loading what the job needs".into());
            }
            Some(JobState::Working) => return explain(Reason::Running, "a worker is running it".into()),
            Some(JobState::Waiting) => {
                let detail = self.waits_for.clone().unwrap_or_else(|| "waiting until something wakes it".into());
                return Why { until: self.waits_until, ..explain(Reason::Waiting, detail) };
            }
            Some(JobState::Scheduled) => {
                let until = self.run_at;
                let retry_after = |error: &str| format!("waiting for a retry after `{error}`");
                return match &self.last_error {
                    Some(error) => Why {
                        until,
                        public_detail: Some(retry_after(&error.code)),
                        ..explain(Reason::Backoff, retry_after(&error.summary()))
                    },
                    None => Why { until, ..explain(Reason::NotDue, "its run_at is in the future".into()) },
                };
            }
            _ => {}
        }
        if let Some(reason) = &self.queue_paused {
            return explain(Reason::QueuePaused, format!("the queue is paused: {reason}"));
        }
        if let Some(backoff @ Backoff { until, cause, by, .. }) = &self.backoff {
            let ending = if until.is_some() { "" } else { " without end" };
            let detail = |cause: &str| format!("backoff{ending}: {cause} (by {by})");
            let public_detail = Some(detail(backoff.public_cause()));
            return Why { until: *until, public_detail, ..explain(Reason::Backoff, detail(cause)) };
        }
        if let Some(subject) = &self.subject_busy {
            return explain(Reason::SubjectBusy, format!("other work on {subject} is in progress"));
        }
        if let Some(limit) = &self.limit {
            return Why { until: self.limit_until, ..explain(Reason::LimitReached, limit.clone()) };
        }
        if self.workers == 0 {
            let needs = self.affinity.as_ref().map(|affinity| format!(" with the affinity {affinity}"));
            let unserved = || format!("no live worker serves this queue and kind{}", needs.unwrap_or_default());
            return explain(Reason::NoWorker, self.lost.clone().unwrap_or_else(unserved));
        }
        let detail = match self.ahead {
            0 => "next in line".to_string(),
            1 => "behind 1 other job".to_string(),
            n => format!("behind {n} other jobs"),
        };
        Why { position: Some(self.ahead + 1), eta_s: self.eta_s, ..explain(Reason::Behind, detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: Circumstances, reason: Reason) {
        assert_eq!(given.why().reason, reason, "{given:?}");
    }

    fn queued() -> Circumstances {
        Circumstances { state: Some(JobState::Queued), workers: 1, ..Default::default() }
    }

    /// Requirement Q15.
    #[test]
    fn the_first_obstacle_is_the_reason() {
        check(queued(), Reason::Behind);
        check(Circumstances { workers: 0, ..queued() }, Reason::NoWorker);
        check(Circumstances { queue_paused: Some("deploy".into()), workers: 0, ..queued() }, Reason::QueuePaused);
        check(Circumstances { limit: Some("2 of 2".into()), ..queued() }, Reason::LimitReached);
        check(Circumstances { subject_busy: Some("m-7".into()), ..queued() }, Reason::SubjectBusy);
        let backoff =
            Backoff { until: None, cause: "bad disk".into(), by: "eve".into(), wait_s: None, at: Time::default() };
        check(Circumstances { backoff: Some(backoff), workers: 0, ..queued() }, Reason::Backoff);
        let scheduled = Circumstances { state: Some(JobState::Scheduled), ..Default::default() };
        check(scheduled.clone(), Reason::NotDue);
        let error = JobError { code: "boom".into(), message: "it broke".into(), retryable: true };
        let failed = Circumstances { last_error: Some(error), ..scheduled };
        check(failed.clone(), Reason::Backoff);
        let Why { detail, public_detail, .. } = failed.why();
        assert_eq!(detail, "waiting for a retry after `boom: it broke`");
        assert_eq!(public_detail.as_deref(), Some("waiting for a retry after `boom`"));
        check(Circumstances { state: Some(JobState::Working), ..queued() }, Reason::Running);
        check(Circumstances { state: Some(JobState::Failed), ..queued() }, Reason::Ended);
    }

    /// Requirement Q15.
    #[test]
    fn a_limit_with_a_known_end_includes_its_time() {
        let until = Some(Time::from_seconds(7));
        let limited = Circumstances { limit: Some("its rate is used up".into()), limit_until: until, ..queued() };
        assert_eq!(limited.why().until, until);
    }

    /// Requirement Q15.
    #[test]
    fn a_missing_worker_is_reported_with_the_affinity() {
        let unserved = Circumstances { workers: 0, ..queued() };
        assert_eq!(unserved.why().detail, "no live worker serves this queue and kind");
        let unserved = Circumstances { affinity: Some("llama".into()), ..unserved };
        assert_eq!(unserved.why().detail, "no live worker serves this queue and kind with the affinity llama");
    }

    /// Requirement Q15.
    #[test]
    fn an_ended_job_is_explained_in_a_sentence() {
        let detail = |state| Circumstances { state: Some(state), ..Default::default() }.why().detail;
        assert_eq!(detail(JobState::Succeeded), "the job has succeeded");
        assert_eq!(detail(JobState::Failed), "the job has failed");
        assert_eq!(detail(JobState::Canceled), "the job was canceled");
    }
}
