//! Puts a signal together: what the job's row tells, what was said of it, and what surrounds it (S1, S3).

mod eta;

use std::sync::Arc;

use domain::signal::{Eta, Facts, Foretold, Obstacle, Standing};
use domain::{Backoff, JobState, Right, SignalKind};
use pages::segment;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use store::jobs::get::StoredJob;
use store::jobs::why::waiting;
use store::signals::figures::Figure;
use store::signals::read::{PreviousJob, SignalSource};
use store::signals::refine::StoredSignal;
use store::signals::surroundings::Surroundings;
use store::signatures::Signature;
use store::signatures::index::Prediction;
use store::{Freshness, Store, StoreError};
use wire::{EtaRange, NextAction, RawValue, SignalView};

use crate::auth::Principal;
use crate::view;

/// A signal, and where it was told from.
pub(crate) struct Told {
    pub(crate) view: SignalView,
    pub(crate) source: Source,
    pub(crate) freshness: Freshness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Stored, or kept in memory.
    Snapshot,
    /// Worked out because nothing was kept.
    ColdStart,
    /// The job has not begun; told from a signature that it matches.
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

/// What is laid over a job that waits.
#[derive(Default)]
struct Overlay {
    obstacle: Option<Obstacle>,
    standing: Option<Standing>,
    eta: Option<Eta>,
    paused: bool,
    /// What is known of its kind of work.
    figure: Option<Arc<Figure>>,
}

/// Without what is in the job where the caller may know only that it exists.
fn shown_to(principal: &Principal, mut source: SignalSource) -> SignalSource {
    let reads = |right| principal.reads(right, &source.job);
    let (payloads, results, logs) = (reads(Right::ReadPayloads), reads(Right::ReadResults), reads(Right::ReadLogs));
    if let Some(said) = &mut source.said {
        said.payload = said.payload.take().filter(|_| payloads);
        said.last_known_outcome = said.last_known_outcome.take().filter(|_| results);
        said.diagnostics = said.diagnostics.take().filter(|_| logs);
    }
    if let Some(error) = source.job.error.as_mut().filter(|_| !logs) {
        error.message.clear();
    }
    source
}

/// The signal as this caller may see it.
pub(crate) async fn tell(store: &Store, principal: &Principal, source: SignalSource) -> Result<Told, StoreError> {
    let tenant = principal.tenant;
    let source = shown_to(principal, source);
    let foretold = store.signature_index(tenant).await?.foretell(&source, store.clock().now());
    let SignalSource { job, said, previous, previous_by: _, has_log, backoff } = source;
    let mut freshness = Freshness::Kept;
    let mut now = store.clock().now();
    let mut overlay = Overlay::default();
    if job.state == JobState::Queued {
        let (around, read) = store.surroundings(tenant, &job.lane.queue).await?;
        freshness = read;
        now = now.max(around.now);
        overlay = waiting_overlay(&job, backoff, &around);
        if overlay.obstacle.is_none() {
            (overlay.eta, overlay.figure) = eta::waiting(store, tenant, &job, &around).await?;
        }
    } else if !job.state.is_terminal() {
        (overlay.eta, overlay.figure) = eta::alone(store, tenant, &job, now).await?;
    }
    if let Some(eta) = overlay.eta {
        store.note_answer(job.id, now, eta);
    }
    // An end that was said is never taken back.
    let current = said.as_ref().filter(|said| still_holds(said, &job));
    let said_kind = current.or(said.as_ref().filter(|said| said.kind.is_some_and(SignalKind::is_terminal)));
    if let Some(eta_s) = current.and_then(|said| said.eta_s).filter(|_| !job.state.is_terminal()) {
        overlay.eta = Some(Eta { p50_s: eta_s, p90_s: eta_s });
    }
    let facts = Facts {
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
        said_kind: said_kind.and_then(|said| said.kind),
        said_summary: current.and_then(|said| said.summary.as_deref()),
        obstacle: overlay.obstacle.clone(),
        standing: overlay.standing.clone(),
        eta: overlay.eta,
        foretold: foretold.as_ref().map(sentence_of),
    };
    let (kind, summary) = (facts.kind(), facts.summary());
    let mut next_actions: Vec<NextAction> = current
        .and_then(|said| said.next_actions.as_deref())
        .and_then(|actions| serde_json::from_str(actions).ok())
        .unwrap_or_default();
    next_actions.extend(derived_actions(&job, previous.first(), has_log, &overlay));
    let last_known_outcome = match said.as_ref().and_then(|said| said.last_known_outcome.clone()) {
        Some(outcome) => Some(view::raw(outcome)?),
        None => previous.first().map(outcome),
    };
    let diagnostics = diagnostics(&job, &overlay, current.and_then(|said| said.diagnostics.as_deref()));
    let updated_at = said.as_ref().map_or(job.updated_at, |said| said.updated_at.max(job.updated_at));
    let source = match (&foretold, freshness) {
        (Some(_), _) => Source::FailureIndex,
        (None, Freshness::Kept) => Source::Snapshot,
        (None, Freshness::ReadNow) if said.is_some() => Source::Snapshot,
        (None, Freshness::ReadNow) => Source::ColdStart,
    };
    let view = SignalView {
        job_id: job.id.uuid(),
        kind: kind.as_str().into(),
        phase: job.phase.clone().unwrap_or_else(|| "unknown".into()),
        summary,
        eta_seconds: overlay.eta.map(|eta| EtaRange { p50: rounded(eta.p50_s), p90: rounded(eta.p90_s) }),
        last_known_outcome,
        next_actions,
        diagnostics,
        predicted: foretold.map(predicted),
        payload: current.and_then(|said| said.payload.clone()).map(view::raw).transpose()?,
        progress: job.progress,
        run: job.run,
        version: job.version,
        created_at: view::time(job.created_at),
        updated_at: view::time(updated_at),
    };
    Ok(Told { view, source, freshness })
}

/// Whether what was said is about the claim or the wait that the job is in.
///
/// A wait has the epoch of the claim before it. A worker names no kind, and has nothing to say of a job that it let go.
fn still_holds(said: &StoredSignal, job: &StoredJob) -> bool {
    let waits = matches!(job.state, JobState::Scheduled | JobState::Queued);
    said.epoch == job.epoch && (said.kind.is_some() || !waits)
}

fn waiting_overlay(job: &StoredJob, backoff: Option<Backoff>, around: &Surroundings) -> Overlay {
    let (kind, affinity) = (&job.lane.kind, &job.lane.affinity);
    let subject = job.subject.as_deref().unwrap_or_default();
    let held_off = backoff.map(|Backoff { cause, until, .. }| Obstacle::Backoff {
        cause: format!("the subject {subject} is held off: {cause}"),
        until,
    });
    let obstacle = match (&around.paused, &job.parked) {
        (Some(reason), _) => Some(Obstacle::Paused { reason: reason.clone() }),
        (None, Some(_)) if held_off.is_some() => held_off,
        (None, Some(scope)) if scope.starts_with("subject ") => {
            Some(Obstacle::SubjectBusy { subject: job.subject.clone().unwrap_or_default() })
        }
        (None, Some(scope)) => Some(Obstacle::Limit { detail: format!("all places are taken for {scope}") }),
        (None, None) if around.left_alone.contains_key(affinity) => {
            let Backoff { cause, until, .. } = around.left_alone[affinity].clone();
            Some(Obstacle::Backoff { cause, until })
        }
        (None, None) if around.serving(kind, affinity).next().is_none() && around.lost.contains_key(affinity) => {
            Some(Obstacle::Lost { detail: around.lost[affinity].clone() })
        }
        (None, None) => around.limit().map(|detail| Obstacle::Limit { detail }),
    };
    let loaded = around.loaded(kind, affinity);
    let place = around.line.place(&waiting(job), &loaded, around.now);
    let standing = Standing {
        ahead: place.ahead,
        is_estimate: place.is_estimate,
        ahead_by_affinity: place.ahead_by_affinity,
        loaded: loaded.into_iter().map(str::to_owned).collect(),
        workers: around.serving(kind, affinity).count() as u64,
    };
    Overlay { paused: around.paused.is_some(), obstacle, standing: Some(standing), eta: None, figure: None }
}

fn sentence_of(prediction: &Prediction) -> Foretold {
    let Signature { pattern, outcome, .. } = &prediction.signature;
    Foretold {
        error_code: pattern.error_code.clone(),
        phase: pattern.phase.clone(),
        likely_cause: outcome.likely_cause.clone(),
        mttr_p50_s: outcome.mttr_p50_s,
        evidence: prediction.evidence.clone(),
    }
}

fn predicted(prediction: Prediction) -> Box<RawValue> {
    let summary = sentence_of(&prediction).sentence();
    let Signature { id, pattern, outcome, confidence, .. } = prediction.signature;
    let evidence = prediction.evidence.map(|e| json!({"failed": e.failed, "of": e.of, "by": e.by}));
    let told = json!({
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
    to_raw_value(&told).expect("plain data has a JSON form")
}

/// Two digits after the point: an estimate has no more to say.
fn rounded(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// Links that lead somewhere now: each is a route of this server that answers for this job.
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
        JobState::Scheduled | JobState::Queued => {
            actions.push(get("Why it is not running", format!("/api/v1/jobs/{id}/why")));
            if overlay.paused {
                let queue = segment(job.lane.queue.as_str());
                actions.push(post("Resume the queue", format!("/api/v1/queues/{queue}/resume")));
            }
            actions.push(post("Cancel it", format!("/api/v1/jobs/{id}/cancel")));
        }
        JobState::Loading | JobState::Working => {
            actions.push(get("Follow it", format!("/api/v1/jobs/{id}/stream")));
            actions.push(post("Cancel it", format!("/api/v1/jobs/{id}/cancel")));
        }
        JobState::Succeeded => actions.push(get("The result", format!("/api/v1/jobs/{id}"))),
        JobState::Failed | JobState::Canceled => match job.retried_as {
            Some(again) => actions.push(get("The retry", format!("/api/v1/jobs/{again}/signal"))),
            None => actions.push(post("Retry it", format!("/api/v1/jobs/{id}/retry"))),
        },
    }
    if has_log {
        actions.push(get("The log", format!("/api/v1/jobs/{id}/artifacts/log")));
    }
    if let Some(previous) = previous {
        actions.push(get("The previous run", format!("/api/v1/jobs/{}", previous.id)));
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

/// What the server knows, and beside it what the worker said.
fn diagnostics(job: &StoredJob, overlay: &Overlay, said: Option<&str>) -> Box<RawValue> {
    let mut all = Map::new();
    all.insert("attempt".into(), json!(job.attempt));
    all.insert("max_attempts".into(), json!(job.max_attempts));
    all.insert("retries".into(), json!((job.attempt - 1).max(0)));
    all.insert("worker".into(), json!(job.worker.map(|worker| worker.uuid())));
    if let Some(standing) = &overlay.standing {
        all.insert("queue_position".into(), json!(standing.ahead + 1));
        all.insert("queue_position_is_estimate".into(), json!(standing.is_estimate));
        all.insert("workers".into(), json!(standing.workers));
        all.insert("loaded".into(), json!(standing.loaded));
    }
    if let Some(figure) = &overlay.figure {
        let shares = figure.calibration.shares();
        let hundredths = |share: f64| (share * 100.0).round() / 100.0;
        all.insert(
            "eta".into(),
            json!({
                "samples": figure.samples.round(),
                "answers_checked": figure.calibration.answers.round(),
                "p50_held": shares.map(|(p50, _)| hundredths(p50)),
                "p90_held": shares.map(|(_, p90)| hundredths(p90)),
            }),
        );
    }
    match said.map(serde_json::from_str::<Value>) {
        Some(Ok(Value::Object(said))) => all.extend(said),
        Some(Ok(other)) => drop(all.insert("said".into(), other)),
        Some(Err(_)) | None => {}
    }
    to_raw_value(&all).expect("plain data has a JSON form")
}
