//! Lists deliveries, newest first, and reads one with all its attempts.

use domain::{DeliveryId, JobId, TenantId, Time};
use uuid::Uuid;

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::deliveries::DeliveryState;

#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: DeliveryId,
    /// Position in the listing.
    pub seq: i64,
    pub state: DeliveryState,
    pub source: String,
    pub op: String,
    pub job: Option<JobId>,
    pub trigger: Option<Uuid>,
    pub event: Option<Uuid>,
    pub url: String,
    pub method: String,
    pub attempt: i32,
    pub max_attempts: i32,
    /// HTTP status of the last attempt.
    pub status: Option<u16>,
    pub error: Option<String>,
    pub created_at: Time,
    /// Time of the next attempt.
    pub due_at: Option<Time>,
    pub ended_at: Option<Time>,
    /// End of the open circuit: after too many consecutive failures nothing is sent to the receiver before this time.
    pub circuit_open_until: Option<Time>,
}

#[derive(Clone, Debug)]
pub struct DeliveryAttempt {
    pub attempt: i32,
    pub at: Time,
    pub duration_ms: i64,
    pub status: Option<u16>,
    pub error: Option<String>,
    pub response: Option<String>,
}

#[derive(Clone, Debug)]
pub struct WholeDelivery {
    pub delivery: Delivery,
    pub body: String,
    pub attempts: Vec<DeliveryAttempt>,
}

#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    pub state: Option<DeliveryState>,
    pub job: Option<JobId>,
}

impl Store {
    /// Lists deliveries before position `before`, newest first.
    pub async fn list_deliveries(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        self.read(ListDeliveries { tenant, filter, before, limit }).await
    }

    pub async fn delivery(&self, tenant: TenantId, id: DeliveryId) -> Result<Option<WholeDelivery>, StoreError> {
        self.read(GetDelivery { tenant, id }).await
    }
}

struct ListDeliveries {
    tenant: TenantId,
    filter: DeliveryFilter,
    before: Option<i64>,
    limit: usize,
}

const ALL: Sql =
    Sql::both(&["select d.id, d.seq, d.state, d.leased_at, d.source, d.op, d.job, d.trigger_id, d.event_id,
         d.url, d.method, d.attempt, d.max_attempts, d.status, d.error, d.created_at, d.due_at, d.ended_at, e.open_until
     from deliveries d left join endpoints e on e.id = d.endpoint
     where d.tenant = $1 and d.seq < $2 order by d.seq desc limit $3"]);
const OF_STATE: Sql = Sql::both(&["select d.id, d.seq, d.state, d.leased_at, d.source, d.op, d.job, d.trigger_id,
         d.event_id, d.url, d.method, d.attempt, d.max_attempts, d.status, d.error, d.created_at, d.due_at, d.ended_at,
         e.open_until
     from deliveries d left join endpoints e on e.id = d.endpoint
     where d.tenant = $1 and d.state = $4 and d.seq < $2 and ($5 = 0 or (d.leased_at is not null) = ($5 = 2))
     order by d.seq desc limit $3"]);
const OF_JOB: Sql = Sql::both(&["select d.id, d.seq, d.state, d.leased_at, d.source, d.op, d.job, d.trigger_id,
         d.event_id, d.url, d.method, d.attempt, d.max_attempts, d.status, d.error, d.created_at, d.due_at, d.ended_at,
         e.open_until
     from deliveries d left join endpoints e on e.id = d.endpoint
     where d.tenant = $1 and d.job = $6 and d.seq < $2 and ($4 = '' or d.state = $4)
         and ($5 = 0 or (d.leased_at is not null) = ($5 = 2))
     order by d.seq desc limit $3"]);
// One statement, so that the delivery and its attempts are of one snapshot on PostgreSQL.
const ONE: Sql = Sql::both(&["select d.id, d.seq, d.state, d.leased_at, d.source, d.op, d.job, d.trigger_id, d.event_id,
         d.url, d.method, d.attempt, d.max_attempts, d.status, d.error, d.created_at, d.due_at, d.ended_at, e.open_until,
         a.attempt as attempted, a.at as attempted_at, a.duration_ms, a.status as attempt_status,
         a.error as attempt_error, a.response
     from deliveries d left join endpoints e on e.id = d.endpoint left join delivery_attempts a on a.delivery = d.id
     where d.id = $1 and d.tenant = $2 order by a.attempt"]);
const BODY: Sql = Sql::both(&["select body from deliveries where id = $1 and tenant = $2"]);

impl Operation for ListDeliveries {
    type Output = Vec<Delivery>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Delivery>, StoreError> {
        let before = self.before.unwrap_or(i64::MAX);
        let page = [Param::Int(self.tenant.0), Param::Int(before), Param::Int(self.limit as i64)];
        let [tenant, before, limit] = page;
        // A delivery with an attempt in progress is stored as pending, with a lease.
        let (stored, leased) = match self.filter.state {
            None => ("", 0),
            Some(DeliveryState::Pending) => ("pending", 1),
            Some(DeliveryState::Delivering) => ("pending", 2),
            Some(ended) => (ended.as_str(), 0),
        };
        let (stored, leased) = (Param::Text(stored), Param::Int(leased));
        let rows = match (self.filter.job, self.filter.state) {
            (Some(job), _) => tx.query(&OF_JOB, &[tenant, before, limit, stored, leased, Param::from(job)]).await?,
            (None, Some(_)) => tx.query(&OF_STATE, &[tenant, before, limit, stored, leased]).await?,
            (None, None) => tx.query(&ALL, &page).await?,
        };
        rows.iter().map(read).collect()
    }
}

struct GetDelivery {
    tenant: TenantId,
    id: DeliveryId,
}

impl Operation for GetDelivery {
    type Output = Option<WholeDelivery>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<WholeDelivery>, StoreError> {
        find(tx, self.tenant, self.id).await
    }
}

pub(crate) async fn find(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeliveryId,
) -> Result<Option<WholeDelivery>, StoreError> {
    let params = [Param::Uuid(id.uuid()), Param::Int(tenant.0)];
    let rows = tx.query(&ONE, &params).await?;
    let (Some(first), Some(body)) = (rows.first(), tx.query_opt(&BODY, &params).await?) else { return Ok(None) };
    let attempts = rows.iter().map(attempt).filter_map(Result::transpose).collect::<Result<_, StoreError>>()?;
    Ok(Some(WholeDelivery { delivery: read(first)?, body: body.text("body")?, attempts }))
}

/// The attempt of a row, or `None` for a delivery without attempts.
fn attempt(row: &Row) -> Result<Option<DeliveryAttempt>, StoreError> {
    let Some(attempt) = row.opt_int("attempted")? else { return Ok(None) };
    Ok(Some(DeliveryAttempt {
        attempt: attempt as i32,
        at: row.time("attempted_at")?,
        duration_ms: row.int("duration_ms")?,
        status: row.opt_int("attempt_status")?.map(|status| status as u16),
        error: row.opt_text("attempt_error")?,
        response: row.opt_text("response")?,
    }))
}

fn read(row: &Row) -> Result<Delivery, StoreError> {
    let state = row.text("state")?;
    let state = match DeliveryState::parse(&state) {
        Some(DeliveryState::Pending) if row.opt_time("leased_at")?.is_some() => DeliveryState::Delivering,
        Some(state) => state,
        None => return Err(StoreError::unexpected(format!("delivery state {state}"))),
    };
    Ok(Delivery {
        id: DeliveryId::new(row.uuid("id")?),
        seq: row.int("seq")?,
        state,
        source: row.text("source")?,
        op: row.text("op")?,
        job: row.opt_uuid("job")?.map(JobId::new),
        trigger: row.opt_uuid("trigger_id")?,
        event: row.opt_uuid("event_id")?,
        url: row.text("url")?,
        method: row.text("method")?,
        attempt: row.int("attempt")? as i32,
        max_attempts: row.int("max_attempts")? as i32,
        status: row.opt_int("status")?.map(|status| status as u16),
        error: row.opt_text("error")?,
        created_at: row.time("created_at")?,
        due_at: row.opt_time("due_at")?.filter(|_| state == DeliveryState::Pending),
        ended_at: row.opt_time("ended_at")?,
        circuit_open_until: row.opt_time("open_until")?.filter(|_| state == DeliveryState::Pending),
    })
}
