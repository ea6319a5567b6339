//! Parses a trigger's filter from JSON. The API validates with it and the trigger cache reads stored filters with it.

use domain::limits::EXPRESSION_BYTES;
use domain::runtimes::{HealthStatus, OperationKind};
use domain::triggers::trigger::{EventPattern, Glob, Missed, Source, queue};
use domain::{Name, TriggerId};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::triggers::expression::check_condition;
use crate::triggers::fault::{self, Fault};

/// A parsed filter.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub pattern: EventPattern,
    /// A condition: an expression over the event that must be true.
    pub when: Option<String>,
    /// The secret with which callers of the hook sign.
    pub secret: Option<String>,
    pub schedule: Option<Schedule>,
    /// The queue for which the trigger is the worker.
    pub works: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub schedule: String,
    pub timezone: String,
    pub missed: Missed,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KvEventFilter {
    #[serde(default)]
    collection: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    ops: Vec<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PubsubEventFilter {
    topic: String,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HookEventFilter {
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobEventFilter {
    #[serde(default)]
    queue: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    states: Vec<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueEventFilter {
    queue: String,
    #[serde(default)]
    ops: Vec<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmailEventFilter {
    to: String,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuntimeEventFilter {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    health: Option<String>,
    #[serde(default)]
    operations: Vec<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunEventFilter {
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    states: Vec<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadLetterEventFilter {
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CronFilter {
    schedule: String,
    #[serde(default)]
    timezone: Option<String>,
    #[serde(default)]
    missed: Option<String>,
}

const JOB_STATES: &[&str] =
    &["waiting", "scheduled", "queued", "loading", "working", "succeeded", "failed", "canceled"];

/// The states in which a run ends.
const RUN_STATES: &[&str] = &["succeeded", "failed", "canceled"];

/// Parses and validates the filter of the trigger with this id.
pub fn read(source: Source, trigger: TriggerId, text: &str) -> Result<Filter, Fault> {
    let mut filter = Filter::default();
    match source {
        Source::Kv => {
            let KvEventFilter { collection, key, ops, when } = parse(text)?;
            filter.glob("collection", collection)?;
            filter.glob("key", key)?;
            filter.ops("ops", ops, &["set", "delete"])?;
            filter.when = when;
        }
        Source::Pubsub => {
            let PubsubEventFilter { topic, when } = parse(text)?;
            filter.glob("topic", Some(topic))?;
            filter.when = when;
        }
        Source::Http => {
            let HookEventFilter { secret, when } = parse(text)?;
            // A hook's events match only the trigger that owns the hook.
            filter.pattern.attributes.push(("trigger", Glob::Exact(trigger.to_string())));
            filter.secret = secret;
            filter.when = when;
        }
        Source::Job => {
            let JobEventFilter { queue, kind, states, when } = parse(text)?;
            filter.glob("queue", queue)?;
            filter.glob("kind", kind)?;
            filter.ops("states", states, JOB_STATES)?;
            filter.when = when;
        }
        Source::Queue => {
            let QueueEventFilter { queue, ops, when } = parse(text)?;
            if ops.is_empty() {
                filter.works = Some(worker_queue(&queue, when.as_deref())?);
                filter.pattern.ops.insert(queue::JOB.into());
            }
            filter.glob("queue", Some(queue))?;
            if !ops.is_empty() {
                filter.ops("ops", ops, &queue::OPS)?;
            }
            filter.when = when;
        }
        Source::Email => {
            let EmailEventFilter { to, when } = parse(text)?;
            // Addresses are compared case-insensitively.
            filter.glob("to", Some(to.to_lowercase()))?;
            filter.when = when;
        }
        Source::Runtime => {
            let RuntimeEventFilter { name, health, operations, when } = parse(text)?;
            filter.glob("name", name)?;
            if let Some(health) = &health {
                let allowed = HealthStatus::ALL.map(HealthStatus::as_str);
                let glob = Glob::parse(health).map_err(|error| Fault::new("health", error.to_string()))?;
                if !allowed.iter().any(|status| glob.matches(status)) {
                    return Err(Fault::new("health", format!("must match one of {}", allowed.join(", "))));
                }
            }
            filter.glob("health", health)?;
            filter.ops("operations", operations, &OperationKind::ALL.map(OperationKind::as_str))?;
            filter.when = when;
        }
        Source::Run => {
            let RunEventFilter { run, name, states, when } = parse(text)?;
            filter.glob("run", run)?;
            filter.glob("name", name)?;
            filter.ops("states", states, RUN_STATES)?;
            filter.when = when;
        }
        Source::DeadLetter => {
            let DeadLetterEventFilter { source, when } = parse(text)?;
            if let Some(source) = source {
                let glob = Glob::parse(&source).map_err(|error| Fault::new("source", error.to_string()))?;
                filter.pattern.attributes.push(("source_of_letter", glob));
            }
            filter.when = when;
        }
        Source::Cron => {
            let CronFilter { schedule, timezone, missed } = parse(text)?;
            let missed = missed.as_deref().unwrap_or(Missed::Skip.as_str());
            let missed =
                Missed::parse(missed).ok_or_else(|| Fault::new("missed", "must be skip, coalesce or catch_up"))?;
            let timezone = timezone.unwrap_or_else(|| "UTC".into());
            filter.schedule = Some(Schedule { schedule, timezone, missed });
        }
    }
    if let Some(when) = &filter.when {
        if when.len() > EXPRESSION_BYTES {
            return Err(Fault::new("when", format!("may have at most {EXPRESSION_BYTES} bytes")));
        }
        check_condition(when).map_err(|error| Fault::new("when", format!("is not a valid expression: {error}")))?;
    }
    Ok(filter)
}

/// Returns the queue that the trigger works. A queue filter without `ops` makes the trigger the worker of exactly one queue,
/// for every job there.
fn worker_queue(queue: &str, when: Option<&str>) -> Result<Name, Fault> {
    if when.is_some() {
        return Err(Fault::new("when", "is not valid without `ops`: the target then processes every job of the queue"));
    }
    Name::new(queue).map_err(|error| {
        let detail = format!("{error}: without `ops` the target processes the jobs of one queue");
        Fault::new("queue", detail)
    })
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    // serde would accept an array for a struct.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Fault::new("", "must be an object"));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let filter = fault::read(&mut reader)?;
    reader.end().map(|()| filter).map_err(|error| Fault::new("", format!("is invalid: {error}")))
}

impl Filter {
    /// Adds a glob for an attribute. An absent attribute matches anything.
    fn glob(&mut self, name: &'static str, text: Option<String>) -> Result<(), Fault> {
        if let Some(text) = text {
            let glob = Glob::parse(&text).map_err(|error| Fault::new(name, error.to_string()))?;
            self.pattern.attributes.push((name, glob));
        }
        Ok(())
    }

    fn ops(&mut self, member: &'static str, ops: Vec<String>, allowed: &[&str]) -> Result<(), Fault> {
        if let Some(unknown) = ops.iter().find(|op| !allowed.contains(&op.as_str())) {
            return Err(Fault::new(member, format!("can contain {}, not `{unknown}`", allowed.join(", "))));
        }
        self.pattern.ops = ops.into_iter().collect();
        Ok(())
    }
}
