//! Parses a trigger's target from JSON: a job, an HTTP request, a script or an operation on a runtime. The API validates
//! with it and the dispatcher reads stored targets with it.

use std::collections::BTreeMap;

use domain::RuntimeName;
use domain::limits::EXPRESSION_BYTES;
use domain::runtimes::{ImageRef, OperationKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::queue::enqueue::Gather;
use crate::triggers::expression::{check_mapping, is_template};
use crate::triggers::fault::{self, Fault};

#[derive(Clone, Debug)]
pub enum Target {
    Job(Box<JobTemplate>),
    Http(HttpTarget),
    Script(String),
    Runtime(RuntimeTarget),
}

/// The job that a run enqueues. Its strings and its payload can contain expressions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTemplate {
    pub queue: String,
    pub kind: String,
    /// A mapping (default: `{event, data}`).
    #[serde(default, deserialize_with = "present")]
    pub payload: Option<Json>,
    #[serde(default)]
    pub affinity: Option<String>,
    #[serde(default)]
    pub priority: Option<i64>,
    #[serde(default)]
    pub subject: Option<String>,
    #[serde(default)]
    pub process: Option<String>,
    #[serde(default)]
    pub run: Option<String>,
    #[serde(default)]
    pub unique_key: Option<String>,
    #[serde(default)]
    pub unique_for_s: Option<i64>,
    #[serde(default)]
    pub debounce: Option<DebounceTemplate>,
    #[serde(default)]
    pub batch: Option<BatchTemplate>,
    #[serde(default)]
    pub deadline_s: Option<i64>,
    #[serde(default)]
    pub concurrency_key: Option<String>,
    #[serde(default)]
    pub max_attempts: Option<i64>,
    #[serde(default)]
    pub retry: Option<RetryTemplate>,
    #[serde(default)]
    pub timeout_s: Option<i64>,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub webhook: Option<Json>,
}

impl JobTemplate {
    /// Debounce or batch, as validated.
    pub fn gather(&self) -> Option<Gather> {
        let debounce = self.debounce.map(|DebounceTemplate { delay_s, max_s }| Gather::Debounce { delay_s, max_s });
        debounce.or(self.batch.map(|BatchTemplate { max, within_s }| Gather::Batch { max, within_s }))
    }

    /// True if the event's data can appear in a member that is shown without the right to read payloads.
    pub fn has_visible_expression(&self) -> bool {
        let texts = [&self.affinity, &self.subject, &self.run, &self.unique_key, &self.concurrency_key];
        texts.into_iter().flatten().chain(&self.tags).any(|text| is_template(text))
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DebounceTemplate {
    pub delay_s: i64,
    #[serde(default)]
    pub max_s: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchTemplate {
    pub max: i64,
    pub within_s: i64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryTemplate {
    pub initial_s: Option<u64>,
    pub maximum_s: Option<u64>,
    pub exponent: Option<f64>,
    pub jitter: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTarget {
    pub url: String,
    #[serde(default)]
    pub method: Option<String>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub timeout_s: Option<i64>,
    /// `whsec_…`. Signs the request according to Standard Webhooks.
    #[serde(default)]
    pub secret: Option<String>,
    /// A mapping (default: `{event, data}`).
    #[serde(default, deserialize_with = "present")]
    pub body: Option<Json>,
}

/// An operation on a runtime. Name and image can contain expressions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeTarget {
    pub name: String,
    pub operation: String,
    #[serde(default)]
    pub image: Option<String>,
}

impl RuntimeTarget {
    /// The operations that a trigger can request: the same as a user's.
    const OPERATIONS: [OperationKind; 5] = [
        OperationKind::Start,
        OperationKind::Stop,
        OperationKind::Restart,
        OperationKind::Patch,
        OperationKind::CleanupContainer,
    ];

    pub fn kind(&self) -> Result<OperationKind, Fault> {
        let allowed = || Self::OPERATIONS.map(OperationKind::as_str).join(", ");
        let found = Self::OPERATIONS.into_iter().find(|kind| kind.as_str() == self.operation);
        found.ok_or_else(|| Fault::new("runtime.operation", format!("must be one of {}", allowed())))
    }

    fn check(&self) -> Result<(), Fault> {
        match (self.kind()?, &self.image) {
            (OperationKind::Patch, None) => {
                return Err(Fault::new("runtime.image", "is missing: the image to patch to"));
            }
            (OperationKind::Stop | OperationKind::CleanupContainer, Some(_)) => {
                return Err(Fault::new("runtime.image", "is not valid for this operation"));
            }
            _ => {}
        }
        check("runtime.name", Some(&Json::from(self.name.as_str())))?;
        if !is_template(&self.name) {
            RuntimeName::new(&self.name).map_err(|error| Fault::new("runtime.name", error.to_string()))?;
        }
        let Some(image) = &self.image else { return Ok(()) };
        check("runtime.image", Some(&Json::from(image.as_str())))?;
        if !is_template(image) {
            ImageRef::new(image).map_err(|error| Fault::new("runtime.image", error.to_string()))?;
        }
        Ok(())
    }
}

/// Distinguishes an explicit `null`, which is a value, from an absent member, which means the default.
fn present<'de, D: serde::Deserializer<'de>>(reader: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(reader).map(Some)
}

/// The members of a target, for error messages.
const KINDS: &str = "`job`, `http`, `script` or `runtime`";

/// Parses and validates a target.
pub fn read(text: &str) -> Result<Target, Fault> {
    let value: Json = serde_json::from_str(text).map_err(|error| Fault::new("", format!("is invalid: {error}")))?;
    let Json::Object(members) = value else {
        return Err(Fault::new("", format!("must be an object with one member: {KINDS}")));
    };
    let mut members = members.into_iter();
    let (Some((kind, value)), None) = (members.next(), members.next()) else {
        return Err(Fault::new("", format!("must have exactly one member: {KINDS}")));
    };
    let target = match kind.as_str() {
        "job" => Target::Job(object("job", value)?),
        "http" => Target::Http(object("http", value)?),
        "runtime" => Target::Runtime(object("runtime", value)?),
        "script" => match value {
            Json::String(source) => Target::Script(source),
            _ => return Err(Fault::new("script", "must be a string: the source of the script")),
        },
        _ => return Err(Fault::new(kind, format!("is unknown; expected {KINDS}"))),
    };
    match &target {
        Target::Job(job) => {
            check("job.payload", job.payload.as_ref())?;
            let texts = [&job.affinity, &job.subject, &job.run, &job.unique_key, &job.concurrency_key];
            let names = ["affinity", "subject", "run", "unique_key", "concurrency_key"];
            for (text, name) in texts.into_iter().zip(names) {
                if let Some(text) = text.as_deref().filter(|text| is_template(text)) {
                    check(&format!("job.{name}"), Some(&Json::from(text)))?;
                }
            }
        }
        Target::Http(http) => {
            if is_template(&http.url) {
                return Err(Fault::new(
                    "http.url",
                    "must not contain an expression: an event must not choose where a request goes",
                ));
            }
            check("http.body", http.body.as_ref())?;
            for (name, value) in &http.headers {
                check(&format!("http.headers.{name}"), Some(&Json::from(value.as_str())))?;
            }
        }
        Target::Runtime(runtime) => runtime.check()?,
        Target::Script(_) => {}
    }
    Ok(target)
}

fn object<T: DeserializeOwned>(member: &str, value: Json) -> Result<T, Fault> {
    // serde would accept an array for a struct.
    if !value.is_object() {
        return Err(Fault::new(member, "must be an object"));
    }
    fault::read(value).map_err(|fault| fault.within(member))
}

/// Returns the id of a script, derived from its text. Run records keep it, so that they show which version ran.
pub fn script_id(source: &str) -> Uuid {
    let hash = Sha256::digest(source);
    uuid::Builder::from_custom_bytes(std::array::from_fn(|at| hash[at])).into_uuid()
}

fn check(field: &str, mapping: Option<&Json>) -> Result<(), Fault> {
    let Some(mapping) = mapping else { return Ok(()) };
    if mapping.to_string().len() > EXPRESSION_BYTES {
        return Err(Fault::new(field, format!("may have at most {EXPRESSION_BYTES} bytes")));
    }
    check_mapping(mapping).map_err(|error| Fault::new(field, format!("contains an invalid expression: {error}")))
}
