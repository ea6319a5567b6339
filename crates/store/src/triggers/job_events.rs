//! Publishes changes of jobs' states: to webhooks (a delivery each) and to triggers on jobs (an outbox row each), in the
//! transaction of the change. The transition path calls `publish`; both kinds of subscribers get the same body.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use domain::limits::{ARTIFACTS_PER_JOB, WEBHOOK_RESULT_BYTES};
use domain::triggers::trigger::Source;
use domain::{JobId, JobState, Name, TenantId, Time, TraceContext, Webhook};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::db::codec::{from_json, settings_from_json, to_json};
use crate::db::effects::Effects;
use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::Lane;
use crate::queue::traces::traces;
use crate::queue::transition::{StateChange, WebhookInterest};
use crate::triggers::cache::{Listener, Listeners, TriggerCache};
use crate::triggers::deliveries::{NewDelivery, insert};
use crate::triggers::events::{Event, emit};

/// The `webhook` column of a job whose queue has a webhook. A claim reads the queue's settings anyway and stores this
/// mark, so that the end of a job reads the settings only where there is a webhook.
pub(crate) const QUEUE_WEBHOOK: &str = r#"{"queue":true}"#;

/// Writes a delivery for each change that a webhook receives, and an outbox row for each trigger that a change matches.
/// Reads nothing if there is neither.
pub(crate) async fn publish(
    tx: &mut Tx<'_>,
    triggers: &TriggerCache,
    changes: &[StateChange<'_>],
    lanes: &HashMap<i64, Arc<Lane>>,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let listeners = triggers.current(tx).await?;
    let triggered: Vec<&StateChange<'_>> = match listeners.listen_to(Source::Job) {
        true => changes.iter().filter(|change| has_trigger(&listeners, &lanes[&change.lane], change.to)).collect(),
        false => Vec::new(),
    };
    let to_webhook = with_webhook(tx, changes, lanes).await?;
    if triggered.is_empty() && to_webhook.is_empty() {
        return Ok(());
    }
    let jobs = triggered.iter().chain(&to_webhook).map(|change| change.job).collect::<BTreeSet<_>>();
    let mut details: HashMap<JobId, Details> = HashMap::new();
    for row in tx.query_each(&DETAILS, &[Column::jobs(jobs)], &[]).await? {
        details.insert(row.job("id")?, Details::read(&row)?);
    }
    effects.outbox |= emit_events(tx, &listeners, &triggered, &details).await?;
    effects.deliveries |= deliver(tx, &to_webhook, &details).await?;
    Ok(())
}

/// The version of the triggers, if no trigger of that version matches jobs of the lane that enter this state.
pub(crate) fn version_without_trigger(triggers: &TriggerCache, lane: &Lane, to: JobState) -> Option<i64> {
    let (version, listeners) = triggers.cached_at()?;
    (!has_trigger(&listeners, lane, to)).then_some(version)
}

fn has_trigger(listeners: &Listeners, lane: &Lane, to: JobState) -> bool {
    let attribute = |name: &str| match name {
        "queue" => Some(lane.queue.as_str()),
        "kind" => Some(lane.kind.as_str()),
        _ => None,
    };
    let matches = |listener: &Listener| listener.filter.pattern.matches(to.as_str(), attribute);
    listeners.of(lane.tenant, Source::Job).iter().any(matches)
}

/// The changes of jobs that have a webhook, or whose queue may have one.
async fn with_webhook<'c, 'a>(
    tx: &mut Tx<'_>,
    changes: &'c [StateChange<'a>],
    lanes: &HashMap<i64, Arc<Lane>>,
) -> Result<Vec<&'c StateChange<'a>>, StoreError> {
    let queue = |change: &StateChange<'_>| (change.tenant, lanes[&change.lane].queue.clone());
    let undecided = changes.iter().filter(|change| change.webhook == WebhookInterest::AskQueue).map(queue).collect();
    let queues = queue_webhooks(tx, &undecided).await?;
    let has_webhook = |change: &&StateChange<'_>| match change.webhook {
        WebhookInterest::None => false,
        WebhookInterest::Stored => true,
        WebhookInterest::AskQueue => queues.contains_key(&queue(change)),
    };
    Ok(changes.iter().filter(has_webhook).collect())
}

/// A job's `webhook` column.
#[derive(Deserialize)]
struct JobWebhook {
    #[serde(default)]
    url: String,
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    secrets: Vec<String>,
    #[serde(default)]
    queue: bool,
}

impl JobWebhook {
    fn into_webhook(self) -> Webhook {
        Webhook { url: self.url, secrets: self.secret.into_iter().chain(self.secrets).collect() }
    }
}

const DETAILS: Sql = Sql::new(
    &["select id, tenant, queue, kind, affinity, subject, run, error, result, webhook, depth, principal
       from live_jobs where id = $1
       union all
       select id, tenant, queue, kind, affinity, subject, run, error, result, webhook, depth, principal
       from ended_jobs where id = $1"],
    "select id, tenant, queue, kind, affinity, subject, run, error, result, webhook, depth, principal
     from live_jobs where id = any($1::uuid[])
     union all
     select id, tenant, queue, kind, affinity, subject, run, error, result, webhook, depth, principal
     from ended_jobs where id = any($1::uuid[])",
);
const ARTIFACTS: Sql = Sql::new(
    &["select job, name, size, content_type, sha256 from artifacts where job = $1 order by name limit $2"],
    "select a.job, a.name, a.size, a.content_type, a.sha256 from unnest($1::uuid[]) as n(job)
     cross join lateral (select * from artifacts where artifacts.job = n.job order by name limit $2) a",
);
const QUEUE_SETTINGS: Sql = Sql::new(
    &["select tenant, name, settings from queues where tenant = $1 and name = $2"],
    "select q.tenant, q.name, q.settings from unnest($1::bigint[], $2::text[]) as n(tenant, name)
     join queues q on q.tenant = n.tenant and q.name = n.name",
);

/// The body of a state change.
#[derive(Serialize)]
struct ChangeBody<'a> {
    job_id: String,
    state: &'static str,
    previous_state: &'static str,
    timestamp: &'a str,
    queue: &'a str,
    kind: &'a str,
    affinity: Option<&'a str>,
    subject: Option<&'a str>,
    run: Option<&'a str>,
    attempt: i32,
    error: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    /// The path of a result that is too large to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_link: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifacts: Option<&'a [ArtifactNote]>,
}

/// The envelope of a webhook.
#[derive(Serialize)]
struct WebhookBody<'a> {
    r#type: String,
    timestamp: &'a str,
    data: ChangeBody<'a>,
}

#[derive(Serialize)]
struct ArtifactNote {
    name: String,
    size: i64,
    content_type: String,
    sha256: String,
}

/// What the body needs beside the change itself, read after the change.
struct Details {
    tenant: TenantId,
    queue: String,
    kind: String,
    affinity: Option<String>,
    subject: Option<String>,
    run: Option<String>,
    error: Option<String>,
    result: Option<String>,
    webhook: Option<String>,
    depth: i32,
    principal: String,
}

impl Details {
    fn body<'a>(&'a self, change: &StateChange<'_>, at: &'a str) -> Result<ChangeBody<'a>, StoreError> {
        Ok(ChangeBody {
            job_id: change.job.to_string(),
            state: change.to.as_str(),
            previous_state: change.from.as_str(),
            timestamp: at,
            queue: &self.queue,
            kind: &self.kind,
            affinity: self.affinity.as_deref(),
            subject: self.subject.as_deref(),
            run: self.run.as_deref(),
            attempt: change.attempt,
            error: self.error.as_deref().map(raw_json).transpose()?,
            result: self.result.as_deref().map(raw_json).transpose()?,
            result_link: None,
            artifacts: None,
        })
    }
}

async fn emit_events(
    tx: &mut Tx<'_>,
    listeners: &Listeners,
    changes: &[&StateChange<'_>],
    details: &HashMap<JobId, Details>,
) -> Result<bool, StoreError> {
    if changes.is_empty() {
        return Ok(false);
    }
    let at = rfc3339(tx.now());
    let mut events = Vec::with_capacity(changes.len());
    for change in changes {
        let Some(details) = details.get(&change.job) else { continue };
        let data = to_json(&details.body(change, &at)?);
        let event = Event::new(tx.now(), change.tenant, Source::Job, change.to.as_str(), details.depth, data);
        let event = event.with("job_id", change.job.to_string());
        events.push(event.with("queue", details.queue.as_str()).with("kind", details.kind.as_str()));
    }
    Ok(emit(tx, listeners, &events).await? > 0)
}

async fn deliver(
    tx: &mut Tx<'_>,
    changes: &[&StateChange<'_>],
    details: &HashMap<JobId, Details>,
) -> Result<bool, StoreError> {
    if changes.is_empty() {
        return Ok(false);
    }
    let webhooks = webhooks(tx, changes.iter().filter_map(|change| details.get_key_value(&change.job))).await?;
    let artifacts = artifacts(tx, changes).await?;
    let traces = traces(tx, changes.iter().map(|change| change.job)).await?;
    let at = rfc3339(tx.now());
    let mut deliveries = Vec::with_capacity(changes.len());
    for change in changes {
        let Some((details, webhook)) = details.get(&change.job).zip(webhooks.get(&change.job)) else { continue };
        let mut data = details.body(change, &at)?;
        if details.result.as_ref().is_some_and(|result| result.len() > WEBHOOK_RESULT_BYTES) {
            data.result = None;
            data.result_link = Some(format!("/api/v1/jobs/{}", change.job));
        }
        data.artifacts = Some(artifacts.get(&change.job).map_or(&[], Vec::as_slice));
        let body = to_json(&WebhookBody { r#type: format!("job.{}", change.to), timestamp: &at, data });
        deliveries.push(NewDelivery {
            source: "job".into(),
            op: change.to.as_str().into(),
            job: Some(change.job),
            principal: details.principal.clone(),
            depth: details.depth,
            secrets: webhook.secrets.clone(),
            headers: traces.get(&change.job).map(TraceContext::header).into_iter().collect(),
            ..NewDelivery::post(change.tenant, webhook.url.clone(), body)
        });
    }
    Ok(!insert(tx, deliveries).await?.is_empty())
}

/// The webhook of each job: its own, or else its queue's.
async fn webhooks(
    tx: &mut Tx<'_>,
    jobs: impl Iterator<Item = (&JobId, &Details)>,
) -> Result<HashMap<JobId, Webhook>, StoreError> {
    let mut found = HashMap::new();
    let mut of_queue: Vec<(JobId, TenantId, Name)> = Vec::new();
    for (job, details) in jobs {
        let own = details.webhook.as_deref().map(from_json::<JobWebhook>).transpose()?;
        match own.filter(|webhook| !webhook.queue) {
            Some(own) => drop(found.insert(*job, own.into_webhook())),
            None => of_queue.push((*job, details.tenant, Name::stored(&details.queue))),
        }
    }
    let queues: BTreeSet<(TenantId, Name)> =
        of_queue.iter().map(|(_, tenant, queue)| (*tenant, queue.clone())).collect();
    let queues = queue_webhooks(tx, &queues).await?;
    for (job, tenant, queue) in of_queue {
        if let Some(webhook) = queues.get(&(tenant, queue)) {
            found.insert(job, webhook.clone());
        }
    }
    Ok(found)
}

/// Those of the queues that have a webhook.
pub(crate) async fn queue_webhooks(
    tx: &mut Tx<'_>,
    queues: &BTreeSet<(TenantId, Name)>,
) -> Result<BTreeMap<(TenantId, Name), Webhook>, StoreError> {
    let columns = [
        Column::ints(queues.iter().map(|(tenant, _)| tenant.0)),
        Column::texts(queues.iter().map(|(_, queue)| queue.as_str())),
    ];
    let mut found = BTreeMap::new();
    for row in tx.query_each(&QUEUE_SETTINGS, &columns, &[]).await? {
        if let Some(webhook) = settings_from_json(row.opt_text("settings")?.as_deref())?.webhook {
            found.insert((TenantId(row.int("tenant")?), Name::stored(&row.text("name")?)), webhook);
        }
    }
    Ok(found)
}

/// The artifacts of the jobs that ended. A job that goes on has not written all of them.
async fn artifacts(
    tx: &mut Tx<'_>,
    changes: &[&StateChange<'_>],
) -> Result<HashMap<JobId, Vec<ArtifactNote>>, StoreError> {
    let ended = changes.iter().filter(|change| change.to.is_terminal()).map(|change| change.job);
    let limit = Param::Int(ARTIFACTS_PER_JOB as i64);
    let mut found: HashMap<JobId, Vec<ArtifactNote>> = HashMap::new();
    for row in tx.query_each(&ARTIFACTS, &[Column::jobs(ended)], &[limit]).await? {
        let sha256 = row.opt_blob("sha256")?.unwrap_or_default();
        found.entry(row.job("job")?).or_default().push(ArtifactNote {
            name: row.text("name")?,
            size: row.int("size")?,
            content_type: row.text("content_type")?,
            sha256: sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
        });
    }
    Ok(found)
}

fn raw_json(text: &str) -> Result<&RawValue, StoreError> {
    serde_json::from_str(text)
        .map_err(|error| StoreError::Unexpected { context: "stored JSON".into(), source: Some(Box::new(error)) })
}

fn rfc3339(time: Time) -> String {
    jiff::Timestamp::from_microsecond(time.micros()).unwrap_or(jiff::Timestamp::MAX).to_string()
}

impl Details {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            tenant: TenantId(row.int("tenant")?),
            queue: row.text("queue")?,
            kind: row.text("kind")?,
            affinity: row.opt_text("affinity")?.filter(|affinity| !affinity.is_empty()),
            subject: row.opt_text("subject")?,
            run: row.opt_text("run")?,
            error: row.opt_text("error")?,
            result: row.opt_text("result")?,
            webhook: row.opt_text("webhook")?,
            depth: row.int("depth")? as i32,
            principal: row.text("principal")?,
        })
    }
}
