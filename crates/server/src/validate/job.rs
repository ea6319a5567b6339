//! Jobs, one or many, by the same rules.

use std::fmt::Write;
use std::sync::Arc;

use domain::limits::{
    BATCH_JOBS, CALL_LATE_ANSWER_S, CALL_TIMEOUT_S_DEFAULT, CALL_TIMEOUT_S_MAX, DEFAULT_MAX_ATTEMPTS, MAX_ATTEMPTS,
    PRIORITY_MAX, PRIORITY_MIN, TAGS, TIMEOUT_S_MAX, WAIT_S_MAX,
};
use domain::process::NEEDS_A_SUBJECT;
use domain::{Label, Name, Origin, Time};
use sha2::{Digest, Sha256};
use store::jobs::enqueue::{Extras, NewJob, Unique};
use store::one_form::one_form;
use wire::{BatchRequest, JobRequest, RawValue, Timestamp};

use super::{Place, webhook};
use crate::error::ApiError;

/// What is the same for every job of a request.
pub(crate) struct Maker {
    pub(crate) principal: Arc<str>,
    pub(crate) payload_bytes: usize,
    pub(crate) now: Time,
    /// How many triggers led here.
    pub(crate) depth: i32,
}

impl Maker {
    pub(crate) fn one(&self, request: JobRequest) -> Result<NewJob, ApiError> {
        self.job(Place::Body, request)
    }

    /// A job that a trigger will make: what depends on the moment has no place in it.
    pub(crate) fn template(&self, of: &'static str, request: JobRequest) -> Result<NewJob, ApiError> {
        let place = Place::Member { of };
        if request.run_at.is_some() {
            return Err(place.refuse("run_at", "has no place in a trigger"));
        }
        if request.unique_by.is_some() {
            return Err(place.refuse("unique_by", "has no place in a trigger; use unique_key with an expression"));
        }
        self.job(place, request)
    }

    pub(crate) fn batch(&self, request: BatchRequest) -> Result<Vec<NewJob>, ApiError> {
        if request.jobs.is_empty() {
            return Err(Place::Body.refuse("jobs", "must have at least one job"));
        }
        Place::Body.at_most("jobs", request.jobs.len(), BATCH_JOBS, "jobs")?;
        let jobs = request.jobs.into_iter().enumerate();
        jobs.map(|(number, job)| self.job(Place::Item { of: "jobs", number }, job)).collect()
    }

    /// The job of a call, and how many seconds its caller waits. It runs at once, or not at all, and only once.
    pub(crate) fn call(&self, request: JobRequest) -> Result<(NewJob, i64), ApiError> {
        let place = Place::Body;
        let never = [
            ("run_at", request.run_at.is_some()),
            ("max_attempts", request.max_attempts.is_some_and(|attempts| attempts != 1)),
            ("retry", request.retry.is_some()),
            ("unique_key", request.unique_key.is_some()),
            ("unique_by", request.unique_by.is_some()),
            ("unique_for_s", request.unique_for_s.is_some()),
        ];
        if let Some((member, _)) = never.iter().find(|(_, given)| *given) {
            return Err(place.refuse(member, "cannot be given with a call, which runs at once and only once"));
        }
        let wait_s = request.timeout_s.unwrap_or(CALL_TIMEOUT_S_DEFAULT);
        let wait_s = place.between("timeout_s", wait_s, 1, CALL_TIMEOUT_S_MAX)?;
        // What answers a caller that has just gone is not stopped: its answer is kept.
        let timeout_s = Some(wait_s + CALL_LATE_ANSWER_S);
        let request = JobRequest { max_attempts: Some(1), timeout_s, ..request };
        let mut job = self.job(place, request)?;
        job.extras.get_or_insert_default().triggered_by = Origin::Call.stored();
        Ok((job, wait_s))
    }

    /// JSON that a job carries, as it came.
    pub(crate) fn payload(&self, place: Place, payload: Option<Box<RawValue>>) -> Result<Box<str>, ApiError> {
        let Some(payload) = payload else { return Ok("null".into()) };
        let payload: Box<str> = payload.into();
        match payload.len() {
            got if got > self.payload_bytes => {
                let most = self.payload_bytes;
                Err(place.refuse("payload", format_args!("may have at most {most} bytes of JSON; it has {got}")))
            }
            _ => Ok(payload),
        }
    }

    fn job(&self, place: Place, request: JobRequest) -> Result<NewJob, ApiError> {
        let extras = self.extras(place, &request)?;
        let max_attempts = match request.max_attempts {
            Some(attempts) => place.between("max_attempts", attempts, 1, MAX_ATTEMPTS)? as i32,
            None => DEFAULT_MAX_ATTEMPTS,
        };
        Ok(NewJob {
            queue: place.queue("queue", &request.queue)?,
            kind: place.name("kind", &request.kind)?,
            affinity: place.opt_label("affinity", request.affinity.as_deref())?,
            priority: place.between("priority", request.priority.unwrap_or(0), PRIORITY_MIN, PRIORITY_MAX)? as i32,
            run_at: request.run_at.map(|at| self.run_at(place, at)).transpose()?,
            max_attempts,
            principal: self.principal.clone(),
            extras,
            payload: self.payload(place, request.payload)?,
        })
    }

    fn extras(&self, place: Place, request: &JobRequest) -> Result<Option<Box<Extras>>, ApiError> {
        let JobRequest { subject, process, run, concurrency_key, retry, timeout_s, tags, webhook: hook, .. } = request;
        let unique = self.unique(place, request)?;
        let texts = [subject, process, run, concurrency_key];
        let plain = texts.iter().all(|text| text.is_none())
            && unique.is_none()
            && retry.is_none()
            && timeout_s.is_none()
            && tags.as_ref().is_none_or(Vec::is_empty)
            && hook.is_none()
            && self.depth == 0;
        if plain {
            return Ok(None);
        }
        if process.is_some() && subject.is_none() {
            return Err(place.refuse("process", NEEDS_A_SUBJECT));
        }
        Ok(Some(Box::new(Extras {
            subject: place.opt_subject("subject", subject.as_deref())?,
            process: place.opt_name("process", process.as_deref())?,
            run: place.opt_label("run", run.as_deref())?,
            unique,
            concurrency_key: place.opt_label("concurrency_key", concurrency_key.as_deref())?,
            retry: retry.map(|retry| place.retry("retry", retry)).transpose()?,
            timeout_s: timeout_s.map(|seconds| place.between("timeout_s", seconds, 1, TIMEOUT_S_MAX)).transpose()?,
            tags: labels(place, tags.as_deref().unwrap_or_default())?,
            webhook: hook.as_ref().map(|hook| webhook::stored(place, hook)).transpose()?,
            depth: self.depth,
            ..Extras::default()
        })))
    }

    fn unique(&self, place: Place, request: &JobRequest) -> Result<Option<Unique>, ApiError> {
        let key = match (&request.unique_key, &request.unique_by) {
            (Some(_), Some(_)) => {
                return Err(place.refuse("unique_by", "cannot go with unique_key; keep one of the two"));
            }
            (Some(key), None) => Some(place.label("unique_key", key)?.to_string()),
            (None, Some(members)) => Some(key_of(place, members, request)?),
            (None, None) => None,
        };
        let for_s = request.unique_for_s.map(|seconds| place.between("unique_for_s", seconds, 1, WAIT_S_MAX));
        match (key, for_s.transpose()?) {
            (None, Some(_)) => Err(place.refuse("unique_for_s", "needs unique_key or unique_by")),
            (key, for_s) => Ok(key.map(|key| Unique { key, for_s })),
        }
    }

    /// Between 1970 and ten years from now: a job further off is a mistake in the units.
    fn run_at(&self, place: Place, at: Timestamp) -> Result<Time, ApiError> {
        let at = Time::from_micros(at.as_microsecond());
        if at < Time::from_micros(0) || at > self.now.plus_s(WAIT_S_MAX) {
            return Err(place.refuse("run_at", "must be from 1970 to ten years from now"));
        }
        Ok(at)
    }
}

fn labels(place: Place, tags: &[String]) -> Result<Vec<Label>, ApiError> {
    place.at_most("tags", tags.len(), TAGS, "tags")?;
    let label = |(number, tag): (usize, &String)| place.label(&format!("tags[{number}]"), tag);
    tags.iter().enumerate().map(label).collect()
}

/// A key over the chosen members. Payloads are the same when they differ in white space and the order of members only.
fn key_of(place: Place, members: &[String], request: &JobRequest) -> Result<String, ApiError> {
    let known = |member: &String| member == "kind" || member == "payload";
    if members.is_empty() || !members.iter().all(known) {
        return Err(place.refuse("unique_by", "must name kind, payload or both"));
    }
    let mut digest = Sha256::new();
    let mut add = |member: &str, value: &[u8]| {
        digest.update(member);
        digest.update((value.len() as u64).to_be_bytes());
        digest.update(value);
    };
    if members.iter().any(|member| member == "kind") {
        add("kind", request.kind.as_bytes());
    }
    if members.iter().any(|member| member == "payload") {
        add("payload", &one_form(request.payload.as_ref().map_or("null", |payload| payload.get())));
    }
    let mut key = String::from("sha256:");
    digest.finalize().iter().for_each(|byte| write!(key, "{byte:02x}").expect("a string takes everything"));
    Ok(key)
}

/// A unique key in a queue, to cancel by.
pub(crate) fn queue_and_key(request: &wire::CancelByKey) -> Result<(Name, String), ApiError> {
    let queue = Place::Body.name("queue", &request.queue)?;
    Ok((queue, Place::Body.label("unique_key", &request.unique_key)?.to_string()))
}
