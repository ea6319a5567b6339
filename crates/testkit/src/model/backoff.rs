//! Backoffs of subjects: written by failures and lockouts, removed by successes and by hand.

use domain::fleet::backoff::EVERY_PROCESS;
use domain::{Backoff, JobError, JobState, Outcome, State};

use super::Model;

impl Model {
    /// The subject of a job, and the process that its backoffs belong to.
    fn on_subject(&self, number: usize) -> Option<(String, String)> {
        let new = &self.jobs[number].new;
        let extras = new.extras.as_ref()?;
        let process = extras.process.as_ref().unwrap_or(&new.kind);
        Some((extras.subject.as_ref()?.to_string(), process.to_string()))
    }

    /// The backoff that the job must be parked for.
    pub(super) fn active_backoff(&self, number: usize) -> Option<String> {
        let (subject, process) = self.on_subject(number)?;
        let holds = |process: &str| {
            let backoff = self.backoffs.get(&(subject.clone(), process.to_owned()));
            backoff.is_some_and(|backoff| backoff.holds(self.now))
        };
        let process = [process.as_str(), EVERY_PROCESS].into_iter().find(|process| holds(process))?;
        Some(format!("backoff {process} {subject}"))
    }

    /// Updates the backoff after a change of the job's state: success removes it, failure writes it.
    pub(super) fn back_off(&mut self, number: usize, cause: Option<&str>) {
        let has_process = self.jobs[number].new.extras.as_ref().is_some_and(|extras| extras.process.is_some());
        let Some(on) = self.on_subject(number).filter(|_| has_process) else { return };
        let job = &self.jobs[number].job;
        let backoff = match (&job.state, cause) {
            (State::Ended { outcome: Outcome::Succeeded, .. }, _) => {
                self.remove_backoff(&on.0, &on.1);
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

    /// Returns true if there was an active backoff.
    pub fn remove_backoff(&mut self, subject: &str, process: &str) -> bool {
        let removed = self.backoffs.remove(&(subject.to_owned(), process.to_owned()));
        self.unpark(&format!("backoff {process} {subject}"));
        removed.is_some_and(|backoff| backoff.holds(self.now))
    }

    /// Releases the jobs of expired backoffs. Returns their number.
    pub fn release_expired(&mut self) -> usize {
        let expired = self.backoffs.iter().filter(|(_, backoff)| !backoff.holds(self.now));
        let scopes: Vec<String> =
            expired.map(|((subject, process), _)| format!("backoff {process} {subject}")).collect();
        scopes.iter().map(|scope| self.unpark(scope)).sum()
    }

    pub(super) fn unpark(&mut self, scope: &str) -> usize {
        let waiting = self.jobs.iter_mut().filter(|job| job.parked.as_deref() == Some(scope));
        waiting.map(|job| job.parked = None).count()
    }
}
