//! A job to enqueue on the embedded engine.

use std::time::Duration;

use domain::limits::{DEFAULT_MAX_ATTEMPTS, PAYLOAD_BYTES, PRIORITY_MAX, PRIORITY_MIN, TIMEOUT_MAX_S};
use domain::{Label, Name, NameError, RetryPolicy, Time};
use serde::Serialize;
use store::queue::enqueue::{Extras, NewJob, Unique};
use wire::{JobRequest, RetrySettings};

/// A job to enqueue.
#[derive(Clone, Debug)]
pub struct JobBuilder {
    pub(crate) new: NewJob,
}

impl JobBuilder {
    pub fn new(queue: &str, kind: &str) -> Result<Self, NameError> {
        Ok(Self {
            new: NewJob {
                queue: Name::of_queue(queue)?,
                kind: Name::new(kind)?,
                payload: "null".into(),
                affinity: None,
                priority: 0,
                run_at: None,
                max_attempts: DEFAULT_MAX_ATTEMPTS,
                principal: "embedded".into(),
                extras: None,
            },
        })
    }

    /// Converts a request with the fields that a job of an embedded engine has.
    pub fn of_request(request: &JobRequest) -> Result<Self, String> {
        let invalid = |member: &str, error: &dyn std::fmt::Display| format!("{member} {error}");
        let others = [
            ("process", request.process.is_some()),
            ("unique_key", request.unique_key.is_some()),
            ("unique_by", request.unique_by.is_some()),
            ("unique_for_s", request.unique_for_s.is_some()),
            ("webhook", request.webhook.is_some()),
        ];
        if let Some((member, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
            return Err(format!("{member} is not possible here; remove it"));
        }
        let label = |member: &str, text: &Option<String>| {
            text.as_deref().map(Label::new).transpose().map_err(|error| invalid(member, &error))
        };
        let mut job = Self::new(&request.queue, &request.kind).map_err(|error| invalid("queue or kind", &error))?;
        if let Some(payload) = &request.payload {
            let length = payload.get().len();
            if length > PAYLOAD_BYTES {
                return Err(format!("payload may have at most {PAYLOAD_BYTES} bytes, not {length}"));
            }
            job.new.payload = payload.get().into();
        }
        job.new.affinity = label("affinity", &request.affinity)?;
        let within = |member: &str, value: i64, min: i64, max: i64| match (min..=max).contains(&value) {
            true => Ok(value),
            false => Err(format!("{member} must be from {min} to {max}, not {value}")),
        };
        if let Some(priority) = request.priority {
            job.new.priority = within("priority", priority, PRIORITY_MIN, PRIORITY_MAX)? as i32;
        }
        if let Some(attempts) = request.max_attempts {
            job.new.max_attempts = within("max_attempts", attempts, 1, 1_000)? as i32;
        }
        job.new.run_at = request.run_at.map(|at| Time::from_micros(at.as_microsecond()));
        let (run, concurrency_key) = (label("run", &request.run)?, label("concurrency_key", &request.concurrency_key)?);
        if let Some(subject) = &request.subject {
            job = job.subject(subject).map_err(|error| invalid("subject", &error))?;
        }
        for tag in request.tags.iter().flatten() {
            job = job.tag(tag).map_err(|error| invalid("tags", &error))?;
        }
        if let Some(RetrySettings { initial_s, maximum_s, exponent, jitter }) = request.retry {
            let policy = RetryPolicy::new(initial_s, maximum_s, exponent, jitter);
            job = job.retry(policy.map_err(|error| invalid("retry", &error))?);
        }
        if let Some(timeout_s) = request.timeout_s {
            job.extras().timeout_s = Some(within("timeout_s", timeout_s, 1, TIMEOUT_MAX_S)?);
        }
        if run.is_some() || concurrency_key.is_some() {
            let extras = job.extras();
            (extras.run, extras.concurrency_key) = (run, concurrency_key);
        }
        Ok(job)
    }

    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Result<Self, serde_json::Error> {
        self.new.payload = serde_json::to_string(payload)?.into();
        Ok(self)
    }

    /// Sets what a worker must have loaded to run the job.
    pub fn affinity(mut self, affinity: &str) -> Result<Self, NameError> {
        self.new.affinity = Some(Label::new(affinity)?);
        Ok(self)
    }

    /// Sets the priority; higher runs first [default: 0].
    pub fn priority(mut self, priority: i16) -> Self {
        self.new.priority = priority.into();
        self
    }

    pub fn run_at(mut self, at: jiff::Timestamp) -> Self {
        self.new.run_at = Some(Time::from_micros(at.as_microsecond()));
        self
    }

    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.new.max_attempts = i32::from(attempts.clamp(1, 1_000));
        self
    }

    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.extras().retry = Some(policy);
        self
    }

    /// Sets the timeout of an attempt, rounded up to whole seconds and limited to 1 s to 30 days.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        let seconds = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
        let seconds = i64::try_from(seconds).unwrap_or(TIMEOUT_MAX_S);
        self.extras().timeout_s = Some(seconds.clamp(1, TIMEOUT_MAX_S));
        self
    }

    /// Sets the subject. Subjects of runtimes are reserved and rejected.
    pub fn subject(mut self, subject: &str) -> Result<Self, NameError> {
        self.extras().subject = Some(Label::of_subject(subject)?);
        Ok(self)
    }

    /// Sets the unique key: while an unfinished job with this key exists in the queue, an enqueue returns that job.
    pub fn unique_key(mut self, key: &str) -> Result<Self, NameError> {
        self.extras().unique = Some(Unique { key: Label::new(key)?.to_string(), for_s: None });
        Ok(self)
    }

    /// Sets the concurrency key: jobs with the same key run one at a time, unless the queue allows more.
    pub fn concurrency_key(mut self, key: &str) -> Result<Self, NameError> {
        self.extras().concurrency_key = Some(Label::new(key)?);
        Ok(self)
    }

    pub fn tag(mut self, tag: &str) -> Result<Self, NameError> {
        let tag = Label::new(tag)?;
        self.extras().tags.push(tag);
        Ok(self)
    }

    fn extras(&mut self) -> &mut Extras {
        self.new.extras.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_queue_is_rejected() {
        let into = |queue: &str| JobBuilder::new(queue, "k").map(|_| ());
        assert_eq!(into("windlass.runtimes"), Err(NameError::Reserved));
        assert_eq!(into("windlass"), Ok(()));
    }

    #[test]
    fn a_timeout_is_rounded_up_and_clamped_to_its_bounds() {
        let of = |timeout: Duration| {
            let job = JobBuilder::new("q", "k").expect("names").timeout(timeout);
            job.new.extras.and_then(|extras| extras.timeout_s)
        };
        assert_eq!(of(Duration::ZERO), Some(1));
        assert_eq!(of(Duration::from_millis(1_900)), Some(2));
        assert_eq!(of(Duration::from_secs(60)), Some(60));
        assert_eq!(of(Duration::MAX), Some(TIMEOUT_MAX_S));
    }

    #[test]
    fn a_runtime_subject_is_rejected() {
        let on = |subject: &str| JobBuilder::new("q", "k").expect("names").subject(subject).map(|_| ());
        assert_eq!(on("runtime/llama"), Err(NameError::ReservedSubject));
        assert_eq!(on("runtimes"), Ok(()));
    }
}
