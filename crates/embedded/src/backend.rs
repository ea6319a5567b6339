//! `client::Backend` on the engine in this process, instead of a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{BackendError, HeldClaim};
use domain::limits::{
    ARTIFACT_BYTES, CLAIM_JOBS, ERROR_MESSAGE_BYTES, FACT_BYTES, JOURNAL_CLAIM_ENTRIES, LEASE_DEFAULT_S, LEASE_MAX_S,
    LEASE_MIN_S, LONG_POLL_S, RESULT_BYTES, WAKE_KEYS,
};
use domain::{Epoch, JobError, JobId, JobState, Label, Name, NameError, SignalKind, TenantId, Time, WorkerId};
use engine::Engine;
use futures_util::StreamExt;
use serde_json::json;
use store::StoreError;
use store::fleet::subjects::facts::{FactChanges, canonical};
use store::queue::artifacts::Blobs;
use store::queue::artifacts::put::{ArtifactPut, NewArtifact};
use store::queue::claim::{Claimed, ClaimedJob};
use store::queue::settle::{ChosenBackoff, End, Outcome, SettleStatus, Settled};
use store::queue::workers::heartbeat::Heartbeat;
use store::queue::workers::register::NewWorker;
use store::signals::refine::{SignalChange, Signaled};
use store::workflows::journal::Wake;
use store::workflows::journal::write::Journaled;
use store::workflows::runs::inputs::Input;
use uuid::Uuid;
use wire::problem::code;
use wire::{
    ArtifactView, ClaimRequest, ClaimView, ClaimedJournal, HeartbeatRequest, HeartbeatView, JournalRequest,
    JournalWritten, OutcomeKind, OutcomeRequest, OutcomeStatus, OutcomeView, Problem, RawValue, SettleRequest,
    SettleView, SignalUpdate, Timestamp, WakeRequest, WorkerRegistered, WorkerRequest,
};

use crate::journal;

const TENANT: TenantId = TenantId::DEFAULT;

/// The engine of this process as the backend of a worker.
pub struct Backend {
    engine: Arc<Engine>,
    blobs: Option<Blobs>,
}

impl Backend {
    pub(crate) fn new(engine: Arc<Engine>, blobs: Option<Blobs>) -> Self {
        Self { engine, blobs }
    }
}

impl client::Backend for Backend {
    async fn register(&self, request: WorkerRequest) -> Result<WorkerRegistered, BackendError> {
        let lease_s = request.lease_s.unwrap_or(LEASE_DEFAULT_S).clamp(LEASE_MIN_S, LEASE_MAX_S);
        let names = |names: Vec<String>| names.iter().map(|name| Name::new(name)).collect::<Result<Vec<_>, _>>();
        let labels = |labels: Vec<String>| labels.iter().map(|text| Label::new(text)).collect::<Result<Vec<_>, _>>();
        let worker = NewWorker {
            name: request.name,
            queues: names(request.queues).map_err(|error| refused("queues", &error))?,
            kinds: request.kinds.map(names).transpose().map_err(|error| refused("kinds", &error))?,
            affinities: request.affinities.map(labels).transpose().map_err(|error| refused("affinities", &error))?,
            lease_ms: lease_s * 1_000,
        };
        let id = self.engine.store().register_worker(TENANT, worker).await.map_err(unavailable)?;
        Ok(WorkerRegistered { id: id.uuid(), lease_s, heartbeat_s: lease_s as f64 / 3.0 })
    }

    async fn heartbeat(&self, worker: Uuid, request: HeartbeatRequest) -> Result<HeartbeatView, BackendError> {
        let affinity = label(request.affinity)?;
        let (worker, wait) = (WorkerId::new(worker), seconds(request.wait_s));
        let never = std::future::pending();
        let beat = engine::queue::long_poll::heartbeat(self.engine.store(), TENANT, worker, affinity, wait, never);
        match beat.await.map_err(unavailable)? {
            Heartbeat::Alive { lease_until, cancel, drain } => Ok(HeartbeatView {
                lease_until: timestamp(lease_until),
                cancel: cancel.into_iter().map(JobId::uuid).collect(),
                drain,
            }),
            Heartbeat::LeaseExpired | Heartbeat::NotFound => Err(BackendError::LeaseExpired),
        }
    }

    async fn claim(&self, worker: Uuid, request: ClaimRequest) -> Result<ClaimView, BackendError> {
        let affinity = label(request.affinity)?;
        let max = (request.max.max(0) as usize).min(CLAIM_JOBS);
        let (worker, wait) = (WorkerId::new(worker), seconds(request.wait_s));
        let never = std::future::pending();
        let store = self.engine.store().clone();
        let claim =
            engine::queue::long_poll::ClaimRequest { store, tenant: TENANT, worker, serves: None, max, affinity };
        let claim = engine::queue::long_poll::claim(claim, wait, never);
        match claim.await.map_err(unavailable)? {
            Claimed::Jobs { jobs, .. } => Ok(ClaimView { jobs: jobs.into_iter().map(view).collect::<Result<_, _>>()? }),
            Claimed::LeaseExpired | Claimed::NotFound => Err(BackendError::LeaseExpired),
        }
    }

    async fn settle(&self, worker: Uuid, request: &SettleRequest) -> Result<SettleView, BackendError> {
        let outcomes: Vec<Outcome> = request.outcomes.iter().map(outcome).collect::<Result<_, _>>()?;
        let settled = self.engine.store().settle(TENANT, WorkerId::new(worker), outcomes).await;
        let statuses = match settled.map_err(unavailable)? {
            Settled::Results(statuses) => statuses,
            Settled::FactsWithoutSubject(_) => {
                let detail = "`facts` requires a job with a subject";
                return Err(problem(422, code::INVALID_FIELD, detail.into(), Some("facts")));
            }
            Settled::NoSuchKey(number, key) => {
                let detail = format!("the journal has no entry {key}; record it first");
                return Err(problem(422, code::INVALID_FIELD, detail, Some(&format!("outcomes[{number}].wake"))));
            }
            Settled::NoSuchWorker => return Err(BackendError::LeaseExpired),
        };
        let result = |(outcome, status): (&OutcomeRequest, SettleStatus)| OutcomeView {
            job_id: outcome.job_id,
            status: settle_status(status),
        };
        Ok(SettleView { results: request.outcomes.iter().zip(statuses).map(result).collect() })
    }

    async fn journal(&self, worker: Uuid, request: &JournalRequest) -> Result<JournalWritten, BackendError> {
        let writes = journal::writes(request)?;
        let jobs: Vec<JobId> = writes.iter().map(|write| write.job).collect();
        let written = self.engine.store().journal(TENANT, WorkerId::new(worker), writes).await;
        let results = match written.map_err(unavailable)? {
            Journaled::Results(results) => results,
            Journaled::Refused { write, op, error } => return Err(journal::refused(write, op, &error)),
            Journaled::NoSuchWorker => return Err(BackendError::LeaseExpired),
        };
        let results = jobs.into_iter().zip(results).map(|(job, result)| journal::result(job, result));
        Ok(JournalWritten { results: results.collect::<Result<_, _>>()? })
    }

    async fn read_journal(&self, job: Uuid, cursor: Option<&str>) -> Result<ClaimedJournal, BackendError> {
        let after = cursor.map_or(Ok(0), str::parse).map_err(|_| {
            problem(400, code::INVALID_CURSOR, "the cursor is not one of this journal".into(), Some("cursor"))
        })?;
        let page = self.engine.store().read_journal(TENANT, JobId::new(job), after, JOURNAL_CLAIM_ENTRIES).await;
        journal::page(page.map_err(unavailable)?.1)
    }

    async fn read_result(&self, _claim: HeldClaim, job: Uuid) -> Result<Option<Box<RawValue>>, BackendError> {
        let job = self.engine.store().job(TENANT, JobId::new(job)).await.map_err(unavailable)?;
        let job = job.ok_or_else(|| problem(404, code::NOT_FOUND, "no such job".into(), None))?;
        let raw =
            |json| RawValue::from_string(json).map_err(|error| unavailable(StoreError::unexpected(error.to_string())));
        job.result.map(raw).transpose()
    }

    async fn read_artifact(&self, _claim: HeldClaim, job: Uuid, name: &str) -> Result<Bytes, BackendError> {
        let missing = || problem(404, code::NOT_FOUND, "the job has no such artifact".into(), None);
        let blobs = self.blobs.as_ref().ok_or_else(missing)?;
        let name = Label::new(name).map_err(|error| refused("name", &error))?;
        let download = self.engine.store().artifact(blobs, TENANT, JobId::new(job), name).await;
        let mut download = download.map_err(unavailable)?.ok_or_else(missing)?;
        let mut content = BytesMut::new();
        while let Some(part) = download.bytes.next().await {
            content.extend_from_slice(&part.map_err(unavailable)?);
        }
        Ok(content.freeze())
    }

    async fn signal(&self, job: Uuid, update: SignalUpdate) -> Result<(), BackendError> {
        let raw = |value: Option<Box<RawValue>>| value.map(|value| value.get().to_owned());
        let change = SignalChange {
            epoch: Epoch(update.epoch),
            phase: update.phase,
            progress: update.progress,
            summary: update.summary,
            eta_s: update.eta_s,
            last_known_outcome: raw(update.last_known_outcome),
            next_actions: update.next_actions.and_then(|actions| serde_json::to_string(&actions).ok()),
            diagnostics: raw(update.diagnostics),
            payload: raw(update.payload),
            state: update.state.as_deref().and_then(JobState::parse),
            kind: update
                .kind
                .as_deref()
                .and_then(SignalKind::parse)
                .filter(|kind| matches!(kind, SignalKind::Blocked | SignalKind::Unavailable)),
        };
        match self.engine.store().signal(TENANT, JobId::new(job), change).await.map_err(unavailable)? {
            Signaled::Applied => Ok(()),
            Signaled::Refused(refusal) => Err(problem(409, code::CLAIM_LOST, refusal.to_string(), None)),
            Signaled::UnknownPhase => {
                let detail = format!("phase {}", domain::queue::settings::phase_requirement());
                Err(problem(422, code::INVALID_FIELD, detail, Some("phase")))
            }
            Signaled::NotFound => Err(problem(404, code::NOT_FOUND, "no such job".into(), None)),
        }
    }

    async fn put_artifact(
        &self,
        job: Uuid,
        epoch: i64,
        name: &str,
        content_type: &str,
        bytes: Bytes,
    ) -> Result<ArtifactView, BackendError> {
        let nowhere =
            || problem(422, code::INVALID_FIELD, "this engine was started without artifact storage".into(), None);
        let blobs = self.blobs.as_ref().ok_or_else(nowhere)?;
        let new = NewArtifact {
            tenant: TENANT,
            job: JobId::new(job),
            name: Label::new(name).map_err(|error| refused("name", &error))?,
            content_type: content_type.to_owned(),
            epoch: Some(Epoch(epoch)),
            sha256: None,
            max_bytes: ARTIFACT_BYTES,
        };
        let body = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(bytes)]);
        match self.engine.store().put_artifact(blobs, new, body).await.map_err(unavailable)? {
            ArtifactPut::Stored(artifact) | ArtifactPut::Same(artifact) => Ok(ArtifactView {
                name: artifact.name,
                size: artifact.size,
                content_type: artifact.content_type,
                sha256: artifact.sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
                created_at: timestamp(artifact.created_at),
            }),
            ArtifactPut::Exists => {
                Err(problem(409, code::ARTIFACT_EXISTS, "the job has another artifact with this name".into(), None))
            }
            ArtifactPut::ClaimLost | ArtifactPut::EpochRequired => {
                Err(problem(409, code::CLAIM_LOST, "the claim was lost".into(), None))
            }
            ArtifactPut::NotFound => Err(problem(404, code::NOT_FOUND, "no such job".into(), None)),
            ArtifactPut::TooMany => {
                Err(problem(422, code::LIMIT_REACHED, "the job has too many artifacts".into(), None))
            }
            ArtifactPut::TooLarge => Err(problem(413, code::BODY_TOO_LARGE, "the artifact is too large".into(), None)),
            ArtifactPut::DigestMismatch | ArtifactPut::Interrupted => {
                Err(unavailable(StoreError::unexpected("an in-memory artifact was incomplete")))
            }
        }
    }

    async fn deregister(&self, worker: Uuid) -> Result<(), BackendError> {
        self.engine.store().remove_worker(TENANT, WorkerId::new(worker)).await.map(|_| ()).map_err(unavailable)
    }
}

pub(crate) fn settle_status(status: SettleStatus) -> OutcomeStatus {
    match status {
        SettleStatus::Applied => OutcomeStatus::Applied,
        SettleStatus::ClaimLost => OutcomeStatus::ClaimLost,
        SettleStatus::AlreadyEnded => OutcomeStatus::AlreadyEnded,
        SettleStatus::NotFound => OutcomeStatus::NotFound,
    }
}

fn view(job: ClaimedJob) -> Result<wire::ClaimedJob, BackendError> {
    let payload =
        RawValue::from_string(job.payload).map_err(|error| unavailable(StoreError::unexpected(error.to_string())))?;
    Ok(wire::ClaimedJob {
        id: job.id.uuid(),
        epoch: job.epoch.0,
        queue: job.queue.to_string(),
        kind: job.kind.to_string(),
        payload,
        affinity: job.affinity.map(|affinity| affinity.to_string()),
        priority: i64::from(job.priority),
        subject: job.subject,
        process: job.process,
        run: job.run,
        inputs: job.inputs.map(inputs).transpose()?,
        attempt: i64::from(job.attempt),
        max_attempts: i64::from(job.max_attempts),
        timeout_s: job.timeout_s,
        created_at: timestamp(job.created_at),
        tenant: None,
        traceparent: job.traceparent.map(|context| context.as_str().to_owned()),
        journal: job.journal.map(journal::page).transpose()?,
        state: job.state.to_string(),
    })
}

/// The results of the needed jobs. A large result is a reference to its job.
fn inputs(inputs: Vec<(String, Input)>) -> Result<BTreeMap<String, Box<RawValue>>, BackendError> {
    let text = |input| match input {
        Input::Inline(result) => result,
        Input::Reference { job, size } => json!({"$result": {"job_id": job.uuid(), "size": size}}).to_string(),
    };
    let value = |input| RawValue::from_string(text(input));
    let named = |(name, input)| value(input).map(|value| (name, value));
    let all: Result<_, serde_json::Error> = inputs.into_iter().map(named).collect();
    all.map_err(|error| unavailable(StoreError::unexpected(error.to_string())))
}

fn outcome(request: &OutcomeRequest) -> Result<Outcome, BackendError> {
    let end = match request.outcome {
        OutcomeKind::Finish => {
            let result = request.result.as_deref().map(checked_result).transpose()?;
            match &request.facts {
                Some(facts) => End::FinishWith { result, facts: checked_facts(facts)? },
                None => End::Finish(result),
            }
        }
        OutcomeKind::Fail => {
            let error = request.error.clone();
            let missing = || problem(422, code::INVALID_FIELD, "`fail` requires an error".into(), Some("error"));
            let wire::JobError { code, mut message, retryable } = error.ok_or_else(missing)?;
            message.truncate(message.floor_char_boundary(ERROR_MESSAGE_BYTES));
            let error = JobError { code, message, retryable };
            match (request.backoff_s, request.backoff_until) {
                (Some(seconds), _) => {
                    let backoff = ChosenBackoff::ForMs((seconds.max(0.0) * 1_000.0) as i64);
                    End::FailUntil { error, backoff }
                }
                (None, Some(until)) => {
                    let backoff = ChosenBackoff::Until(Time::from_micros(until.as_microsecond()));
                    End::FailUntil { error, backoff }
                }
                (None, None) => End::Fail(error),
            }
        }
        OutcomeKind::Cancel => End::Cancel,
        OutcomeKind::Snooze => End::Snooze { delay_ms: (request.delay_s.unwrap_or(0.0).max(0.0) * 1_000.0) as i64 },
        OutcomeKind::Release => End::Release,
        OutcomeKind::Suspend => End::Suspend(wake(request.wake.as_ref())?),
        OutcomeKind::ContinueAs => {
            let payload = request.payload.as_deref().map(checked_result).transpose()?;
            let missing = || problem(422, code::INVALID_FIELD, "`payload` is missing".into(), Some("payload"));
            End::ContinueAs { payload: payload.ok_or_else(missing)? }
        }
    };
    Ok(Outcome { job: JobId::new(request.job_id), epoch: Epoch(request.epoch), end })
}

fn wake(request: Option<&WakeRequest>) -> Result<Wake, BackendError> {
    let refuse = || {
        let detail = "`wake` must have any, all, or count and of, with keys of the journal";
        problem(422, code::INVALID_FIELD, detail.into(), Some("wake"))
    };
    let WakeRequest { any, all, count, of } = request.cloned().ok_or_else(refuse)?;
    let (keys, count) = match (any, all, count, of) {
        (Some(keys), None, None, None) => (keys, Some(1)),
        (None, Some(keys), None, None) => (keys, None),
        (None, None, Some(count), Some(keys)) => (keys, Some(count)),
        _ => return Err(refuse()),
    };
    let mut keys = keys.iter().map(|key| Label::new(key)).collect::<Result<Vec<_>, _>>().map_err(|_| refuse())?;
    keys.sort();
    keys.dedup();
    let count = count.unwrap_or(keys.len() as i64);
    match keys.len() <= WAKE_KEYS && (1..=keys.len() as i64).contains(&count) {
        true => Ok(Wake { keys, count }),
        false => Err(refuse()),
    }
}

fn checked_result(result: &RawValue) -> Result<Box<str>, BackendError> {
    let got = result.get().len();
    if got > RESULT_BYTES {
        let detail = format!("the result has {got} bytes; the limit is {RESULT_BYTES}");
        return Err(problem(422, code::INVALID_FIELD, detail, Some("result")));
    }
    Ok(result.get().into())
}

fn checked_facts(facts: &BTreeMap<String, Box<RawValue>>) -> Result<FactChanges, BackendError> {
    let mut checked = FactChanges::new();
    for (name, value) in facts {
        let name = Name::new(name).map_err(|error| refused("facts", &error))?;
        if value.get().len() > FACT_BYTES {
            let detail = format!("a fact is limited to {FACT_BYTES} bytes");
            return Err(problem(422, code::INVALID_FIELD, detail, Some("facts")));
        }
        if canonical(value.get()).is_none() {
            return Err(problem(
                422,
                code::INVALID_FIELD,
                "a fact contains a number that is too large".into(),
                Some("facts"),
            ));
        }
        checked.push((name, Some(value.get().into()).filter(|_| value.get() != "null")));
    }
    Ok(checked)
}

fn label(text: Option<String>) -> Result<Option<Label>, BackendError> {
    text.map(|text| Label::new(&text)).transpose().map_err(|error| refused("affinity", &error))
}

fn seconds(wait_s: Option<f64>) -> Duration {
    let wait = Duration::try_from_secs_f64(wait_s.unwrap_or(0.0)).unwrap_or_default();
    wait.min(Duration::from_secs(LONG_POLL_S))
}

pub(crate) fn timestamp(time: Time) -> Timestamp {
    Timestamp::from_microsecond(time.micros()).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(crate) fn unavailable(error: StoreError) -> BackendError {
    match error {
        StoreError::InDoubt { .. } => BackendError::Unanswered(Box::new(error)),
        error => BackendError::Unavailable(Box::new(error)),
    }
}

fn refused(field: &str, error: &NameError) -> BackendError {
    problem(422, code::INVALID_FIELD, error.to_string(), Some(field))
}

pub(crate) fn problem(status: u16, code: &str, detail: String, field: Option<&str>) -> BackendError {
    BackendError::Refused(Box::new(Problem {
        kind: Problem::kind_of(code),
        title: code.replace('_', " "),
        status,
        detail,
        code: code.into(),
        field: field.map(str::to_owned),
        ..Problem::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: OutcomeKind) -> OutcomeRequest {
        let (job_id, epoch) = (Uuid::nil(), 1);
        OutcomeRequest {
            job_id,
            epoch,
            outcome: kind,
            result: None,
            facts: None,
            error: None,
            delay_s: None,
            backoff_s: None,
            backoff_until: None,
            wake: None,
            payload: None,
        }
    }

    fn text(bytes: usize) -> Box<RawValue> {
        RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).expect("it is JSON")
    }

    #[test]
    fn a_result_has_the_servers_size_limit() {
        let of = |bytes| outcome(&OutcomeRequest { result: Some(text(bytes)), ..request(OutcomeKind::Finish) });
        assert!(of(RESULT_BYTES).is_ok());
        assert!(matches!(of(RESULT_BYTES + 1), Err(BackendError::Refused(_))));
    }

    #[test]
    fn a_fact_has_the_servers_size_limit() {
        let facts = |bytes| Some(BTreeMap::from([("log".to_owned(), text(bytes))]));
        let of = |bytes| outcome(&OutcomeRequest { facts: facts(bytes), ..request(OutcomeKind::Finish) });
        assert!(of(FACT_BYTES).is_ok());
        assert!(matches!(of(FACT_BYTES + 1), Err(BackendError::Refused(_))));
    }

    #[test]
    fn a_long_error_message_is_truncated_at_a_character_boundary() {
        let message = "ä".repeat(ERROR_MESSAGE_BYTES);
        let error = wire::JobError { code: "boom".into(), message, retryable: true };
        let made = outcome(&OutcomeRequest { error: Some(error), ..request(OutcomeKind::Fail) });
        let end = made.ok().map(|outcome| outcome.end);
        assert!(matches!(end, Some(End::Fail(error)) if error.message.len() == ERROR_MESSAGE_BYTES));
    }
}
