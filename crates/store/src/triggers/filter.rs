//! A trigger's filter, from JSON to what is matched. The one reader for the API, which tells what is wrong with it, and
//! for the cache, which trusts what is stored.

use domain::limits::EXPRESSION_BYTES;
use domain::runtime::{HealthStatus, OperationKind};
use domain::trigger::{Glob, Missed, Pattern, Source, queue};
use domain::{Name, TriggerId};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::expression::check_condition;
use crate::triggers::fault::{self, Fault};

/// What a filter says.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub pattern: Pattern,
    /// An expression that must be true of the event.
    pub when: Option<String>,
    /// What a hook's caller signs with.
    pub secret: Option<String>,
    pub schedule: Option<Schedule>,
    /// The queue whose jobs the target works.
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
struct Kv {
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
struct Pubsub {
    topic: String,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Http {
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
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
struct Queue {
    queue: String,
    #[serde(default)]
    ops: Vec<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Email {
    to: String,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Runtime {
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
struct DeadLetter {
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    when: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cron {
    schedule: String,
    #[serde(default)]
    timezone: Option<String>,
    #[serde(default)]
    missed: Option<String>,
}

const JOB_STATES: &[&str] = &["scheduled", "queued", "loading", "working", "succeeded", "failed", "canceled"];

/// Reads the filter of a trigger with this id.
pub fn read(source: Source, trigger: TriggerId, text: &str) -> Result<Filter, Fault> {
    let mut filter = Filter::default();
    match source {
        Source::Kv => {
            let Kv { collection, key, ops, when } = parse(text)?;
            filter.glob("collection", collection)?;
            filter.glob("key", key)?;
            filter.ops("ops", ops, &["set", "delete"])?;
            filter.when = when;
        }
        Source::Pubsub => {
            let Pubsub { topic, when } = parse(text)?;
            filter.glob("topic", Some(topic))?;
            filter.when = when;
        }
        Source::Http => {
            let Http { secret, when } = parse(text)?;
            // A hook is the trigger's own: nobody else listens to it.
            filter.pattern.attributes.push(("trigger", Glob::Exact(trigger.to_string())));
            filter.secret = secret;
            filter.when = when;
        }
        Source::Job => {
            let Job { queue, kind, states, when } = parse(text)?;
            filter.glob("queue", queue)?;
            filter.glob("kind", kind)?;
            filter.ops("states", states, JOB_STATES)?;
            filter.when = when;
        }
        Source::Queue => {
            let Queue { queue, ops, when } = parse(text)?;
            if ops.is_empty() {
                filter.works = Some(worked(&queue, when.as_deref())?);
                filter.pattern.ops.insert(queue::JOB.into());
            }
            filter.glob("queue", Some(queue))?;
            if !ops.is_empty() {
                filter.ops("ops", ops, &queue::OPS)?;
            }
            filter.when = when;
        }
        Source::Email => {
            let Email { to, when } = parse(text)?;
            // Addresses are told apart without regard to case.
            filter.glob("to", Some(to.to_lowercase()))?;
            filter.when = when;
        }
        Source::Runtime => {
            let Runtime { name, health, operations, when } = parse(text)?;
            filter.glob("name", name)?;
            if let Some(health) = &health {
                let known = HealthStatus::ALL.map(HealthStatus::as_str);
                let glob = Glob::parse(health).map_err(|error| Fault::new("health", error.to_string()))?;
                if !known.iter().any(|status| glob.matches(status)) {
                    return Err(Fault::new("health", format!("must match one of {}", known.join(", "))));
                }
            }
            filter.glob("health", health)?;
            filter.ops("operations", operations, &OperationKind::ALL.map(OperationKind::as_str))?;
            filter.when = when;
        }
        Source::DeadLetter => {
            let DeadLetter { source, when } = parse(text)?;
            if let Some(source) = source {
                let glob = Glob::parse(&source).map_err(|error| Fault::new("source", error.to_string()))?;
                filter.pattern.attributes.push(("source_of_letter", glob));
            }
            filter.when = when;
        }
        Source::Cron => {
            let Cron { schedule, timezone, missed } = parse(text)?;
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
        check_condition(when).map_err(|error| Fault::new("when", format!("cannot be read: {error}")))?;
    }
    Ok(filter)
}

/// Without operations a trigger of a queue is the worker of its jobs: of one queue, and of every job there.
fn worked(queue: &str, when: Option<&str>) -> Result<Name, Fault> {
    if when.is_some() {
        return Err(Fault::new("when", "has no place here: without `ops` the target works every job of the queue"));
    }
    Name::new(queue).map_err(|error| {
        let detail = format!("{error}: without `ops` the target works the jobs of one queue");
        Fault::new("queue", detail)
    })
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    // Left to itself the parser takes an array for an object.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Fault::new("", "must be an object"));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let filter = fault::read(&mut reader)?;
    reader.end().map(|()| filter).map_err(|error| Fault::new("", format!("cannot be taken: {error}")))
}

impl Filter {
    /// An attribute that is not named may be anything.
    fn glob(&mut self, name: &'static str, text: Option<String>) -> Result<(), Fault> {
        if let Some(text) = text {
            let glob = Glob::parse(&text).map_err(|error| Fault::new(name, error.to_string()))?;
            self.pattern.attributes.push((name, glob));
        }
        Ok(())
    }

    fn ops(&mut self, member: &'static str, ops: Vec<String>, known: &[&str]) -> Result<(), Fault> {
        if let Some(odd) = ops.iter().find(|op| !known.contains(&op.as_str())) {
            return Err(Fault::new(member, format!("may hold {}, not `{odd}`", known.join(", "))));
        }
        self.pattern.ops = ops.into_iter().collect();
        Ok(())
    }
}
