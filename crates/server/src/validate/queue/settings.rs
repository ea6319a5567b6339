//! Validation of queue settings.

use std::collections::BTreeMap;

use domain::limits::{CONCURRENCY_MAX, REASON_BYTES, TAGS, TIMEOUT_MAX_S, WAIT_MAX_S, WORKER_KINDS};
use domain::{KindSettings, Name, QueueSettings};

use crate::error::ApiError;
use crate::validate::FieldPath;
use crate::validate::triggers::webhook;

/// Maximum rate in jobs per second. A higher limit would have no effect.
const RATE_MAX: f64 = 1_000_000.0;
/// Minimum rate: one job in about four months.
const RATE_MIN: f64 = 0.000_000_1;

pub(crate) fn settings(request: wire::QueueSettings) -> Result<QueueSettings, ApiError> {
    let path = FieldPath::Body;
    let concurrency = |member: &str, value: Option<i64>| {
        value.map(|limit| path.between(member, limit, 1, CONCURRENCY_MAX).map(|limit| limit as u32)).transpose()
    };
    let seconds = |member: &str, value: Option<i64>, least: i64, most: i64| {
        value.map(|seconds| path.between(member, seconds, least, most)).transpose()
    };
    let rate = request.rate_per_s.map(|rate| path.between("rate_per_s", rate, RATE_MIN, RATE_MAX));
    let phases = request.phases.unwrap_or_default();
    path.at_most("phases", phases.len(), TAGS, "names")?;
    let phase = |(number, name): (usize, &String)| path.name(&format!("phases[{number}]"), name);
    Ok(QueueSettings {
        concurrency: concurrency("concurrency", request.concurrency)?,
        per_key: concurrency("per_key", request.per_key)?,
        rate_per_s: rate.transpose()?,
        starvation_s: seconds("starvation_s", request.starvation_s, 0, WAIT_MAX_S)?,
        retry: request.retry.map(|retry| path.retry("retry", retry)).transpose()?,
        timeout_s: seconds("timeout_s", request.timeout_s, 1, TIMEOUT_MAX_S)?,
        retention_s: seconds("retention_s", request.retention_s, 0, WAIT_MAX_S)?,
        phases: phases.iter().enumerate().map(phase).collect::<Result<_, _>>()?,
        kinds: kinds(request.kinds.unwrap_or_default())?,
        webhook: request.webhook.map(|hook| webhook::webhook(path, &hook)).transpose()?,
    })
}

fn kinds(kinds: BTreeMap<String, wire::KindSettings>) -> Result<BTreeMap<Name, KindSettings>, ApiError> {
    let path = FieldPath::Body;
    path.at_most("kinds", kinds.len(), WORKER_KINDS, "kinds")?;
    let kind = |(name, settings): (String, wire::KindSettings)| {
        let member = format!("kinds.{name}");
        let timeout = |seconds| path.between(&format!("{member}.timeout_s"), seconds, 1, TIMEOUT_MAX_S);
        let settings = KindSettings {
            retry: settings.retry.map(|retry| path.retry(&format!("{member}.retry"), retry)).transpose()?,
            timeout_s: settings.timeout_s.map(timeout).transpose()?,
        };
        Ok((path.name(&member, &name)?, settings))
    };
    kinds.into_iter().map(kind).collect()
}

pub(crate) fn reason(reason: Option<String>) -> Result<Option<String>, ApiError> {
    reason.map(|reason| FieldPath::Body.free_text("reason", reason, REASON_BYTES)).transpose()
}

/// The age of the jobs that a prune deletes.
pub(crate) fn older_than_s(request: wire::PruneRequest) -> Result<Option<i64>, ApiError> {
    request.older_than_s.map(|seconds| FieldPath::Body.between("older_than_s", seconds, 0, WAIT_MAX_S)).transpose()
}
