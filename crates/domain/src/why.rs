//! Why a job is not running: the one reason, the first that stands in its way (Q15).

use crate::backoff::Backoff;
use crate::job::JobState;
use crate::time::Time;

/// What is known of a job and its surroundings when somebody asks.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    pub state: Option<JobState>,
    pub run_at: Option<Time>,
    /// The job failed before and waits for its next attempt.
    pub last_error_code: Option<String>,
    pub queue_paused: Option<String>,
    /// Which limit holds it back, in words.
    pub limit: Option<String>,
    /// Until when it does, where that is known.
    pub limit_until: Option<Time>,
    pub subject_busy: Option<String>,
    /// What keeps this process, or every process, off the job's subject, or its pool off the model that it needs.
    pub backoff: Option<Backoff>,
    /// What it needs loaded, where it needs something.
    pub affinity: Option<String>,
    /// Live workers that serve its queue, kind and affinity.
    pub workers: u64,
    /// Why there is none, where that is known: what would serve it is on a node that is lost.
    pub lost: Option<String>,
    /// Jobs ahead of it, at most as many as were looked at.
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
    OverQuota,
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
            Self::OverQuota => "over_quota",
            Self::Running => "running",
            Self::Ended => "ended",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    pub reason: Reason,
    pub detail: String,
    pub until: Option<Time>,
    pub position: Option<u64>,
    pub eta_s: Option<u64>,
}

impl Circumstances {
    /// The first obstacle on the job's way, in the order in which it meets them.
    pub fn why(&self) -> Why {
        let say = |reason, detail: String| Why { reason, detail, until: None, position: None, eta_s: None };
        match self.state {
            Some(JobState::Canceled) => return say(Reason::Ended, "the job was canceled".into()),
            Some(state) if state.is_terminal() => return say(Reason::Ended, format!("the job has {state}")),
            Some(JobState::Loading) => return say(Reason::Loading, "a worker is loading what the job needs".into()),
            Some(JobState::Working) => return say(Reason::Running, "a worker is on it".into()),
            Some(JobState::Scheduled) => {
                let until = self.run_at;
                return match &self.last_error_code {
                    Some(code) => Why { until, ..say(Reason::Backoff, format!("waiting to try again after `{code}`")) },
                    None => Why { until, ..say(Reason::NotDue, "its time has not come".into()) },
                };
            }
            _ => {}
        }
        if let Some(reason) = &self.queue_paused {
            return say(Reason::QueuePaused, format!("the queue is paused: {reason}"));
        }
        if let Some(Backoff { until, cause, by, .. }) = &self.backoff {
            let ending = if until.is_some() { "" } else { ", without end" };
            return Why { until: *until, ..say(Reason::Backoff, format!("held off{ending}: {cause} (by {by})")) };
        }
        if let Some(subject) = &self.subject_busy {
            return say(Reason::SubjectBusy, format!("other work on {subject} is under way"));
        }
        if let Some(limit) = &self.limit {
            return Why { until: self.limit_until, ..say(Reason::LimitReached, limit.clone()) };
        }
        if self.workers == 0 {
            let needs = self.affinity.as_ref().map(|affinity| format!(" with the affinity {affinity}"));
            let unserved = || format!("no live worker serves this queue and kind{}", needs.unwrap_or_default());
            return say(Reason::NoWorker, self.lost.clone().unwrap_or_else(unserved));
        }
        let detail = match self.ahead {
            0 => "next in line".to_string(),
            1 => "behind 1 other job".to_string(),
            n => format!("behind {n} other jobs"),
        };
        Why { position: Some(self.ahead + 1), eta_s: self.eta_s, ..say(Reason::Behind, detail) }
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

    #[test]
    fn q15_the_first_obstacle_is_the_reason() {
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
        check(Circumstances { last_error_code: Some("boom".into()), ..scheduled }, Reason::Backoff);
        check(Circumstances { state: Some(JobState::Working), ..queued() }, Reason::Running);
        check(Circumstances { state: Some(JobState::Failed), ..queued() }, Reason::Ended);
    }

    #[test]
    fn q15_a_limit_tells_until_when_where_that_is_known() {
        let until = Some(Time::from_seconds(7));
        let used_up = Circumstances { limit: Some("its rate is used up".into()), limit_until: until, ..queued() };
        assert_eq!(used_up.why().until, until);
    }

    #[test]
    fn q15_who_is_missing_is_told_with_the_affinity() {
        let unserved = Circumstances { workers: 0, ..queued() };
        assert_eq!(unserved.why().detail, "no live worker serves this queue and kind");
        let unserved = Circumstances { affinity: Some("llama".into()), ..unserved };
        assert_eq!(unserved.why().detail, "no live worker serves this queue and kind with the affinity llama");
    }

    #[test]
    fn q15_an_end_is_told_as_a_sentence() {
        let detail = |state| Circumstances { state: Some(state), ..Default::default() }.why().detail;
        assert_eq!(detail(JobState::Succeeded), "the job has succeeded");
        assert_eq!(detail(JobState::Failed), "the job has failed");
        assert_eq!(detail(JobState::Canceled), "the job was canceled");
    }
}
