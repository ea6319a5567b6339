//! Converts values to and from their stored JSON: retry policies, job errors, queue settings.

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
            .map_err(|error| StoreError::unexpected(format!("invalid stored retry policy: {error}")))
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

/// Makes an error storable on both databases: replaces NUL, which PostgreSQL rejects in text, and truncates the message
/// to `ERROR_MESSAGE_BYTES`. Workers and scripts may send any text, and a rejected error would leave the attempt
/// neither counted nor ended.
pub(crate) fn storable_error(error: &JobError) -> JobError {
    let mut message = error.message.replace('\0', "\u{fffd}");
    message.truncate(message.floor_char_boundary(ERROR_MESSAGE_BYTES));
    JobError { message, ..error.clone() }
}

/// Serializes an error after making it storable.
pub(crate) fn error_to_json(error: &JobError) -> String {
    let JobError { code, message, retryable } = storable_error(error);
    to_json(&StoredError { code, message, retryable })
}

pub(crate) fn error_from_json(text: &str) -> Result<JobError, StoreError> {
    let StoredError { code, message, retryable } = from_json(text)?;
    Ok(JobError { code, message, retryable })
}

/// The queue settings that have no column of their own.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredQueueSettings {
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
    to_json(&StoredQueueSettings {
        retry: settings.retry.map(Into::into),
        timeout_s: settings.timeout_s,
        retention_s: settings.retention_s,
        phases: settings.phases.iter().map(Name::to_string).collect(),
        kinds: kinds.collect(),
        webhook: settings.webhook.clone().map(|Webhook { url, secrets }| StoredWebhook { url, secrets }),
    })
}

/// Reads the settings written by [`settings_to_json`]. The caller fills in the settings that have columns of their own.
pub(crate) fn settings_from_json(text: Option<&str>) -> Result<QueueSettings, StoreError> {
    let Some(text) = text else { return Ok(QueueSettings::default()) };
    let stored: StoredQueueSettings = from_json(text)?;
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

/// Serializes a value of a type that always has a JSON form.
pub(crate) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("stored types serialize to JSON")
}

/// Parses stored JSON.
pub(crate) fn from_json<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Unexpected {
        context: "invalid stored JSON".into(),
        source: Some(Box::new(error)),
    })
}
