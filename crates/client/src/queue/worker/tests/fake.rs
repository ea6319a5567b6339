//! An in-memory server: deterministic, with switches for every kind of failure.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, ClaimedJob, ClaimedJournal, HeartbeatRequest, HeartbeatView, JournalRequest,
    JournalWritten, OutcomeKind, OutcomeRequest, OutcomeStatus, OutcomeView, Problem, RawValue, SettleRequest,
    SettleView, SignalUpdate, Timestamp, WorkerRegistered, WorkerRequest,
};

use crate::backend::{Backend, BackendError, HeldClaim};

#[derive(Clone, Default)]
pub(super) struct FakeServer(Arc<FakeInner>);

#[derive(Default)]
struct FakeInner {
    state: Mutex<FakeState>,
    changed: Notify,
}

#[derive(Default)]
pub(super) struct FakeState {
    pub(super) queued: VecDeque<ClaimedJob>,
    pub(super) claimed: HashMap<Uuid, (Uuid, ClaimedJob)>,
    /// Each confirmed settle with its outcomes.
    pub(super) settles: Vec<Vec<OutcomeRequest>>,
    pub(super) signals: Vec<(Uuid, SignalUpdate)>,
    pub(super) registered: Vec<(Uuid, WorkerRequest)>,
    pub(super) deregistered: Vec<Uuid>,
    pub(super) claims: Vec<ClaimRequest>,
    pub(super) settle_tries: usize,
    pub(super) settle_takes: Duration,
    /// A settle with more outcomes than this fails.
    pub(super) max_settle_outcomes: Option<usize>,
    /// Sent with each heartbeat until the job is settled with `cancel`.
    pub(super) cancel: HashSet<Uuid>,
    pub(super) drain: bool,
    pub(super) outage: bool,
    pub(super) expired: HashSet<Uuid>,
    /// The next claims succeed but their responses are lost.
    pub(super) lose_claims: usize,
    /// A settle that contains this result is rejected.
    pub(super) refused_result: Option<String>,
    /// Every settle fails with this problem.
    pub(super) settle_problem: Option<(u16, &'static str)>,
    pub(super) lose_signals: bool,
    pub(super) refuse_registration: bool,
}

impl FakeServer {
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        let result = change(&mut self.0.state.lock().unwrap());
        self.0.changed.notify_waiters();
        result
    }

    pub(super) fn push(&self, jobs: impl IntoIterator<Item = ClaimedJob>) {
        self.change(|state| state.queued.extend(jobs));
    }

    /// Waits until `find` returns a value.
    pub(super) async fn until<T>(&self, mut find: impl FnMut(&mut FakeState) -> Option<T>) -> T {
        loop {
            let changed = self.0.changed.notified();
            if let Some(found) = find(&mut self.0.state.lock().unwrap()) {
                return found;
            }
            changed.await;
        }
    }

    pub(super) async fn until_settled(&self, outcomes: usize) -> Vec<OutcomeRequest> {
        self.until(|state| {
            let settled: Vec<_> = state.settles.iter().flatten().cloned().collect();
            (settled.len() >= outcomes).then_some(settled)
        })
        .await
    }

    fn check(&self, worker: Uuid) -> Result<(), BackendError> {
        let state = self.0.state.lock().unwrap();
        if state.outage {
            return Err(BackendError::Unavailable("outage".into()));
        }
        if state.expired.contains(&worker) { Err(BackendError::LeaseExpired) } else { Ok(()) }
    }

    /// The value that `find` returns, or `None` after `wait_s`.
    async fn wait<T>(&self, wait_s: Option<f64>, find: impl FnMut(&mut FakeState) -> Option<T>) -> Option<T> {
        let until = Instant::now() + Duration::from_secs_f64(wait_s.unwrap_or(0.0));
        timeout_at(until, self.until(find)).await.ok()
    }
}

impl Backend for FakeServer {
    async fn register(&self, request: WorkerRequest) -> Result<WorkerRegistered, BackendError> {
        self.check(Uuid::nil())?;
        self.change(|state| {
            if state.refuse_registration {
                return Err(BackendError::Refused(problem(403, "forbidden")));
            }
            let id = Uuid::from_u128(state.registered.len() as u128 + 1);
            state.registered.push((id, request));
            Ok(WorkerRegistered { id, lease_s: 30, heartbeat_s: 10.0 })
        })
    }

    async fn heartbeat(&self, worker: Uuid, request: HeartbeatRequest) -> Result<HeartbeatView, BackendError> {
        self.check(worker)?;
        self.wait(request.wait_s, |state| {
            (state.outage || state.drain || !state.cancel.is_empty() || state.expired.contains(&worker)).then_some(())
        })
        .await;
        self.check(worker)?;
        let (cancel, drain) = self.change(|state| (state.cancel.iter().copied().collect(), state.drain));
        Ok(HeartbeatView { lease_until: Timestamp::UNIX_EPOCH, cancel, drain })
    }

    async fn claim(&self, worker: Uuid, request: ClaimRequest) -> Result<ClaimView, BackendError> {
        self.check(worker)?;
        let max = request.max as usize;
        let wait_s = request.wait_s;
        self.change(|state| state.claims.push(request));
        let jobs = self
            .wait(wait_s, |state| {
                if state.outage || state.expired.contains(&worker) {
                    return Some(Vec::new());
                }
                let count = max.min(state.queued.len());
                let jobs: Vec<_> = state.queued.drain(..count).collect();
                state.claimed.extend(jobs.iter().map(|job| (job.id, (worker, job.clone()))));
                (!jobs.is_empty()).then_some(jobs)
            })
            .await
            .unwrap_or_default();
        self.check(worker)?;
        let lost = self.change(|state| {
            let lost = state.lose_claims > 0 && !jobs.is_empty();
            state.lose_claims -= usize::from(lost);
            lost
        });
        if lost { Err(BackendError::Unanswered("reset".into())) } else { Ok(ClaimView { jobs }) }
    }

    async fn settle(&self, worker: Uuid, request: &SettleRequest) -> Result<SettleView, BackendError> {
        let takes = self.change(|state| {
            state.settle_tries += 1;
            state.settle_takes
        });
        sleep(takes).await;
        self.check(worker)?;
        self.change(|state| {
            if let Some((status, code)) = state.settle_problem {
                return Err(BackendError::Refused(problem(status, code)));
            }
            if state.max_settle_outcomes.is_some_and(|max| request.outcomes.len() > max) {
                return Err(BackendError::Unavailable("the disk is nearly full".into()));
            }
            let is_refused = |outcome: &OutcomeRequest| {
                outcome.result.as_ref().is_some_and(|result| Some(result.get()) == state.refused_result.as_deref())
            };
            if request.outcomes.iter().any(is_refused) {
                return Err(BackendError::Refused(problem(422, "invalid_field")));
            }
            let mut results = Vec::new();
            for outcome in &request.outcomes {
                let is_claimed = state.claimed.get(&outcome.job_id);
                let is_claimed = is_claimed.is_some_and(|(by, job)| *by == worker && job.epoch == outcome.epoch);
                let is_canceled = state.cancel.contains(&outcome.job_id);
                if outcome.outcome == OutcomeKind::Cancel {
                    state.cancel.remove(&outcome.job_id);
                }
                let status = match (is_claimed, is_canceled && outcome.outcome != OutcomeKind::Cancel) {
                    (false, _) => OutcomeStatus::ClaimLost,
                    (true, true) => OutcomeStatus::AlreadyEnded,
                    (true, false) => {
                        state.claimed.remove(&outcome.job_id);
                        OutcomeStatus::Applied
                    }
                };
                results.push(OutcomeView { job_id: outcome.job_id, status });
            }
            state.settles.push(request.outcomes.clone());
            Ok(SettleView { results })
        })
    }

    async fn journal(&self, _worker: Uuid, _request: &JournalRequest) -> Result<JournalWritten, BackendError> {
        Err(BackendError::Unavailable("not supported by the fake server".into()))
    }

    async fn read_journal(&self, _job: Uuid, _cursor: Option<&str>) -> Result<ClaimedJournal, BackendError> {
        Err(BackendError::Unavailable("not supported by the fake server".into()))
    }

    async fn read_result(&self, _claim: HeldClaim, _job: Uuid) -> Result<Option<Box<RawValue>>, BackendError> {
        Err(BackendError::Unavailable("not supported by the fake server".into()))
    }

    async fn read_artifact(&self, _claim: HeldClaim, _job: Uuid, _name: &str) -> Result<Bytes, BackendError> {
        Err(BackendError::Unavailable("not supported by the fake server".into()))
    }

    async fn signal(&self, job: Uuid, update: SignalUpdate) -> Result<(), BackendError> {
        self.change(|state| {
            if state.lose_signals {
                return Err(BackendError::Unavailable("outage".into()));
            }
            state.signals.push((job, update));
            Ok(())
        })
    }

    async fn put_artifact(
        &self,
        _job: Uuid,
        _epoch: i64,
        _name: &str,
        _content_type: &str,
        _bytes: Bytes,
    ) -> Result<ArtifactView, BackendError> {
        Err(BackendError::Unavailable("not supported by the fake server".into()))
    }

    async fn deregister(&self, worker: Uuid) -> Result<(), BackendError> {
        self.check(worker)?;
        self.change(|state| {
            state.deregistered.push(worker);
            let (theirs, others) = state.claimed.drain().partition::<HashMap<_, _>, _>(|(_, (by, _))| *by == worker);
            state.claimed = others;
            state.queued.extend(theirs.into_values().map(|(_, job)| ClaimedJob { epoch: job.epoch + 1, ..job }));
        });
        Ok(())
    }
}

fn problem(status: u16, code: &str) -> Box<Problem> {
    Box::new(Problem {
        kind: Problem::kind_of(code),
        title: code.into(),
        status,
        detail: format!("rejected with {code}"),
        code: code.into(),
        ..Problem::default()
    })
}

pub(super) fn job(number: u128) -> ClaimedJob {
    ClaimedJob {
        id: id(number),
        epoch: 1,
        queue: "default".into(),
        kind: "test".into(),
        payload: RawValue::from_string(number.to_string()).unwrap(),
        affinity: None,
        priority: 0,
        subject: None,
        process: None,
        run: None,
        attempt: 1,
        max_attempts: 3,
        timeout_s: None,
        created_at: Timestamp::UNIX_EPOCH,
        tenant: None,
        traceparent: None,
        journal: None,
        inputs: None,
        state: "working".into(),
    }
}

pub(super) fn id(number: u128) -> Uuid {
    Uuid::from_u128(1_000_000 + number)
}
