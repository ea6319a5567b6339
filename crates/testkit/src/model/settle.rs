//! How attempts end: by the worker's outcome, a cancel, an expired lease or a timeout.

use domain::limits::TIMEOUT_GRACE_MS;
use domain::queue::job::{ClaimRef, Event};
use domain::{Epoch, JobError, JobState, Outcome, Refusal, State};
use store::queue::cancel::Canceled;
use store::queue::settle::{End, SettleStatus};
use store::queue::workers::sweep::Swept;
use store::signals::refine::Signaled;

use super::{Model, worker_id};

impl Model {
    /// Returns one status per outcome. `None`: no such worker.
    pub fn settle(&mut self, worker: usize, outcomes: &[(usize, Epoch, End)]) -> Option<Vec<SettleStatus>> {
        if !self.alive(worker)? {
            return Some(vec![SettleStatus::ClaimLost; outcomes.len()]);
        }
        self.touch(worker);
        Some(outcomes.iter().map(|(job, epoch, end)| self.settle_one(worker, *job, *epoch, end)).collect())
    }

    fn settle_one(&mut self, worker: usize, number: usize, epoch: Epoch, end: &End) -> SettleStatus {
        if self.revocations.remove(&(worker, number, epoch)) {
            self.free(number, epoch);
            if matches!(end, End::Cancel) {
                return SettleStatus::Applied;
            }
        }
        let by = ClaimRef { worker: worker_id(worker), epoch };
        let (event, name, cause) = match end {
            End::Finish(_) | End::FinishWith { .. } => (Event::Finish { by }, "finished", None),
            End::Fail(error) | End::FailUntil { error, .. } => (
                Event::Fail { by, error: error.clone(), random_unit: 0.0, retry_at: None },
                "failed",
                Some(error.code.as_str()),
            ),
            End::Cancel => (Event::CancelClaimed { by }, "canceled", None),
            End::Snooze { delay_ms } => (Event::Snooze { by, delay_ms: *delay_ms }, "snoozed", None),
            End::Release => (Event::Release { by }, "released", None),
            End::Suspend(_) => (Event::Suspend { by, is_satisfied: false }, "suspended", None),
            End::ContinueAs { .. } => unreachable!("the model has no successors"),
        };
        match self.apply(number, event, name, cause) {
            Ok(()) => {
                self.free(number, epoch);
                SettleStatus::Applied
            }
            Err(Refusal::AlreadyEnded) => SettleStatus::AlreadyEnded,
            Err(_) => SettleStatus::ClaimLost,
        }
    }

    /// Applies a transition that ends the current attempt. The caller releases its holds.
    fn apply(&mut self, number: usize, event: Event, name: &str, cause: Option<&str>) -> Result<(), Refusal> {
        let before = self.jobs[number].job.clone();
        let after = before.apply(event, self.now)?;
        let worker = self.worker_of(number);
        let (from, to) = (before.job_state(), after.job_state());
        let end = match &after.state {
            State::Ended { outcome: Outcome::Failed(_), .. } => Some("failed"),
            State::Ended { outcome: Outcome::Canceled, .. } => Some("canceled"),
            _ => None,
        };
        // The last expiry has an event of its own before the job's end.
        if end.is_none() || name == "expired" {
            self.jobs[number].record(name, worker, cause);
        }
        if let Some(end) = end {
            self.jobs[number].record(end, worker, cause);
        }
        self.set(number, after);
        self.back_off(number, cause);
        let job = &mut self.jobs[number];
        job.claim = None;
        job.times_out_at = None;
        if job.job.job_state().is_terminal() {
            job.parked = None;
            let unique = job.new.extras.as_ref().and_then(|extras| extras.unique.as_ref());
            if let Some(unique) = unique.filter(|unique| unique.for_s.is_none()) {
                let key = (job.new.queue.clone(), unique.key.clone());
                if self.unique.get(&key).is_some_and(|(owner, _)| *owner == number) {
                    self.unique.remove(&key);
                }
            }
        }
        self.notify(number, from, to);
        Ok(())
    }

    pub(super) fn notify(&mut self, number: usize, from: JobState, to: JobState) {
        let webhook = self.jobs[number].new.extras.as_ref().is_some_and(|extras| extras.webhook.is_some());
        if webhook && from != to {
            self.deliveries.push((number, to, from));
        }
    }

    pub fn worker_of(&self, number: usize) -> Option<usize> {
        match &self.jobs[number].job.state {
            State::Loading(claim) | State::Working(claim) => Some(claim.worker.uuid().as_u128() as usize - 1),
            _ => None,
        }
    }

    /// Returns the job that the response refers to, by number.
    pub fn cancel(&mut self, number: usize) -> Result<usize, Canceled> {
        let (worker, epoch) = (self.worker_of(number), self.jobs[number].job.epoch);
        match self.apply(number, Event::Cancel, "canceled", None) {
            Ok(()) => {
                self.revocations.extend(worker.map(|worker| (worker, number, epoch)));
                Ok(number)
            }
            Err(_) => match self.jobs[number].job.job_state() {
                JobState::Canceled => Ok(number),
                state => Err(Canceled::AlreadyEnded(state)),
            },
        }
    }

    pub fn signal(&mut self, number: usize, epoch: Epoch, state: Option<JobState>) -> Signaled {
        let before = self.jobs[number].job.clone();
        let by = match self.worker_of(number) {
            Some(worker) => ClaimRef { worker: worker_id(worker), epoch },
            None => ClaimRef { worker: worker_id(usize::MAX >> 1), epoch },
        };
        let event = match state.unwrap_or(before.job_state()) {
            JobState::Loading => Event::Load { by },
            _ => Event::Work { by },
        };
        match before.apply(event, self.now) {
            // Progress alone is accepted while loading, and does not end it.
            Ok(_) if state.is_none() => Signaled::Applied,
            Ok(after) => {
                let (from, to) = (before.job_state(), after.job_state());
                self.set(number, after);
                self.notify(number, from, to);
                Signaled::Applied
            }
            Err(refusal) => Signaled::Refused(refusal),
        }
    }

    /// Returns the number of promoted jobs.
    pub fn promote(&mut self) -> usize {
        let mut promoted = 0;
        for number in 0..self.jobs.len() {
            if let Ok(after) = self.jobs[number].job.apply(Event::Due, self.now) {
                self.set(number, after);
                self.notify(number, JobState::Scheduled, JobState::Queued);
                promoted += 1;
            }
        }
        promoted
    }

    pub fn sweep(&mut self) -> Swept {
        let mut swept = Swept::default();
        for worker in 0..self.workers.len() {
            if self.alive(worker) == Some(false) && !self.workers[worker].is_dead {
                self.workers[worker].is_dead = true;
                swept.workers += 1;
            }
        }
        for worker in 0..self.workers.len() {
            if self.workers[worker].is_dead && !self.workers[worker].removed {
                swept.jobs += self.take_all_from(worker, true);
            }
        }
        let now = self.now;
        if now.ms_since(self.service_since) <= TIMEOUT_GRACE_MS {
            return swept;
        }
        let late = |job: &super::ModelJob| job.times_out_at.filter(|times_out_at| *times_out_at < now);
        let mut late: Vec<(domain::Time, usize)> =
            self.jobs.iter().enumerate().filter_map(|(number, job)| Some((late(job)?, number))).collect();
        late.sort_unstable();
        for (_, number) in late {
            let (worker, epoch) = (self.worker_of(number).expect("late jobs are claimed"), self.jobs[number].job.epoch);
            let by = ClaimRef { worker: worker_id(worker), epoch };
            let event = Event::TimeOut { by, timeout_s: 1, random_unit: 0.0 };
            self.apply(number, event, "failed", Some("timeout")).expect("a claimed job times out");
            self.revocations.insert((worker, number, epoch));
            swept.timed_out += 1;
        }
        swept
    }

    /// Returns false if there is no such worker.
    pub fn remove(&mut self, worker: usize) -> bool {
        let Some(alive) = self.alive(worker) else { return false };
        self.take_all_from(worker, !alive);
        self.workers[worker].removed = true;
        true
    }

    fn take_all_from(&mut self, worker: usize, dead: bool) -> usize {
        let mut taken = 0;
        for number in 0..self.jobs.len() {
            if self.worker_of(number) != Some(worker) {
                continue;
            }
            let epoch = self.jobs[number].job.epoch;
            let by = ClaimRef { worker: worker_id(worker), epoch };
            let applied = if dead {
                self.apply(number, Event::Expire { by }, "expired", Some(&JobError::expired().code))
            } else {
                self.apply(number, Event::Release { by }, "released", None)
            };
            applied.expect("the worker has the claim");
            self.free(number, epoch);
            taken += 1;
        }
        let revoked: Vec<_> = self.revocations.iter().filter(|(of, _, _)| *of == worker).copied().collect();
        for revocation in revoked {
            self.revocations.remove(&revocation);
            self.free(revocation.1, revocation.2);
        }
        taken
    }
}
