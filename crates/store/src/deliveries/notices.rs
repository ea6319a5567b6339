//! Changes of a job's state become deliveries to its webhook, or to its queue's, in the transaction of the change (Q10).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::limits::{ARTIFACTS_PER_JOB, WEBHOOK_RESULT_BYTES};
use domain::{JobId, JobState, Name, TenantId, Time, Webhook};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::codec::{from_json, settings_from_json, to_json};
use crate::deliveries::{NewDelivery, insert};
use crate::error::StoreError;
use crate::tx::{Column, Param, Row, Sql, Tx};

/// What stands in a job's row when its queue's webhook applies: the claim, which reads the queue's settings anyway, puts
/// it there, so that the end of the job need not read them where there is nothing to tell.
pub(crate) const QUEUES_OWN: &str = r#"{"queue":true}"#;

/// A change of state that someone may have asked to hear of.
pub(crate) struct Notice {
    pub(crate) tenant: TenantId,
    pub(crate) job: JobId,
    pub(crate) from: JobState,
    pub(crate) to: JobState,
    pub(crate) attempt: i32,
}

/// A job's `webhook` column.
#[derive(Deserialize)]
struct StoredWebhook {
    #[serde(default)]
    url: String,
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    secrets: Vec<String>,
    #[serde(default)]
    queue: bool,
}

impl StoredWebhook {
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

/// What a receiver is told.
#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    timestamp: &'a str,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
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
    /// Where a result is that is too large to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_link: Option<String>,
    artifacts: &'a [ArtifactNote],
}

#[derive(Serialize)]
struct ArtifactNote {
    name: String,
    size: i64,
    content_type: String,
    sha256: String,
}

/// What of a job a notice tells.
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

/// Writes a delivery for each notice that has somewhere to go, and tells how many there are.
pub(crate) async fn write(tx: &mut Tx<'_>, notices: &[Notice]) -> Result<usize, StoreError> {
    if notices.is_empty() {
        return Ok(0);
    }
    let mut details: HashMap<JobId, Details> = HashMap::new();
    for row in tx.query_each(&DETAILS, &[Column::jobs(notices.iter().map(|notice| notice.job))], &[]).await? {
        details.insert(row.job(0)?, Details::read(&row)?);
    }
    let webhooks = webhooks(tx, &details).await?;
    let told: Vec<&Notice> = notices.iter().filter(|notice| webhooks.contains_key(&notice.job)).collect();
    let artifacts = artifacts(tx, &told).await?;
    let at = rfc3339(tx.now());
    let mut deliveries = Vec::with_capacity(told.len());
    for notice in told {
        let (details, webhook) = (&details[&notice.job], &webhooks[&notice.job]);
        let body = body(notice, details, artifacts.get(&notice.job).map_or(&[], Vec::as_slice), &at)?;
        deliveries.push(NewDelivery {
            source: "job".into(),
            op: notice.to.as_str().into(),
            job: Some(notice.job),
            principal: details.principal.clone(),
            depth: details.depth,
            secrets: webhook.secrets.clone(),
            ..NewDelivery::post(notice.tenant, webhook.url.clone(), body)
        });
    }
    Ok(insert(tx, deliveries).await?.len())
}

/// Where each job's notices go: to its own webhook, or else to its queue's.
async fn webhooks(tx: &mut Tx<'_>, details: &HashMap<JobId, Details>) -> Result<HashMap<JobId, Webhook>, StoreError> {
    let mut found = HashMap::new();
    let mut of_queue: Vec<(JobId, TenantId, Name)> = Vec::new();
    for (job, details) in details {
        let own = details.webhook.as_deref().map(from_json::<StoredWebhook>).transpose()?;
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

/// The queues among these that have a webhook.
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
        if let Some(webhook) = settings_from_json(row.opt_text(2)?.as_deref())?.webhook {
            found.insert((TenantId(row.int(0)?), Name::stored(&row.text(1)?)), webhook);
        }
    }
    Ok(found)
}

/// Only what has ended has all its artifacts.
async fn artifacts(tx: &mut Tx<'_>, notices: &[&Notice]) -> Result<HashMap<JobId, Vec<ArtifactNote>>, StoreError> {
    let ended = notices.iter().filter(|notice| notice.to.is_terminal()).map(|notice| notice.job);
    let limit = Param::Int(ARTIFACTS_PER_JOB as i64);
    let mut found: HashMap<JobId, Vec<ArtifactNote>> = HashMap::new();
    for row in tx.query_each(&ARTIFACTS, &[Column::jobs(ended)], &[limit]).await? {
        let sha256 = row.opt_blob(4)?.unwrap_or_default();
        found.entry(row.job(0)?).or_default().push(ArtifactNote {
            name: row.text(1)?,
            size: row.int(2)?,
            content_type: row.text(3)?,
            sha256: sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
        });
    }
    Ok(found)
}

fn body(notice: &Notice, details: &Details, artifacts: &[ArtifactNote], at: &str) -> Result<String, StoreError> {
    let large = details.result.as_ref().is_some_and(|result| result.len() > WEBHOOK_RESULT_BYTES);
    let result = details.result.as_deref().filter(|_| !large);
    Ok(to_json(&Body {
        r#type: format!("job.{}", notice.to),
        timestamp: at,
        data: Data {
            job_id: notice.job.to_string(),
            state: notice.to.as_str(),
            previous_state: notice.from.as_str(),
            timestamp: at,
            queue: &details.queue,
            kind: &details.kind,
            affinity: details.affinity.as_deref(),
            subject: details.subject.as_deref(),
            run: details.run.as_deref(),
            attempt: notice.attempt,
            error: details.error.as_deref().map(from_raw).transpose()?,
            result: result.map(from_raw).transpose()?,
            result_link: large.then(|| format!("/api/v1/jobs/{}", notice.job)),
            artifacts,
        },
    }))
}

fn from_raw(text: &str) -> Result<&RawValue, StoreError> {
    serde_json::from_str(text)
        .map_err(|error| StoreError::Unexpected { context: "stored JSON".into(), source: Some(Box::new(error)) })
}

fn rfc3339(time: Time) -> String {
    jiff::Timestamp::from_microsecond(time.micros()).unwrap_or(jiff::Timestamp::MAX).to_string()
}

impl Details {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            tenant: TenantId(row.int(1)?),
            queue: row.text(2)?,
            kind: row.text(3)?,
            affinity: row.opt_text(4)?.filter(|affinity| !affinity.is_empty()),
            subject: row.opt_text(5)?,
            run: row.opt_text(6)?,
            error: row.opt_text(7)?,
            result: row.opt_text(8)?,
            webhook: row.opt_text(9)?,
            depth: row.int(10)? as i32,
            principal: row.text(11)?,
        })
    }
}
