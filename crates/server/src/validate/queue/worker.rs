//! Validation of workers: registration, claims and wait times.

use std::time::Duration;

use domain::limits::{
    CLAIM_JOBS, LEASE_DEFAULT_S, LEASE_MAX_S, LEASE_MIN_S, LONG_POLL_S, WORKER_AFFINITIES, WORKER_KINDS, WORKER_QUEUES,
};
use domain::{Affinity, Label, Name};
use store::queue::workers::register::NewWorker;
use wire::WorkerRequest;

use crate::error::ApiError;
use crate::validate::FieldPath;

pub(crate) fn new_worker(request: WorkerRequest) -> Result<NewWorker, ApiError> {
    let path = FieldPath::Body;
    if request.queues.is_empty() {
        return Err(path.refuse("queues", "must name at least one queue"));
    }
    let lease_s = path.between("lease_s", request.lease_s.unwrap_or(LEASE_DEFAULT_S), LEASE_MIN_S, LEASE_MAX_S)?;
    Ok(NewWorker {
        name: path.label("name", &request.name)?.to_string(),
        queues: queues(&request.queues)?,
        kinds: request.kinds.map(|kinds| names("kinds", &kinds, WORKER_KINDS)).transpose()?,
        affinities: request.affinities.map(|affinities| labels("affinities", &affinities)).transpose()?,
        lease_ms: lease_s * 1_000,
    })
}

fn queues(texts: &[String]) -> Result<Vec<Name>, ApiError> {
    FieldPath::Body.at_most("queues", texts.len(), WORKER_QUEUES, "names")?;
    let queue = |(number, text): (usize, &String)| FieldPath::Body.queue(&format!("queues[{number}]"), text);
    texts.iter().enumerate().map(queue).collect()
}

fn names(member: &str, texts: &[String], most: usize) -> Result<Vec<Name>, ApiError> {
    FieldPath::Body.at_most(member, texts.len(), most, "names")?;
    let name = |(number, text): (usize, &String)| FieldPath::Body.name(&format!("{member}[{number}]"), text);
    texts.iter().enumerate().map(name).collect()
}

fn labels(member: &str, texts: &[String]) -> Result<Vec<Label>, ApiError> {
    FieldPath::Body.at_most(member, texts.len(), WORKER_AFFINITIES, "affinities")?;
    let label = |(number, text): (usize, &String)| FieldPath::Body.label(&format!("{member}[{number}]"), text);
    texts.iter().enumerate().map(label).collect()
}

pub(crate) fn affinity(affinity: Option<&str>) -> Result<Affinity, ApiError> {
    FieldPath::Body.optional_label("affinity", affinity)
}

pub(crate) fn max(max: i64) -> Result<usize, ApiError> {
    FieldPath::Body.between("max", max, 1, CLAIM_JOBS as i64).map(|max| max as usize)
}

/// Clamps the wait to the longest one allowed; the worker polls again anyway.
pub(crate) fn wait(wait_s: Option<f64>) -> Result<Duration, ApiError> {
    let seconds = wait_s.unwrap_or(0.0);
    if seconds < 0.0 {
        return Err(FieldPath::Body.refuse("wait_s", "must be 0 or more seconds"));
    }
    Ok(Duration::from_secs_f64(seconds.min(LONG_POLL_S as f64)))
}
