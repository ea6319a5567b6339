//! Computes what a trigger starts for an event. Used by the dispatcher and by dry runs.

use domain::access::principal::EffectTarget;
use domain::fleet::process::NEEDS_A_SUBJECT;
use domain::limits::{DELIVERY_TIMEOUT_MS, PAYLOAD_BYTES};
use domain::queue::job_origin::Cause;
use domain::runtimes::{ImageRef, OperationSource};
use domain::triggers::trigger::Source;
use domain::{JobError, Label, Name, NameError, Origin, PrincipalRights, RetryPolicy, Right, RuntimeName};
use store::queue::enqueue::{Extras, NewJob, Unique};
use store::runtimes::request::NewOperation;
use store::triggers::deliveries::NewDelivery;
use store::triggers::expression::{ExpressionError, Scope, is_true, map, render};
use store::triggers::fault::Fault;
use store::triggers::filter::{self, Filter};
use store::triggers::outbox::{OutboxRow, failure};
use store::triggers::target::{self, HttpTarget, JobTemplate, RetryTemplate, RuntimeTarget, Target};
use store::triggers::{Mode, Trigger};

/// What a trigger starts.
#[derive(Clone, Debug)]
pub enum PlannedRun {
    Job(Box<NewJob>),
    /// An HTTP call, sent and retried as a delivery.
    Delivery(Box<NewDelivery>),
    /// A script's source.
    Script(String),
    /// An operation on a runtime.
    Operation(Box<(RuntimeName, NewOperation)>),
}

/// Why nothing is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// The filter's expression is false.
    FilteredOut,
    Failed(JobError),
}

impl From<ExpressionError> for NotStarted {
    fn from(error: ExpressionError) -> Self {
        Self::Failed(match error {
            ExpressionError::Invalid(_) => failure("mapping_failed", error.to_string()),
            // A retry would cost as much and fail again.
            ExpressionError::TooExpensive => {
                JobError { retryable: false, ..failure("expression_too_expensive", error.to_string()) }
            }
        })
    }
}

/// Returns what the trigger starts for this event at this depth, given its principal's current rights.
///
/// Blocks: call it on a thread that may block.
pub fn run(trigger: &Trigger, row: &OutboxRow, depth: i32, rights: &PrincipalRights) -> Result<PlannedRun, NotStarted> {
    run_in(trigger, row, &Scope::new(&row.head, &row.data)?, depth, rights)
}

/// Like [`run`], with the variables of the event, which several rows may share.
pub(crate) fn run_in(
    trigger: &Trigger,
    row: &OutboxRow,
    scope: &Scope,
    depth: i32,
    rights: &PrincipalRights,
) -> Result<PlannedRun, NotStarted> {
    let stored = |fault: Fault| NotStarted::Failed(failure("trigger_unreadable", fault.to_string()));
    let filter = filter::read(trigger.source, trigger.id, &trigger.filter).map_err(stored)?;
    let target = target::read(&trigger.target).map_err(stored)?;
    allowed(trigger, &filter, &target, rights)?;
    // A manually fired trigger ignores the filter.
    if let Some(when) = filter.when.filter(|_| row.op != MANUAL_FIRE)
        && !is_true(&when, scope)?
    {
        return Err(NotStarted::FilteredOut);
    }
    match target {
        Target::Job(template) => job(trigger, row, &template, scope, depth).map(|job| PlannedRun::Job(Box::new(job))),
        Target::Http(http) => {
            delivery(trigger, row, &http, scope, depth).map(|delivery| PlannedRun::Delivery(Box::new(delivery)))
        }
        Target::Script(source) => Ok(PlannedRun::Script(source)),
        Target::Runtime(runtime) => {
            operation(trigger, row, &runtime, scope, depth).map(|operation| PlannedRun::Operation(Box::new(operation)))
        }
    }
}

/// Checks the current rights of the principal that registered the trigger.
fn allowed(trigger: &Trigger, filter: &Filter, target: &Target, rights: &PrincipalRights) -> Result<(), NotStarted> {
    let Some(right) = missing_right(trigger.source, filter, target, rights) else { return Ok(()) };
    let detail = missing_right_message(&trigger.principal, right);
    Err(NotStarted::Failed(JobError { retryable: false, ..failure("forbidden", detail) }))
}

pub(crate) fn missing_right_message(principal: &str, right: Right) -> String {
    format!("the principal {principal} lacks the right {right}")
}

/// Returns the right that a principal lacks to run a trigger with this source, filter and target, if any.
pub fn missing_right(source: Source, filter: &Filter, target: &Target, rights: &PrincipalRights) -> Option<Right> {
    if let Some(right) = filter.works.as_ref().and_then(|queue| rights.missing_right_to_work(queue)) {
        return Some(right);
    }
    let missing = match target {
        Target::Job(template) => {
            let queue = Name::stored(&template.queue);
            let to_start = rights.missing_right(source, EffectTarget::Queue(&queue));
            let to_receive = || template.webhook.as_ref().and_then(|_| rights.missing_right_to_receive(&queue));
            let to_read = || template.has_visible_expression().then(|| rights.missing_right_to_read(source)).flatten();
            to_start.or_else(to_receive).or_else(to_read)
        }
        Target::Http(_) | Target::Script(_) => rights.missing_right(source, EffectTarget::Outside),
        Target::Runtime(_) => rights.missing_right(source, EffectTarget::Runtime),
    };
    // Whether the trigger fired is visible to everyone who may see triggers, so a condition reveals what it tests.
    missing.or_else(|| filter.when.as_ref().and_then(|_| rights.missing_right_to_read(source)))
}

/// The operation of a manually created event.
pub const MANUAL_FIRE: &str = "fire";

fn job(
    trigger: &Trigger,
    row: &OutboxRow,
    template: &JobTemplate,
    scope: &Scope,
    depth: i32,
) -> Result<NewJob, NotStarted> {
    type Validate = fn(&str) -> Result<Label, NameError>;
    let validated = |member: &str, text: &Option<String>, validate: Validate| -> Result<Option<Label>, NotStarted> {
        let Some(text) = text else { return Ok(None) };
        let text = render(text, scope)?;
        // An empty result omits the member.
        if text.is_empty() {
            return Ok(None);
        }
        validate(&text).map(Some).map_err(|error| invalid(member, error.to_string()))
    };
    let label = |member: &str, text: &Option<String>| validated(member, text, Label::new);
    let mapped = match &template.payload {
        Some(mapping) => Some(map(mapping, scope)?.to_string()),
        None => None,
    };
    // The size of an unmapped event was checked when it was accepted, against this server's configured limit.
    let bytes = mapped.as_ref().map_or(0, String::len);
    if bytes > PAYLOAD_BYTES {
        return Err(invalid("payload", format!("has {bytes} bytes; at most {PAYLOAD_BYTES} are allowed")));
    }
    let payload = mapped.unwrap_or_else(|| row.envelope());
    let own_attempts = template.max_attempts.map(|attempts| attempts as i32);
    let max_attempts = own_attempts.unwrap_or(trigger.max_attempts).max(1);
    let cause = Cause { event: row.event, source: row.source.clone(), op: row.op.clone() };
    let unique_key = label("unique_key", &template.unique_key)?;
    let has_key = unique_key.is_some();
    let subject = validated("subject", &template.subject, Label::of_subject)?;
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
        max_attempts: if is_attempted_once(trigger, row) { 1 } else { max_attempts },
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
            deadline_s: template.deadline_s,
            traceparent: None,
            // A key that is empty for this event gathers nothing.
            gather: has_key.then(|| template.gather()).flatten(),
            waits: false,
            has_inputs: false,
        })),
    })
}

fn delivery(
    trigger: &Trigger,
    row: &OutboxRow,
    http: &HttpTarget,
    scope: &Scope,
    depth: i32,
) -> Result<NewDelivery, NotStarted> {
    let body = match &http.body {
        Some(mapping) => map(mapping, scope)?.to_string(),
        None => row.envelope(),
    };
    let mut headers = Vec::new();
    for (name, value) in &http.headers {
        let value = render(value, scope)?;
        if value.chars().any(char::is_control) {
            return Err(invalid(name, "contains control characters".into()));
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
        max_attempts: if is_attempted_once(trigger, row) { 1 } else { trigger.max_attempts },
        ..NewDelivery::post(row.tenant, http.url.clone(), body)
    })
}

fn operation(
    trigger: &Trigger,
    row: &OutboxRow,
    target: &RuntimeTarget,
    scope: &Scope,
    depth: i32,
) -> Result<(RuntimeName, NewOperation), NotStarted> {
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

/// The handler of a dead letter is not retried. A run that a client waits for is not either, because the client gets
/// the error.
fn is_attempted_once(trigger: &Trigger, row: &OutboxRow) -> bool {
    row.source == "dead_letter" || trigger.mode == Mode::Sync
}

fn policy(retry: RetryTemplate) -> Result<RetryPolicy, NotStarted> {
    RetryPolicy::new(retry.initial_s, retry.maximum_s, retry.exponent, retry.jitter)
        .map_err(|error| invalid("retry", error.to_string()))
}

/// The error for an invalid result of an expression. A retry would give the same result.
fn invalid(member: &str, detail: String) -> NotStarted {
    NotStarted::Failed(JobError { retryable: false, ..failure("mapping_invalid", format!("{member} {detail}")) })
}
