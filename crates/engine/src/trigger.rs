//! From an event and a trigger to what is to be started: the one place for the dispatcher and for dry runs (T2).

use domain::limits::{DELIVERY_TIMEOUT_MS, PAYLOAD_BYTES};
use domain::origin::Cause;
use domain::principal::Reach;
use domain::process::NEEDS_A_SUBJECT;
use domain::runtime::{ImageRef, OperationSource};
use domain::trigger::Source;
use domain::{JobError, Label, Name, NameError, Origin, RetryPolicy, Right, RuntimeName, Standing};
use store::deliveries::NewDelivery;
use store::expression::{ExpressionError, Scope, is_true, map, render};
use store::jobs::enqueue::{Extras, NewJob, Unique};
use store::outbox::{Taken, failure};
use store::runtimes::request::NewOperation;
use store::triggers::fault::Fault;
use store::triggers::filter::{self, Filter};
use store::triggers::target::{self, HttpTarget, JobTemplate, RetryTemplate, RuntimeTarget, Target};
use store::triggers::{Mode, Trigger};

/// What a run would be.
#[derive(Clone, Debug)]
pub enum Run {
    Job(Box<NewJob>),
    /// An HTTP call, sent and retried as a delivery.
    Delivery(Box<NewDelivery>),
    /// A script, by its source.
    Script(String),
    /// Something that is done to a runtime.
    Operation(Box<(RuntimeName, NewOperation)>),
}

/// Why there is no run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRun {
    /// The filter's expression says no.
    Unwanted,
    Failed(JobError),
}

impl From<ExpressionError> for NoRun {
    fn from(error: ExpressionError) -> Self {
        Self::Failed(failure("mapping_failed", error.to_string()))
    }
}

/// What the trigger starts because of this event, at this depth, if its principal may have it so now.
pub fn run(trigger: &Trigger, row: &Taken, depth: i32, standing: &Standing) -> Result<Run, NoRun> {
    let stored = |fault: Fault| NoRun::Failed(failure("trigger_unreadable", fault.to_string()));
    let filter = filter::read(trigger.source, trigger.id, &trigger.filter).map_err(stored)?;
    let target = target::read(&trigger.target).map_err(stored)?;
    allowed(trigger, &filter, &target, standing)?;
    let scope = Scope::new(&row.head, &row.data)?;
    // By hand it runs whatever the filter says.
    if let Some(when) = filter.when.filter(|_| row.op != FIRED_BY_HAND)
        && !is_true(&when, &scope)?
    {
        return Err(NoRun::Unwanted);
    }
    match target {
        Target::Job(template) => job(trigger, row, &template, &scope, depth).map(|job| Run::Job(Box::new(job))),
        Target::Http(http) => {
            delivery(trigger, row, &http, &scope, depth).map(|delivery| Run::Delivery(Box::new(delivery)))
        }
        Target::Script(source) => Ok(Run::Script(source)),
        Target::Runtime(runtime) => {
            operation(trigger, row, &runtime, &scope, depth).map(|operation| Run::Operation(Box::new(operation)))
        }
    }
}

/// A run has the rights that whoever registered its trigger has now, and no more (T2).
fn allowed(trigger: &Trigger, filter: &Filter, target: &Target, standing: &Standing) -> Result<(), NoRun> {
    let Some(right) = lacked(trigger.source, filter, target, standing) else { return Ok(()) };
    let detail = lacks(&trigger.principal, right);
    Err(NoRun::Failed(JobError { retryable: false, ..failure("forbidden", detail) }))
}

pub(crate) fn lacks(principal: &str, right: Right) -> String {
    format!("{principal} lacks the right {right}, and what it registered has no more")
}

/// The right that a principal lacks to have a trigger of this source, filter and target run.
pub fn lacked(source: Source, filter: &Filter, target: &Target, standing: &Standing) -> Option<Right> {
    if let Some(right) = filter.works.as_ref().and_then(|queue| standing.lacks_to_work(queue)) {
        return Some(right);
    }
    match target {
        Target::Job(template) => standing.lacks(source, Reach::Queue(&Name::stored(&template.queue))),
        Target::Http(_) | Target::Script(_) => standing.lacks(source, Reach::Outside),
        Target::Runtime(_) => standing.lacks(source, Reach::Runtime),
    }
}

/// The operation of an event that a person made by hand.
pub const FIRED_BY_HAND: &str = "fire";

fn job(trigger: &Trigger, row: &Taken, template: &JobTemplate, scope: &Scope, depth: i32) -> Result<NewJob, NoRun> {
    type Check = fn(&str) -> Result<Label, NameError>;
    let checked = |member: &str, text: &Option<String>, check: Check| -> Result<Option<Label>, NoRun> {
        let Some(text) = text else { return Ok(None) };
        let text = render(text, scope)?;
        // An expression that says nothing leaves the member out.
        if text.is_empty() {
            return Ok(None);
        }
        check(&text).map(Some).map_err(|error| invalid(member, error.to_string()))
    };
    let label = |member: &str, text: &Option<String>| checked(member, text, Label::new);
    let mapped = match &template.payload {
        Some(mapping) => Some(map(mapping, scope)?.to_string()),
        None => None,
    };
    // An event that goes on whole was measured when it was taken, by what this server takes.
    let bytes = mapped.as_ref().map_or(0, String::len);
    if bytes > PAYLOAD_BYTES {
        return Err(invalid("payload", format!("has {bytes} bytes; at most {PAYLOAD_BYTES} are allowed")));
    }
    let payload = mapped.unwrap_or_else(|| row.envelope());
    let own_attempts = template.max_attempts.map(|attempts| attempts as i32);
    let max_attempts = own_attempts.unwrap_or(trigger.max_attempts).max(1);
    let cause = Cause { event: row.event, source: row.source.clone(), op: row.op.clone() };
    let unique_key = label("unique_key", &template.unique_key)?;
    let subject = checked("subject", &template.subject, Label::of_subject)?;
    if template.process.is_some() && subject.is_none() {
        return Err(invalid("process", NEEDS_A_SUBJECT.into()));
    }
    let mut tags = Vec::new();
    for tag in &template.tags {
        tags.extend(label("tags", &Some(tag.clone()))?);
    }
    Ok(NewJob {
        queue: Name::of_queue(&template.queue).map_err(|error| invalid("queue", error.to_string()))?,
        kind: Name::new(&template.kind).map_err(|error| invalid("kind", error.to_string()))?,
        payload: payload.into(),
        affinity: label("affinity", &template.affinity)?,
        priority: template.priority.unwrap_or(0) as i32,
        run_at: None,
        max_attempts: if is_tried_once(trigger, row) { 1 } else { max_attempts },
        principal: trigger.principal.as_str().into(),
        extras: Some(Box::new(Extras {
            subject,
            process: template.process.as_deref().map(Name::stored),
            run: label("run", &template.run)?,
            unique: unique_key.map(|key| Unique { key: key.to_string(), for_s: template.unique_for_s }),
            concurrency_key: label("concurrency_key", &template.concurrency_key)?,
            retry: Some(template.retry.map_or(Ok(trigger.retry), policy)?),
            timeout_s: template.timeout_s,
            tags,
            webhook: template.webhook.as_ref().map(ToString::to_string),
            parent: None,
            triggered_by: Origin::Trigger { trigger: trigger.id, cause }.stored(),
            depth,
        })),
    })
}

fn delivery(
    trigger: &Trigger,
    row: &Taken,
    http: &HttpTarget,
    scope: &Scope,
    depth: i32,
) -> Result<NewDelivery, NoRun> {
    let body = match &http.body {
        Some(mapping) => map(mapping, scope)?.to_string(),
        None => row.envelope(),
    };
    let mut headers = Vec::new();
    for (name, value) in &http.headers {
        let value = render(value, scope)?;
        if value.chars().any(char::is_control) {
            return Err(invalid(name, "holds control characters".into()));
        }
        headers.push((name.clone(), value));
    }
    Ok(NewDelivery {
        source: row.source.clone(),
        op: row.op.clone(),
        trigger: Some(trigger.id.uuid()),
        event: Some(row.event.uuid()),
        dead_letter: (row.source == "dead_letter").then(|| row.event.uuid()),
        principal: trigger.principal.clone(),
        depth,
        method: http.method.clone().unwrap_or_else(|| "POST".into()),
        headers,
        secrets: http.secret.clone().into_iter().collect(),
        timeout_ms: http.timeout_s.map_or(DELIVERY_TIMEOUT_MS, |seconds| seconds * 1_000),
        retry: trigger.retry,
        max_attempts: if is_tried_once(trigger, row) { 1 } else { trigger.max_attempts },
        ..NewDelivery::post(row.tenant, http.url.clone(), body)
    })
}

fn operation(
    trigger: &Trigger,
    row: &Taken,
    target: &RuntimeTarget,
    scope: &Scope,
    depth: i32,
) -> Result<(RuntimeName, NewOperation), NoRun> {
    let name = render(&target.name, scope)?;
    let name = RuntimeName::new(&name).map_err(|error| invalid("name", error.to_string()))?;
    let image = target.image.as_ref().map(|image| render(image, scope)).transpose()?;
    let image = image.map(|image| ImageRef::new(&image)).transpose();
    let new = NewOperation {
        kind: target.kind().map_err(|fault| invalid("operation", fault.to_string()))?,
        source: OperationSource::Stream,
        source_ref: Some(row.event.to_string()),
        image: image.map_err(|error| invalid("image", error.to_string()))?,
        actor: trigger.principal.clone(),
        depth,
        on: None,
    };
    Ok((name, new))
}

/// The handler of a dead letter is not tried again (T8), nor is what somebody waits for: that one hears of it at once.
fn is_tried_once(trigger: &Trigger, row: &Taken) -> bool {
    row.source == "dead_letter" || trigger.mode == Mode::Sync
}

fn policy(retry: RetryTemplate) -> Result<RetryPolicy, NoRun> {
    RetryPolicy::new(retry.initial_s, retry.maximum_s, retry.exponent, retry.jitter)
        .map_err(|error| invalid("retry", error.to_string()))
}

/// What an expression made of the event cannot be taken. Trying again would not change it.
fn invalid(member: &str, detail: String) -> NoRun {
    NoRun::Failed(JobError { retryable: false, ..failure("mapping_invalid", format!("{member} {detail}")) })
}
