//! Builds a signal from the job's row, the worker's last report and the state of its queue. Called by the signal routes
//! and pages.

pub(crate) mod eta;

use domain::signals::eta::line::{P50, P90};
use domain::signals::signal::{
    Eta, FailurePrediction, Obstacle, QueuePosition, SignalFacts, borrowed_eta_basis, eta_basis,
};
use domain::{Backoff, JobState, Right, TenantId, Time};
use pages::segment;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use store::queue::get::StoredJob;
use store::queue::why::queued_job;
use store::signals::queue_snapshot::QueueSnapshot;
use store::signals::read::{PreviousJob, SignalSource};
use store::signals::refine::StoredSignal;
use store::signals::signatures::Signature;
use store::signals::signatures::index::Prediction;
use store::{CacheStatus, Store, StoreError};
use wire::{EtaBasis, EtaRange, NextAction, RawValue, SignalView, Timestamp};

use self::eta::{Estimate, EstimatedJob};
use crate::access::auth::Principal;
use crate::view;

/// A signal, and where its content came from.
pub(crate) struct RenderedSignal {
    pub(crate) view: SignalView,
    pub(crate) source: Source,
    pub(crate) freshness: CacheStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Stored, or from the cache.
    Snapshot,
    /// Computed, because nothing was cached.
    ColdStart,
    /// The job has not started; predicted from a matching signature.
    FailureIndex,
}

impl Source {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::ColdStart => "cold_start",
            Self::FailureIndex => "failure_index",
        }
    }
}

/// Position, ETA and obstacles of a job that has not ended.
#[derive(Default)]
struct Overlay {
    obstacle: Option<Obstacle>,
    position: Option<QueuePosition>,
    eta: Option<Eta>,
    paused: bool,
    /// The worker reported the ETA.
    is_reported: bool,
    /// What the ETA is based on.
    estimate: Estimate,
}

/// Removes the parts of the job that the caller may not read.
fn redact(principal: &Principal, mut source: SignalSource) -> SignalSource {
    let reads = |right| principal.reads(right, &source.job);
    let (payloads, results, logs) = (reads(Right::ReadPayloads), reads(Right::ReadResults), reads(Right::ReadLogs));
    if let Some(reported) = &mut source.reported {
        reported.payload = reported.payload.take().filter(|_| payloads);
        reported.last_known_outcome = reported.last_known_outcome.take().filter(|_| results);
        reported.diagnostics = reported.diagnostics.take().filter(|_| logs);
    }
    if let Some(backoff) = source.backoff.as_mut().filter(|_| !logs && !results) {
        backoff.cause = backoff.public_cause().to_owned();
    }
    if let Some(error) = source.job.error.as_mut().filter(|_| !logs) {
        error.message.clear();
    }
    source
}

/// Builds the signal with the rights of this caller.
pub(crate) async fn render(
    store: &Store,
    principal: &Principal,
    source: SignalSource,
) -> Result<RenderedSignal, StoreError> {
    let tenant = principal.tenant;
    let source = redact(principal, source);
    let signatures = store.signature_index(tenant).await?;
    let prediction = signatures.predict(&source, store.clock().now());
    let explanation = signatures.explain(&source.job, store.clock().now()).cloned();
    let SignalSource { job, reported, previous, previous_by: _, has_log, backoff, warnings } = source;
    let (mut overlay, now, freshness) = answered(store, tenant, &job, backoff).await?;
    let current = reported.as_ref().filter(|reported| still_holds(reported, &job));
    if let Some(eta_s) = current.and_then(|reported| reported.eta_s).filter(|_| !job.state.is_terminal()) {
        overlay.eta = Some(Eta { p50_s: eta_s, p90_s: eta_s });
        overlay.is_reported = true;
    }
    let facts = SignalFacts {
        now,
        state: job.state,
        queue: job.lane.queue.as_str(),
        affinity: job.lane.affinity.as_ref().map(|affinity| affinity.as_str()),
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        run_at: job.run_at,
        started_at: job.started_at,
        finished_at: job.finished_at,
        phase: job.phase.as_deref(),
        error: job.error.as_ref(),
        actor: job.actor.as_deref(),
        reported_kind: current.and_then(|reported| reported.kind),
        reported_summary: current.and_then(|reported| reported.summary.as_deref()),
        obstacle: overlay.obstacle.clone(),
        position: overlay.position.clone(),
        eta: overlay.eta,
        prediction: prediction.as_ref().map(failure_prediction),
        likely_cause: explanation.as_ref().and_then(|signature| signature.outcome.likely_cause.as_deref()),
    };
    let (kind, summary) = (facts.kind(), facts.summary());
    let mut next_actions: Vec<NextAction> = current
        .and_then(|reported| reported.next_actions.as_deref())
        .and_then(|actions| serde_json::from_str(actions).ok())
        .unwrap_or_default();
    next_actions.extend(explanation.as_ref().and_then(remediation));
    next_actions.extend(derived_actions(&job, previous.first(), has_log, &overlay));
    let last_known_outcome = match reported.as_ref().and_then(|reported| reported.last_known_outcome.clone()) {
        Some(outcome) => Some(view::raw(outcome)?),
        None => previous.first().map(outcome),
    };
    let reported_diagnostics = current.and_then(|reported| reported.diagnostics.as_deref());
    let diagnostics = diagnostics(&job, &overlay, warnings, reported_diagnostics);
    let updated_at = reported.as_ref().map_or(job.updated_at, |reported| reported.updated_at.max(job.updated_at));
    let source = match (&prediction, freshness) {
        (Some(_), _) => Source::FailureIndex,
        (None, CacheStatus::Hit) => Source::Snapshot,
        (None, CacheStatus::Miss) if reported.is_some() => Source::Snapshot,
        (None, CacheStatus::Miss) => Source::ColdStart,
    };
    let view = SignalView {
        job_id: job.id.uuid(),
        kind: kind.as_str().into(),
        phase: job.phase.clone().unwrap_or_else(|| "unknown".into()),
        summary,
        eta_seconds: overlay.eta.map(range),
        eta_basis: overlay.eta.map(|eta| basis(&overlay.estimate, eta, overlay.is_reported, now)),
        last_known_outcome,
        next_actions,
        diagnostics,
        predicted: prediction.map(predicted),
        signature: explanation.as_ref().map(signature_view),
        payload: current.and_then(|reported| reported.payload.clone()).map(view::raw).transpose()?,
        progress: job.progress,
        run: job.run,
        version: job.version,
        created_at: view::time(job.created_at),
        updated_at: view::time(updated_at),
    };
    Ok(RenderedSignal { view, source, freshness })
}

/// Computes the ETA of a job that has not ended. It is scored when the job ends.
pub(crate) async fn sample_answer(store: &Store, tenant: TenantId, job: &StoredJob) -> Result<(), StoreError> {
    answered(store, tenant, job, None).await.map(drop)
}

/// Position, obstacle and ETA of a job, as of the returned time. The ETA is scored when the job ends.
async fn answered(
    store: &Store,
    tenant: TenantId,
    job: &StoredJob,
    backoff: Option<Backoff>,
) -> Result<(Overlay, Time, CacheStatus), StoreError> {
    let mut freshness = CacheStatus::Hit;
    let mut now = store.clock().now();
    let mut overlay = Overlay::default();
    if job.state == JobState::Queued {
        let (snapshot, cache_status) = store.queue_snapshot(tenant, &job.lane.queue).await?;
        freshness = cache_status;
        now = now.max(snapshot.now);
        overlay = waiting_overlay(job, backoff, &snapshot);
        if overlay.obstacle.is_none() {
            overlay.estimate = eta::waiting(store, tenant, &EstimatedJob::stored(job), &snapshot).await?;
        }
    } else if !job.state.is_terminal() {
        overlay.estimate = eta::alone(store, tenant, job, now).await?;
    }
    if let Some(answer) = overlay.estimate.answer {
        store.record_answer(job.id, now, answer);
        overlay.eta = answer.shown();
    }
    Ok((overlay, now, freshness))
}

/// True if the report belongs to the current claim or wait of the job.
///
/// A waiting job has the epoch of its last claim. Workers report no kind, and a report of a worker does not apply to a
/// job that it has released.
fn still_holds(reported: &StoredSignal, job: &StoredJob) -> bool {
    let is_waiting = matches!(job.state, JobState::Waiting | JobState::Scheduled | JobState::Queued);
    // A transition of the job updates its row: what was reported before that no longer describes it.
    let is_of_this_wait = reported.kind.is_some() && reported.updated_at >= job.updated_at;
    reported.epoch == job.epoch && (!is_waiting || is_of_this_wait)
}

fn waiting_overlay(job: &StoredJob, backoff: Option<Backoff>, snapshot: &QueueSnapshot) -> Overlay {
    let (kind, affinity) = (&job.lane.kind, &job.lane.affinity);
    let subject = job.subject.as_deref().unwrap_or_default();
    let subject_backoff = backoff.map(|Backoff { cause, until, .. }| Obstacle::Backoff {
        cause: format!("the subject {subject} is in backoff: {cause}"),
        until,
    });
    let obstacle = match (&snapshot.paused, &job.parked) {
        (Some(reason), _) => Some(Obstacle::Paused { reason: reason.clone() }),
        (None, Some(_)) if subject_backoff.is_some() => subject_backoff,
        (None, Some(scope)) if scope.starts_with("subject ") => {
            Some(Obstacle::SubjectBusy { subject: job.subject.clone().unwrap_or_default() })
        }
        (None, Some(scope)) => Some(Obstacle::Limit { detail: format!("the limit of {scope} is reached") }),
        (None, None) if snapshot.member_backoff.contains_key(affinity) => {
            let Backoff { cause, until, .. } = snapshot.member_backoff[affinity].clone();
            Some(Obstacle::Backoff { cause, until })
        }
        (None, None) if snapshot.serving(kind, affinity).next().is_none() && snapshot.lost.contains_key(affinity) => {
            Some(Obstacle::Lost { detail: snapshot.lost[affinity].clone() })
        }
        (None, None) => snapshot.limit().map(|detail| Obstacle::Limit { detail }),
    };
    let loaded = snapshot.loaded(kind, affinity);
    let line_position = snapshot.order.position(&queued_job(job), &loaded, snapshot.now);
    let position = QueuePosition {
        ahead: line_position.ahead,
        is_estimate: line_position.is_estimate,
        ahead_by_affinity: line_position.ahead_by_affinity,
        loaded: loaded.into_iter().map(str::to_owned).collect(),
        workers: snapshot.serving(kind, affinity).count() as u64,
    };
    Overlay { paused: snapshot.paused.is_some(), obstacle, position: Some(position), ..Overlay::default() }
}

fn failure_prediction(prediction: &Prediction) -> FailurePrediction {
    let Signature { pattern, outcome, .. } = &prediction.signature;
    FailurePrediction {
        error_code: pattern.error_code.clone(),
        phase: pattern.phase.clone(),
        likely_cause: outcome.likely_cause.clone(),
        mttr_p50_s: outcome.mttr_p50_s,
        evidence: prediction.evidence.clone(),
    }
}

/// The link of a signature to instructions.
fn remediation(signature: &Signature) -> Option<NextAction> {
    let href = signature.outcome.remediation_url.clone()?;
    let label = signature.outcome.suggested_action.clone().unwrap_or_else(|| "How to fix it".into());
    Some(NextAction { label, href, method: None })
}

/// The signature that explains a failure.
fn signature_view(signature: &Signature) -> Box<RawValue> {
    let Signature { id, outcome, confidence, .. } = signature;
    let view = json!({
        "signature_id": id,
        "likely_cause": outcome.likely_cause,
        "confidence": confidence,
        "suggested_action": outcome.suggested_action,
        "remediation_url": outcome.remediation_url,
        "mttr_p50_seconds": outcome.mttr_p50_s,
        "mttr_p95_seconds": outcome.mttr_p95_s,
    });
    to_raw_value(&view).expect("plain data has a JSON form")
}

fn predicted(prediction: Prediction) -> Box<RawValue> {
    let summary = failure_prediction(&prediction).sentence();
    let Signature { id, pattern, outcome, confidence, .. } = prediction.signature;
    let evidence = prediction.evidence.map(|e| json!({"failed": e.failed, "of": e.of, "by": e.by}));
    let prediction = json!({
        "signature_id": id,
        "likely_cause": outcome.likely_cause,
        "confidence": confidence,
        "error_code": pattern.error_code,
        "phase": pattern.phase,
        "suggested_action": outcome.suggested_action,
        "remediation_url": outcome.remediation_url,
        "mttr_p50_seconds": outcome.mttr_p50_s,
        "mttr_p95_seconds": outcome.mttr_p95_s,
        "evidence": evidence,
        "summary": summary,
    });
    to_raw_value(&prediction).expect("plain data has a JSON form")
}

pub(crate) fn range(eta: Eta) -> EtaRange {
    EtaRange { p50: rounded(eta.p50_s), p90: rounded(eta.p90_s) }
}

/// What an ETA is based on.
pub(crate) fn basis(estimate: &Estimate, eta: Eta, is_reported: bool, now: Time) -> EtaBasis {
    let calibration = estimate.statistics.as_ref().map(|statistics| &statistics.calibration);
    let shares = calibration.and_then(|calibration| calibration.shares());
    let samples = estimate.statistics.as_ref().map_or(0, |statistics| statistics.samples.round() as u64);
    let swaps_ahead = estimate.answer.map_or(0, |answer| answer.forecast.swaps);
    let borrowed = estimate.statistics.as_ref().and_then(|statistics| statistics.borrowed_samples());
    let text = match (is_reported, borrowed) {
        (true, _) => "reported by the worker".to_owned(),
        (false, Some(samples)) => borrowed_eta_basis(samples.round() as u64, swaps_ahead),
        (false, None) => eta_basis(samples, swaps_ahead),
    };
    EtaBasis {
        text,
        samples,
        swaps_ahead: u64::from(swaps_ahead),
        answers: calibration.map_or(0, |calibration| calibration.answers.round() as u64),
        p50_held: shares.map(|shares| rounded(shares[P50])),
        p90_held: shares.map(|shares| rounded(shares[P90])),
        finishes_by: finishes_by(now, eta.p90_s),
    }
}

/// The time of the p90, in whole seconds.
fn finishes_by(now: Time, p90_s: f64) -> Timestamp {
    let at = now.plus_ms((p90_s.min(1e9) * 1_000.0).ceil() as i64);
    view::time(Time::from_seconds(at.millis().div_euclid(1_000) + i64::from(at.millis().rem_euclid(1_000) > 0)))
}

/// Rounds to hundredths; an estimate is not more precise.
fn rounded(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// Links to routes of this server that work for this job in its current state.
fn derived_actions(
    job: &StoredJob,
    previous: Option<&PreviousJob>,
    has_log: bool,
    overlay: &Overlay,
) -> Vec<NextAction> {
    let id = job.id;
    let get = |label: &str, href: String| NextAction { label: label.into(), href, method: None };
    let post = |label: &str, href: String| NextAction { method: Some("POST".into()), ..get(label, href) };
    let mut actions = Vec::new();
    match job.state {
        JobState::Waiting | JobState::Scheduled | JobState::Queued => {
            actions.push(get("Why the job is not running", format!("/api/v1/jobs/{id}/why")));
            if overlay.paused {
                let queue = segment(job.lane.queue.as_str());
                actions.push(post("Resume the queue", format!("/api/v1/queues/{queue}/resume")));
            }
            actions.push(post("Cancel the job", format!("/api/v1/jobs/{id}/cancel")));
        }
        JobState::Loading | JobState::Working => {
            actions.push(get("Stream the signal", format!("/api/v1/jobs/{id}/stream")));
            actions.push(post("Cancel the job", format!("/api/v1/jobs/{id}/cancel")));
        }
        JobState::Succeeded => actions.push(get("Result", format!("/api/v1/jobs/{id}"))),
        JobState::Failed | JobState::Canceled => match job.retried_as {
            Some(again) => actions.push(get("Retry of this job", format!("/api/v1/jobs/{again}/signal"))),
            None => actions.push(post("Retry the job", format!("/api/v1/jobs/{id}/retry"))),
        },
    }
    if has_log {
        actions.push(get("Log", format!("/api/v1/jobs/{id}/artifacts/log")));
    }
    if let Some(previous) = previous {
        actions.push(get("Previous run", format!("/api/v1/jobs/{}", previous.id)));
    }
    actions
}

fn outcome(previous: &PreviousJob) -> Box<RawValue> {
    let mut outcome = json!({
        "job_id": previous.id.uuid(),
        "state": previous.state.as_str(),
        "finished_at": view::time(previous.finished_at),
        "attempt": previous.attempt,
    });
    if previous.state == JobState::Failed {
        outcome["error_code"] = json!(previous.error_code);
        outcome["phase"] = json!(previous.phase);
    }
    to_raw_value(&outcome).expect("plain data has a JSON form")
}

/// Diagnostics derived by the server, merged with those reported by the worker.
fn diagnostics(job: &StoredJob, overlay: &Overlay, warnings: Vec<String>, reported: Option<&str>) -> Box<RawValue> {
    let mut all = Map::new();
    all.insert("attempt".into(), json!(job.attempt));
    all.insert("max_attempts".into(), json!(job.max_attempts));
    all.insert("retries".into(), json!((job.attempt - 1).max(0)));
    all.insert("worker".into(), json!(job.worker.map(|worker| worker.uuid())));
    if !warnings.is_empty() {
        all.insert("warnings".into(), json!(warnings));
    }
    if let Some(position) = &overlay.position {
        all.insert("queue_position".into(), json!(position.ahead + 1));
        all.insert("queue_position_is_estimate".into(), json!(position.is_estimate));
        all.insert("workers".into(), json!(position.workers));
        all.insert("loaded".into(), json!(position.loaded));
    }
    if let Some(statistics) = &overlay.estimate.statistics {
        let shares = statistics.calibration.held();
        all.insert(
            "eta".into(),
            json!({
                "samples": statistics.samples.round(),
                "answers_checked": statistics.calibration.answers.round(),
                "p50_held": shares.map(|(p50, _)| rounded(p50)),
                "p90_held": shares.map(|(_, p90)| rounded(p90)),
            }),
        );
    }
    match reported.map(serde_json::from_str::<Value>) {
        Some(Ok(Value::Object(reported))) => all.extend(reported),
        Some(Ok(other)) => drop(all.insert("said".into(), other)),
        Some(Err(_)) | None => {}
    }
    to_raw_value(&all).expect("plain data has a JSON form")
}
