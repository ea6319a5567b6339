//! Changes of jobs as events, for triggers that listen to jobs. Without one of them nothing is read and nothing written.

use domain::trigger::Source;
use domain::{JobId, JobState, Name, TenantId};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::lanes::Lane;
use crate::triggers::cache::{Listener, Listeners, TriggerCache};
use crate::tx::{Column, Sql, Tx};

/// A change of a job's state.
pub(crate) struct JobChange {
    pub(crate) tenant: TenantId,
    pub(crate) job: JobId,
    pub(crate) queue: Name,
    pub(crate) kind: Name,
    pub(crate) from: JobState,
    pub(crate) to: JobState,
    pub(crate) attempt: i32,
}

// Only what a trigger listens to is looked up: the job's row as it is after the change.
const DETAILS: Sql = Sql::new(
    &["select id, affinity, subject, run, error, result, depth from live_jobs where id = $1
       union all select id, affinity, subject, run, error, result, depth from ended_jobs where id = $1"],
    "select id, affinity, subject, run, error, result, depth from live_jobs where id = any($1::uuid[])
     union all select id, affinity, subject, run, error, result, depth from ended_jobs where id = any($1::uuid[])",
);

#[derive(Serialize)]
struct Data<'a> {
    job_id: String,
    queue: &'a str,
    kind: &'a str,
    state: &'static str,
    previous_state: &'static str,
    attempt: i32,
    affinity: Option<&'a str>,
    subject: Option<&'a str>,
    run: Option<&'a str>,
    error: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
}

/// Writes outbox rows for the changes that a trigger listens to. Gives whether there were any.
///
/// The iterator is only run when the tenant has such a trigger at all.
pub(crate) async fn changed(
    tx: &mut Tx<'_>,
    triggers: &TriggerCache,
    changes: impl Iterator<Item = JobChange>,
) -> Result<bool, StoreError> {
    let listeners = triggers.current(tx).await?;
    if !listeners.listen_to(Source::Job) {
        return Ok(false);
    }
    let heard: Vec<JobChange> = changes.filter(|change| is_heard(&listeners, change)).collect();
    if heard.is_empty() {
        return Ok(false);
    }
    let rows = tx.query_each(&DETAILS, &[Column::jobs(heard.iter().map(|change| change.job))], &[]).await?;
    let mut details = HashMap::new();
    for row in &rows {
        details.insert(row.job(0)?, row);
    }
    let mut events = Vec::with_capacity(heard.len());
    for change in &heard {
        let Some(row) = details.get(&change.job) else { continue };
        let raw = |column| row.opt_text(column).map(|text| text.and_then(|text| RawValue::from_string(text).ok()));
        let (affinity, subject, run) = (row.opt_text(1)?, row.opt_text(2)?, row.opt_text(3)?);
        let (error, result) = (raw(4)?, raw(5)?);
        let data = Data {
            job_id: change.job.to_string(),
            queue: change.queue.as_str(),
            kind: change.kind.as_str(),
            state: change.to.as_str(),
            previous_state: change.from.as_str(),
            attempt: change.attempt,
            affinity: affinity.as_deref().filter(|affinity| !affinity.is_empty()),
            subject: subject.as_deref(),
            run: run.as_deref(),
            error: error.as_deref(),
            result: result.as_deref(),
        };
        let data = crate::codec::to_json(&data);
        let event = Event::new(tx.now(), change.tenant, Source::Job, change.to.as_str(), row.int(6)? as i32, data);
        let event = event.with("job_id", change.job.to_string());
        events.push(event.with("queue", change.queue.as_str()).with("kind", change.kind.as_str()));
    }
    Ok(emit(tx, &listeners, &events).await? > 0)
}

fn is_heard(listeners: &Listeners, change: &JobChange) -> bool {
    hear(listeners, change.tenant, &change.queue, &change.kind, change.to)
}

fn hear(listeners: &Listeners, tenant: TenantId, queue: &Name, kind: &Name, to: JobState) -> bool {
    let attribute = |name: &str| match name {
        "queue" => Some(queue.as_str()),
        "kind" => Some(kind.as_str()),
        _ => None,
    };
    let pattern = |listener: &Listener| listener.filter.pattern.matches(to.as_str(), attribute);
    listeners.of(tenant, Source::Job).iter().any(pattern)
}

/// The clock of the triggers, if at that time nobody listened to jobs of the lane that go into this state.
pub(crate) fn unheard(triggers: &TriggerCache, tenant: TenantId, lane: &Lane, to: JobState) -> Option<i64> {
    let (version, listeners) = triggers.last_known_at()?;
    (!hear(&listeners, tenant, &lane.queue, &lane.kind, to)).then_some(version)
}
