//! Inserts deliveries in the transaction of their cause: a request is sent if and only if that transaction commits.

use std::collections::{BTreeMap, BTreeSet};

use domain::limits::{DELIVERY_ATTEMPTS, DELIVERY_GIVE_UP_S, DELIVERY_TIMEOUT_MS};
use domain::{DeliveryId, JobId, RetryPolicy, TenantId};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::codec::{retry_to_json, to_json};
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;

/// A request to send. The caller has validated it, except for the destination address, which is checked when it is sent.
#[derive(Clone, Debug)]
pub struct NewDelivery {
    pub tenant: TenantId,
    /// Source of the event: `job`, `kv`, `pubsub`, …
    pub source: String,
    /// Operation of the event: `succeeded`, `set`, …
    pub op: String,
    pub job: Option<JobId>,
    pub trigger: Option<Uuid>,
    pub event: Option<Uuid>,
    /// The dead letter that this request handles.
    pub dead_letter: Option<Uuid>,
    pub principal: String,
    /// Trigger depth. It is sent to the receiver, so that a call back to this server continues the count.
    pub depth: i32,
    pub url: String,
    pub method: String,
    pub headers: Vec<(String, String)>,
    /// `whsec_…`. Each adds a signature. Without a secret the request is not signed.
    pub secrets: Vec<String>,
    /// JSON, sent verbatim.
    pub body: String,
    pub timeout_ms: i64,
    pub retry: RetryPolicy,
    pub max_attempts: i32,
}

impl NewDelivery {
    /// Creates a POST of JSON with the default settings of a webhook.
    pub fn post(tenant: TenantId, url: String, body: String) -> Self {
        Self {
            tenant,
            source: String::new(),
            op: String::new(),
            job: None,
            trigger: None,
            event: None,
            dead_letter: None,
            principal: String::new(),
            depth: 0,
            url,
            method: "POST".into(),
            headers: Vec::new(),
            secrets: Vec::new(),
            body,
            timeout_ms: DELIVERY_TIMEOUT_MS,
            retry: RetryPolicy::DELIVERY,
            max_attempts: DELIVERY_ATTEMPTS,
        }
    }
}

const FIND_ENDPOINT: Sql = Sql::new(
    &["select id, tenant, origin from endpoints where tenant = $1 and origin = $2"],
    "select e.id, e.tenant, e.origin from unnest($1::bigint[], $2::text[]) as n(tenant, origin)
     join endpoints e on e.tenant = n.tenant and e.origin = n.origin",
);
const MAKE_ENDPOINT: Sql = Sql::new(
    &["insert into endpoints (tenant, origin, created_at) values ($1, $2, $3) on conflict do nothing"],
    "insert into endpoints (tenant, origin, created_at)
     select n.tenant, n.origin, $3 from unnest($1::bigint[], $2::text[]) as n(tenant, origin)
     order by n.tenant, n.origin on conflict do nothing",
);
const INSERT: Sql = Sql::new(
    &["insert into deliveries (id, tenant, endpoint, source, op, job, trigger_id, event_id, dead_letter, principal, depth,
           url, method, headers, secrets, body, timeout_ms, retry, max_attempts, tries_left, state, created_at, due_at,
           give_up_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $19, 'pending',
           $20, $20, $21)"],
    "insert into deliveries (id, tenant, endpoint, source, op, job, trigger_id, event_id, dead_letter, principal, depth,
         url, method, headers, secrets, body, timeout_ms, retry, max_attempts, tries_left, state, created_at, due_at,
         give_up_at)
     select n.id, n.tenant, n.endpoint, n.source, n.op, n.job, n.trigger_id, n.event_id, n.dead_letter, n.principal,
         n.depth, n.url, n.method, n.headers, n.secrets, n.body, n.timeout_ms, n.retry, n.max_attempts, n.max_attempts,
         'pending', $20::timestamptz, $20::timestamptz, $21
     from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::uuid[], $7::uuid[], $8::uuid[],
         $9::uuid[], $10::text[], $11::bigint[], $12::text[], $13::text[], $14::json[], $15::json[], $16::text[],
         $17::bigint[], $18::json[], $19::bigint[])
         with ordinality as n(id, tenant, endpoint, source, op, job, trigger_id, event_id, dead_letter, principal, depth,
             url, method, headers, secrets, body, timeout_ms, retry, max_attempts, place)
     order by n.place",
);

/// Inserts the deliveries and returns their ids in order. After the commit the caller notifies `Topic::Deliveries`.
pub async fn insert(tx: &mut Tx<'_>, deliveries: Vec<NewDelivery>) -> Result<Vec<DeliveryId>, StoreError> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    let deliveries: Vec<NewDelivery> = deliveries.into_iter().map(storable).collect();
    let now = tx.now();
    let origins: Vec<String> = deliveries.iter().map(|delivery| origin(&delivery.url)).collect();
    let endpoints = endpoints(tx, &deliveries, &origins).await?;
    let ids: Vec<Uuid> = deliveries.iter().map(|_| new_uuid(now)).collect();
    let headers: Vec<String> = deliveries.iter().map(|delivery| to_json(&delivery.headers)).collect();
    let secrets: Vec<String> = deliveries.iter().map(|delivery| to_json(&delivery.secrets)).collect();
    let retries: Vec<String> = deliveries.iter().map(|delivery| retry_to_json(delivery.retry)).collect();
    let of = || deliveries.iter();
    let columns = [
        Column::uuids(ids.iter().copied()),
        Column::ints(of().map(|delivery| delivery.tenant.0)),
        Column::ints(of().zip(&origins).map(|(delivery, origin)| endpoints[&(delivery.tenant.0, origin.clone())])),
        Column::texts(of().map(|delivery| delivery.source.as_str())),
        Column::texts(of().map(|delivery| delivery.op.as_str())),
        Column::Uuid(of().map(|delivery| delivery.job.map(JobId::uuid)).collect()),
        Column::Uuid(of().map(|delivery| delivery.trigger).collect()),
        Column::Uuid(of().map(|delivery| delivery.event).collect()),
        Column::Uuid(of().map(|delivery| delivery.dead_letter).collect()),
        Column::texts(of().map(|delivery| delivery.principal.as_str())),
        Column::ints(of().map(|delivery| i64::from(delivery.depth))),
        Column::texts(of().map(|delivery| delivery.url.as_str())),
        Column::texts(of().map(|delivery| delivery.method.as_str())),
        Column::Json(headers.iter().map(|text| Some(text.as_str())).collect()),
        Column::Json(secrets.iter().map(|text| Some(text.as_str())).collect()),
        Column::texts(of().map(|delivery| delivery.body.as_str())),
        Column::ints(of().map(|delivery| delivery.timeout_ms)),
        Column::Json(retries.iter().map(|text| Some(text.as_str())).collect()),
        Column::ints(of().map(|delivery| i64::from(delivery.max_attempts))),
    ];
    let params = [Param::Time(now), Param::Time(now.plus_s(DELIVERY_GIVE_UP_S))];
    tx.execute_each(&INSERT, &columns, &params).await?;
    Ok(ids.into_iter().map(DeliveryId::new).collect())
}

/// Removes NUL characters, which PostgreSQL rejects in text. A URL stored by an older version can contain one. It must not
/// fail the transaction, which may include many other jobs.
fn storable(mut delivery: NewDelivery) -> NewDelivery {
    let NewDelivery { source, op, principal, url, method, body, .. } = &mut delivery;
    for text in [source, op, principal, url, method, body] {
        if text.contains('\0') {
            text.retain(|c| c != '\0');
        }
    }
    delivery
}

/// Returns the endpoint of a URL: scheme, host and port. Circuits and concurrency limits apply per endpoint.
fn origin(url: &str) -> String {
    reqwest::Url::parse(url).map_or_else(|_| "none".into(), |url| url.origin().ascii_serialization())
}

/// Returns the ids of the endpoints. Inserts missing ones.
async fn endpoints(
    tx: &mut Tx<'_>,
    deliveries: &[NewDelivery],
    origins: &[String],
) -> Result<BTreeMap<(i64, String), i64>, StoreError> {
    let mut missing: BTreeSet<(i64, &str)> =
        deliveries.iter().zip(origins).map(|(delivery, origin)| (delivery.tenant.0, origin.as_str())).collect();
    let mut found = BTreeMap::new();
    let now = Param::Time(tx.now());
    for round in 0..2 {
        let columns =
            [Column::ints(missing.iter().map(|(tenant, _)| *tenant)), Column::texts(missing.iter().map(|(_, o)| *o))];
        if round == 1 {
            tx.execute_each(&MAKE_ENDPOINT, &columns, &[now]).await?;
        }
        for row in tx.query_each(&FIND_ENDPOINT, &columns, &[]).await? {
            found.insert((row.int("tenant")?, row.text("origin")?), row.int("id")?);
        }
        missing.retain(|(tenant, origin)| !found.contains_key(&(*tenant, (*origin).to_owned())));
        if missing.is_empty() {
            return Ok(found);
        }
    }
    Err(StoreError::unexpected("an endpoint is missing"))
}
