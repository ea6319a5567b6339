//! Validation of jobs: single jobs, batches, calls and the job templates of triggers.

use std::fmt::Write;
use std::sync::Arc;

use domain::fleet::process::NEEDS_A_SUBJECT;
use domain::limits::{
    BATCH_JOBS, BATCH_PAYLOADS, CALL_LATE_RESULT_S, CALL_TIMEOUT_DEFAULT_S, CALL_TIMEOUT_MAX_S, DEFAULT_MAX_ATTEMPTS,
    GATHER_MAX_S, MAX_ATTEMPTS, PRIORITY_MAX, PRIORITY_MIN, TAGS, TIMEOUT_MAX_S, WAIT_MAX_S,
};
use domain::{Label, Name, Origin, Time, TraceContext};
use sha2::{Digest, Sha256};
use store::db::canonical_json::canonical_json;
use store::queue::enqueue::{Extras, Gather, NewJob, Unique};
use wire::{BatchRequest, BatchSettings, DebounceSettings, JobRequest, RawValue, Timestamp};

use crate::error::ApiError;
use crate::validate::FieldPath;
use crate::validate::triggers::webhook;

/// Builds jobs with the properties that all jobs of a request share.
pub(crate) struct JobBuilder {
    pub(crate) principal: Arc<str>,
    pub(crate) payload_bytes: usize,
    pub(crate) now: Time,
    /// Number of triggers that led to the request.
    pub(crate) depth: i32,
    /// The trace of the request.
    pub(crate) traceparent: Option<TraceContext>,
}

impl JobBuilder {
    pub(crate) fn single(&self, request: JobRequest) -> Result<NewJob, ApiError> {
        self.job(FieldPath::Body, request)
    }

    /// The template of the jobs that a trigger creates. Members that depend on the time of a request are refused.
    pub(crate) fn template(&self, of: &'static str, request: JobRequest) -> Result<NewJob, ApiError> {
        let path = FieldPath::Member { of };
        if request.run_at.is_some() {
            return Err(path.refuse("run_at", "is not allowed in a trigger; remove it"));
        }
        if request.traceparent.is_some() {
            return Err(path.refuse("traceparent", "is not allowed in a trigger; remove it"));
        }
        if request.unique_by.is_some() {
            return Err(path.refuse("unique_by", "is not allowed in a trigger; use unique_key with an expression"));
        }
        self.job(path, request)
    }

    pub(crate) fn batch(&self, request: BatchRequest) -> Result<Vec<NewJob>, ApiError> {
        if request.jobs.is_empty() {
            return Err(FieldPath::Body.refuse("jobs", "must have at least one job"));
        }
        FieldPath::Body.at_most("jobs", request.jobs.len(), BATCH_JOBS, "jobs")?;
        let jobs = request.jobs.into_iter().enumerate();
        jobs.map(|(number, job)| self.job(FieldPath::Item { of: "jobs", number }, job)).collect()
    }

    /// A job that a step starts.
    pub(crate) fn child(&self, path: FieldPath, request: JobRequest) -> Result<NewJob, ApiError> {
        let keys = [
            ("unique_key", request.unique_key.is_some()),
            ("unique_by", request.unique_by.is_some()),
            ("unique_for_s", request.unique_for_s.is_some()),
        ];
        if let Some((member, _)) = keys.iter().find(|(_, given)| *given) {
            return Err(
                path.refuse(member, "is not allowed for a child, which the key of its step identifies; remove it")
            );
        }
        self.job(path, request)
    }

    /// The job of a synchronous call and the number of seconds that its caller waits. It runs at once and only once.
    pub(crate) fn call(&self, request: JobRequest) -> Result<(NewJob, i64), ApiError> {
        let path = FieldPath::Body;
        let not_allowed = [
            ("run_at", request.run_at.is_some()),
            ("max_attempts", request.max_attempts.is_some_and(|attempts| attempts != 1)),
            ("retry", request.retry.is_some()),
            ("unique_key", request.unique_key.is_some()),
            ("unique_by", request.unique_by.is_some()),
            ("unique_for_s", request.unique_for_s.is_some()),
        ];
        if let Some((member, _)) = not_allowed.iter().find(|(_, given)| *given) {
            return Err(path.refuse(member, "is not allowed in a call, which runs at once and only once; remove it"));
        }
        let wait_s = request.timeout_s.unwrap_or(CALL_TIMEOUT_DEFAULT_S);
        let wait_s = path.between("timeout_s", wait_s, 1, CALL_TIMEOUT_MAX_S)?;
        // The handler gets extra time after its caller has timed out: its result is then stored as abandoned.
        let timeout_s = Some(wait_s + CALL_LATE_RESULT_S);
        let request = JobRequest { max_attempts: Some(1), timeout_s, ..request };
        let mut job = self.job(path, request)?;
        job.extras.get_or_insert_default().triggered_by = Origin::Call.stored();
        Ok((job, wait_s))
    }

    /// Validates a payload and returns it unchanged.
    pub(crate) fn payload(&self, path: FieldPath, payload: Option<Box<RawValue>>) -> Result<Box<str>, ApiError> {
        let Some(payload) = payload else { return Ok("null".into()) };
        let payload: Box<str> = payload.into();
        match payload.len() {
            length if length > self.payload_bytes => {
                let limit = self.payload_bytes;
                Err(path.refuse("payload", format_args!("may have at most {limit} bytes of JSON; it has {length}")))
            }
            _ => Ok(payload),
        }
    }

    pub(crate) fn job(&self, path: FieldPath, request: JobRequest) -> Result<NewJob, ApiError> {
        let extras = self.extras(path, &request)?;
        let max_attempts = match request.max_attempts {
            Some(attempts) => path.between("max_attempts", attempts, 1, MAX_ATTEMPTS)? as i32,
            None => DEFAULT_MAX_ATTEMPTS,
        };
        Ok(NewJob {
            queue: path.queue("queue", &request.queue)?,
            kind: path.name("kind", &request.kind)?,
            affinity: path.optional_label("affinity", request.affinity.as_deref())?,
            priority: path.between("priority", request.priority.unwrap_or(0), PRIORITY_MIN, PRIORITY_MAX)? as i32,
            run_at: request.run_at.map(|at| self.run_at(path, at)).transpose()?,
            max_attempts,
            principal: self.principal.clone(),
            extras,
            payload: self.payload(path, request.payload)?,
        })
    }

    fn extras(&self, path: FieldPath, request: &JobRequest) -> Result<Option<Box<Extras>>, ApiError> {
        let JobRequest { subject, process, run, concurrency_key, retry, timeout_s, tags, webhook: hook, .. } = request;
        let JobRequest { deadline_s, traceparent, .. } = request;
        let unique = self.unique(path, request)?;
        let gather = gather(path, request, unique.as_ref())?;
        let texts = [subject, process, run, concurrency_key];
        let plain = texts.iter().all(|text| text.is_none())
            && unique.is_none()
            && retry.is_none()
            && timeout_s.is_none()
            && tags.as_ref().is_none_or(Vec::is_empty)
            && hook.is_none()
            && deadline_s.is_none()
            && request.debounce.is_none()
            && request.batch.is_none()
            && traceparent.is_none()
            && self.traceparent.is_none()
            && self.depth == 0;
        if plain {
            return Ok(None);
        }
        if process.is_some() && subject.is_none() {
            return Err(path.refuse("process", NEEDS_A_SUBJECT));
        }
        Ok(Some(Box::new(Extras {
            subject: path.optional_subject("subject", subject.as_deref())?,
            process: path.optional_name("process", process.as_deref())?,
            run: path.optional_label("run", run.as_deref())?,
            unique,
            concurrency_key: path.optional_label("concurrency_key", concurrency_key.as_deref())?,
            retry: retry.map(|retry| path.retry("retry", retry)).transpose()?,
            timeout_s: timeout_s.map(|seconds| path.between("timeout_s", seconds, 1, TIMEOUT_MAX_S)).transpose()?,
            tags: labels(path, tags.as_deref().unwrap_or_default())?,
            webhook: hook.as_ref().map(|hook| webhook::stored(path, hook)).transpose()?,
            depth: self.depth,
            gather,
            deadline_s: deadline_s.map(|seconds| path.between("deadline_s", seconds, 1, WAIT_MAX_S)).transpose()?,
            traceparent: match traceparent {
                Some(text) => Some(trace_context(path, text)?),
                None => self.traceparent.clone(),
            },
            ..Extras::default()
        })))
    }

    fn unique(&self, path: FieldPath, request: &JobRequest) -> Result<Option<Unique>, ApiError> {
        let key = match (&request.unique_key, &request.unique_by) {
            (Some(_), Some(_)) => {
                return Err(path.refuse("unique_by", "cannot be combined with unique_key; send one of them"));
            }
            (Some(key), None) => Some(path.label("unique_key", key)?.to_string()),
            (None, Some(members)) => Some(key_of(path, members, request)?),
            (None, None) => None,
        };
        let for_s = request.unique_for_s.map(|seconds| path.between("unique_for_s", seconds, 1, WAIT_MAX_S));
        match (key, for_s.transpose()?) {
            (None, Some(_)) => Err(path.refuse("unique_for_s", "requires unique_key or unique_by")),
            (key, for_s) => Ok(key.map(|key| Unique { key, for_s })),
        }
    }

    /// From 1970 to ten years from now: a later time is probably in the wrong unit.
    fn run_at(&self, path: FieldPath, at: Timestamp) -> Result<Time, ApiError> {
        let at = Time::from_micros(at.as_microsecond());
        if at < Time::from_micros(0) || at > self.now.plus_s(WAIT_MAX_S) {
            return Err(path.refuse("run_at", "must be from 1970 to ten years from now"));
        }
        Ok(at)
    }
}

/// Debounce or batch. Both decide when the job runs, and their unique key lasts until it starts.
fn gather(path: FieldPath, request: &JobRequest, unique: Option<&Unique>) -> Result<Option<Gather>, ApiError> {
    let (member, gather) = match (request.debounce, request.batch) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(path.refuse("batch", "cannot be combined with debounce; remove one")),
        (Some(DebounceSettings { delay_s, max_s }), None) => {
            let delay_s = path.between("debounce.delay_s", delay_s, 1, GATHER_MAX_S)?;
            let max_s = max_s.map(|max_s| path.between("debounce.max_s", max_s, delay_s, GATHER_MAX_S)).transpose()?;
            ("debounce", Gather::Debounce { delay_s, max_s })
        }
        (None, Some(BatchSettings { max, within_s })) => {
            let max = path.between("batch.max", max, 1, BATCH_PAYLOADS)?;
            ("batch", Gather::Batch { max, within_s: path.between("batch.within_s", within_s, 1, GATHER_MAX_S)? })
        }
    };
    if unique.is_none() {
        return Err(path.refuse(member, "requires unique_key or unique_by"));
    }
    for (other, is_set) in [("unique_for_s", request.unique_for_s.is_some()), ("run_at", request.run_at.is_some())] {
        if is_set {
            return Err(path.refuse(other, format_args!("cannot be combined with {member}; remove it")));
        }
    }
    Ok(Some(gather))
}

fn trace_context(path: FieldPath, text: &str) -> Result<TraceContext, ApiError> {
    let detail = "must be a W3C trace context, for example 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    TraceContext::parse(text).ok_or_else(|| path.refuse("traceparent", detail))
}

pub(crate) fn labels(path: FieldPath, tags: &[String]) -> Result<Vec<Label>, ApiError> {
    path.at_most("tags", tags.len(), TAGS, "tags")?;
    let label = |(number, tag): (usize, &String)| path.label(&format!("tags[{number}]"), tag);
    tags.iter().enumerate().map(label).collect()
}

/// Returns a unique key computed from the chosen members. Payloads that differ only in white space and member order
/// have the same key.
fn key_of(path: FieldPath, members: &[String], request: &JobRequest) -> Result<String, ApiError> {
    let known = |member: &String| member == "kind" || member == "payload";
    if members.is_empty() || !members.iter().all(known) {
        return Err(path.refuse("unique_by", "must name kind, payload or both"));
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
        add("payload", &canonical_json(request.payload.as_ref().map_or("null", |payload| payload.get())));
    }
    let mut key = String::from("sha256:");
    digest.finalize().iter().for_each(|byte| write!(key, "{byte:02x}").expect("writing to a string cannot fail"));
    Ok(key)
}

/// Validates the queue and unique key of a job to cancel.
pub(crate) fn queue_and_key(request: &wire::CancelByKey) -> Result<(Name, String), ApiError> {
    let queue = FieldPath::Body.name("queue", &request.queue)?;
    Ok((queue, FieldPath::Body.label("unique_key", &request.unique_key)?.to_string()))
}
