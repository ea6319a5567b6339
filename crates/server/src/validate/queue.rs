//! What a queue may be told.

use std::collections::BTreeMap;

use domain::limits::{CONCURRENCY_MAX, REASON_BYTES, TAGS, TIMEOUT_S_MAX, WAIT_S_MAX, WORKER_KINDS};
use domain::{KindSettings, Name, QueueSettings};

use super::{Place, webhook};
use crate::error::ApiError;

/// Jobs that may start in a second, at most: beyond it a limit is no limit.
const RATE_MAX: f64 = 1_000_000.0;
/// One start in about four months.
const RATE_MIN: f64 = 0.000_000_1;

pub(crate) fn settings(request: wire::QueueSettings) -> Result<QueueSettings, ApiError> {
    let place = Place::Body;
    let places = |member: &str, value: Option<i64>| {
        value.map(|limit| place.between(member, limit, 1, CONCURRENCY_MAX).map(|limit| limit as u32)).transpose()
    };
    let seconds = |member: &str, value: Option<i64>, least: i64, most: i64| {
        value.map(|seconds| place.between(member, seconds, least, most)).transpose()
    };
    let rate = request.rate_per_s.map(|rate| place.between("rate_per_s", rate, RATE_MIN, RATE_MAX));
    let phases = request.phases.unwrap_or_default();
    place.at_most("phases", phases.len(), TAGS, "names")?;
    let phase = |(number, name): (usize, &String)| place.name(&format!("phases[{number}]"), name);
    Ok(QueueSettings {
        concurrency: places("concurrency", request.concurrency)?,
        per_key: places("per_key", request.per_key)?,
        rate_per_s: rate.transpose()?,
        starvation_s: seconds("starvation_s", request.starvation_s, 0, WAIT_S_MAX)?,
        retry: request.retry.map(|retry| place.retry("retry", retry)).transpose()?,
        timeout_s: seconds("timeout_s", request.timeout_s, 1, TIMEOUT_S_MAX)?,
        retention_s: seconds("retention_s", request.retention_s, 0, WAIT_S_MAX)?,
        phases: phases.iter().enumerate().map(phase).collect::<Result<_, _>>()?,
        kinds: kinds(request.kinds.unwrap_or_default())?,
        webhook: request.webhook.map(|hook| webhook::webhook(place, &hook)).transpose()?,
    })
}

fn kinds(kinds: BTreeMap<String, wire::KindSettings>) -> Result<BTreeMap<Name, KindSettings>, ApiError> {
    let place = Place::Body;
    place.at_most("kinds", kinds.len(), WORKER_KINDS, "kinds")?;
    let kind = |(name, settings): (String, wire::KindSettings)| {
        let member = format!("kinds.{name}");
        let timeout = |seconds| place.between(&format!("{member}.timeout_s"), seconds, 1, TIMEOUT_S_MAX);
        let settings = KindSettings {
            retry: settings.retry.map(|retry| place.retry(&format!("{member}.retry"), retry)).transpose()?,
            timeout_s: settings.timeout_s.map(timeout).transpose()?,
        };
        Ok((place.name(&member, &name)?, settings))
    };
    kinds.into_iter().map(kind).collect()
}

pub(crate) fn reason(reason: Option<String>) -> Result<Option<String>, ApiError> {
    reason.map(|reason| Place::Body.words("reason", reason, REASON_BYTES)).transpose()
}
