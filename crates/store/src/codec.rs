//! Small values that are stored as JSON: retry policies, errors, lists of names.

use domain::limits::ERROR_MESSAGE_BYTES;
use domain::{JobError, KindSettings, Name, QueueSettings, RetryPolicy, Webhook};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::error::StoreError;

#[derive(Serialize, Deserialize)]
struct StoredRetry {
    initial_s: u64,
    maximum_s: u64,
    exponent: f64,
    jitter: f64,
}

impl From<RetryPolicy> for StoredRetry {
    fn from(policy: RetryPolicy) -> Self {
        Self {
            initial_s: policy.initial_s(),
            maximum_s: policy.maximum_s(),
            exponent: policy.exponent(),
            jitter: policy.jitter(),
        }
    }
}

impl StoredRetry {
    fn policy(self) -> Result<RetryPolicy, StoreError> {
        RetryPolicy::new(Some(self.initial_s), Some(self.maximum_s), Some(self.exponent), Some(self.jitter))
            .map_err(|error| StoreError::unexpected(format!("a stored retry policy: {error}")))
    }
}

pub(crate) fn retry_to_json(policy: RetryPolicy) -> String {
    to_json(&StoredRetry::from(policy))
}

pub(crate) fn retry_from_json(text: &str) -> Result<RetryPolicy, StoreError> {
    from_json::<StoredRetry>(text)?.policy()
}

#[derive(Serialize, Deserialize)]
struct StoredError {
    code: String,
    message: String,
    retryable: bool,
}

/// As both databases keep it. Workers and scripts say whatever they were given, and PostgreSQL has no NUL in text: refused
/// there, a try would be neither counted nor its last, and nothing would be learnt from it.
pub(crate) fn fit(error: &JobError) -> JobError {
    let mut message = error.message.replace('\0', "\u{fffd}");
    message.truncate(message.floor_char_boundary(ERROR_MESSAGE_BYTES));
    JobError { message, ..error.clone() }
}

pub(crate) fn error_to_json(error: &JobError) -> String {
    let JobError { code, message, retryable } = fit(error);
    to_json(&StoredError { code, message, retryable })
}

pub(crate) fn error_from_json(text: &str) -> Result<JobError, StoreError> {
    let StoredError { code, message, retryable } = from_json(text)?;
    Ok(JobError { code, message, retryable })
}

/// The settings of a queue that have no column of their own.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<StoredRetry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_s: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    phases: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    kinds: BTreeMap<String, StoredKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<StoredWebhook>,
}

#[derive(Serialize, Deserialize)]
struct StoredWebhook {
    url: String,
    secrets: Vec<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredKind {
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<StoredRetry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_s: Option<i64>,
}

pub(crate) fn settings_to_json(settings: &QueueSettings) -> String {
    let kinds = settings.kinds.iter().map(|(name, kind)| {
        let stored = StoredKind { retry: kind.retry.map(Into::into), timeout_s: kind.timeout_s };
        (name.to_string(), stored)
    });
    to_json(&StoredSettings {
        retry: settings.retry.map(Into::into),
        timeout_s: settings.timeout_s,
        retention_s: settings.retention_s,
        phases: settings.phases.iter().map(Name::to_string).collect(),
        kinds: kinds.collect(),
        webhook: settings.webhook.clone().map(|Webhook { url, secrets }| StoredWebhook { url, secrets }),
    })
}

/// Fills in what `settings_to_json` kept; columns fill in the rest.
pub(crate) fn settings_from_json(text: Option<&str>) -> Result<QueueSettings, StoreError> {
    let Some(text) = text else { return Ok(QueueSettings::default()) };
    let stored: StoredSettings = from_json(text)?;
    let policy = |retry: Option<StoredRetry>| retry.map(StoredRetry::policy).transpose();
    let mut kinds = BTreeMap::new();
    for (name, kind) in stored.kinds {
        kinds.insert(Name::stored(&name), KindSettings { retry: policy(kind.retry)?, timeout_s: kind.timeout_s });
    }
    Ok(QueueSettings {
        retry: policy(stored.retry)?,
        timeout_s: stored.timeout_s,
        retention_s: stored.retention_s,
        phases: stored.phases.iter().map(|name| Name::stored(name)).collect(),
        kinds,
        webhook: stored.webhook.map(|StoredWebhook { url, secrets }| Webhook { url, secrets }),
        ..QueueSettings::default()
    })
}

pub(crate) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data has a JSON form")
}

pub(crate) fn from_json<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text)
        .map_err(|error| StoreError::Unexpected { context: "stored JSON".into(), source: Some(Box::new(error)) })
}
