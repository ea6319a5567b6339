//! What keeps processes off subjects (W4, W5): failures, lockouts, and what lifts them.

use domain::backoff::EVERY_PROCESS;
use domain::{Backoff, JobError, JobState, Outcome, State};

use super::Model;

impl Model {
    /// The subject of a job and the process that stands for it.
    fn on_subject(&self, number: usize) -> Option<(String, String)> {
        let new = &self.jobs[number].new;
        let extras = new.extras.as_ref()?;
        let process = extras.process.as_ref().unwrap_or(&new.kind);
        Some((extras.subject.as_ref()?.to_string(), process.to_string()))
    }

    /// What the job must be parked for.
    pub(super) fn held_off(&self, number: usize) -> Option<String> {
        let (subject, process) = self.on_subject(number)?;
        let holds = |process: &str| {
            let backoff = self.backoffs.get(&(subject.clone(), process.to_owned()));
            backoff.is_some_and(|backoff| backoff.holds(self.now))
        };
        let by = [process.as_str(), EVERY_PROCESS].into_iter().find(|process| holds(process))?;
        Some(format!("backoff {by} {subject}"))
    }

    /// What the job's new state means for its subject: success clears, failure writes, the rest leaves it be.
    pub(super) fn back_off(&mut self, number: usize, cause: Option<&str>) {
        let has_process = self.jobs[number].new.extras.as_ref().is_some_and(|extras| extras.process.is_some());
        let Some(on) = self.on_subject(number).filter(|_| has_process) else { return };
        let job = &self.jobs[number].job;
        let backoff = match (&job.state, cause) {
            (State::Ended { outcome: Outcome::Succeeded, .. }, _) => {
                self.let_in(&on.0, &on.1);
                return;
            }
            (State::Scheduled { run_at }, Some(cause)) => Backoff {
                until: Some(*run_at),
                cause: cause.into(),
                by: String::new(),
                wait_s: job.wait_s,
                at: self.now,
            }
            .not_shorter(self.backoffs.get(&on), self.now),
            (State::Ended { .. }, Some(cause)) if job.job_state() == JobState::Failed => {
                let error = JobError { code: cause.into(), message: String::new(), retryable: true };
                Backoff::after_failure(self.backoffs.get(&on), &job.retry, &error, "", 0.0, self.now)
            }
            _ => return,
        };
        self.backoffs.insert(on, backoff);
    }

    pub fn lock_out(&mut self, subject: &str, process: &str, for_s: Option<i64>) {
        let on = (subject.to_owned(), process.to_owned());
        let wait_s = self.backoffs.get(&on).and_then(|before| before.wait_s);
        let until = for_s.map(|seconds| self.now.plus_s(seconds));
        let backoff = Backoff { until, cause: "hands off".into(), by: "me".into(), wait_s, at: self.now };
        self.backoffs.insert(on, backoff);
    }

    /// Whether there was one that still held.
    pub fn let_in(&mut self, subject: &str, process: &str) -> bool {
        let removed = self.backoffs.remove(&(subject.to_owned(), process.to_owned()));
        self.unpark(&format!("backoff {process} {subject}"));
        removed.is_some_and(|backoff| backoff.holds(self.now))
    }

    /// Those whose backoff has passed look again; gives how many.
    pub fn unpark_past(&mut self) -> usize {
        let past = self.backoffs.iter().filter(|(_, backoff)| !backoff.holds(self.now));
        let scopes: Vec<String> = past.map(|((subject, process), _)| format!("backoff {process} {subject}")).collect();
        scopes.iter().map(|scope| self.unpark(scope)).sum()
    }

    pub(super) fn unpark(&mut self, scope: &str) -> usize {
        let waiting = self.jobs.iter_mut().filter(|job| job.parked.as_deref() == Some(scope));
        waiting.map(|job| job.parked = None).count()
    }
}
