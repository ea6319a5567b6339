//! Workers: registration, and how long a call of theirs may wait.

use std::time::Duration;

use domain::limits::{
    CLAIM_JOBS, LEASE_S_DEFAULT, LEASE_S_MAX, LEASE_S_MIN, LONG_POLL_S, WORKER_AFFINITIES, WORKER_KINDS, WORKER_QUEUES,
};
use domain::{Affinity, Label, Name};
use store::workers::register::NewWorker;
use wire::WorkerRequest;

use super::Place;
use crate::error::ApiError;

pub(crate) fn new_worker(request: WorkerRequest) -> Result<NewWorker, ApiError> {
    let place = Place::Body;
    if request.queues.is_empty() {
        return Err(place.refuse("queues", "must name at least one queue"));
    }
    let lease_s = place.between("lease_s", request.lease_s.unwrap_or(LEASE_S_DEFAULT), LEASE_S_MIN, LEASE_S_MAX)?;
    Ok(NewWorker {
        name: place.label("name", &request.name)?.to_string(),
        queues: queues(&request.queues)?,
        kinds: request.kinds.map(|kinds| names("kinds", &kinds, WORKER_KINDS)).transpose()?,
        affinities: request.affinities.map(|affinities| labels("affinities", &affinities)).transpose()?,
        lease_ms: lease_s * 1_000,
    })
}

fn queues(texts: &[String]) -> Result<Vec<Name>, ApiError> {
    Place::Body.at_most("queues", texts.len(), WORKER_QUEUES, "names")?;
    let queue = |(number, text): (usize, &String)| Place::Body.queue(&format!("queues[{number}]"), text);
    texts.iter().enumerate().map(queue).collect()
}

fn names(member: &str, texts: &[String], most: usize) -> Result<Vec<Name>, ApiError> {
    Place::Body.at_most(member, texts.len(), most, "names")?;
    let name = |(number, text): (usize, &String)| Place::Body.name(&format!("{member}[{number}]"), text);
    texts.iter().enumerate().map(name).collect()
}

fn labels(member: &str, texts: &[String]) -> Result<Vec<Label>, ApiError> {
    Place::Body.at_most(member, texts.len(), WORKER_AFFINITIES, "affinities")?;
    let label = |(number, text): (usize, &String)| Place::Body.label(&format!("{member}[{number}]"), text);
    texts.iter().enumerate().map(label).collect()
}

pub(crate) fn affinity(affinity: Option<&str>) -> Result<Affinity, ApiError> {
    Place::Body.opt_label("affinity", affinity)
}

pub(crate) fn max(max: i64) -> Result<usize, ApiError> {
    Place::Body.between("max", max, 1, CLAIM_JOBS as i64).map(|max| max as usize)
}

/// A longer wait than the longest is the longest: the caller asks again anyway.
pub(crate) fn wait(wait_s: Option<f64>) -> Result<Duration, ApiError> {
    let seconds = wait_s.unwrap_or(0.0);
    if seconds < 0.0 {
        return Err(Place::Body.refuse("wait_s", "must be 0 or more seconds"));
    }
    Ok(Duration::from_secs_f64(seconds.min(LONG_POLL_S as f64)))
}
